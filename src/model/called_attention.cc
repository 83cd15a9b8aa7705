// Attention by our own kernels, as calls of this process from inside a compiled program: those of the host on tensors
// where the program has them, those of a GPU on its memory and stream. One program serves every batch, and programs of
// one model are the same text in every process.
#include <fmt/format.h>

#include <cstring>
#include <mutex>

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
constexpr std::string_view kSlot = "slot";

// Of one batch, while its program runs. By mask.
using Bounds = std::vector<Bound>;

// Where calls of a program on a GPU find their batch: operands are in the GPU's memory, where an address is of no use
// to the host. Each trainer has the lowest number that is free, and its programs name it.
class Slots {
 public:
  static Slots& All() {
    static Slots* const kAll = new Slots;
    return *kAll;
  }
  int64_t Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t at = 0;
    while (at < slots_.size() && slots_[at].is_taken) ++at;
    if (at == slots_.size()) slots_.emplace_back();
    slots_[at] = {true, nullptr};
    return static_cast<int64_t>(at);
  }
  void Give(int64_t slot) { Write(slot, {false, nullptr}); }
  void Set(int64_t slot, const Bounds* bounds) { Write(slot, {true, bounds}); }
  const Bounds* Get(int64_t slot) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return slot < 0 || slot >= static_cast<int64_t>(slots_.size()) ? nullptr : slots_[static_cast<size_t>(slot)].bounds;
  }

 private:
  struct Slot {
    bool is_taken = false;
    const Bounds* bounds = nullptr;
  };
  void Write(int64_t slot, Slot value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    slots_[static_cast<size_t>(slot)] = value;
  }
  std::mutex mutex_;
  std::vector<Slot> slots_;
};

// On the host the calls' first operand is the address of the bounds.
class HostCalls final : public BoundAttention {
 public:
  Bounds bounds;
};

class DeviceCalls final : public BoundAttention {
 public:
  DeviceCalls(int64_t slot, Bounds all) : slot_(slot), bounds_(std::move(all)) {
    operands.emplace_back();  // none
    Slots::All().Set(slot_, &bounds_);
  }
  ~DeviceCalls() override { Slots::All().Set(slot_, nullptr); }
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

 private:
  int64_t slot_;
  Bounds bounds_;
};

struct Packed {
  TensorRef q, k, v;
};
// Views into q, k and v side by side.
Packed Split(const Shape& s, const pjrt::ffi::Buffer& buffer, ElementType type, const MemorySpace& space) {
  const int64_t heads = s.num_q_heads + 2 * s.num_kv_heads;
  const auto part = [&](int64_t first_head) {
    TensorRef ref;
    ref.type = type;
    ref.data = static_cast<std::byte*>(buffer.data) + first_head * s.dim_qk * BytesOf(type);
    ref.batch_stride = s.q_len * heads * s.dim_qk;
    ref.head_stride = s.dim_qk;
    ref.token_stride = heads * s.dim_qk;
    ref.space = space;
    return ref;
  };
  return {part(0), part(s.num_q_heads), part(s.num_q_heads + s.num_kv_heads)};
}

std::span<float> Floats(const pjrt::ffi::Buffer& buffer) {
  return {static_cast<float*>(buffer.data), static_cast<size_t>(pjrt::NumElements(buffer))};
}

// A call, and the bound attention that it is for.
struct Found {
  const pjrt::HostCall& call;
  const Bound& bound;
  size_t first = 0;  // operand that is a tensor
  ElementType results = ElementType::kF32;
  MemorySpace space = {};
  CallOptions options = {};

  const pjrt::ffi::Buffer& Operand(size_t i) const { return call.Operand(first + i); }
  const Contract& contract() const { return bound.contract(); }
  ElementType inputs() const { return ToElementType(contract().shape.dtype); }
  Packed Split(const pjrt::ffi::Buffer& buffer, ElementType type) const {
    return model::Split(contract().shape, buffer, type, space);
  }
  TensorRef Rows(const pjrt::ffi::Buffer& buffer, ElementType type) const {
    const Shape& s = contract().shape;
    TensorRef ref = DenseView(buffer.data, type, {s.batch, s.num_q_heads, s.q_len, s.dim_v}, tessera::Layout::kBthd);
    ref.space = space;
    return ref;
  }
};

