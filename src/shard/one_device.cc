// See one_device.h.
#include "shard/one_device.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/try.h"
#include "lanes/xla/operands.h"
#include "tessera/dtype.h"

namespace tessera::shard {
namespace {

using stablehlo::Element;

pjrt::TensorType ToPjrt(const stablehlo::Type& type) {
  pjrt::ElementType element = pjrt::ElementType::kS32;
  if (type.element == Element::kF32) element = pjrt::ElementType::kF32;
  if (type.element == Element::kBf16) element = pjrt::ElementType::kBf16;
  if (type.element == Element::kF16) element = pjrt::ElementType::kF16;
  if (type.element == Element::kUi32) element = pjrt::ElementType::kU32;
  return {element, type.dims};
}

// Rows of tokens [batch, heads, from_len, ..] to [batch, heads, to_len, ..], piece by piece.
struct Rows {
  int64_t heads = 0;
  int64_t token_bytes = 0;
  int64_t from_len = 0;
  int64_t to_len = 0;
};
std::vector<std::byte> Moved(const ContextPlan& plan, std::span<const std::byte> from, const Rows& rows, bool is_back) {
  std::vector<std::byte> to(plan.rows.size() * static_cast<size_t>(rows.heads * rows.to_len * rows.token_bytes));
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    for (const Piece& piece : is_back ? InverseOrder(plan.rows[b].order) : plan.rows[b].order) {
      for (int64_t h = 0; h < rows.heads; ++h) {
        const int64_t head = static_cast<int64_t>(b) * rows.heads + h;
        std::memcpy(to.data() + (head * rows.to_len + piece.offset) * rows.token_bytes,
                    from.data() + (head * rows.from_len + piece.start) * rows.token_bytes,
                    static_cast<size_t>(piece.count * rows.token_bytes));
      }
    }
  }
  return to;
}

struct Done {
  std::map<std::string, std::vector<float>> outputs;  // f32, as the program gives them
  int64_t tiles = 0;
  int64_t ns = 0;
};

class OneDevice {
 public:
  OneDevice(pjrt::Client& client, const ContextPlan& plan, const std::map<std::string, pjrt::OptionValue>& flags)
      : client_(client),
        plan_(plan),
        flags_(flags),
        spec_(stablehlo::SpecOf(plan.contract, plan.plan->view(), TargetKind::kTpu)) {}  // rows in one part

  // One pass, compiled once.
  Status Compile(bool is_backward) {
    is_backward_ = is_backward;
    program_ = TESSERA_TRY(is_backward ? stablehlo::LowerBackward(spec_) : stablehlo::LowerForward(spec_));
    tables_ = lanes::xla::MakeTables(spec_, plan_.plan->view(), program_.inputs);
    options_.overrides = flags_;
    for (const stablehlo::NamedType& input : program_.inputs) options_.inputs.push_back(ToPjrt(input.type));
    executable_.emplace(TESSERA_TRY(client_.Compile(program_.text, options_)));
    return {};
  }

  Result<Done> Run(const WholeTensors& whole, std::span<const float> sink_logits) {
    const Shape& s = plan_.contract.shape;
    const int64_t e = BytesOf(s.dtype);
    const auto place = [&](const char* name, std::span<const std::byte> bytes, int64_t heads, int64_t token_bytes) {
      tensors_[name] = Moved(plan_, bytes, {heads, token_bytes, s.q_len, s.q_len}, false);
    };
    place("q", whole.q, s.num_q_heads, s.dim_qk * e);
    place("k", whole.k, s.num_kv_heads, s.dim_qk * e);
    place("v", whole.v, s.num_kv_heads, s.dim_v * e);
    if (is_backward_) {
      place("do", whole.dout, s.num_q_heads, s.dim_v * e);
      place("lse", std::as_bytes(whole.lse), s.num_q_heads, sizeof(float));
      place("delta", std::as_bytes(whole.delta), s.num_q_heads, sizeof(float));
    }
    const auto number = [&](const char* name, double value) {
      const auto narrow = static_cast<float>(value);
      const auto bytes = std::as_bytes(std::span(&narrow, 1));
      tensors_[name].assign(bytes.begin(), bytes.end());
    };
    number("scale", plan_.contract.score.scale);
    number("softcap", plan_.contract.score.softcap);
    const auto sinks = std::as_bytes(sink_logits);
    tensors_["sink_logits"].assign(sinks.begin(), sinks.end());
    return Execute();
  }

