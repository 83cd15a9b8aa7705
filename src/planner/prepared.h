// What the planner needs of a contract and no batch changes: a run that is prepared once keeps it, and each batch's
// plan starts from it instead of from the text.
#pragma once

#include <string>

#include "contract/mask_sets.h"
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

// As the public functions of the same names, which prepare the contract first.
Result<PlanResult> MakePlan(const PreparedContract& prepared, const Batch& batch, const Target& target,
                            const PlanOptions& options, const RouteInputs* route = nullptr);
Result<ClassShape> MakeClassShape(const PreparedContract& prepared, const Target& target, const PlanOptions& options);

}  // namespace tessera
