// Lanes that run programs compiled by a PJRT plugin, whichever there is: the rows of lowerings.h. The plan is data, so
// one compiled program serves every batch of its class. docs/xla.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/lane.h"
#include "tessera/xla.h"

namespace tessera {

// Attention as plain StableHLO: loops over tiles, on any plugin.
inline constexpr std::string_view kXlaChunked = "xla_chunked";
// Attention as kernels of our own for a TPU's core, inside StableHLO (docs/tpu.md).
inline constexpr std::string_view kXlaPallas = "xla_pallas";

// Attention as the stock Splash kernels, which compute plain masks from token numbers (docs/tpu.md).
inline constexpr std::string_view kXlaSplash = "splash";

// What an engine keeps for these lanes: clients, topologies, compiled programs. Safe from any thread.
namespace lanes::xla {
struct State;
}
struct XlaSettings {
  std::string folder = {};     // has plugins/ and programs/
  std::string flags = {};      // that XLA and libtpu read from the environment by themselves: programs depend on them
  int64_t probe_seconds = 60;  // that an unknown plugin may take in a child process; 0: it is not met there
};
std::shared_ptr<lanes::xla::State> MakeXlaState(XlaSettings settings);

struct XlaLaneOptions {
  XlaOptions xla = {};
  int64_t threads = 1;
  // Binding compiles anew, also for a machine that is not here, and nothing can be run.
  bool compile_only = false;
  // Programs are written and go no further: nothing of the machine is needed.
  bool emit_only = false;
};
// `name` is that of a row of lowerings.h.
std::unique_ptr<Lane> MakeXlaLane(std::string_view name, std::shared_ptr<lanes::xla::State> state,
                                  XlaLaneOptions options);

// The plugin that `given` names and those installed, each loaded and asked.
std::vector<PluginReport> ReportPlugins(lanes::xla::State& state, const std::string& given);

}  // namespace tessera