  // [batch, heads, rows of tiles * tile, dim] of which the first tokens count, back in the given order.
  std::vector<float> Given(const std::vector<float>& from, int64_t heads, int64_t dim) const {
    const Shape& s = plan_.contract.shape;
    const int64_t len = static_cast<int64_t>(from.size()) / (s.batch * heads * dim);
    const std::vector<std::byte> bytes = Moved(plan_, std::as_bytes(std::span(from)),
                                               {heads, dim * static_cast<int64_t>(sizeof(float)), len, s.q_len}, true);
    std::vector<float> out(bytes.size() / sizeof(float));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

 private:
  Result<Done> Execute() {
    std::vector<pjrt::Buffer> buffers;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const std::string& name = program_.inputs[i].name;
      const auto tensor = tensors_.find(name);
      const std::span<const std::byte> bytes = tensor != tensors_.end()
                                                   ? std::span<const std::byte>(tensor->second)
                                                   : std::as_bytes(std::span<const int32_t>(tables_.at(name)));
      buffers.push_back(TESSERA_TRY(client_.Upload(options_.inputs[i], bytes)));
    }
    std::vector<const pjrt::Buffer*> args;
    for (const pjrt::Buffer& buffer : buffers) args.push_back(&buffer);
    const Clock clock;
    const pjrt::Launched launched = TESSERA_TRY(executable_->ExecuteWithEvent(args));
    TESSERA_TRY(launched.done.Await());
    Done done;
    done.ns = clock.Ns();
    for (size_t i = 0; i < launched.outputs.size(); ++i) {
      const pjrt::Buffer& buffer = launched.outputs[i];
      std::vector<float> values(static_cast<size_t>(buffer.type().bytes()) / sizeof(float));
      TESSERA_TRY(buffer.Download(std::as_writable_bytes(std::span(values))));
      if (program_.outputs[i].name == "tiles") {
        int32_t count = 0;
        std::memcpy(&count, values.data(), sizeof(count));
        done.tiles = count;
      }
      done.outputs[program_.outputs[i].name] = std::move(values);
    }
    return done;
  }

  pjrt::Client& client_;
  const ContextPlan& plan_;
  const std::map<std::string, pjrt::OptionValue> flags_;
  const stablehlo::ProgramSpec spec_;
  bool is_backward_ = false;
  stablehlo::Program program_;
  lanes::xla::PlanTables tables_;
  pjrt::CompileOptions options_;
  std::optional<pjrt::Executable> executable_;
  std::map<std::string, std::vector<std::byte>> tensors_;
};

}  // namespace

std::vector<std::byte> Rounded(std::span<const float> values, DType dtype) {
  std::vector<std::byte> out(values.size() * static_cast<size_t>(BytesOf(dtype)));
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), values.data(), out.size());
    return out;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = dtype == DType::kBf16 ? F32ToBf16(values[i]) : F32ToF16(values[i]);
    std::memcpy(out.data() + 2 * i, &bits, sizeof(bits));
  }
  return out;
}

std::vector<float> ToFloats(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> out(bytes.size() / static_cast<size_t>(BytesOf(dtype)));
  for (size_t i = 0; i < out.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&out[i], bytes.data() + i * sizeof(float), sizeof(float));
      continue;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * sizeof(bits), sizeof(bits));
    out[i] = dtype == DType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
  }
  return out;
}

Result<ContextOutputs> ForwardOnOne(pjrt::Client& client, const ContextPlan& plan, const WholeTensors& whole,
                                    std::span<const float> sink_logits,
                                    const std::map<std::string, pjrt::OptionValue>& flags) {
  const Shape& s = plan.contract.shape;
  OneDevice device(client, plan, flags);
  TESSERA_TRY(device.Compile(false));
  const Done done = TESSERA_TRY(device.Run(whole, sink_logits));
  ContextOutputs out;
  out.o = Rounded(device.Given(done.outputs.at("o"), s.num_q_heads, s.dim_v), s.dtype);
  out.lse = device.Given(done.outputs.at("lse"), s.num_q_heads, 1);
  out.tiles = {done.tiles};
  out.run_ns = done.ns;
  return out;
}

struct BackwardOfOne::State {
  OneDevice device;
  const ContextPlan& plan;
};

Result<BackwardOfOne> BackwardOfOne::Make(pjrt::Client& client, const ContextPlan& plan,
                                          const std::map<std::string, pjrt::OptionValue>& flags) {
  BackwardOfOne made;
  made.state_ = std::make_shared<State>(State{OneDevice(client, plan, flags), plan});
  TESSERA_TRY(made.state_->device.Compile(true));
  return made;
}

Result<ContextGradients> BackwardOfOne::Run(const WholeTensors& whole, std::span<const float> sink_logits) const {
  OneDevice& device = state_->device;
  const ContextPlan& plan = state_->plan;
  const Shape& s = plan.contract.shape;
  const Done done = TESSERA_TRY(device.Run(whole, sink_logits));
  ContextGradients out;
  out.dq = device.Given(done.outputs.at("dq"), s.num_q_heads, s.dim_qk);
  out.dk = device.Given(done.outputs.at("dk"), s.num_kv_heads, s.dim_qk);
  out.dv = device.Given(done.outputs.at("dv"), s.num_kv_heads, s.dim_v);
  out.tiles = {done.tiles};
  out.run_ns = done.ns;
  if (!plan.contract.score.sink_logits) return out;
  const std::vector<float>& shares = done.outputs.at("dsink_logits");
  const size_t of_head = shares.size() / static_cast<size_t>(s.batch * s.num_q_heads);
  out.dsink_logits.resize(static_cast<size_t>(s.num_q_heads), 0.0F);
  for (size_t i = 0; i < shares.size(); ++i) {
    out.dsink_logits[i / of_head % static_cast<size_t>(s.num_q_heads)] += shares[i];
  }
  return out;
}

Result<ContextGradients> BackwardOnOne(pjrt::Client& client, const ContextPlan& plan, const WholeTensors& whole,
                                       std::span<const float> sink_logits,
                                       const std::map<std::string, pjrt::OptionValue>& flags) {
  return TESSERA_TRY(BackwardOfOne::Make(client, plan, flags)).Run(whole, sink_logits);
}

}  // namespace tessera::shard
