// Lanes: who can run a plan, and why the others cannot.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/target.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

enum class ReasonCode : uint16_t {
#define TESSERA_REASON(name, text, meaning) name,
#include "tessera/reasons.def"
#undef TESSERA_REASON
};
std::string_view ReasonText(ReasonCode reason);  // "cuda.not_built"
std::string_view ReasonMeaning(ReasonCode reason);
std::optional<ReasonCode> FindReason(std::string_view text);

// Never a bool: "yes", or "no, because" with a catalogued reason and the facts of this case.
struct Decision {
  bool accepted = true;
  ReasonCode reason = ReasonCode::kNone;
  std::string detail;
  static Decision Yes() { return {}; }
  static Decision No(ReasonCode reason, std::string detail = {}) { return {false, reason, std::move(detail)}; }
  bool operator==(const Decision&) const = default;
};

struct LaneInfo {
  std::string name;
  std::string description;
  std::string runtime_mode;       // how it would run: native, payload, bridge, interpreted, compile-only
  std::vector<std::string> isas;  // what it can run with on this machine, best first; none when it is not built
};

struct LaneDecision {
  std::string lane;
  std::string step;  // "contract" or "plan"
  Decision decision;
  bool operator==(const LaneDecision&) const = default;
};

// Which lane the target's table names for this contract, and why; and what every lane says of it. Selection looks
// only at the contract and the target; whether the lane can really run is the decisions' business.
struct Selection {
  std::string lane;
  std::string rule;  // the matching line of the table, in words
  std::vector<LaneDecision> decisions;
};

// Where code ran, or was compiled for: what a lane tells a receipt of the machine. Empty as a whole when nothing ran.
struct DeviceUse {
  std::string kind = {};      // "cpu", "gpu", "tpu" or "interpreter"
  std::string name = {};      // as it calls itself: "Neoverse-V1", "NVIDIA H200"
  int64_t ordinal = 0;        // among those of its kind
  std::string memory = {};    // the memory space its tensors were in: "host", "gpu:0"
  std::string driver = {};    // a driver's or plugin's own version of itself
  std::string plugin = {};    // of the lanes that go through PJRT: its path ...
  std::string platform = {};  // ... what it calls itself: "cpu", "cuda", "tpu"
  std::string platform_version = {};
  std::string pjrt = {};       // version of its interface: "0.81"
  std::string stablehlo = {};  // version it reads
  std::string topology = {};   // "v6e:1x1": compiled for devices that are not here
  std::string guard = {};      // "not needed", or "active": the processor was named as one without SVE (docs/xla.md)
  bool operator==(const DeviceUse&) const = default;
};

// One compiled program of a run.
struct ProgramUse {
  std::string pass = {};       // "forward" or "backward"
  std::string name = {};       // of the compiled module: pass and class key
  std::string source = {};     // "compiled", "memory" or "disk"
  std::string note = {};       // why it was not on disk, or could not be put there; and which of several kernels it has
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
  // Of a program compiled for a TPU that is not here, as far as its compiler tells. `tessera compile` prints them;
  // receipts do not keep them.
  std::string fingerprint = {};  // hex digits, equal for equal compiled programs; empty: not told
  int64_t vector_bytes = -1;     // of vector memory, of the kernel that takes most; -1: not told
  int64_t vector_limit = -1;     // that a kernel may take
  int64_t bundles = -1;          // of all kernels, as scheduled; -1: the compiler was not told to write schedules
  bool operator==(const ProgramUse&) const = default;
};

// What a program takes or gives, in order. `tensor` has type and shape; bytes too where they are known before a call.
struct ProgramOperand {
  std::string name = {};
  std::string source = {};  // "caller", "forward" (its result), "contract", "plan" or "part"
  std::string about = {};   // in words
  Tensor tensor = {};
  int64_t chip_axis = -1;  // of a program for several chips: the axis they share, -1 where each has all of it
  bool operator==(const ProgramOperand&) const = default;
};

// A TPU kernel inside of a program, as Mosaic text, and what it takes of a chip, counted from its windows and scratch.
struct KernelText {
  std::string name = {};
  std::string text = {};
  int64_t vector_bytes = 0;
  int64_t scalar_bytes = 0;
  bool operator==(const KernelText&) const = default;
};

// What went from this engine into another runtime and back, in the calls of a run; empty as a whole where nothing did.
struct CrossingUse {
  std::string runtime = {};      // whose: "Python 3.11.7, NumPy 2.4.6, JAX 0.10.2"
  std::string interpreter = {};  // "embedded", or "host" where this process is a Python program
  std::string library = {};      // the interpreter's, where it was loaded for this
  int64_t calls = 0;
  int64_t bytes_in = 0;   // of tensors that were handed over ...
  int64_t copied_in = 0;  // ... and of those the ones that the runtime could not read where they lie
  int64_t copies_in = 0;
  int64_t bytes_out = 0;  // of results, each copied once
  int64_t copies_out = 0;
  bool operator==(const CrossingUse&) const = default;
};

// A program before it is compiled: StableHLO.
struct ProgramText {
  std::string name = {};  // of the module: pass and class key
  std::string text = {};
  std::string pass = {};
  std::string lane = {};
  int64_t parts = 1;  // calls that share a pass, each told its number
  int64_t chips = 1;  // that it runs on at once
  std::vector<ProgramOperand> operands = {};
  std::vector<ProgramOperand> results = {};
  std::vector<KernelText> kernels = {};
  std::string note = {};  // which kernels, and why those, where there was a choice
  bool operator==(const ProgramText&) const = default;
};

}  // namespace tessera
#pragma GCC visibility pop