Result<Found> Find(const pjrt::HostCall& call, size_t num_operands, size_t num_results) {
  const std::optional<int64_t> mask = call.Number("mask");
  const std::optional<int64_t> slot = call.Number(kSlot);
  const size_t first = slot ? 0 : 1;
  if (call.num_operands() < first + num_operands || call.num_results() < num_results || !mask) {
    return Fail(ErrorCode::kProgramMismatch, "a program calls attention with other operands than this version's");
  }
  const Bounds* bounds = nullptr;
  if (slot) {
    bounds = Slots::All().Get(*slot);
  } else {
    std::memcpy(&bounds, call.Operand(0).data, sizeof(bounds));
  }
  if (bounds == nullptr || *mask < 0 || *mask >= static_cast<int64_t>(bounds->size())) {
    return Fail(ErrorCode::kProgramMismatch, "a program calls attention of a mask that there is not");
  }
  Found found{.call = call, .bound = (*bounds)[static_cast<size_t>(*mask)], .first = first};
  if (slot) {
    found.results = found.inputs();
    found.space = {MemoryKind::kGpu, call.Number("gpu").value_or(0)};
    found.options.stream = TESSERA_TRY(call.Stream());
  }
  return found;
}

// qkv[, sink_logits] -> o, lse
Status Forward(const pjrt::HostCall& call) {
  const Found found = TESSERA_TRY(Find(call, 1, 2));
  const Packed in = found.Split(found.Operand(0), found.inputs());
  RunTensors tensors{.q = in.q, .k = in.k, .v = in.v};
  if (found.contract().score.sink_logits) tensors.sink_logits = Floats(found.Operand(1));
  tensors.o = found.Rows(call.Result(0), found.results);
  tensors.lse = Floats(call.Result(1));
  return found.bound.Forward(tensors, found.options);
}

// qkv, o, lse, dout[, sink_logits] -> dqkv[, dsink_logits]
Status Backward(const pjrt::HostCall& call) {
  const Found found = TESSERA_TRY(Find(call, 4, 1));
  const Packed in = found.Split(found.Operand(0), found.inputs());
  const Packed out = found.Split(call.Result(0), found.results);
  RunTensors tensors{.q = in.q, .k = in.k, .v = in.v};
  tensors.o = found.Rows(found.Operand(1), found.results);
  tensors.lse = Floats(found.Operand(2));
  tensors.dout = found.Rows(found.Operand(3), found.inputs());
  if (found.contract().score.sink_logits) {
    tensors.sink_logits = Floats(found.Operand(4));
    tensors.dsink_logits = Floats(call.Result(1));
  }
  tensors.dq = out.q;
  tensors.dk = out.k;
  tensors.dv = out.v;
  return found.bound.Backward(tensors, found.options);
}

class CalledAttention final : public AttentionSubstitute {
 public:
  CalledAttention(LayerAttention layers, const MemorySpace& space) : layers_(std::move(layers)), space_(space) {
    if (is_on_device()) slot_ = Slots::All().Take();
  }
  ~CalledAttention() override {
    if (is_on_device()) Slots::All().Give(slot_);
  }
  CalledAttention(const CalledAttention&) = delete;
  CalledAttention& operator=(const CalledAttention&) = delete;

  std::vector<NamedType> Inputs(bool) const override {
    if (is_on_device()) return {};
    return {{std::string(kAddress), {Element::kI32, {2}}}};
  }
  int64_t RowTokens() const override { return layers_.spec.row_tokens; }
  Status Begin(Builder&, bool) const override { return {}; }

