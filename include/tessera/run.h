// Running a contract: decide -> plan -> decide on the plan -> run, with a receipt for every outcome.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/planner.h"
#include "tessera/receipt.h"
#include "tessera/target.h"
#include "tessera/tensor.h"
#include "tessera/xla.h"

#pragma GCC visibility push(default)
namespace tessera {

enum class Layout : uint8_t { kBhtd, kBthd };  // [B,H,T,D] or [B,T,H,D]

class RunCache;      // tessera/prepare.h
struct PreparedRun;  // tessera/prepare.h

// What happens to a run that is not the one it is pinned to: TSR-R011, or it is prepared like any other.
enum class OnChange : uint8_t { kRefuse, kNewContract };

struct RunOptions {
  std::string lane = "auto";              // or a lane's name: that lane or an error
  std::vector<std::string> exclude = {};  // lanes never to use
  bool strict = false;                    // any fallback is an error
  bool forward = true;                    // false: a backward alone, from the o and lse of a forward run before
  bool backward = false;
  bool row_max = false;  // also return the row maximum of the logits as "max"
  Layout layout = Layout::kBhtd;
  std::optional<int64_t> threads = {};  // absent: as many as the target has workers; 0 is an error
  XlaOptions xla = {};                  // for the lanes that go through XLA
  std::string isa = "auto";   // or an instruction set's name: that one or an error; auto asks TESSERA_ISA first
  std::string ledger = {};    // a file of measurements that may choose between lanes; empty = none (docs/ledger.md)
  bool experimental = false;  // let it choose a lane that won at this shape only
  PlanOptions plan = {};
  std::string input_source = {};  // for the receipt
  std::string batch_source = {};
  std::string contract_source = {};
  // What no batch changes is prepared once and kept: process-wide, in a cache of the caller's, or nowhere.
  bool use_cache = true;
  RunCache* cache = nullptr;  // null: RunCache::Default()
  // Holds the run to what Prepare gave: another contract (a window changed between steps, say), target, lane or tile is
  // refused, unless the caller says that it may become a new contract.
  std::shared_ptr<const PreparedRun> pinned = {};
  OnChange on_change = OnChange::kRefuse;
};

struct RunOutcome {
  Receipt receipt;             // always filled, also on failure
  std::optional<Error> error;  // set when the run failed
  TensorMap outputs;           // o, lse, [max], and with backward dq, dk, dv, [dsink_logits]
  std::vector<StageReport> stages;
  std::optional<Picks> picks;  // what the `blocks` term passed, when a plan was made for it
  std::optional<PicksReport> picks_report;
};

// The instruction set a run with these options is held to: isa, else the environment's TESSERA_ISA where that says
// something, else "auto". A run asks once, when it begins.
std::string AskedIsa(const RunOptions& options);
// The same of the plugin: xla.plugin, else the environment's TESSERA_PJRT_PLUGIN, else the installed one.
XlaOptions AskedXla(const XlaOptions& options);

// Inputs are named q, k, v, [sink_logits], and with backward do; a backward alone also takes o and lse.
RunOutcome Run(const Contract& contract, const Batch& batch, const TensorMap& inputs, const Target& target,
               const RunOptions& options = {});

// The tensors of a run in memory of the caller's, used where they are: nothing is copied. Every q, k, v and do has the
// contract's dtype, o and gradients any float type. Row statistics are dense [batch, num_q_heads, q_len].
// Outputs must overlap neither each other nor an input; when a run fails, what they hold is unspecified.
struct RunTensors {
  TensorRef q, k, v, dout;             // dout: with backward
  std::span<const float> sink_logits;  // [num_q_heads], if and only if the contract says so
  TensorRef o;                         // written by a forward, read by a backward alone (not needed with delta)
  std::span<float> lse;                // the same; a forward alone can do without
  std::span<float> row_max;            // wanted when not empty; a forward's
  std::span<const float> delta;        // a backward alone: sum of o * do per row, when the caller has it
  TensorRef dq, dk, dv;                // with backward
  std::span<float> dsink_logits;       // wanted when not empty
};

// As Run, on the caller's memory: the outcome has no outputs, and RunOptions' layout and row_max say nothing.
// Digests in the receipt are those of the same tensors in a TensorMap, laid out [B,H,T,D].
RunOutcome RunStrided(const Contract& contract, const Batch& batch, const RunTensors& tensors, const Target& target,
                      const RunOptions& options = {});

// A plan made before, for this contract (TSR-P007 otherwise), and the batch it was made with, for the receipt; a plan
// read from a file has none.
struct GivenPlan {
  const Plan* plan = nullptr;
  const Batch* batch = nullptr;
};
// As RunStrided, with a plan that is there already. RunOptions' plan should say what it was made with.
RunOutcome RunPlan(const Contract& contract, const GivenPlan& given, const RunTensors& tensors, const Target& target,
                   const RunOptions& options = {});

// What is known of a run that ended before it could be asked for: a file could not be read, say.
struct UnbegunRun {
  std::string failed_at;               // "contract", "request" or "read"
  std::string target;                  // its name, known or not
  const Contract* contract = nullptr;  // null: not read
  const Batch* batch = nullptr;
  const TensorMap* inputs = nullptr;
};
Receipt ReceiptOf(const UnbegunRun& run, const RunOptions& options, const Error& error);

// What a receipt says of a batch; absent and zero differ.
std::string BatchDigest(const Batch& batch);

// The q and k of a run's inputs, for planning or routing by itself (TSR-R001 when a contract with [routing] cannot use
// them; without it nothing is looked at). The inputs must outlive what this gives.
Result<RouteInputs> RouteInputsOf(const Contract& contract, const TensorMap& inputs, Layout layout = Layout::kBhtd);

// Deterministic inputs from a seed: the same bytes on every machine.
TensorMap MakeInputs(const Contract& contract, uint64_t seed, bool backward, Layout layout = Layout::kBhtd);

}  // namespace tessera
#pragma GCC visibility pop
