// Runs one lane on one plan.
#include "dispatch/execute.h"

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <new>

#include "dispatch/clock.h"
#include "dispatch/limits.h"
#include "dispatch/tensors.h"

namespace tessera {
namespace {

constexpr std::align_val_t kWorkspaceAlign{64};

struct FreeWorkspace {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, kWorkspaceAlign); }
};
using Workspace = std::unique_ptr<std::byte[], FreeWorkspace>;

// Null when the machine does not have that much.
Workspace MakeWorkspace(int64_t bytes) {
  if (bytes < 0 || bytes > kMaxWorkspaceBytes) return nullptr;
  return Workspace(
      static_cast<std::byte*>(::operator new[](static_cast<size_t>(bytes), kWorkspaceAlign, std::nothrow)));
}

// A plan says which contract it was made for; running it for another would compute something nobody asked for.
Status CheckPlanFits(const Contract& contract, const PlanView& plan) {
  Result<std::string> key = ContractKey(contract);
  if (!key) return tl::unexpected(key.error());
  if (const std::string plan_key = ToHex(plan.contract_key); plan_key != *key) {
    return Fail(ErrorCode::kPlanMismatch,
                fmt::format("the plan was made for contract {}, but this contract is {}", plan_key, *key));
  }
  return {};
}

void Stop(ExecuteResult& result, Error error) {
  result.error = std::move(error);
  result.outputs.clear();
}

}  // namespace

ExecuteResult Execute(const ExecuteRequest& request) {
  const Contract& contract = request.contract;
  const RunOptions& options = request.options;
  ExecuteResult result;
  result.step = "plan";
  if (Status fits = CheckPlanFits(contract, request.plan); !fits) {
    Stop(result, fits.error());
    return result;
  }

  result.step = "workspace";
  result.workspace_bytes = request.lane.WorkspaceBytes(contract, request.plan, request.threads);
  const Workspace workspace = MakeWorkspace(result.workspace_bytes);
  if (workspace == nullptr) {
    Stop(result,
         {ErrorCode::kTooLarge,
          fmt::format("the lane needs {} bytes of workspace, more than this machine gives", result.workspace_bytes),
          "workspace",
          {}});
    return result;
  }
  const LaneRequest lane_request{.contract = &contract,
                                 .plan = &request.plan,
                                 .threads = request.threads,
                                 .workspace = {workspace.get(), static_cast<size_t>(result.workspace_bytes)}};

  for (const TensorSpec& spec : OutputSpecs(contract, options)) {
    result.outputs.emplace(spec.name, Tensor::Zeros(spec.type, spec.shape));
  }
  TensorMap& outputs = result.outputs;
  auto input = [&](const char* name) { return ViewOf(request.inputs.at(name), options.layout); };
  auto output = [&](const char* name) { return ViewOf(outputs.at(name), options.layout); };
  const std::span<const float> sink_logits = FloatsOf(request.inputs, "sink_logits");

  result.step = "forward";
  Clock clock;
  Result<RunStats> forward = request.lane.Forward(lane_request, {.q = input("q"),
                                                                 .k = input("k"),
                                                                 .v = input("v"),
                                                                 .sink_logits = sink_logits,
                                                                 .o = output("o"),
                                                                 .lse = FloatsOf(outputs, "lse"),
                                                                 .row_max = FloatsOf(outputs, "max")});
  result.forward_ns = clock.Ns();
  if (!forward) {
    Stop(result, forward.error());
    return result;
  }
  result.forward = *forward;
  if (!options.backward) return result;

  result.step = "backward";
  clock = Clock();
  Result<RunStats> backward = request.lane.Backward(lane_request, {.q = input("q"),
                                                                   .k = input("k"),
                                                                   .v = input("v"),
                                                                   .o = output("o"),
                                                                   .dout = input("do"),
                                                                   .sink_logits = sink_logits,
                                                                   .lse = FloatsOf(outputs, "lse"),
                                                                   .delta = {},  // the lane computes it from o
                                                                   .dq = output("dq"),
                                                                   .dk = output("dk"),
                                                                   .dv = output("dv"),
                                                                   .dsink_logits = FloatsOf(outputs, "dsink_logits")});
  result.backward_ns = clock.Ns();
  if (!backward) {
    Stop(result, backward.error());
    return result;
  }
  result.backward = *backward;
  return result;
}

}  // namespace tessera
