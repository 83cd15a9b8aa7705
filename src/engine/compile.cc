// The public Compile and LowerPrograms: a run up to the point where something would run.
#include "tessera/compile.h"

#include <fmt/format.h>

#include <utility>

#include "base/try.h"
#include "dispatch/select.h"
#include "engine/run.h"
#include "engine/state.h"

namespace tessera {
namespace {

// Whose programs: the lane asked for, else the first of a run's candidates that has any.
Result<std::shared_ptr<const Lane>> LaneWithPrograms(const EngineState& engine, const Contract& contract,
                                                     const Target& target, const AttentionOptions& options) {
  const std::vector<MadeLane> lanes =
      MakeLanes(engine.table, {.xla = options.xla, .compile_only = true, .xla_state = engine.xla});
  const MaskFacts facts = TESSERA_TRY(DescribeMask(contract));
  const auto refusal = [&](const LaneRow& row) {
    return row.refuses == nullptr ? Decision::Yes() : row.refuses(contract, facts);
  };
  if (IsForced(options)) {
    for (const MadeLane& made : lanes) {
      if (made.row->name != options.lane) continue;
      const Decision form = refusal(*made.row);
      if (made.lane != nullptr && made.row->has_programs && form.accepted) return made.lane;
      const ReasonCode reason = !form.accepted         ? form.reason
                                : made.lane == nullptr ? made.row->not_built
                                                       : ReasonCode::kNothingToCompile;
      return Fail(ErrorCode::kLaneRefused, fmt::format("the lane asked for has no programs: {} ({})",
                                                       ReasonText(reason), ReasonMeaning(reason)));
    }
    return Fail(ErrorCode::kLaneUnknown, fmt::format("there is no lane \"{}\"", options.lane));
  }
  for (const MadeLane* made : Candidates(lanes, target, SelectRule(contract, facts, target).lane)) {
    if (made->lane != nullptr && made->row->has_programs && refusal(*made->row).accepted) return made->lane;
  }
  return Fail(ErrorCode::kLaneRefused, fmt::format("no lane has programs for the target {}", target.name));
}

}  // namespace

RunOutcome Compile(const Engine& engine, const Contract& contract, const Batch& batch, const Target& target,
                   const RunOptions& options, const TensorMap& inputs) {
  return RunOnce(EngineAccess::Of(engine), {.contract = contract,
                                            .batch = batch,
                                            .target = target,
                                            .options = options,
                                            .inputs = &inputs,
                                            .compile_only = true});
}

EmitOutcome Emit(const Engine& engine, const Contract& contract, const Batch& batch, const Target& target,
                 const RunOptions& options, const TensorMap& inputs) {
  EmitOutcome outcome;
  outcome.run = RunOnce(EngineAccess::Of(engine), {.contract = contract,
                                                   .batch = batch,
                                                   .target = target,
                                                   .options = options,
                                                   .inputs = &inputs,
                                                   .compile_only = true,
                                                   .texts = &outcome.programs});
  if (options.chips > 1) outcome.run.receipt.options["chips"] = fmt::format("{}", options.chips);
  if (outcome.run.error) outcome.programs.clear();
  return outcome;
}

Result<std::vector<ProgramText>> LowerPrograms(const Engine& engine, const Contract& contract, const Batch& batch,
                                               const Target& target, const RunOptions& options,
                                               const TensorMap& inputs) {
  if (options.chips < 1) return Fail(ErrorCode::kBadArgument, "a program is for at least one chip", "chips");
  const AttentionOptions settled = Settle(engine.options(), options);
  const std::shared_ptr<const Lane> lane =
      TESSERA_TRY(LaneWithPrograms(*EngineAccess::Of(engine), contract, target, settled));
  const RouteInputs route = TESSERA_TRY(RouteInputsOf(contract, inputs, options.layout));
  const PlanResult made = TESSERA_TRY(MakePlan(contract, batch, target, options.plan, &route));
  const std::vector<Pass> passes = PassesOf(options);
  std::vector<ProgramText> programs;
  for (const Pass pass : passes) {
    programs.push_back(TESSERA_TRY(lane->Lower(
        {.contract = contract, .plan = made.plan.view(), .target = target, .passes = passes, .chips = options.chips},
        pass)));
  }
  return programs;
}

}  // namespace tessera
