// Comparing what the planner and a lane made with what the contract means (tessera/check.h); shared by run --check,
// verify, ledger add and demo.
#pragma once

#include <string>

#include "program.h"

namespace tessera::program {

// The batch with what a run's `blocks` term passed: a check reads picks, whoever made them.
Batch WithPicks(Batch batch, const std::optional<Picks>& picks);

// A run's outputs, with the tolerances the lane's arithmetic is entitled to.
struct CheckedRun {
  const Contract& contract;
  const Batch& batch;
  const TensorMap& inputs;
  const RunOutcome& outcome;
  Layout layout = Layout::kBhtd;
  RunMeter* meter = nullptr;
};
Result<CheckReport> CheckRun(const CheckedRun& run);
std::string ToJson(const CheckReport& report);
// What a receipt says of it under options.check.
std::string CheckWord(const CheckReport& report);

}  // namespace tessera::program
