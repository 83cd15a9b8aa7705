// The lane object: what it accepts, and the checks that stand before any output is written.
#include "lanes/reference/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lanes/reference/walk.h"

namespace tessera {
namespace {

namespace ref = lanes::reference;

struct Axes {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t len = 0;
  int64_t dim = 0;
};

// Collects every complaint, so that one call tells all.
class Checker {
 public:
  explicit Checker(const LaneRequest& request)
      : shape_(request.contract->shape), sinks_(request.contract->score.sink_logits) {
    const Shape& shape = shape_;
    q_axes = {shape.batch, shape.num_q_heads, shape.q_len, shape.dim_qk};
    k_axes = {shape.batch, shape.num_kv_heads, shape.kv_len, shape.dim_qk};
    v_axes = {shape.batch, shape.num_kv_heads, shape.kv_len, shape.dim_v};
    o_axes = {shape.batch, shape.num_q_heads, shape.q_len, shape.dim_v};
  }

  void Input(const char* name, const TensorRef& tensor) {
    Present(name, tensor);
    const ElementType want = ToElementType(shape_.dtype);
    if (tensor.type != want) Add(name, fmt::format("{}, the contract's dtype", ToText(want)));
  }
  // Any float type: a caller may want gradients that are not rounded to the inputs' dtype.
  void Output(const char* name, const TensorRef& tensor, const Axes& axes) {
    Present(name, tensor);
    const bool overlaps = (axes.len > 1 && tensor.token_stride < axes.dim) ||
                          (axes.heads > 1 && tensor.head_stride < axes.dim) ||
                          (axes.batch > 1 && tensor.batch_stride < axes.dim);
    if (overlaps) Add(name, fmt::format("strides of at least {}, so that rows do not overlap", axes.dim));
  }
  void Present(const char* name, const TensorRef& tensor) {
    if (tensor.data == nullptr) Add(name, "a tensor");
    const bool is_float =
        tensor.type == ElementType::kF32 || tensor.type == ElementType::kBf16 || tensor.type == ElementType::kF16;
    if (!is_float) Add(name, "f32, bf16 or f16");
    if (tensor.batch_stride < 0 || tensor.head_stride < 0 || tensor.token_stride < 0) {
      Add(name, "strides that are not negative");
    }
  }
  void RowStat(const char* name, size_t size, bool required) {
    const int64_t want = shape_.batch * shape_.num_q_heads * shape_.q_len;
    if (size == 0 && !required) return;
    if (static_cast<int64_t>(size) != want) Add(name, fmt::format("{} values, got {}", want, size));
  }
  void SinkLogits(const char* name, size_t size) {
    const int64_t want = sinks_ ? shape_.num_q_heads : 0;
    if (static_cast<int64_t>(size) != want) Add(name, fmt::format("{} values, got {}", want, size));
  }
  void Workspace(size_t size, int64_t want) {
    if (static_cast<int64_t>(size) < want) Add("workspace", fmt::format("{} bytes, got {}", want, size));
  }
  Status Finish() {
    if (violations_.empty()) return {};
    return Fail(ErrorCode::kTensorMismatch, std::move(violations_), "reference");
  }

  Axes q_axes, k_axes, v_axes, o_axes;

 private:
  void Add(const char* field, std::string expected) { violations_.push_back({field, std::move(expected)}); }

  const Shape& shape_;
  bool sinks_;
  std::vector<Violation> violations_;
};

Status CheckPlan(const LaneRequest& request) {
  if (request.contract == nullptr || request.plan == nullptr) {
    return Fail(ErrorCode::kBadArgument, "a run needs a contract and a plan", "reference");
  }
  const Shape& shape = request.contract->shape;
  const PlanView& plan = *request.plan;
  if (plan.batch == shape.batch && plan.q_len == shape.q_len && plan.kv_len == shape.kv_len &&
      plan.num_q_heads == shape.num_q_heads) {
    return {};
  }
  return Fail(ErrorCode::kPlanMismatch,
              fmt::format("the plan is for batch {}, {} heads and {} x {} tokens, the contract for {}, {} and {} x {}",
                          plan.batch, plan.num_q_heads, plan.q_len, plan.kv_len, shape.batch, shape.num_q_heads,
                          shape.q_len, shape.kv_len),
              "reference");
}

class Reference final : public Lane {
 public:
  std::string_view name() const override { return "reference"; }
  std::vector<std::string_view> Isas() const override { return {ref::kIsa}; }

  Decision Decide(const Contract& contract, const Target&) const override {
    if (contract.routing) {
      return Decision::No(ReasonCode::kRoutingNotExecuted, "the contract has a [routing] table");
    }
    // A mask that cannot be described cannot be planned either: the planner's error says what is wrong with it.
    const auto facts = DescribeMask(contract);
    if (facts && facts->needs_blocks) {
      return Decision::No(ReasonCode::kRoutingNotExecuted, "the mask depends on its `blocks` term");
    }
    return Decision::Yes();
  }

  Decision DecidePlan(const Contract&, const PlanView&, const Target&) const override { return Decision::Yes(); }

  int64_t WorkspaceBytes(const Contract& contract, const PlanView&, int64_t) const override {
    return std::max(ref::ForwardWorkspaceBytes(contract), ref::BackwardWorkspaceBytes(contract));
  }

  Result<RunStats> Forward(const LaneRequest& request, const ForwardArgs& args) const override {
    if (auto ok = CheckPlan(request); !ok) return tl::unexpected(ok.error());
    Checker check(request);
    check.Input("q", args.q);
    check.Input("k", args.k);
    check.Input("v", args.v);
    check.Output("o", args.o, check.o_axes);
    check.SinkLogits("sink_logits", args.sink_logits.size());
    check.RowStat("lse", args.lse.size(), false);
    check.RowStat("max", args.row_max.size(), false);
    check.Workspace(request.workspace.size(), ref::ForwardWorkspaceBytes(*request.contract));
    if (auto ok = check.Finish(); !ok) return tl::unexpected(ok.error());
    return ref::RunForward(request, args);
  }

  Result<RunStats> Backward(const LaneRequest& request, const BackwardArgs& args) const override {
    if (auto ok = CheckPlan(request); !ok) return tl::unexpected(ok.error());
    if (request.plan->Of(Direction::kDkv).rows_per_mask == 0) {
      return Fail(ErrorCode::kPlanMismatch, "a backward needs the transposed worklist, and this plan is forward-only",
                  "reference");
    }
    Checker check(request);
    check.Input("q", args.q);
    check.Input("k", args.k);
    check.Input("v", args.v);
    check.Input("do", args.dout);
    if (args.delta.empty()) check.Present("o", args.o);
    check.SinkLogits("sink_logits", args.sink_logits.size());
    check.RowStat("lse", args.lse.size(), true);
    check.RowStat("delta", args.delta.size(), false);
    check.Output("dq", args.dq, check.q_axes);
    check.Output("dk", args.dk, check.k_axes);
    check.Output("dv", args.dv, check.v_axes);
    if (!args.dsink_logits.empty()) check.SinkLogits("dsink_logits", args.dsink_logits.size());
    check.Workspace(request.workspace.size(), ref::BackwardWorkspaceBytes(*request.contract));
    if (auto ok = check.Finish(); !ok) return tl::unexpected(ok.error());
    return ref::RunBackward(request, args);
  }
};

}  // namespace

const Lane& ReferenceLane() {
  static const Reference kLane;
  return kLane;
}

}  // namespace tessera
