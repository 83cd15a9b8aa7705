// Runs one lane on one plan.
#include "dispatch/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/clock.h"
#include "dispatch/workspace.h"

namespace tessera {
namespace {

// A plan says which contract it was made for; running it for another would compute something nobody asked for.
Status CheckPlanFits(std::string_view key, const PlanView& plan) {
  if (const std::string plan_key = ToHex(plan.contract_key); plan_key != key) {
    return Fail(ErrorCode::kPlanMismatch,
                fmt::format("the plan was made for contract {}, but this contract is {}", plan_key, key));
  }
  return {};
}

}  // namespace

ExecuteResult Execute(const ExecuteRequest& request) {
  const Contract& contract = request.contract;
  const RunTensors& tensors = request.tensors;
  ExecuteResult result;
  result.step = "plan";
  if (Status fits = CheckPlanFits(request.contract_key, request.plan); !fits) {
    result.error = fits.error();
    return result;
  }

  result.step = "workspace";
  LaneRequest lane_request{.contract = &contract,
                           .plan = &request.plan,
                           .threads = request.threads,
                           .isa = request.isa,
                           .workspace = {},
                           .target = request.target,
                           .xla = request.xla};
  if (request.options.forward) result.workspace_bytes = request.lane.WorkspaceBytes(lane_request, Pass::kForward);
  if (request.options.backward) {
    result.workspace_bytes =
        std::max(result.workspace_bytes, request.lane.WorkspaceBytes(lane_request, Pass::kBackward));
  }
  const Workspace workspace = Workspace::Take(result.workspace_bytes);
  if (!workspace.has_memory()) {
    result.error = {
        ErrorCode::kTooLarge,
        fmt::format("the lane needs {} bytes of workspace, more than this machine gives", result.workspace_bytes),
        "workspace",
        {}};
    return result;
  }
  lane_request.workspace = workspace.bytes();

  if (request.options.forward) {
    result.step = "forward";
    const Clock clock;
    Result<RunStats> forward = request.lane.Forward(lane_request, {.q = tensors.q,
                                                                   .k = tensors.k,
                                                                   .v = tensors.v,
                                                                   .sink_logits = tensors.sink_logits,
                                                                   .o = tensors.o,
                                                                   .lse = tensors.lse,
                                                                   .row_max = tensors.row_max});
    result.forward_ns = clock.Ns();
    if (!forward) {
      result.error = std::move(forward.error());
      return result;
    }
    result.forward = *forward;
  }
  if (request.options.backward) {
    result.step = "backward";
    const Clock clock;
    Result<RunStats> backward = request.lane.Backward(
        lane_request, {.q = tensors.q,
                       .k = tensors.k,
                       .v = tensors.v,
                       .o = tensors.o,
                       .dout = tensors.dout,
                       .sink_logits = tensors.sink_logits,
                       .lse = tensors.lse,
                       .delta = request.options.forward ? std::span<const float>() : tensors.delta,
                       .dq = tensors.dq,
                       .dk = tensors.dk,
                       .dv = tensors.dv,
                       .dsink_logits = tensors.dsink_logits});
    result.backward_ns = clock.Ns();
    if (!backward) {
      result.error = std::move(backward.error());
      return result;
    }
    result.backward = *backward;
  }
  return result;
}

}  // namespace tessera
