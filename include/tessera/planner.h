// The planner: contract + batch + target -> plan. A pure function in integer arithmetic; equal inputs give equal
// bytes on every machine. A contract with [routing] has its picks made from q and k first (tessera/route.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/plan.h"
#include "tessera/stages.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

struct PlanResult {
  Plan plan;
  ClassShape shape;
  std::vector<StageReport> stages;
  std::optional<Picks> picks;  // what the `blocks` term passes in this plan, one list per query
  std::optional<PicksReport> picks_report;
};

// `route` is looked at when the contract has [routing], and then needed (TSR-P009).
Result<PlanResult> MakePlan(const Contract& contract, const Batch& batch, const Target& target,
                            const PlanOptions& options = {}, const RouteInputs* route = nullptr);

// The class a contract compiles to on a target: shapes, dtype, capacities and operands present, no batch datum.
Result<ClassShape> MakeClassShape(const Contract& contract, const Target& target, const PlanOptions& options = {});
Result<std::string> ClassKey(const Contract& contract, const ClassShape& shape);

}  // namespace tessera
#pragma GCC visibility pop
