// See plugins.h.
#include "lanes/xla/plugins.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/host.h"
#include "base/try.h"
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
PluginChoice FindInstalled(const std::string& folder, TargetKind kind) {
  const std::vector<pjrt::FoundPlugin> found = pjrt::FindPlugins(folder);
  const std::vector<std::string_view> names = NamesFor(kind);
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    const auto fits = [&](std::string_view name) { return it->name.rfind(name, 0) == 0; };
    if (std::any_of(names.begin(), names.end(), fits)) return {Decision::Yes(), it->path};
  }
  return {Decision::No(ReasonCode::kXlaNoPlugin,
                       fmt::format("none for a {} in {}; {}", ToText(kind), folder, HowToGet(kind))),
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

PluginChoice ChoosePlugin(const XlaOptions& options, const std::string& folder, TargetKind kind, Purpose purpose) {
  PluginChoice choice{Decision::Yes(), options.plugin};
  if (options.plugin.empty()) choice = FindInstalled(folder, kind);
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

// Devices beyond those that a client has of itself; 0: those will do.
int64_t MoreDevices(int64_t devices) { return devices > pjrt::ClientOptions{}.cpu_devices ? devices : 0; }

}  // namespace

Result<pjrt::Client*> Clients::Of(const pjrt::Plugin& plugin) {
  const std::lock_guard lock(mutex_);
  return Get(plugin, 1);
}

Result<pjrt::Client*> Clients::Get(const pjrt::Plugin& plugin, int64_t devices) {
  const int64_t more = MoreDevices(devices);
  const std::pair key(&plugin, more);
  if (const auto at = clients_.find(key); at != clients_.end()) return at->second.get();
  pjrt::ClientOptions options;
  if (more > 0) options.cpu_devices = more;
  std::unique_ptr<pjrt::Client> client = TESSERA_TRY(pjrt::Client::Create(plugin, options));
  return clients_.emplace(key, std::move(client)).first->second.get();
}

// Loads what the choice says and checks that it is of the kind.
Decision Clients::Find(const XlaOptions& options, TargetKind kind, int64_t devices, pjrt::Client** client) {
  const std::lock_guard lock(mutex_);
  const Question question(options.plugin, kind, MoreDevices(devices));
  if (const auto at = known_.find(question); at != known_.end()) {
    *client = at->second;
    return Decision::Yes();
  }
  const PluginChoice choice = ChoosePlugin(options, folder_, kind);
  if (!choice.decision.accepted) return choice.decision;
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(choice.path, probe_);
  if (!plugin) return Decision::No(ReasonCode::kXlaPlugin, plugin.error().message);
  const Result<pjrt::Client*> made = Get(**plugin, devices);
  if (!made) return Decision::No(ReasonCode::kXlaPlugin, made.error().message);
  if (!Fits((*made)->platform(), kind)) {
    return Decision::No(ReasonCode::kXlaPlatform, fmt::format("the plugin {} runs on \"{}\", the target is a {}",
                                                              choice.path, (*made)->platform(), ToText(kind)));
  }
  *client = *made;
  known_.emplace(question, *made);
  return Decision::Yes();
}

Decision Clients::Open(const XlaOptions& options, TargetKind kind, Session* session, int64_t devices) {
  pjrt::Client* client = nullptr;
  if (const Decision decision = Find(options, kind, devices, &client); !decision.accepted) return decision;
  if (const auto found = static_cast<int64_t>(client->devices().size()); found < devices) {
    return Decision::No(ReasonCode::kXlaDevice,
                        fmt::format("{} devices were asked for, and the plugin has {}", devices, found));
  }
  const Decision decision = CheckDevice(options.device, client->devices(), "the plugin");
  if (decision.accepted) *session = {client, options.device};
  return decision;
}

Result<const pjrt::Topology*> Topologies::Get(const pjrt::Plugin& plugin, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto key = std::make_pair(&plugin, name);
  if (const auto at = made_.find(key); at != made_.end()) return &at->second;
  pjrt::Topology topology = TESSERA_TRY(pjrt::Topology::Create(plugin, name));
  return &made_.emplace(key, std::move(topology)).first->second;
}

Decision CheckDevice(int64_t device, std::span<const pjrt::DeviceInfo> devices, std::string_view whose) {
  const auto count = static_cast<int64_t>(devices.size());
  if (device >= 0 && device < count) return Decision::Yes();
  return Decision::No(ReasonCode::kXlaDevice,
                      fmt::format("device {} was asked for, and {} has 0 to {}", device, whose, count - 1));
}

DeviceUse UseOf(const pjrt::Plugin& plugin) {
  const pjrt::PluginInfo& info = plugin.info();
  return {.memory = "host",
          .plugin = info.path,
          .pjrt = fmt::format("{}.{}", info.api_major, info.api_minor),
          .stablehlo = info.stablehlo_version,
          .guard = GuardText()};
}

namespace {

DeviceUse UseOfDevice(const pjrt::Plugin& plugin, const std::string& platform, const pjrt::DeviceInfo& device,
                      int64_t ordinal) {
  DeviceUse use = UseOf(plugin);
  use.platform = platform;
  use.ordinal = ordinal;
  for (const TargetKind kind : {TargetKind::kCpu, TargetKind::kGpu, TargetKind::kTpu}) {
    if (Fits(platform, kind)) use.kind = ToText(kind);
  }
  // The CPU plugin calls its devices "cpu".
  use.name = use.kind == "cpu" ? HostProcessor() : device.kind;
  return use;
}

}  // namespace

DeviceUse UseOf(const Session& session) {
  const pjrt::Client& client = *session.client;
  DeviceUse use = UseOfDevice(client.plugin(), client.platform(), client.devices()[static_cast<size_t>(session.device)],
                              session.device);
  use.platform_version = client.platform_version();
  return use;
}

DeviceUse UseOf(const pjrt::Topology& topology, int64_t device) {
  DeviceUse use =
      UseOfDevice(topology.plugin(), topology.platform(), topology.devices()[static_cast<size_t>(device)], device);
  use.topology = topology.name();
  return use;
}

}  // namespace tessera::lanes::xla
