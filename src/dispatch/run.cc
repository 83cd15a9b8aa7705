// The order of events: request -> contract, decisions and selection, found prepared or made -> inputs -> then, lane by
// lane, plan -> decision on the plan -> run. Every step leaves its trace in the receipt, and no step is retried in
// another way: a lane that refuses is followed by the next one with a plan of its own, a lane that fails ends the run.
#include "dispatch/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>

#include "base/clock.h"
#include "dispatch/execute.h"
#include "dispatch/ledger.h"
#include "dispatch/prepare.h"
#include "dispatch/select.h"
#include "dispatch/tensors.h"
#include "lanes/workers.h"
#include "pipeline/pipeline.h"

namespace tessera {
namespace {

using Outcome = std::optional<RunFailure>;  // nothing = good

Outcome FailAt(std::string step, Error error) { return RunFailure{std::move(step), std::move(error)}; }
Outcome FailAt(std::string step, ErrorCode code, std::string message, std::string where = {}) {
  return FailAt(std::move(step), Error{code, std::move(message), std::move(where), {}});
}

std::string Refusal(std::string_view lane, const Decision& decision) {
  std::string text = fmt::format("{}: {} ({}", lane, ReasonText(decision.reason), ReasonMeaning(decision.reason));
  if (!decision.detail.empty()) text += "; " + decision.detail;
  return text + ")";
}

PrepareRequest ToPrepare(const RunRequest& request) {
  return {.table = request.table,
          .contract = request.contract,
          .target = request.target,
          .options = request.options,
          .isa = request.isa,
          .xla = request.xla,
          .asked = request.asked};
}

Outcome CheckRequest(const RunRequest& request) {
  if (Status ok = CheckNames(ToPrepare(request)); !ok) return FailAt("request", std::move(ok.error()));
  if (const int64_t threads = request.options.threads.value_or(1); threads < 1) {
    return FailAt(
        "request", ErrorCode::kBadArgument,
        fmt::format("threads must be 1 or more, got {}; not given, they are as many as the target has workers",
                    threads));
  }
  if (!request.options.forward && !request.options.backward) {
    return FailAt("request", ErrorCode::kBadArgument, "a run needs a forward, a backward or both, got neither");
  }
  if (request.asked == Asked::kCompile && request.options.pinned != nullptr) {
    return FailAt("request", ErrorCode::kBadArgument, "what is compiled without being run is not pinned to a run",
                  "pinned");
  }
  if (request.plan != nullptr && request.plan->bytes().empty()) {
    return FailAt("request", ErrorCode::kPlanMismatch, "a run with a given plan needs a plan, got an empty one");
  }
  return std::nullopt;
}

// A request that is refused has a contract all the same, and a fault of that one is said first.
Outcome RefuseRequest(const RunRequest& request, Outcome refusal, Receipt& receipt) {
  Result<std::string> key = ContractKey(request.contract);
  if (!key) return FailAt("contract", std::move(key.error()));
  receipt.contract_key = *key;
  receipt.contract_text = ToToml(request.contract);
  return refusal;
}

// Finds or makes what no batch changes, and tells the receipt what it says.
Outcome ReadPrepared(RunRequest& request, Receipt& receipt) {
  const Clock clock;
  Result<Obtained> got = Obtain(ToPrepare(request));
  if (!got && got.error().code == ErrorCode::kPinnedMismatch) {
    return RefuseRequest(request, FailAt("request", std::move(got.error())), receipt);
  }
  if (!got) return FailAt("contract", std::move(got.error()));
  request.prepared = got->prepared;
  const PreparedRun& prepared = *request.prepared;
  receipt.cache = std::move(got->use);
  receipt.contract_key = prepared.key.contract_key;
  receipt.contract_text = got->is_same_spelling ? prepared.contract_text : ToToml(request.contract);
  receipt.selected = prepared.selection.lane;
  receipt.selection_rule = prepared.selection.rule;
  receipt.decisions = prepared.selection.decisions;
  receipt.timings.push_back({"prepare", clock.Ns()});
  return std::nullopt;
}

const Decision& ContractDecision(const Receipt& receipt, std::string_view lane) {
  return std::find_if(receipt.decisions.begin(), receipt.decisions.end(),
                      [&](const LaneDecision& d) { return d.lane == lane && d.step == "contract"; })
      ->decision;
}

// Selection and every lane's decision on the contract are two records, neither made from the other. Only a ledger looks
// at both, and it chooses between lanes that accepted.
void AskLedger(const RunRequest& request, Receipt& receipt) {
  receipt.ledger =
      ConsultLedger({request.contract, request.target, request.options, receipt.selected, receipt.decisions});
  if (!receipt.ledger.chose.empty()) receipt.selected = receipt.ledger.chose;
  receipt.selection_rule = RuleWithLedger(receipt.selection_rule, receipt.ledger);
}

// A refusal of the selected lane ends the run when the caller allows no other.
Outcome CheckMayFallBack(const RunOptions& options, std::string step, std::string_view lane, const Decision& decision) {
  if (IsForced(options)) {
    return FailAt(std::move(step), ErrorCode::kLaneRefused, "the lane asked for refused: " + Refusal(lane, decision));
  }
  if (options.strict) {
    return FailAt(std::move(step), ErrorCode::kStrictFallback,
                  "strict mode allows no fallback, and the selected lane refused: " + Refusal(lane, decision));
  }
  return std::nullopt;
}

// What routing reads, and the threads it may use: those of the run.
RouteInputs RouteInputsFor(const RunRequest& request) {
  RouteInputs route;
  if (request.asked == Asked::kCompile) {
    route = RouteInputsOf(request.contract, *request.inputs, request.options.layout).value_or(RouteInputs{});
  } else if (request.tensors != nullptr) {
    route.q = request.tensors->q;
    route.k = request.tensors->k;
  } else {
    route.q = ViewOf(request.inputs->at("q"), request.options.layout);
    route.k = ViewOf(request.inputs->at("k"), request.options.layout);
  }
  route.parallel = [threads = ThreadsOf(request)](int64_t count, const std::function<void(int64_t)>& work) {
    lanes::RunUnits(threads, count, [&](int64_t unit, int64_t) { work(unit); });
  };
  return route;
}

// Makes the plan a lane will be asked about; its timings replace an earlier lane's.
Result<Plan> PlanFor(const RunRequest& request, RunOutcome& outcome) {
  Receipt& receipt = outcome.receipt;
  Clock clock;
  const RouteInputs route = RouteInputsFor(request);
  Result<PlanResult> made =
      MakePlan(*request.prepared->planning, *request.batch, request.target, request.options.plan, &route);
  if (!made) return tl::unexpected(made.error());
  std::erase_if(receipt.timings, [](const Timing& timing) { return timing.name.rfind("plan", 0) == 0; });
  for (const StageReport& stage : made->stages) receipt.timings.push_back({"plan." + stage.name, stage.ns});
  receipt.timings.push_back({"plan", clock.Ns()});
  outcome.stages = std::move(made->stages);
  outcome.picks = std::move(made->picks);
  outcome.picks_report = std::move(made->picks_report);
  receipt.picks = {};
  if (const std::optional<PicksReport>& picks = outcome.picks_report) {
    receipt.picks = {.source = picks->source,
                     .reason = picks->source == kRerouted ? "indexer_returned_none" : "",
                     .picks = picks->picks,
                     .kept = picks->kept,
                     .nan_scores = picks->nan_scores,
                     .widest_union = picks->widest_union};
  }
  return std::move(made->plan);
}

void DescribePlan(const RunOptions& options, const PlanView& view, Receipt& receipt) {
  receipt.class_key = ToHex(view.class_key);
  receipt.mask_digest = ToHex(view.mask_digest);
  receipt.plan_fingerprint = ToHex(view.fingerprint);
  receipt.plan_bytes = static_cast<int64_t>(view.bytes.size());
  receipt.metadata_bytes = MetadataBytes(view);
  if (options.forward) receipt.tiles = CountTiles(view, Direction::kForward);
}

Outcome RunLane(const RunRequest& request, const LaneRow& row, const PlanView& plan, RunOutcome& outcome) {
  Receipt& receipt = outcome.receipt;
  // Outputs by name are made only now, when something is about to fill them.
  const RunTensors tensors = request.tensors != nullptr
                                 ? *request.tensors
                                 : BindTensors(request.contract, *request.inputs, request.options, outcome.outputs);
  ExecuteResult result = Execute({.lane = *row.lane,
                                  .contract = request.contract,
                                  .contract_key = receipt.contract_key,
                                  .plan = plan,
                                  .tensors = tensors,
                                  .options = request.options,
                                  .threads = ThreadsOf(request),
                                  .isa = request.isa,
                                  .target = request.target.kind,
                                  .xla = request.xla});
  receipt.workspace_bytes = result.workspace_bytes;
  if (const std::optional<RunStats>& first = result.forward ? result.forward : result.backward) {
    DescribeLane(row, row.runtime_mode, *first, receipt);
  }
  if (result.forward) DescribeProgram(result.forward->program, receipt.xla_forward, receipt);
  if (result.backward) DescribeProgram(result.backward->program, receipt.xla_backward, receipt);
  if (result.forward) {
    receipt.tiles_executed = result.forward->tiles_executed;
    receipt.timings.push_back({"forward", result.forward_ns});
  }
  if (result.backward) {
    receipt.tiles_backward = CountTiles(plan, Direction::kDkv);
    receipt.tiles_executed_backward = result.backward->tiles_executed;
    receipt.timings.push_back({"backward", result.backward_ns});
  }
  if (result.error) return FailAt(result.step, std::move(*result.error));
  receipt.output_digest =
      request.tensors != nullptr ? DigestOutputs(request.contract, tensors, request.options) : Digest(outcome.outputs);
  return std::nullopt;
}

Outcome TryLanes(const RunRequest& request, RunOutcome& outcome) {
  Receipt& receipt = outcome.receipt;
  std::vector<const LaneRow*> candidates = Candidates(request.table, receipt.selected, receipt.ledger.over);
  if (IsForced(request.options)) candidates.resize(1);
  std::vector<std::string> refusals;
  for (const LaneRow* row : candidates) {
    Decision decision = ContractDecision(receipt, row->name);
    std::string step = "decide";
    if (decision.accepted) {
      Result<Plan> made;
      if (request.plan == nullptr) made = PlanFor(request, outcome);
      if (!made) {
        const bool is_batch = made.error().code == ErrorCode::kBatchInvalid;
        return FailAt(is_batch ? "batch" : "plan", std::move(made.error()));
      }
      const PlanView& plan = request.plan != nullptr ? request.plan->view() : made->view();
      DescribePlan(request.options, plan, receipt);
      const bool is_compile = request.asked == Asked::kCompile;
      decision = is_compile ? row->lane->compiler()->DecidePlan(request.contract, plan, request.target, request.xla)
                            : row->lane->DecidePlan(request.contract, plan, request.target, request.xla);
      receipt.decisions.push_back({std::string(row->name), "plan", decision});
      step = "decide_plan";
      if (decision.accepted && is_compile) return CompileLane(request, *row, plan, receipt);
      if (decision.accepted) return RunLane(request, *row, plan, outcome);
    }
    if (row->name == receipt.selected) {
      receipt.fallback_reason = ReasonText(decision.reason);
      if (Outcome refused = CheckMayFallBack(request.options, step, row->name, decision)) return refused;
    }
    refusals.push_back(Refusal(row->name, decision));
  }
  return FailAt("decide", ErrorCode::kLaneRefused,
                fmt::format("every lane that could {} this refused: {}",
                            request.asked == Asked::kCompile ? "compile" : "run", fmt::join(refusals, ", ")));
}

Outcome Attempt(RunRequest& request, RunOutcome& outcome) {
  Receipt& receipt = outcome.receipt;
  if (Outcome bad = CheckRequest(request)) return RefuseRequest(request, std::move(bad), receipt);
  if (Outcome bad = ReadPrepared(request, receipt)) return bad;
  AskLedger(request, receipt);
  receipt.fallback_reason = ReasonText(ContractDecision(receipt, receipt.selected).reason);
  if (request.asked == Asked::kCompile) {
    Result<RouteInputs> route = RouteInputsOf(request.contract, *request.inputs, request.options.layout);
    if (!route) return FailAt("inputs", std::move(route.error()));
    return TryLanes(request, outcome);
  }
  std::vector<Violation> violations = request.tensors != nullptr
                                          ? CheckTensors(request.contract, *request.tensors, request.options)
                                          : CheckInputs(*request.inputs, InputSpecs(request.contract, request.options));
  if (!violations.empty()) return FailAt("inputs", Fail(ErrorCode::kTensorMismatch, std::move(violations)).value());
  if (request.tensors != nullptr) {
    outcome.receipt.input_digest = DigestInputs(request.contract, *request.tensors, request.options);
  }
  return TryLanes(request, outcome);
}

// Memory can run out anywhere; the receipt says which step had been reached.
Outcome AttemptInMemory(RunRequest& request, RunOutcome& outcome) try {
  return Attempt(request, outcome);
} catch (const std::bad_alloc&) {
  outcome.outputs.clear();
  const Receipt& receipt = outcome.receipt;
  const char* step = receipt.selected.empty() ? "contract" : receipt.plan_fingerprint.empty() ? "plan" : "workspace";
  return FailAt(step, ErrorCode::kTooLarge, "this machine gives no more memory", step);
}

}  // namespace

RunOutcome RunOn(const RunRequest& asked) {
  Clock clock;
  RunRequest request = asked;
  request.isa = AskedIsa(asked.options);
  request.xla = AskedXla(asked.options.xla);
  RunOutcome outcome;
  Receipt& receipt = outcome.receipt;
  DescribeRequest(request, receipt);
  if (Outcome failure = AttemptInMemory(request, outcome)) {
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

RunOutcome Run(const Contract& contract, const Batch& batch, const TensorMap& inputs, const Target& target,
               const RunOptions& options) {
  return RunOn({.table = LaneTable(),
                .contract = contract,
                .batch = &batch,
                .target = target,
                .options = options,
                .inputs = &inputs});
}

RunOutcome RunStrided(const Contract& contract, const Batch& batch, const RunTensors& tensors, const Target& target,
                      const RunOptions& options) {
  return RunOn({.table = LaneTable(),
                .contract = contract,
                .batch = &batch,
                .target = target,
                .options = options,
                .tensors = &tensors});
}

RunOutcome RunPlan(const Contract& contract, const GivenPlan& given, const RunTensors& tensors, const Target& target,
                   const RunOptions& options) {
  const Plan nothing;  // of no contract, so that a missing plan is a mismatch like any other
  return RunOn({.table = LaneTable(),
                .contract = contract,
                .batch = given.batch,
                .target = target,
                .options = options,
                .tensors = &tensors,
                .plan = given.plan != nullptr ? given.plan : &nothing});
}

}  // namespace tessera
