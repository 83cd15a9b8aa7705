// Which plugin a run goes through, whether that one can run here at all, and its clients and topologies, made once for
// an engine.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/pjrt/probe.h"
#include "lanes/xla/pjrt/topology.h"
#include "tessera/cpu_guard.h"
#include "tessera/lane.h"
#include "tessera/target.h"
#include "tessera/xla.h"

namespace tessera::lanes::xla {

struct PluginChoice {
  Decision decision;  // "no" when there is none, or none that this machine can load
  std::string path;
};
// Compiling alone needs no device of the target.
enum class Purpose : uint8_t { kRun, kCompile };
// The one asked for, else the newest in the folder. Looks at files only: nothing is loaded.
PluginChoice ChoosePlugin(const XlaOptions& options, const std::string& folder, TargetKind kind,
                          Purpose purpose = Purpose::kRun);

struct Session {
  pjrt::Client* client = nullptr;
  int64_t device = 0;
};

// An engine's clients, each made on first use. Looking for a plugin reads folders and files, tens of microseconds of
// every run, so a choice that led to a client is kept.
class Clients {
 public:
  Clients(std::string folder, pjrt::ProbeSettings probe) : folder_(std::move(folder)), probe_(std::move(probe)) {}
  Result<pjrt::Client*> Of(const pjrt::Plugin& plugin);
  // Loads the plugin and checks that it has the device, and so many of them: the CPU plugin makes as many as are asked
  // for, in a client of their own. Nothing is written to `session` on a refusal.
  Decision Open(const XlaOptions& options, TargetKind kind, Session* session, int64_t devices = 1);

 private:
  // The plugin asked for, the target, and how many devices where they are more than any client has of itself.
  using Question = std::tuple<std::string, TargetKind, int64_t>;
  Result<pjrt::Client*> Get(const pjrt::Plugin& plugin, int64_t devices);  // with the mutex held
  Decision Find(const XlaOptions& options, TargetKind kind, int64_t devices, pjrt::Client** client);

  const std::string folder_;
  const pjrt::ProbeSettings probe_;
  std::mutex mutex_;
  std::map<std::pair<const pjrt::Plugin*, int64_t>, std::unique_ptr<pjrt::Client>> clients_;
  std::map<Question, pjrt::Client*> known_;
};

class Topologies {
 public:
  Result<const pjrt::Topology*> Get(const pjrt::Plugin& plugin, const std::string& name);

 private:
  std::mutex mutex_;
  std::map<std::pair<const pjrt::Plugin*, std::string>, pjrt::Topology> made_;
};

// The target's kind that a platform is; "cpu", "cuda", "rocm", "tpu".
bool Fits(const std::string& platform, TargetKind kind);
// "No" to a number that is none of these devices'.
Decision CheckDevice(int64_t device, std::span<const pjrt::DeviceInfo> devices, std::string_view whose);

// What a receipt says of a plugin, of a device of its client's, and of one that programs are only made for.
DeviceUse UseOf(const pjrt::Plugin& plugin);
DeviceUse UseOf(const Session& session);
DeviceUse UseOf(const pjrt::Topology& topology, int64_t device);

// Against hidden SVE, asked once; and as a receipt says it.
const CpuGuard& Guard();
std::string GuardText();

}  // namespace tessera::lanes::xla
