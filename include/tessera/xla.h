// The XLA lane's own options and what it tells a receipt. docs/xla.md explains plugins, programs and where they are
// kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

struct XlaOptions {
  std::string plugin = {};  // a path; empty: TESSERA_PJRT_PLUGIN, else the installed one that fits the target
  int64_t device = 0;       // of the plugin's own
  std::optional<int64_t> optimization = {};  // XLA's backend level, 0 to 3; absent: the plugin's choice
  bool keep_programs = true;                 // on disk, for the next process
  bool operator==(const XlaOptions&) const = default;
};

// The plugin a run went through. Empty as a whole when another lane ran.
struct XlaUse {
  std::string plugin = {};
  std::string platform = {};  // as the plugin calls itself: "cpu", "cuda", "tpu"
  std::string platform_version = {};
  std::string pjrt = {};       // version of its interface: "0.81"
  std::string stablehlo = {};  // version it reads
  int64_t device = 0;
  std::string device_kind = {};
  std::string topology = {};  // "v6e:1x1": compiled for devices that are not here; empty for those of this machine
  std::string guard = {};     // "not needed", or "active": the processor was named as one without SVE (docs/xla.md)
  bool operator==(const XlaUse&) const = default;
};

// One compiled program. Empty as a whole when the pass did not run, or on another lane.
struct XlaProgramUse {
  std::string name = {};       // of the compiled module: pass and class key
  std::string source = {};     // "compiled", "memory" or "disk"
  std::string note = {};       // why it was not on disk, or could not be put there; empty when all is well
  std::string key = {};        // of the text, the options, the plugin and the machine
  int64_t compile_ns = 0;      // or the time to load it from disk; 0 when it was in memory
  int64_t parts = 0;           // calls that share a pass, and run at once where there are threads
  int64_t argument_bytes = 0;  // of one call, as those that follow
  int64_t output_bytes = 0;
  int64_t temp_bytes = 0;  // what XLA allocates beside arguments and outputs
  int64_t code_bytes = 0;
  int64_t instructions = 0;       // of the optimised program
  std::string opcodes = {};       // the most frequent: "dot 4, while 3, ..."
  std::string custom_calls = {};  // targets, with counts; empty: none
  std::string collectives = {};
  bool operator==(const XlaProgramUse&) const = default;
};

// A program before it is compiled: StableHLO.
struct ProgramText {
  std::string name = {};  // of the module: pass and class key
  std::string text = {};
  bool operator==(const ProgramText&) const = default;
};

// What `tessera lanes` says of one plugin.
struct PluginReport {
  std::string name = {};  // of its folder, or "given" for the one named by an option or the environment
  XlaUse use = {};        // as far as it could be asked
  std::vector<std::string> devices = {};
  std::string usable = {};  // "yes", "compile-only", or why not
};
std::vector<PluginReport> ReportPlugins(const XlaOptions& options = {});

}  // namespace tessera
#pragma GCC visibility pop
