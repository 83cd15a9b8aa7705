// Running a contract: decide -> plan -> decide on the plan -> run, with a receipt for every outcome.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/planner.h"
#include "tessera/receipt.h"
#include "tessera/target.h"
#include "tessera/tensor.h"

namespace tessera {

enum class Layout : uint8_t { kBhtd, kBthd };  // [B,H,T,D] or [B,T,H,D]

struct RunOptions {
  std::string lane = "auto";              // or a lane's name: that lane or an error
  std::vector<std::string> exclude = {};  // lanes never to use
  bool strict = false;                    // any fallback is an error
  bool backward = false;
  bool row_max = false;  // also return the row maximum of the logits as "max"
  Layout layout = Layout::kBhtd;
  int64_t threads = 0;  // 0 = as many as the target has workers
  PlanOptions plan = {};
  std::string input_source = {};  // for the receipt
  std::string batch_source = {};
  std::string contract_source = {};
};

struct RunOutcome {
  Receipt receipt;             // always filled, also on failure
  std::optional<Error> error;  // set when the run failed
  TensorMap outputs;           // o, lse, [max], and with backward dq, dk, dv, [dsink_logits]
  std::vector<StageReport> stages;
};

// Inputs are named q, k, v, [sink_logits], and with backward do.
RunOutcome Run(const Contract& contract, const Batch& batch, const TensorMap& inputs, const Target& target,
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

// Deterministic inputs from a seed: the same bytes on every machine.
TensorMap MakeInputs(const Contract& contract, uint64_t seed, bool backward, Layout layout = Layout::kBhtd);

}  // namespace tessera
