// Whether a plan is the mask of its contract, and whether outputs are what the contract means by its inputs. Both are
// worked out again from the contract, the batch and the inputs alone, in double precision: no plan, no run algebra and
// no lane has a part in it, so that an error in those cannot hide here. `tessera run --check`, `verify` and
// `ledger add` ask these functions.
//
// Goals: every difference that rounding does not explain is found, and none that it does explain is reported. Not a
// goal: speed. Problems above a limit are checked on chosen rows, and the report says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/meter.h"
#include "tessera/plan.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

// How a lane computes: the unit roundoff of its scores, softmax state and accumulators, whether the probabilities and
// dS are rounded to the input dtype before they enter the second matmul, and the size below which it may take a number
// for zero.
struct Arithmetic {
  double unit = 0x1p-53;
  bool round_operands = false;
  double least = 0x1p-1022;
  static constexpr Arithmetic Double() { return {0x1p-53, false, 0x1p-1022}; }  // the reference lane
  static constexpr Arithmetic Single() { return {0x1p-24, true, 0x1p-126}; }    // every fast lane
};

// One output beside what it should be. Tolerances are derived, never chosen: docs/numerics.md.
struct Comparison {
  std::string name;
  bool pass = false;
  double max_error = 0.0;
  // The element that comes closest to, or goes furthest beyond, its tolerance; -1 when there are no elements.
  int64_t worst = -1;
  double got = 0.0;
  double want = 0.0;
  double tolerance = 0.0;
  std::string text;  // one line
};

struct CheckOptions {
  Layout layout = Layout::kBhtd;                 // of inputs and outputs
  Arithmetic arithmetic = Arithmetic::Double();  // of the lane that ran: sets the tolerances, never the values
  // Above this many multiplications the forward result and dq are checked on chosen rows only, and dk, dv and
  // dsink_logits not at all; the report says so.
  int64_t max_work = int64_t{1} << 34;
  int64_t sample_rows = 64;
  uint64_t sample_seed = 1;
  RunMeter* meter = nullptr;  // counts rows; outlives the check
};
struct CheckReport {
  bool pass = false;
  bool sampled = false;
  std::vector<std::string> unchecked;  // outputs that were too large to check
  std::vector<Comparison> outputs;
  std::string text;  // one line per output
};
// Checks every one of o, lse, max, dq, dk, dv, dsink_logits that `outputs` holds; `inputs` needs `do` for gradients. A
// batch of a routed contract brings the picks that the run made.
Result<CheckReport> CheckOutputs(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                                 const TensorMap& outputs, const CheckOptions& options = {});

// Whether the plan, decompressed, is the contract's mask in each of its directions, for every batch row and head.
struct MaskCheck {
  bool pass = false;
  bool sampled = false;
  int64_t pairs = 0;  // compared
  std::string text;   // one line
};
// Above this many pairs spread-out rows are compared.
inline constexpr int64_t kMaskCheckPairs = int64_t{1} << 28;
Result<MaskCheck> CheckMask(const Contract& contract, const Batch& batch, const PlanView& plan,
                            int64_t max_pairs = kMaskCheckPairs, RunMeter* meter = nullptr);

}  // namespace tessera
#pragma GCC visibility pop
