// What the planner needs of a contract and no batch changes: a run that is prepared once keeps it, and each batch's
// plan starts from it instead of from the text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contract/mask_sets.h"
#include "plan/picks.h"
#include "plan/runner.h"
#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/planner.h"
#include "tessera/target.h"

namespace tessera {

struct PreparedContract {
  Contract contract;  // one that Validate accepts
  MaskSets sets;      // its mask
  std::string key;    // its contract key
};

Result<PreparedContract> PrepareContract(const Contract& contract);

// As the public function of the same name, which prepares the contract first.
Result<ClassShape> MakeClassShape(const PreparedContract& prepared, const Target& target, const PlanOptions& options);

namespace planner {

// What a plan is made from. Facts of the batch and picks are data here; src/pipeline has them made.
struct PlanRequest {
  const PreparedContract* prepared = nullptr;
  const std::vector<BatchRow>* rows = nullptr;  // [batch]
  const Target* target = nullptr;
  const PlanOptions* options = nullptr;
  std::optional<plan::BatchPicks> picks = {};  // what the `blocks` term passes, where the mask depends on it
  const ClassShape* shape = nullptr;           // as MakeClassShape gives it; made here where nobody has
};
// What the plan of any batch has of cleanups at most, for who makes room before there is a batch. Of masks without the
// `blocks` term: a batch's picks are as many as it likes.
struct CleanupRoom {
  int64_t items = 0;
  int64_t bit_words = 0;
};
Result<CleanupRoom> MostCleanups(const PreparedContract& prepared, const Target& target, const PlanOptions& options);

// resolve -> ... -> pack. `runner` may have run other stages before; the result has the reports of all.
Result<PlanResult> PlanBatch(PlanRequest request, plan::Runner& runner);

}  // namespace planner
}  // namespace tessera
