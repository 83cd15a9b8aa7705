// One-shot runs. The order of events, read downwards: request -> prepare (contract, decisions, selection) -> inputs ->
// plan -> bind (decisions on the plan, fallback) -> forward and backward -> digests. Every step leaves its trace in the
// receipt, and a step that fails ends the run.
#include "tessera/run.h"

#include <fmt/format.h>

#include <new>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "engine/describe.h"
#include "engine/run.h"
#include "engine/state.h"
#include "engine/tensors.h"

namespace tessera {
namespace {

using Outcome = std::optional<Failure>;  // nothing = good

Failure At(std::string step, Error error) { return {std::move(step), std::move(error)}; }

RequestFacts FactsOf(const OneShot& shot, const AttentionOptions& settled) {
  const bool is_strided = shot.tensors != nullptr;
  return {.options = settled,
          .target = shot.target,
          .threads = std::max<int64_t>(settled.threads.value_or(shot.target.workers), 1),
          .compile_only = shot.compile_only,
          .emit_only = shot.texts != nullptr,
          .row_max = is_strided ? !shot.tensors->row_max.empty() : shot.options.row_max,
          .layout = is_strided ? Layout::kBhtd : shot.options.layout};
}

void DescribeSources(const RunOptions& options, Receipt& receipt) {
  receipt.input_source = options.input_source;
  receipt.batch_source = options.batch_source;
  receipt.contract_source = options.contract_source;
}

// A request that is refused has a contract all the same, and a fault of that one is said first.
Failure RefuseRequest(const Contract& contract, Failure refusal, Receipt& receipt) {
  if (refusal.step != "request") return refusal;
  Result<std::string> key = ContractKey(contract);
  if (!key) return At("contract", std::move(key.error()));
  receipt.contract_key = *key;
  receipt.contract_text = ToToml(contract);
  return refusal;
}

Outcome CheckShotInputs(const OneShot& shot) {
  if (shot.compile_only) {
    Result<RouteInputs> route = RouteInputsOf(shot.contract, *shot.inputs, shot.options.layout);
    return route ? Outcome() : At("inputs", std::move(route.error()));
  }
  std::vector<Violation> violations = shot.tensors != nullptr
                                          ? CheckTensors(shot.contract, *shot.tensors, shot.options)
                                          : CheckInputs(*shot.inputs, InputSpecs(shot.contract, shot.options));
  if (violations.empty()) return std::nullopt;
  return At("inputs", Fail(ErrorCode::kTensorMismatch, std::move(violations)).value());
}

// What routing reads; nothing where it was not given.
RouteInputs RouteOf(const OneShot& shot) {
  if (shot.tensors != nullptr) return {.q = shot.tensors->q, .k = shot.tensors->k};
  return RouteInputsOf(shot.contract, *shot.inputs, shot.options.layout).value_or(RouteInputs{});
}

Attempt<Plan> MakeShotPlan(const OneShot& shot, const AttentionState& attention, RunOutcome& outcome) {
  Receipt& receipt = outcome.receipt;
  const Clock clock;
  const RouteInputs route = RouteOf(shot);
  Result<PlanResult> made = PlanFor(attention, shot.batch, &route);
  if (!made) {
    const bool is_batch = made.error().code == ErrorCode::kBatchInvalid;
    return tl::unexpected(At(is_batch ? "batch" : "plan", std::move(made.error())));
  }
  for (const StageReport& stage : made->stages) receipt.timings.push_back({"plan." + stage.name, stage.ns});
  receipt.timings.push_back({"plan", clock.Ns()});
  DescribePlan(made->plan.view(), attention.options, receipt);
  outcome.stages = std::move(made->stages);
  outcome.picks = std::move(made->picks);
  outcome.picks_report = std::move(made->picks_report);
  if (outcome.picks_report) DescribePicks(*outcome.picks_report, receipt);
  return std::move(made->plan);
}

// The worklist whose tiles a pass counts.
Direction DirectionOf(Pass pass) { return pass == Pass::kForward ? Direction::kForward : Direction::kDkv; }

Outcome Call(const OneShot& shot, const BoundState& bound, const RunTensors& tensors, Receipt& receipt) {
  int64_t copied_bytes = 0;
  for (const Pass pass : PassesOf(shot.options)) {
    RunTensors of_pass = tensors;
    if (pass == Pass::kBackward && shot.options.forward) of_pass.delta = {};  // from the o that was just written
    RunMeter* meter = shot.options.meter;
    if (meter != nullptr) {
      const TileCounts tiles = CountTiles(bound.plan.view(), DirectionOf(pass));
      meter->Begin(pass == Pass::kForward ? RunStep::kForward : RunStep::kBackward, tiles.full + tiles.partial);
    }
    Result<PassRun> ran = RunPass(bound, pass, of_pass, {}, meter == nullptr ? nullptr : &meter->done);
    if (!ran) {
      const bool is_workspace = ran.error().where == "workspace";
      return At(is_workspace ? "workspace" : std::string(ToText(pass)), std::move(ran.error()));
    }
    if (receipt.executed.empty()) DescribeLane(bound, receipt);
    DescribePass(bound, pass, *ran, receipt);
    copied_bytes += ran->copied_bytes;
  }
  if (copied_bytes > 0) {
    receipt.device.memory =
        fmt::format("host, {} bytes copied to {} and back", copied_bytes, bound.lane->Describe().device.memory);
  }
  return std::nullopt;
}

// Digests are asked for; a receipt says when they were not taken.
void DescribeDigests(const OneShot& shot, const BoundState& bound, const RunTensors& tensors, RunOutcome& outcome) {
  Receipt& receipt = outcome.receipt;
  receipt.output_digest = kNotTaken;
  if (!shot.options.digests) return;
  const Clock clock;
  if (shot.tensors != nullptr) {
    receipt.input_digest = DigestInputs(shot.contract, tensors, shot.options);
    receipt.output_digest = DigestOutputs(shot.contract, tensors, shot.options);
  } else {
    receipt.output_digest = Digest(outcome.outputs);
  }
  DescribeWork(bound, receipt);
  receipt.timings.push_back({"digest", clock.Ns()});
}

// The programs of a lane that is bound to write them.
Outcome EmitTexts(const OneShot& shot, const BoundState& bound, Receipt& receipt) {
  if (shot.options.chips < 1) {
    return At("emit", {ErrorCode::kBadArgument, "a program is for at least one chip", "chips", {}});
  }
  const AttentionState& attention = *bound.attention;
  const BindAsk ask = attention.Ask();
  const std::vector<Pass> passes = PassesOf(ask.options);
  for (const MadeLane& made : attention.lanes) {
    if (made.row != bound.row) continue;
    for (const Pass pass : passes) {
      Result<ProgramText> text = made.lane->Lower({.contract = ask.contract,
                                                   .plan = bound.plan.view(),
                                                   .target = ask.target,
                                                   .passes = passes,
                                                   .chips = shot.options.chips},
                                                  pass);
      if (!text) return At("emit", std::move(text.error()));
      DescribeEmitted(*text, ask.target, receipt);
      shot.texts->push_back(std::move(*text));
    }
  }
  return std::nullopt;
}

Outcome Try(const std::shared_ptr<EngineState>& engine, const OneShot& shot, RunOutcome& outcome) {
  Receipt& receipt = outcome.receipt;
  const Attempt<std::shared_ptr<const AttentionState>> prepared =
      PrepareAttention(engine, shot.contract, shot.target, shot.options,
                       {.compile_only = shot.compile_only,
                        .emit_only = shot.texts != nullptr,
                        .may_copy = shot.inputs != nullptr && !shot.compile_only});
  if (!prepared) return RefuseRequest(shot.contract, prepared.error(), receipt);
  const AttentionState& attention = **prepared;
  DescribeAttention(attention, receipt);
  if (Outcome refused = CheckAccepted(attention.Ask())) return refused;
  if (Outcome bad = CheckShotInputs(shot)) return bad;
  Attempt<Plan> plan = MakeShotPlan(shot, attention, outcome);
  if (!plan) return std::move(plan.error());
  BindOutcome bound = BindPlan(*prepared, std::move(*plan), {.meter = shot.options.meter});
  if (bound.failure) {
    receipt.decisions.insert(receipt.decisions.end(), bound.decisions.begin(), bound.decisions.end());
    receipt.fallback_reason = bound.fallback_reason;
    return std::move(bound.failure);
  }
  if (shot.compile_only) {
    DescribeBinding(*bound.bound, receipt);
    DescribeLane(*bound.bound, receipt);
    if (shot.options.backward) {
      receipt.tiles_backward = CountTiles(bound.bound->plan.view(), Direction::kDkv);
    }
    receipt.output_digest.clear();
    return shot.texts == nullptr ? std::nullopt : EmitTexts(shot, *bound.bound, receipt);
  }
  // Outputs by name are made only now, when something is about to fill them.
  const RunTensors tensors =
      shot.tensors != nullptr ? *shot.tensors : BindTensors(shot.contract, *shot.inputs, shot.options, outcome.outputs);
  DescribeBinding(*bound.bound, receipt);
  if (Outcome failed = Call(shot, *bound.bound, tensors, receipt)) return failed;
  if (shot.options.keep_bound) outcome.bound = EngineAccess::Wrap(bound.bound);
  DescribeDigests(shot, *bound.bound, tensors, outcome);
  return std::nullopt;
}

// Memory can run out anywhere; the receipt says which step had been reached.
Outcome TryInMemory(const std::shared_ptr<EngineState>& engine, const OneShot& shot, RunOutcome& outcome) try {
  return Try(engine, shot, outcome);
} catch (const std::bad_alloc&) {
  outcome.outputs.clear();
  const Receipt& receipt = outcome.receipt;
  const char* step = receipt.selected.empty() ? "contract" : receipt.plan_fingerprint.empty() ? "plan" : "workspace";
  return At(step, {ErrorCode::kTooLarge, "this machine gives no more memory", step, {}});
}

}  // namespace

RunOutcome RunOnce(const std::shared_ptr<EngineState>& engine, const OneShot& shot) {
  const Clock clock;
  RunOutcome outcome;
  Receipt& receipt = outcome.receipt;
  const AttentionOptions settled = Settle(engine->options, shot.options);
  DescribeRequest(FactsOf(shot, settled), receipt);
  DescribeSources(shot.options, receipt);
  if (shot.options.digests) {
    receipt.batch_digest = BatchDigest(shot.batch);
    if (shot.inputs != nullptr && !shot.inputs->empty()) receipt.input_digest = Digest(*shot.inputs);
  }
  if (Outcome failure = TryInMemory(engine, shot, outcome)) {
    receipt.failed_at = failure->step;
    receipt.error = ToText(failure->error);
    outcome.error = std::move(failure->error);
    outcome.outputs.clear();
  } else {
    receipt.ok = true;
  }
  receipt.timings.push_back({"total", clock.Ns()});
  return outcome;
}

RunOutcome Run(const Engine& engine, const Contract& contract, const Batch& batch, const TensorMap& inputs,
               const Target& target, const RunOptions& options) {
  return RunOnce(EngineAccess::Of(engine),
                 {.contract = contract, .batch = batch, .target = target, .options = options, .inputs = &inputs});
}

RunOutcome RunStrided(const Engine& engine, const Contract& contract, const Batch& batch, const RunTensors& tensors,
                      const Target& target, const RunOptions& options) {
  RunOptions where = options;
  where.memory = tensors.q.space;  // the others must be there too
  return RunOnce(EngineAccess::Of(engine),
                 {.contract = contract, .batch = batch, .target = target, .options = where, .tensors = &tensors});
}

Receipt ReceiptOf(const Engine& engine, const EarlyFailure& failure, const RunOptions& options, const Error& error) {
  const Contract no_contract;
  const Batch no_batch;
  Result<Target> known = FindTarget(failure.target);
  const Target target = known ? *known : Target{.name = failure.target, .description = {}};
  const OneShot shot{.contract = failure.contract == nullptr ? no_contract : *failure.contract,
                     .batch = failure.batch == nullptr ? no_batch : *failure.batch,
                     .target = target,
                     .options = options,
                     .inputs = failure.inputs};
  Receipt receipt;
  const AttentionOptions settled = Settle(engine.options(), options);
  DescribeRequest(FactsOf(shot, settled), receipt);
  DescribeSources(options, receipt);
  if (failure.batch == nullptr) receipt.batch_digest.clear();
  if (failure.inputs == nullptr) receipt.input_digest.clear();
  if (options.digests && failure.batch != nullptr) receipt.batch_digest = BatchDigest(*failure.batch);
  if (options.digests && failure.inputs != nullptr) receipt.input_digest = Digest(*failure.inputs);
  if (failure.contract != nullptr) {
    receipt.contract_text = ToToml(*failure.contract);
    receipt.contract_key = ContractKey(*failure.contract).value_or("");
  }
  receipt.failed_at = failure.failed_at;
  receipt.error = ToText(error);
  return receipt;
}

}  // namespace tessera