  Attended Forward(Builder& b, const AttentionInputs& in) const override {
    const ModelSpec& s = layers_.spec;
    stablehlo::Values operands = First(b);
    operands.push_back(in.qkv);
    if (s.sink_logits) operands.push_back(in.sink_logits);
    const std::vector<Type> results = {{ResultElement(in), {s.rows, s.row_tokens, s.num_q_heads, s.head_dim}},
                                       {Element::kF32, {s.rows, s.num_q_heads, s.row_tokens}}};
    const stablehlo::Values out = b.CallHost(CallOf(kForwardName, in.mask), operands, results);
    return {b.Convert(out[0], Element::kF32), out[1]};
  }

  AttentionGradients Backward(Builder& b, const AttentionInputs& in, const Attended& out,
                              const Value& dout) const override {
    const ModelSpec& s = layers_.spec;
    stablehlo::Values operands = First(b);
    operands.insert(operands.end(),
                    {in.qkv, b.Convert(out.o, ResultElement(in)), out.lse, b.Convert(dout, in.qkv.type.element)});
    std::vector<Type> results = {{ResultElement(in), in.qkv.type.dims}};
    if (s.sink_logits) {
      operands.push_back(in.sink_logits);
      results.push_back({Element::kF32, {s.num_q_heads}});
    }
    const stablehlo::Values gradients = b.CallHost(CallOf(kBackwardName, in.mask), operands, results);
    return {b.Convert(gradients[0], Element::kF32), s.sink_logits ? gradients[1] : Value{}};
  }

  Result<std::unique_ptr<BoundAttention>> Bind(const RowBatch& rows, bool) const override {
    Bounds bounds;
    for (size_t i = 0; i < layers_.attentions.size(); ++i) {
      const Attention& attention = layers_.attentions[i];
      PlanResult planned = TESSERA_TRY(attention.Plan(BatchFor(layers_.facts[i], rows)));
      bounds.push_back(TESSERA_TRY(attention.Bind(std::move(planned.plan))));
    }
    if (is_on_device()) return std::make_unique<DeviceCalls>(slot_, std::move(bounds));
    auto calls = std::make_unique<HostCalls>();
    calls->bounds = std::move(bounds);
    const Bounds* address = &calls->bounds;
    std::vector<std::byte> bytes(sizeof(address));
    std::memcpy(bytes.data(), &address, sizeof(address));
    calls->operands.push_back({std::move(bytes)});
    return calls;
  }

 private:
  bool is_on_device() const { return space_.kind == MemoryKind::kGpu; }
  // The kernels of the host write f32 whatever they read, those of a GPU what they read.
  Element ResultElement(const AttentionInputs& in) const {
    return is_on_device() ? in.qkv.type.element : Element::kF32;
  }
  stablehlo::Values First(Builder& b) const {
    if (is_on_device()) return {};
    return {b.Input(kAddress)};
  }
  Builder::HostCall CallOf(std::string_view name, size_t mask) const {
    Builder::HostCall call{std::string(name), {{"mask", static_cast<int64_t>(mask)}}};
    if (is_on_device()) {
      call.numbers.emplace_back("gpu", space_.ordinal);
      call.numbers.emplace_back(kSlot, slot_);
    }
    return call;
  }

  LayerAttention layers_;
  MemorySpace space_;
  int64_t slot_ = 0;
};
static_assert(sizeof(void*) == 8, "an address is two words of a program's");

}  // namespace

std::span<const pjrt::HostFunction> AttentionFunctions() {
  static constexpr pjrt::HostFunction kFunctions[] = {{kForwardName, &pjrt::Answer<&Forward>},
                                                      {kBackwardName, &pjrt::Answer<&Backward>}};
  return kFunctions;
}

std::unique_ptr<AttentionSubstitute> MakeCalledAttention(LayerAttention layers, const MemorySpace& space) {
  return std::make_unique<CalledAttention>(std::move(layers), space);
}

}  // namespace tessera::model
