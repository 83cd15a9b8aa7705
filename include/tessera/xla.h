// The options of the lanes that go through XLA, and what there is to know of plugins. docs/xla.md explains
// plugins, programs and where they are kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/lane.h"

#pragma GCC visibility push(default)
namespace tessera {

struct XlaOptions {
  std::string plugin = {};                   // a path; empty: the engine's, else the installed one that fits the target
  int64_t device = 0;                        // of the plugin's own
  std::optional<int64_t> optimization = {};  // XLA's backend level, 0 to 3; absent: the plugin's choice
  bool interpret = false;                    // TPU kernels run in the host's interpreter: a proof of numbers, slow
  bool keep_programs = true;                 // on disk, for the next process
  // What a backward of our TPU kernels is: "fused", one kernel for dQ, dK and dV; "apart", one for dQ and one for dK
  // and dV; "auto", the one that docs/tpu.md's rule names.
  std::string tpu_backward = "auto";
  // Of our TPU kernels: the forward gives the log-sum-exp and the rows' maxima. Without them it is for inference: a
  // backward cannot follow, and a call that asks for either is refused.
  bool statistics = true;
  bool operator==(const XlaOptions&) const = default;
};

// What `tessera lanes` says of one plugin.
struct PluginReport {
  std::string name = {};  // of its folder, or "given" for the one named by an option or the environment
  DeviceUse use = {};     // as far as it could be asked
  std::vector<std::string> devices = {};
  std::string usable = {};  // "yes", "compile-only", or why not
};

}  // namespace tessera
#pragma GCC visibility pop
