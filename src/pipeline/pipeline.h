// Routing, then planning: the one place that knows both.
#pragma once

#include "planner/prepared.h"
#include "tessera/batch.h"
#include "tessera/planner.h"
#include "tessera/stages.h"
#include "tessera/target.h"

namespace tessera {

// As the public function of the same name, which prepares the contract first. `shape`, where the caller has it, is what
// MakeClassShape gives for the same contract, target and options.
Result<PlanResult> MakePlan(const PreparedContract& prepared, const Batch& batch, const Target& target,
                            const PlanOptions& options, const RouteInputs* route = nullptr,
                            const ClassShape* shape = nullptr);

}  // namespace tessera
