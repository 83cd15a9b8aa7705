// See check_args.h.
#include "lanes/check_args.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/overlap.h"
#include "base/try.h"
#include "contract/limits.h"

namespace tessera {
namespace {

constexpr Direction kForwardNeeds[] = {Direction::kForward};
constexpr Direction kBackwardNeeds[] = {Direction::kDq, Direction::kDkv};
std::span<const Direction> DirectionsOf(Pass pass) {
  if (pass == Pass::kForward) return kForwardNeeds;
  return kBackwardNeeds;
}

bool IsFloat(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kBf16 || type == ElementType::kF16;
}

ByteRows BytesOf(const TensorRef& ref, const TensorAxes& axes) {
  const int64_t size = BytesOf(ref.type);
  // A stride beyond all numbers is one beyond all memory, which ExtentOf finds.
  const auto bytes = [&](int64_t stride) {
    int64_t product = 0;
    return __builtin_mul_overflow(stride, size, &product) ? INT64_MAX : product;
  };
  return {
      .data = ref.data,
      .row_bytes = axes[3] * size,
      .axes = {
          {{bytes(ref.batch_stride), axes[0]}, {bytes(ref.head_stride), axes[1]}, {bytes(ref.token_stride), axes[2]}}}};
}

ByteRows BytesOf(std::span<const std::byte> bytes) {
  return {.data = bytes.data(), .row_bytes = static_cast<int64_t>(bytes.size())};
}

ByteRows BytesOf(const UsedTensor& use) {
  return use.ref != nullptr ? BytesOf(*use.ref, use.axes) : BytesOf(std::as_bytes(use.floats));
}

std::string StridesText(const TensorRef& ref) {
  return fmt::format("{}, {}, {}", ref.batch_stride, ref.head_stride, ref.token_stride);
}

bool IsAligned(const void* data, size_t alignment) { return reinterpret_cast<uintptr_t>(data) % alignment == 0; }

// A valid contract has passed these; a lane called directly may have been given any.
Status CheckShape(const Shape& shape, std::string_view lane) {
  std::vector<Violation> violations;
  const auto expect = [&](const char* name, int64_t value, int64_t most) {
    if (value >= 1 && value <= most) return;
    violations.push_back({fmt::format("shape.{}", name), fmt::format("1 to {} expected, got {}", most, value)});
  };
  expect("batch", shape.batch, kMaxBatch);
  expect("q_len", shape.q_len, kMaxLength);
  expect("kv_len", shape.kv_len, kMaxLength);
  expect("num_q_heads", shape.num_q_heads, kMaxHeads);
  expect("num_kv_heads", shape.num_kv_heads, kMaxHeads);
  expect("dim_qk", shape.dim_qk, kMaxDim);
  expect("dim_v", shape.dim_v, kMaxDim);
  if (violations.empty() && shape.num_q_heads % shape.num_kv_heads != 0) {
    violations.push_back({"shape.num_q_heads", fmt::format("a multiple of num_kv_heads, which is {}, expected, got {}",
                                                           shape.num_kv_heads, shape.num_q_heads)});
  }
  if (violations.empty()) return {};
  return Fail(ErrorCode::kContractInvalid, std::move(violations), std::string(lane));
}

Status CheckPlan(const BindRequest& request, std::string_view lane) {
  const Shape& shape = request.contract.shape;
  const PlanView& plan = request.plan;
  if (plan.batch != shape.batch || plan.q_len != shape.q_len || plan.kv_len != shape.kv_len ||
      plan.num_q_heads != shape.num_q_heads) {
    return Fail(
        ErrorCode::kPlanMismatch,
        fmt::format("the plan is for batch {}, {} heads and {} x {} tokens, the contract for {}, {} and {} x {}",
                    plan.batch, plan.num_q_heads, plan.q_len, plan.kv_len, shape.batch, shape.num_q_heads, shape.q_len,
                    shape.kv_len),
        std::string(lane));
  }
  for (const Pass pass : request.passes) {
    for (const Direction direction : DirectionsOf(pass)) {
      if (plan.Of(direction).rows_per_mask > 0) continue;
      return Fail(
          ErrorCode::kPlanMismatch,
          fmt::format("a {} needs the worklist of {}, which this plan does not have", ToText(pass), ToText(direction)),
          std::string(lane));
    }
  }
  return {};
}

Status Conclude(TensorChecker& check, std::string_view lane) {
  std::vector<Violation> violations = check.Finish();
  if (violations.empty()) return {};
  return Fail(ErrorCode::kTensorMismatch, std::move(violations), std::string(lane));
}

}  // namespace

TensorChecker::TensorChecker(const Contract& contract, MemorySpace space) : contract_(contract), space_(space) {
  const Shape& s = contract.shape;
  q_axes = {s.batch, s.num_q_heads, s.q_len, s.dim_qk};
  k_axes = {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk};
  v_axes = {s.batch, s.num_kv_heads, s.kv_len, s.dim_v};
  o_axes = {s.batch, s.num_q_heads, s.q_len, s.dim_v};
}

void TensorChecker::Add(std::string name, std::string expected) {
  violations_.push_back({std::move(name), std::move(expected)});
}

void TensorChecker::Input(const char* name, const TensorRef& ref, const TensorAxes& axes) {
  const ElementType want = ToElementType(contract_.shape.dtype);
  if (ref.data != nullptr && ref.type != want) {
    Add(name, fmt::format("{} expected, the contract's dtype, got {}", ToText(want), ToText(ref.type)));
    return;
  }
  Strided(name, ref, axes, false);
}

void TensorChecker::Strided(const char* name, const TensorRef& ref, const TensorAxes& axes, bool is_output) {
  if (ref.data == nullptr) {
    Add(name, fmt::format("[{}] expected, but there is no such tensor", fmt::join(axes, ", ")));
  } else if (ref.space != space_) {
    Add(name, fmt::format("memory of {} expected, got {}; nothing is copied between them", ToText(space_),
                          ToText(ref.space)));
  } else if (!IsFloat(ref.type)) {
    Add(name, fmt::format("F32, BF16 or F16 expected, got {}", ToText(ref.type)));
  } else if (!IsAligned(ref.data, static_cast<size_t>(tessera::BytesOf(ref.type)))) {
    Add(name, fmt::format("an address that is a multiple of {} expected", tessera::BytesOf(ref.type)));
  } else if (ref.batch_stride < 0 || ref.head_stride < 0 || ref.token_stride < 0) {
    Add(name, fmt::format("strides of 0 or more expected, got {}", StridesText(ref)));
  } else if (ExtentOf(BytesOf(ref, axes)) < 0) {
    Add(name, fmt::format("strides {} of a [{}] reach beyond any memory", StridesText(ref), fmt::join(axes, ", ")));
  } else if (is_output && RowsMayOverlap(BytesOf(ref, axes))) {
    Add(name, fmt::format("strides {} let rows of a [{}] overlap", StridesText(ref), fmt::join(axes, ", ")));
  } else {
    uses_[name] = {.ref = &ref, .axes = axes, .floats = {}, .is_output = is_output};
  }
}

void TensorChecker::RowStat(const char* name, std::span<const float> floats, const FloatsNeed& need) {
  const Shape& s = contract_.shape;
  Floats(name, floats, s.batch * s.num_q_heads * s.q_len, need);
}

void TensorChecker::Sinks(const char* name, std::span<const float> floats, const FloatsNeed& need) {
  if (contract_.score.sink_logits) {
    Floats(name, floats, contract_.shape.num_q_heads, need);
  } else if (!floats.empty()) {
    Add(name, "not expected: the contract's score.sink_logits is false");
  }
}

void TensorChecker::Floats(const char* name, std::span<const float> floats, int64_t want, const FloatsNeed& need) {
  if (floats.empty()) {
    if (need.required) Add(name, fmt::format("{} F32 values expected, but there is no such tensor", want));
  } else if (floats.data() == nullptr) {
    Add(name, fmt::format("{} F32 values expected, got a null pointer", want));
  } else if (static_cast<int64_t>(floats.size()) != want) {
    Add(name, fmt::format("{} F32 values expected, got {}", want, floats.size()));
  } else if (!IsAligned(floats.data(), alignof(float))) {
    Add(name, fmt::format("an address that is a multiple of {} expected", alignof(float)));
  } else {
    uses_[name] = {.ref = nullptr, .axes = {}, .floats = floats, .is_output = need.is_output};
  }
}

void TensorChecker::Workspace(std::span<const std::byte> workspace, int64_t want) {
  if (want <= 0) return;
  if (static_cast<int64_t>(workspace.size()) < want) {
    Add("workspace", fmt::format("{} bytes expected, got {}", want, workspace.size()));
  } else if (workspace.data() == nullptr || !IsAligned(workspace.data(), kWorkspaceAlignment)) {
    Add("workspace", fmt::format("an address that is a multiple of {} expected", kWorkspaceAlignment));
  } else {
    workspace_ = workspace.first(static_cast<size_t>(want));
  }
}

std::vector<Violation> TensorChecker::Finish() {
  for (auto it = uses_.begin(); it != uses_.end(); ++it) {
    const auto& [name, use] = *it;
    if (!workspace_.empty() && MayOverlap(BytesOf(use), BytesOf(workspace_))) {
      Add(name, "memory of its own expected, but it shares some with the workspace");
    }
    for (auto other = std::next(it); other != uses_.end(); ++other) {
      if (!use.is_output && !other->second.is_output) continue;
      if (!MayOverlap(BytesOf(use), BytesOf(other->second))) continue;
      // The output is the one to move; of two, the first.
      const auto& [named, with] = use.is_output ? std::pair(name, other->first) : std::pair(other->first, name);
      Add(named, fmt::format("memory of its own expected, but it shares some with {}", with));
    }
  }
  return std::move(violations_);
}

Status CheckBind(const BindRequest& request, const BindCheck& check) {
  if (check.isa != "auto" && std::find(check.isas.begin(), check.isas.end(), check.isa) == check.isas.end()) {
    return Fail(
        ErrorCode::kIsaUnavailable,
        fmt::format("there is no instruction set \"{}\" here; there are {}", check.isa, fmt::join(check.isas, ", ")),
        std::string(check.lane));
  }
  if (check.threads < 1) {
    return Fail(ErrorCode::kBadArgument, fmt::format("threads must be 1 or more, got {}", check.threads),
                std::string(check.lane));
  }
  TESSERA_TRY(CheckShape(request.contract.shape, check.lane));
  return CheckPlan(request, check.lane);
}

namespace {

Status CheckCall(const CallCheck& check, const LaneCall& call) {
  if (call.stream != nullptr && !check.takes_stream) {
    return Fail(ErrorCode::kBadArgument, "this lane's calls are done when they return: no stream expected, got one",
                std::string(check.lane));
  }
  if (call.image.empty() || check.takes_image) return {};
  return Fail(ErrorCode::kBadArgument, "this lane runs the plan it was bound to: no image of another expected, got one",
              std::string(check.lane));
}

}  // namespace

Status CheckForward(const CallCheck& call_check, const ForwardArgs& args, const LaneCall& call) {
  TESSERA_TRY(CheckCall(call_check, call));
  TensorChecker check(call_check.contract, call_check.space);
  check.Input("q", args.q, check.q_axes);
  check.Input("k", args.k, check.k_axes);
  check.Input("v", args.v, check.v_axes);
  check.Sinks("sink_logits", args.sink_logits, {.required = true});
  check.Strided("o", args.o, check.o_axes, true);
  check.RowStat("lse", args.lse, {.is_output = true});
  check.RowStat("max", args.row_max, {.is_output = true});
  check.Workspace(call.workspace, call_check.workspace_bytes);
  return Conclude(check, call_check.lane);
}

Status CheckBackward(const CallCheck& call_check, const BackwardArgs& args, const LaneCall& call) {
  TESSERA_TRY(CheckCall(call_check, call));
  TensorChecker check(call_check.contract, call_check.space);
  check.Input("q", args.q, check.q_axes);
  check.Input("k", args.k, check.k_axes);
  check.Input("v", args.v, check.v_axes);
  check.Input("do", args.dout, check.o_axes);
  check.Sinks("sink_logits", args.sink_logits, {.required = true});
  if (args.delta.empty()) check.Strided("o", args.o, check.o_axes, false);
  check.RowStat("lse", args.lse, {.required = true});
  check.RowStat("delta", args.delta, {});
  check.Strided("dq", args.dq, check.q_axes, true);
  check.Strided("dk", args.dk, check.k_axes, true);
  check.Strided("dv", args.dv, check.v_axes, true);
  check.Sinks("dsink_logits", args.dsink_logits, {.is_output = true});
  check.Workspace(call.workspace, call_check.workspace_bytes);
  return Conclude(check, call_check.lane);
}

}  // namespace tessera
