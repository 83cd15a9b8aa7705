// See plugins.h.
#include "lanes/xla/plugins.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "lanes/xla/pjrt/elf.h"
#include "lanes/xla/pjrt/find_plugins.h"

namespace tessera::lanes::xla {
namespace {

std::string_view HowToGet(TargetKind kind) {
  return kind == TargetKind::kTpu ? "script/setup --tpu installs Google's compiler"
                                  : "script/setup --xla installs the one for CPUs";
}

// How the folders of plugins for a kind of target begin.
std::vector<std::string_view> NamesFor(TargetKind kind) {
  switch (kind) {
    case TargetKind::kCpu:
      return {"xla-cpu-pjrt"};
    case TargetKind::kGpu:
      return {"jax-cuda", "xla-cuda", "jax-rocm"};
    case TargetKind::kTpu:
      return {"libtpu"};
  }
  return {};
}

std::string_view ToText(TargetKind kind) {
  return kind == TargetKind::kCpu ? "cpu" : kind == TargetKind::kGpu ? "gpu" : "tpu";
}

// The last in order of name is the newest version.
PluginChoice FindInstalled(TargetKind kind) {
  const std::vector<pjrt::FoundPlugin> found = pjrt::FindPlugins();
  const std::vector<std::string_view> names = NamesFor(kind);
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    const auto fits = [&](std::string_view name) { return it->name.rfind(name, 0) == 0; };
    if (std::any_of(names.begin(), names.end(), fits)) return {Decision::Yes(), it->path, it->name};
  }
  return {Decision::No(ReasonCode::kXlaNoPlugin,
                       fmt::format("none for a {} in {}; {}", ToText(kind), pjrt::XlaFolder(), HowToGet(kind))),
          "", ""};
}

Decision CheckHost(TargetKind kind, Purpose purpose) {
  if (kind == TargetKind::kTpu && purpose == Purpose::kRun && !HasTpu()) {
    return Decision::No(ReasonCode::kXlaCompileOnly, "this machine has no TPU; `tessera compile` compiles for one");
  }
  if (kind == TargetKind::kCpu && Guard().state == CpuGuardState::kRefused) {
    return Decision::No(ReasonCode::kXlaSveHidden, Guard().reason);
  }
  return Decision::Yes();
}

}  // namespace

bool HasTpu() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/accel0", ignored) || std::filesystem::exists("/dev/vfio/0", ignored);
}

bool IsTpuPlugin(const std::string& name, const std::string& path) {
  return name.rfind("libtpu", 0) == 0 || std::filesystem::path(path).filename() == "libtpu.so";
}

const CpuGuard& Guard() {
  static const CpuGuard kGuard = AskCpuGuard();
  return kGuard;
}

std::string GuardText() {
  return Guard().state == CpuGuardState::kNotNeeded
             ? "not needed"
             : (Guard().state == CpuGuardState::kActive ? "active: " : "refused: ") + Guard().reason;
}

PluginChoice ChoosePlugin(const XlaOptions& options, TargetKind kind, Purpose purpose) {
  PluginChoice choice{Decision::Yes(), options.plugin, "given"};
  if (options.plugin.empty()) choice = FindInstalled(kind);
  if (!choice.decision.accepted) return choice;
  const Status is_loadable = pjrt::CheckSharedObject(choice.path);
  choice.decision =
      is_loadable ? CheckHost(kind, purpose) : Decision::No(ReasonCode::kXlaPlugin, is_loadable.error().message);
  return choice;
}

bool Fits(const std::string& platform, TargetKind kind) {
  switch (kind) {
    case TargetKind::kCpu:
      return platform == "cpu";
    case TargetKind::kGpu:
      return platform == "cuda" || platform == "rocm" || platform == "gpu";
    case TargetKind::kTpu:
      return platform == "tpu";
  }
  return false;
}

namespace {

// Loads what the choice says and checks that it is of the kind.
Decision OpenClient(const XlaOptions& options, TargetKind kind, pjrt::Client** opened) {
  const PluginChoice choice = ChoosePlugin(options, kind);
  if (!choice.decision.accepted) return choice.decision;
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(choice.path);
  if (!plugin) return Decision::No(ReasonCode::kXlaPlugin, plugin.error().message);
  const Result<pjrt::Client*> client = pjrt::Client::Get(**plugin);
  if (!client) return Decision::No(ReasonCode::kXlaPlugin, client.error().message);
  if (!Fits((*client)->platform(), kind)) {
    return Decision::No(ReasonCode::kXlaPlatform, fmt::format("the plugin {} runs on \"{}\", the target is a {}",
                                                              choice.path, (*client)->platform(), ToText(kind)));
  }
  *opened = *client;
  return Decision::Yes();
}

// Clients by what was asked. Looking for a plugin reads folders and files, tens of microseconds of every run, and one
// that is loaded stays loaded, so a choice that led to a client is kept.
class Clients {
 public:
  Decision Get(const XlaOptions& options, TargetKind kind, pjrt::Client** client) {
    const Key key{options.plugin, options.plugin.empty() ? pjrt::XlaFolder() : "", kind};
    const std::lock_guard lock(mutex_);
    if (const auto it = known_.find(key); it != known_.end()) {
      *client = it->second;
      return Decision::Yes();
    }
    const Decision decision = OpenClient(options, kind, client);
    if (decision.accepted) known_.emplace(key, *client);
    return decision;
  }

 private:
  using Key = std::tuple<std::string, std::string, TargetKind>;
  std::mutex mutex_;
  std::map<Key, pjrt::Client*> known_;
};

}  // namespace

Decision OpenSession(const XlaOptions& options, TargetKind kind, Session* session) {
  static Clients& clients = *new Clients();  // never destroyed: a plugin's threads may outlive static objects
  pjrt::Client* client = nullptr;
  if (const Decision decision = clients.Get(options, kind, &client); !decision.accepted) return decision;
  const auto num_devices = static_cast<int64_t>(client->devices().size());
  if (options.device < 0 || options.device >= num_devices) {
    return Decision::No(ReasonCode::kXlaDevice, fmt::format("device {} was asked for, and the plugin has 0 to {}",
                                                            options.device, num_devices - 1));
  }
  *session = {client, options.device};
  return Decision::Yes();
}

XlaUse UseOf(const Session& session) {
  const pjrt::PluginInfo& plugin = session.client->plugin().info();
  return {.plugin = plugin.path,
          .platform = session.client->platform(),
          .platform_version = session.client->platform_version(),
          .pjrt = fmt::format("{}.{}", plugin.api_major, plugin.api_minor),
          .stablehlo = plugin.stablehlo_version,
          .device = session.device,
          .device_kind = session.client->devices()[static_cast<size_t>(session.device)].kind,
          .guard = GuardText()};
}

}  // namespace tessera::lanes::xla
