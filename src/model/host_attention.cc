// Attention by our own CPU kernels, as calls of this process from inside a compiled program. What the calls of a
// running program find is behind an address that the program takes as an operand, so that one program serves every
// batch, and programs of one model are the same text in every process.
#include <fmt/format.h>

#include <cstring>

#include "base/try.h"
#include "lanes/xla/pjrt/ffi.h"
#include "model/attention.h"

namespace tessera::model {
namespace {

using stablehlo::Element;
using stablehlo::Type;

constexpr std::string_view kForwardName = "tessera_model_attention_forward";
constexpr std::string_view kBackwardName = "tessera_model_attention_backward";
constexpr std::string_view kAddress = "attention_calls";

// Of one batch, while its program runs.
class HostCalls final : public BoundAttention {
 public:
  std::vector<Bound> bounds;  // by mask
};

struct Packed {
  TensorRef q, k, v;
};
// Views into q, k and v side by side.
Packed Split(const Shape& s, void* data, ElementType type) {
  const int64_t heads = s.num_q_heads + 2 * s.num_kv_heads;
  const auto part = [&](int64_t first_head) {
    TensorRef ref;
    ref.type = type;
    ref.data = static_cast<std::byte*>(data) + first_head * s.dim_qk * BytesOf(type);
    ref.batch_stride = s.q_len * heads * s.dim_qk;
    ref.head_stride = s.dim_qk;
    ref.token_stride = heads * s.dim_qk;
    return ref;
  };
  return {part(0), part(s.num_q_heads), part(s.num_q_heads + s.num_kv_heads)};
}

TensorRef OutputView(const Shape& s, void* data) {
  return DenseView(data, ElementType::kF32, {s.batch, s.num_q_heads, s.q_len, s.dim_v}, Layout::kBthd);
}
std::span<float> Floats(const pjrt::ffi::Buffer& buffer) {
  return {static_cast<float*>(buffer.data), static_cast<size_t>(pjrt::NumElements(buffer))};
}

// The bound attention that a call is for.
Result<const Bound*> Find(const pjrt::HostCall& call, size_t num_operands, size_t num_results) {
  const std::optional<int64_t> mask = call.Number("mask");
  if (call.num_operands() < num_operands || call.num_results() < num_results || !mask) {
    return Fail(ErrorCode::kProgramMismatch, "a program calls attention with other operands than this version's");
  }
  const HostCalls* calls = nullptr;
  std::memcpy(&calls, call.Operand(0).data, sizeof(calls));
  if (calls == nullptr || *mask < 0 || *mask >= static_cast<int64_t>(calls->bounds.size())) {
    return Fail(ErrorCode::kProgramMismatch, "a program calls attention of a mask that there is not");
  }
  return &calls->bounds[static_cast<size_t>(*mask)];
}

// address, qkv[, sink_logits] -> o, lse
Status Forward(const pjrt::HostCall& call) {
  const Bound* bound = TESSERA_TRY(Find(call, 2, 2));
  const Contract& contract = bound->contract();
  const Packed in = Split(contract.shape, call.Operand(1).data, ToElementType(contract.shape.dtype));
  RunTensors tensors{.q = in.q, .k = in.k, .v = in.v};
  if (contract.score.sink_logits) tensors.sink_logits = Floats(call.Operand(2));
  tensors.o = OutputView(contract.shape, call.Result(0).data);
  tensors.lse = Floats(call.Result(1));
  return bound->Forward(tensors);
}

// address, qkv, o, lse, dout[, sink_logits] -> dqkv[, dsink_logits]
Status Backward(const pjrt::HostCall& call) {
  const Bound* bound = TESSERA_TRY(Find(call, 5, 1));
  const Contract& contract = bound->contract();
  const Shape& s = contract.shape;
  const Packed in = Split(s, call.Operand(1).data, ToElementType(s.dtype));
  const Packed out = Split(s, call.Result(0).data, ElementType::kF32);
  RunTensors tensors{.q = in.q, .k = in.k, .v = in.v};
  tensors.o = OutputView(s, call.Operand(2).data);
  tensors.lse = Floats(call.Operand(3));
  tensors.dout = DenseView(call.Operand(4).data, ToElementType(s.dtype), {s.batch, s.num_q_heads, s.q_len, s.dim_v},
                           Layout::kBthd);
  if (contract.score.sink_logits) {
    tensors.sink_logits = Floats(call.Operand(5));
    tensors.dsink_logits = Floats(call.Result(1));
  }
  tensors.dq = out.q;
  tensors.dk = out.k;
  tensors.dv = out.v;
  return bound->Backward(tensors);
}

class HostAttention final : public AttentionSubstitute {
 public:
  explicit HostAttention(LayerAttention layers) : layers_(std::move(layers)) {}

