// Which plugin a run goes through, and whether that one can run here at all.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lanes/xla/pjrt/client.h"
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
// Looks at files only: nothing is loaded.
PluginChoice ChoosePlugin(const XlaOptions& options, TargetKind kind, Purpose purpose = Purpose::kRun);

struct Session {
  pjrt::Client* client = nullptr;
  int64_t device = 0;
};
// Loads the plugin, once per process, and checks that it has the device. Nothing is written to `session` on a refusal.
Decision OpenSession(const XlaOptions& options, TargetKind kind, Session* session);

// The target's kind that a platform is; "cpu", "cuda", "rocm", "tpu".
bool Fits(const std::string& platform, TargetKind kind);
// "No" to a number that is none of these devices'.
Decision CheckDevice(int64_t device, std::span<const pjrt::DeviceInfo> devices, std::string_view whose);

// What a receipt says of a plugin, and of a device of its client's.
XlaUse UseOf(const pjrt::Plugin& plugin);
XlaUse UseOf(const Session& session);

// Against hidden SVE, asked once; and as a receipt says it.
const CpuGuard& Guard();
std::string GuardText();

}  // namespace tessera::lanes::xla
