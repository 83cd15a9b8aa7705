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

// The last in order of name is the newest version.
PluginChoice FindInstalled(TargetKind kind) {
  const std::vector<pjrt::FoundPlugin> found = pjrt::FindPlugins();
  const std::vector<std::string_view> names = NamesFor(kind);
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    const auto fits = [&](std::string_view name) { return it->name.rfind(name, 0) == 0; };
    if (std::any_of(names.begin(), names.end(), fits)) return {Decision::Yes(), it->path};
  }
  return {Decision::No(ReasonCode::kXlaNoPlugin,
                       fmt::format("none for a {} in {}; {}", ToText(kind), pjrt::XlaFolder(), HowToGet(kind))),
          ""};
}

Decision CheckHost(TargetKind kind, Purpose purpose) {
  if (kind == TargetKind::kTpu && purpose == Purpose::kRun && !pjrt::HasTpu()) {
    return Decision::No(ReasonCode::kXlaCompileOnly, "this machine has no TPU; `tessera compile` compiles for one");
  }
  if (kind == TargetKind::kCpu && Guard().state == CpuGuardState::kRefused) {
    return Decision::No(ReasonCode::kXlaSveHidden, Guard().reason);
  }
  return Decision::Yes();
}

}  // namespace

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
  PluginChoice choice{Decision::Yes(), options.plugin};
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
  const Decision decision = CheckDevice(options.device, client->devices(), "the plugin");
  if (decision.accepted) *session = {client, options.device};
  return decision;
}

Decision CheckDevice(int64_t device, std::span<const pjrt::DeviceInfo> devices, std::string_view whose) {
  const auto count = static_cast<int64_t>(devices.size());
  if (device >= 0 && device < count) return Decision::Yes();
  return Decision::No(ReasonCode::kXlaDevice,
                      fmt::format("device {} was asked for, and {} has 0 to {}", device, whose, count - 1));
}

XlaUse UseOf(const pjrt::Plugin& plugin) {
  const pjrt::PluginInfo& info = plugin.info();
  return {.plugin = info.path,
          .pjrt = fmt::format("{}.{}", info.api_major, info.api_minor),
          .stablehlo = info.stablehlo_version,
          .guard = GuardText()};
}

XlaUse UseOf(const Session& session) {
  const pjrt::Client& client = *session.client;
  XlaUse use = UseOf(client.plugin());
  use.platform = client.platform();
  use.platform_version = client.platform_version();
  use.device = session.device;
  use.device_kind = client.devices()[static_cast<size_t>(session.device)].kind;
  return use;
}

}  // namespace tessera::lanes::xla
