// Bound: a call, and what its receipt says.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/try.h"
#include "engine/describe.h"
#include "engine/state.h"
#include "engine/tensors.h"
#include "plan/count_pairs.h"

namespace tessera {
namespace {

Status CheckPass(const BoundState& bound, Pass pass) {
  const AttentionOptions& options = bound.attention->options;
  if (pass == Pass::kForward ? options.forward : options.backward) return {};
  return Fail(ErrorCode::kBadArgument,
              fmt::format("this attention was prepared without a {}: say so in its options", ToText(pass)), "bound");
}

int64_t PreparedNs(const BoundState& bound) {
  int64_t ns = bound.attention->prepare_ns + bound.bind_ns;
  for (const ProgramUse& program : bound.lane->Describe().programs) ns += program.compile_ns;
  return ns;
}

Status Call(const BoundState& bound, Pass pass, const RunTensors& tensors, const CallOptions& call) {
  if (call.receipt == nullptr) return RunPass(bound, pass, tensors, call).map([](const PassRun&) {});
  const Clock clock;
  Receipt& receipt = *call.receipt;
  receipt = {};
  AttentionOptions only = bound.attention->options;
  only.forward = pass == Pass::kForward;
  only.backward = pass == Pass::kBackward;
  DescribeRequest({.options = only,
                   .target = bound.attention->prepared->target,
                   .threads = bound.attention->threads,
                   .plan_given = true,
                   .row_max = only.forward && !tensors.row_max.empty()},
                  receipt);
  receipt.input_source = call.input_source;
  receipt.batch_source = call.batch_source;
  receipt.contract_source = call.contract_source;
  DescribeAttention(*bound.attention, receipt);
  DescribePlan(bound.plan.view(), only, receipt);
  const Contract& contract = bound.attention->contract;
  if (call.digests && CheckTensors(contract, tensors, only).empty()) {
    receipt.input_digest = DigestInputs(contract, tensors, only);
  }
  if (call.digests && call.batch != nullptr) receipt.batch_digest = BatchDigest(*call.batch);
  const int64_t digest_ns = call.digests ? clock.Ns() : 0;
  Result<PassRun> ran = RunPass(bound, pass, tensors, call);
  DescribeBinding(bound, receipt);
  if (ran) {
    DescribeLane(bound, receipt);
    DescribePass(bound, pass, *ran, receipt);
    const Clock after;
    receipt.output_digest = call.digests ? DigestOutputs(contract, tensors, only) : kNotTaken;
    if (call.digests) DescribeWork(bound, receipt);
    if (call.digests) receipt.timings.push_back({"digest", digest_ns + after.Ns()});
    receipt.ok = true;
  } else {
    receipt.failed_at = ToText(pass);
    receipt.error = ToText(ran.error());
  }
  // All that the receipt tells of, also what was done once for many calls.
  receipt.timings.push_back({"total", clock.Ns() + PreparedNs(bound)});
  if (!ran) return tl::unexpected(std::move(ran.error()));
  return {};
}

}  // namespace

Result<PassRun> RunPass(const BoundState& bound, Pass pass, const RunTensors& t, const CallOptions& options,
                        std::atomic<int64_t>* tiles_done) {
  TESSERA_TRY(CheckPass(bound, pass));
  if (!options.image.empty() && options.receipt != nullptr) {
    return Fail(ErrorCode::kBadArgument, "a receipt tells of the bound plan, and this call brings another's image");
  }
  if (!options.image.empty() && !bound.is_of_class) {
    return Fail(ErrorCode::kBadArgument,
                "the bound plan is of another class than its attention's, and an image of one needs its workspace");
  }
  const int64_t workspace_bytes = bound.lane->WorkspaceBytes(pass);
  // A lane whose memory is a device's takes its workspace there.
  const bool is_pooled = bound.row->memory == MemoryKind::kHost && options.workspace.empty();
  Workspace workspace;
  if (is_pooled) workspace = bound.attention->engine->workspaces.Take(workspace_bytes);
  if (is_pooled && !workspace.has_memory()) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("the lane needs {} bytes of workspace, more than this machine gives", workspace_bytes),
                "workspace");
  }
  PassRun run;
  const LaneCall call{.workspace = is_pooled ? workspace.bytes() : options.workspace,
                      .stream = options.stream,
                      .image = options.image,
                      .may_copy = bound.attention->may_copy,
                      .copied_bytes = &run.copied_bytes,
                      .tiles_done = tiles_done,
                      .crossing = &run.crossing};
  const Clock clock;
  if (pass == Pass::kForward) {
    run.tiles = TESSERA_TRY(bound.lane->Forward(
        {.q = t.q, .k = t.k, .v = t.v, .sink_logits = t.sink_logits, .o = t.o, .lse = t.lse, .row_max = t.row_max},
        call));
  } else {
    run.tiles = TESSERA_TRY(bound.lane->Backward({.q = t.q,
                                                  .k = t.k,
                                                  .v = t.v,
                                                  .o = t.o,
                                                  .dout = t.dout,
                                                  .sink_logits = t.sink_logits,
                                                  .lse = t.lse,
                                                  .delta = t.delta,
                                                  .dq = t.dq,
                                                  .dk = t.dk,
                                                  .dv = t.dv,
                                                  .dsink_logits = t.dsink_logits},
                                                 call));
  }
  run.ns = clock.Ns();
  return run;
}

int64_t PairsOf(const BoundState& bound) {
  std::call_once(bound.pairs_once, [&] { bound.pairs = CountPairs(bound.plan.view()); });
  return bound.pairs;
}

Status Bound::Forward(const RunTensors& tensors, const CallOptions& call) const {
  return Call(*state_, Pass::kForward, tensors, call);
}
Status Bound::Backward(const RunTensors& tensors, const CallOptions& call) const {
  return Call(*state_, Pass::kBackward, tensors, call);
}
const std::string& Bound::lane() const { return state_->lane_name; }
const std::string& Bound::kernel() const { return state_->kernel; }
const std::string& Bound::isa() const { return state_->isa; }
const Plan& Bound::plan() const { return state_->plan; }
const Contract& Bound::contract() const { return state_->attention->contract; }

int64_t Bound::workspace_bytes() const {
  int64_t bytes = 0;
  for (const Pass pass : PassesOf(state_->attention->options)) {
    bytes = std::max(bytes, state_->lane->WorkspaceBytes(pass));
  }
  return bytes;
}

}  // namespace tessera
