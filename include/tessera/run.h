// One-shot runs: prepare, plan, bind and call in one go, with a receipt for every outcome. For the program and for
// small uses; a loop keeps its Attention and binds once per batch (tessera/engine.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/engine.h"
#include "tessera/meter.h"
#include "tessera/receipt.h"
#include "tessera/target.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

struct RunOptions : AttentionOptions {
  bool row_max = false;  // also return the row maximum of the logits as "max"
  Layout layout = Layout::kBhtd;
  bool digests = false;           // of inputs and outputs, for the receipt
  bool keep_bound = false;        // the outcome keeps what ran, with its plan
  std::string input_source = {};  // for the receipt
  std::string batch_source = {};
  std::string contract_source = {};
  RunMeter* meter = nullptr;  // outlives the run
  int64_t chips = 1;          // of LowerPrograms: TPU chips that share a program's heads or batch rows; a run takes one
};

struct RunOutcome {
  Receipt receipt;             // always filled, also on failure
  std::optional<Error> error;  // set when the run failed
  TensorMap outputs;           // o, lse, [max], and with backward dq, dk, dv, [dsink_logits]
  std::vector<StageReport> stages;
  std::optional<Picks> picks;  // what the `blocks` term passed, when a plan was made for it
  std::optional<PicksReport> picks_report;
  std::optional<Bound> bound;  // what ran, where options ask to keep it
};

// Inputs are named q, k, v, [sink_logits], and with backward do; a backward alone also takes o and lse.
RunOutcome Run(const Engine& engine, const Contract& contract, const Batch& batch, const TensorMap& inputs,
               const Target& target, const RunOptions& options = {});

// The same on the caller's memory: the outcome has no outputs, and layout and row_max say nothing. Digests in the
// receipt are those of the same tensors in a TensorMap, laid out [B,H,T,D].
RunOutcome RunStrided(const Engine& engine, const Contract& contract, const Batch& batch, const RunTensors& tensors,
                      const Target& target, const RunOptions& options = {});

// As Run, at the request's class: the receipt is that of the padded contract with the request in `class_request`, the
// outputs and their digest are the request's (docs/classes.md).
RunOutcome RunAtClass(const Engine& engine, const Contract& contract, const Batch& batch, const TensorMap& inputs,
                      const Target& target, const RunOptions& options = {});

// What is known of a request that failed before it could be run: a file could not be read, say.
struct EarlyFailure {
  std::string failed_at;               // "contract", "request" or "read"
  std::string target;                  // its name, known or not
  const Contract* contract = nullptr;  // null: not read
  const Batch* batch = nullptr;
  const TensorMap* inputs = nullptr;
};
Receipt ReceiptOf(const Engine& engine, const EarlyFailure& failure, const RunOptions& options, const Error& error);

// What the run of a receipt was asked for, in the same words; TSR-R010 names what this version does not understand.
Result<RunOptions> OptionsOf(const Receipt& receipt);

// What a receipt says of a batch; absent and zero differ.
std::string BatchDigest(const Batch& batch);

// The q and k of a run's inputs, for planning or routing by itself (TSR-R001 when a contract with [routing] cannot use
// them; without it nothing is looked at). The inputs must outlive what this gives.
Result<RouteInputs> RouteInputsOf(const Contract& contract, const TensorMap& inputs, Layout layout = Layout::kBhtd);

// Deterministic inputs from a seed: the same bytes on every machine.
TensorMap MakeInputs(const Contract& contract, uint64_t seed, bool backward, Layout layout = Layout::kBhtd);

}  // namespace tessera
#pragma GCC visibility pop
