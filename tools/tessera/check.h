// Comparing what the planner and a lane made with the dense oracle; shared by run --check, verify and demo.
#pragma once

#include <string>

#include "oracle/compare.h"
#include "program.h"

namespace tessera::program {

// Whether the plan, decompressed, is the contract's mask in every direction, for every batch row and head.
struct MaskCheck {
  bool pass = false;
  bool sampled = false;
  int64_t pairs = 0;  // compared
  std::string text;   // one line
};
Result<MaskCheck> CheckMask(const Contract& contract, const Batch& batch, const PlanView& plan);

// The batch with what a run's `blocks` term passed: the oracle reads picks, whoever made them.
Batch WithPicks(Batch batch, const std::optional<Picks>& picks);

// A run's outputs against the oracle, with the tolerances the lane's arithmetic is entitled to.
struct CheckedRun {
  const Contract& contract;
  const Batch& batch;
  const TensorMap& inputs;
  const RunOutcome& outcome;
  Layout layout = Layout::kBhtd;
};
Result<CheckReport> CheckRun(const CheckedRun& run);
std::string ToJson(const CheckReport& report);
// What a receipt says of it under options.check.
std::string CheckWord(const CheckReport& report);

}  // namespace tessera::program
