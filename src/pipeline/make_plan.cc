// A contract and a batch to a plan: the batch's facts, its picks where the mask depends on them, then the planner.
#include <optional>
#include <utility>

#include "base/try.h"
#include "contract/batch_resolve.h"
#include "pipeline/pipeline.h"
#include "routing/picks.h"

namespace tessera {

Result<PlanResult> MakePlan(const PreparedContract& prepared, const Batch& batch, const Target& target,
                            const PlanOptions& options, const RouteInputs* route, const ClassShape* shape) {
  TESSERA_TRY(plan::CheckOptions(options));
  const Contract& contract = prepared.contract;
  const MaskFacts needs = NeedsOf(prepared.sets);
  const std::vector<BatchRow> rows = TESSERA_TRY(ResolveBatchWith(contract, needs, batch));
  plan::Runner runner(options);
  planner::PlanRequest request{
      .prepared = &prepared, .rows = &rows, .target = &target, .options = &options, .shape = shape};
  if (!needs.needs_blocks) return planner::PlanBatch(std::move(request), runner);

  const routing::Picked picked = TESSERA_TRY(routing::PickBlocks({.contract = &contract,
                                                                  .sets = &prepared.sets,
                                                                  .rows = &rows,
                                                                  .batch = &batch,
                                                                  .route = route,
                                                                  .widen = options.widen_class},
                                                                 runner));
  const routing::UnionMaps& maps = picked.legalised.maps;
  request.picks = routing::ToBatchPicks(maps, contract.shape.q_len);
  PlanResult result = TESSERA_TRY(planner::PlanBatch(std::move(request), runner));
  result.picks = routing::ToPicks(maps, contract.shape.q_len);
  result.picks_report = routing::ReportOf(contract, batch, picked);
  return result;
}

Result<PlanResult> MakePlan(const Contract& contract, const Batch& batch, const Target& target,
                            const PlanOptions& options, const RouteInputs* route) {
  const PreparedContract prepared = TESSERA_TRY(PrepareContract(contract));
  return MakePlan(prepared, batch, target, options, route);
}

}  // namespace tessera