  std::vector<NamedType> Inputs(bool) const override { return {{std::string(kAddress), {Element::kI32, {2}}}}; }
  int64_t RowTokens() const override { return layers_.spec.row_tokens; }
  Status Begin(Builder&, bool) const override { return {}; }

  Attended Forward(Builder& b, const AttentionInputs& in) const override {
    const ModelSpec& s = layers_.spec;
    stablehlo::Values operands = {b.Input(kAddress), in.qkv};
    if (s.sink_logits) operands.push_back(in.sink_logits);
    const stablehlo::Values out = b.CallHost(CallOf(kForwardName, in.mask), operands, {OutputType(), StatType()});
    return {out[0], out[1]};
  }

  AttentionGradients Backward(Builder& b, const AttentionInputs& in, const Attended& out,
                              const Value& dout) const override {
    const ModelSpec& s = layers_.spec;
    stablehlo::Values operands = {b.Input(kAddress), in.qkv, out.o, out.lse, b.Convert(dout, in.qkv.type.element)};
    std::vector<Type> results = {{Element::kF32, in.qkv.type.dims}};
    if (s.sink_logits) {
      operands.push_back(in.sink_logits);
      results.push_back({Element::kF32, {s.num_q_heads}});
    }
    const stablehlo::Values gradients = b.CallHost(CallOf(kBackwardName, in.mask), operands, results);
    return {gradients[0], s.sink_logits ? gradients[1] : Value{}};
  }

  Result<std::unique_ptr<BoundAttention>> Bind(const RowBatch& rows, bool) const override {
    auto calls = std::make_unique<HostCalls>();
    for (size_t i = 0; i < layers_.attentions.size(); ++i) {
      const Attention& attention = layers_.attentions[i];
      PlanResult planned = TESSERA_TRY(attention.Plan(BatchFor(layers_.facts[i], rows)));
      calls->bounds.push_back(TESSERA_TRY(attention.Bind(std::move(planned.plan))));
    }
    const HostCalls* address = calls.get();
    std::vector<std::byte> bytes(sizeof(address));
    std::memcpy(bytes.data(), &address, sizeof(address));
    calls->operands.push_back({std::move(bytes)});
    return calls;
  }

 private:
  static Builder::HostCall CallOf(std::string_view name, size_t mask) {
    return {std::string(name), {{"mask", static_cast<int64_t>(mask)}}};
  }
  Type OutputType() const {
    const ModelSpec& s = layers_.spec;
    return {Element::kF32, {s.rows, s.row_tokens, s.num_q_heads, s.head_dim}};
  }
  Type StatType() const {
    const ModelSpec& s = layers_.spec;
    return {Element::kF32, {s.rows, s.num_q_heads, s.row_tokens}};
  }

  LayerAttention layers_;
};
static_assert(sizeof(void*) == 8, "an address is two words of a program's");

}  // namespace

Result<std::unique_ptr<AttentionSubstitute>> MakeHostAttention(LayerAttention layers, const pjrt::Plugin& plugin) {
  const pjrt::HostFunction functions[] = {{kForwardName, &pjrt::Handle<&Forward>},
                                          {kBackwardName, &pjrt::Handle<&Backward>}};
  TESSERA_TRY(pjrt::RegisterOnHost(plugin, functions));
  return std::make_unique<HostAttention>(std::move(layers));
}

}  // namespace tessera::model
