#include "dispatch/bind.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dispatch/select.h"

namespace tessera {
namespace {

std::string Refusal(std::string_view lane, const Decision& decision) {
  std::string text = fmt::format("{}: {} ({}", lane, ReasonText(decision.reason), ReasonMeaning(decision.reason));
  if (!decision.detail.empty()) text += "; " + decision.detail;
  return text + ")";
}

const Decision& OnContract(const BindAsk& ask, std::string_view lane) {
  const std::vector<LaneDecision>& decisions = ask.selection.decisions;
  return std::find_if(decisions.begin(), decisions.end(), [&](const LaneDecision& d) { return d.lane == lane; })
      ->decision;
}

std::vector<const MadeLane*> CandidatesOf(const BindAsk& ask) {
  std::vector<const MadeLane*> candidates = Candidates(ask.lanes, ask.target, ask.selected, ask.over);
  if (IsForced(ask.options)) candidates.resize(1);
  return candidates;
}

// A refusal of the selected lane ends it when the caller allows no other.
std::optional<Failure> MayFallBack(const BindAsk& ask, std::string step, std::string_view lane,
                                   const Decision& decision) {
  if (IsForced(ask.options)) {
    return Failure{std::move(step),
                   {ErrorCode::kLaneRefused, "the lane asked for refused: " + Refusal(lane, decision), {}, {}}};
  }
  if (ask.options.strict) {
    return Failure{std::move(step),
                   {ErrorCode::kStrictFallback,
                    "strict mode allows no fallback, and the selected lane refused: " + Refusal(lane, decision),
                    {},
                    {}}};
  }
  return std::nullopt;
}

Failure EveryoneRefused(const BindAsk& ask, const std::vector<std::string>& refusals) {
  return {"decide",
          {ErrorCode::kLaneRefused,
           fmt::format("every lane that could {} this refused: {}", ask.compile_only ? "compile" : "run",
                       fmt::join(refusals, ", ")),
           {},
           {}}};
}

// Host code that ran for another target is no success of that target's, whoever asked for it.
void CheckMachine(const BindAsk& ask, BindResult& result) {
  if (ask.compile_only || result.lane->Describe().device.kind == ToText(ask.target.kind)) return;
  if (result.fallback_reason.empty()) result.fallback_reason = ReasonText(ReasonCode::kOffMachine);
  if (!ask.options.strict) return;
  result.failure = Failure{
      "decide_plan",
      {ErrorCode::kStrictFallback,
       fmt::format("strict mode allows no fallback, and {} was planned for and is not here: {} ({})", ask.target.name,
                   ReasonText(ReasonCode::kOffMachine), ReasonMeaning(ReasonCode::kOffMachine)),
       {},
       {}}};
}

}  // namespace

std::vector<Pass> PassesOf(const AttentionOptions& options) {
  std::vector<Pass> passes;
  if (options.forward) passes.push_back(Pass::kForward);
  if (options.backward) passes.push_back(Pass::kBackward);
  return passes;
}

std::optional<Failure> CheckAccepted(const BindAsk& ask) {
  std::vector<std::string> refusals;
  for (const MadeLane* made : CandidatesOf(ask)) {
    const Decision& decision = OnContract(ask, made->row->name);
    if (decision.accepted) return std::nullopt;
    if (made->row->name == ask.selected) {
      if (std::optional<Failure> refused = MayFallBack(ask, "decide", made->row->name, decision)) return refused;
    }
    refusals.push_back(Refusal(made->row->name, decision));
  }
  return EveryoneRefused(ask, refusals);
}

std::string_view ExpectedLane(const BindAsk& ask) {
  for (const MadeLane* made : CandidatesOf(ask)) {
    if (OnContract(ask, made->row->name).accepted) return made->row->name;
  }
  return {};
}

BindResult BindLane(const BindAsk& ask, const PlanView& plan, const BindEarlier& earlier) {
  BindResult result;
  const std::vector<Pass> passes = PassesOf(ask.options);
  std::vector<std::string> refusals;
  for (const MadeLane* made : CandidatesOf(ask)) {
    const std::string_view name = made->row->name;
    Decision decision = OnContract(ask, name);
    std::string step = "decide";
    if (decision.accepted) {
      decision = made->lane->DecidePlan(ask.contract, plan, ask.target);
      result.decisions.push_back({std::string(name), "plan", decision});
      step = "decide_plan";
    }
    if (decision.accepted) {
      result.row = made->row;
      BindRequest request{ask.contract, plan, ask.target, passes};
      request.meter = earlier.meter;
      if (earlier.row == made->row) {
        request.earlier = earlier.lane;
        request.stream = earlier.stream;
      }
      Result<std::unique_ptr<BoundLane>> bound = made->lane->Bind(request);
      if (!bound) {
        result.failure = Failure{ask.compile_only ? "compile" : "bind", std::move(bound.error())};
        return result;
      }
      result.lane = std::move(*bound);
      CheckMachine(ask, result);
      return result;
    }
    if (name == ask.selected) {
      result.fallback_reason = ReasonText(decision.reason);
      result.failure = MayFallBack(ask, step, name, decision);
      if (result.failure) return result;
    }
    refusals.push_back(Refusal(name, decision));
  }
  result.failure = EveryoneRefused(ask, refusals);
  return result;
}

}  // namespace tessera
