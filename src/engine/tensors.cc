// Specs, checks and views of a run's tensors.
#include "engine/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

std::vector<int64_t> Dims(const Shape& shape, Layout layout, int64_t heads, int64_t tokens, int64_t dim) {
  if (layout == Layout::kBhtd) return {shape.batch, heads, tokens, dim};
  return {shape.batch, tokens, heads, dim};
}

std::string SpecText(const TensorSpec& spec) {
  return fmt::format("{} [{}]", ToText(spec.type), fmt::join(spec.shape, ", "));
}

}  // namespace

std::string_view ToText(Layout layout) { return layout == Layout::kBhtd ? "bhtd" : "bthd"; }

std::vector<TensorSpec> InputSpecs(const Contract& contract, bool backward, Layout layout) {
  const Shape& s = contract.shape;
  const ElementType type = ToElementType(s.dtype);
  std::vector<TensorSpec> specs = {
      {"q", type, Dims(s, layout, s.num_q_heads, s.q_len, s.dim_qk)},
      {"k", type, Dims(s, layout, s.num_kv_heads, s.kv_len, s.dim_qk)},
      {"v", type, Dims(s, layout, s.num_kv_heads, s.kv_len, s.dim_v)},
  };
  if (contract.score.sink_logits) specs.push_back({"sink_logits", ElementType::kF32, {s.num_q_heads}});
  if (backward) specs.push_back({"do", type, Dims(s, layout, s.num_q_heads, s.q_len, s.dim_v)});
  return specs;
}

std::vector<TensorSpec> InputSpecs(const Contract& contract, const RunOptions& options) {
  std::vector<TensorSpec> specs = InputSpecs(contract, options.backward, options.layout);
  if (options.forward) return specs;
  RunOptions forward_alone;
  forward_alone.layout = options.layout;
  const std::vector<TensorSpec> forward = OutputSpecs(contract, forward_alone);
  specs.insert(specs.end(), forward.begin(), forward.end());
  return specs;
}

std::vector<TensorSpec> OutputSpecs(const Contract& contract, const RunOptions& options) {
  const Shape& s = contract.shape;
  std::vector<TensorSpec> specs;
  if (options.forward) {
    const std::vector<int64_t> row_dims = {s.batch, s.num_q_heads, s.q_len};
    specs.push_back({"o", ToElementType(s.dtype), Dims(s, options.layout, s.num_q_heads, s.q_len, s.dim_v)});
    if (options.xla.statistics || options.backward) specs.push_back({"lse", ElementType::kF32, row_dims});
    if (options.row_max) specs.push_back({"max", ElementType::kF32, row_dims});
  }
  if (!options.backward) return specs;
  const std::vector<TensorSpec> inputs = InputSpecs(contract, false, options.layout);
  for (const TensorSpec& input : inputs) specs.push_back({"d" + input.name, input.type, input.shape});
  return specs;
}

namespace {

// [B,T,H,D] where [B,H,T,D] is expected, or the other way round.
bool IsExchanged(const std::vector<int64_t>& expected, std::vector<int64_t> given) {
  if (given.size() != 4 || given == expected) return false;
  std::swap(given[1], given[2]);
  return given == expected;
}

// Every tensor of the specs that is missing, or of the wrong type, shape or size.
std::vector<Violation> CheckNamed(const TensorMap& inputs, const std::vector<TensorSpec>& specs) {
  std::vector<Violation> violations;
  for (const TensorSpec& spec : specs) {
    auto it = inputs.find(spec.name);
    if (it == inputs.end()) {
      violations.push_back({spec.name, fmt::format("{} expected, but there is no such tensor", SpecText(spec))});
      continue;
    }
    const Tensor& tensor = it->second;
    if (tensor.type != spec.type || tensor.shape != spec.shape) {
      violations.push_back(
          {spec.name,
           fmt::format("{} expected, got {}{}", SpecText(spec), SpecText({spec.name, tensor.type, tensor.shape}),
                       IsExchanged(spec.shape, tensor.shape) ? ": heads and tokens are exchanged" : "")});
      continue;
    }
    const int64_t bytes = tensor.NumElements() * BytesOf(tensor.type);
    if (static_cast<int64_t>(tensor.bytes.size()) != bytes) {
      violations.push_back(
          {spec.name, fmt::format("{} bytes expected for {}, got {}", bytes, SpecText(spec), tensor.bytes.size())});
    }
  }
  return violations;
}

}  // namespace

std::vector<Violation> CheckInputs(const TensorMap& inputs, const std::vector<TensorSpec>& specs) {
  std::vector<Violation> violations = CheckNamed(inputs, specs);
  for (const auto& [name, tensor] : inputs) {
    auto has_name = [&n = name](const TensorSpec& spec) { return spec.name == n; };
    if (std::any_of(specs.begin(), specs.end(), has_name)) continue;
    std::string why = "no such tensor expected";
    if (name == "sink_logits") why = "not expected: the contract's score.sink_logits is false";
    if (name == "do") why = "not expected: the run has no backward";
    violations.push_back({name, std::move(why)});
  }
  return violations;
}

RunTensors BindTensors(const Contract& contract, const TensorMap& inputs, const RunOptions& options,
                       TensorMap& outputs) {
  for (const TensorSpec& spec : OutputSpecs(contract, options)) {
    outputs.emplace(spec.name, Tensor::Zeros(spec.type, spec.shape));
  }
  auto view = [&](const char* name) {
    for (const TensorMap* tensors : {&inputs, static_cast<const TensorMap*>(&outputs)}) {
      const auto it = tensors->find(name);
      if (it != tensors->end()) return DenseView(it->second, options.layout);
    }
    return TensorRef{};
  };
  RunTensors tensors;
  tensors.q = view("q");
  tensors.k = view("k");
  tensors.v = view("v");
  tensors.dout = view("do");
  tensors.sink_logits = FloatsOf(inputs, "sink_logits");
  tensors.o = view("o");
  tensors.lse = FloatsOf(outputs, "lse");
  if (!options.forward) {
    const std::span<const float> lse = FloatsOf(inputs, "lse");
    tensors.lse = {const_cast<float*>(lse.data()), lse.size()};  // a backward only reads it
  }
  tensors.row_max = FloatsOf(outputs, "max");
  tensors.dq = view("dq");
  tensors.dk = view("dk");
  tensors.dv = view("dv");
  tensors.dsink_logits = FloatsOf(outputs, "dsink_logits");
  return tensors;
}

std::span<const float> FloatsOf(const TensorMap& tensors, const std::string& name) {
  auto it = tensors.find(name);
  if (it == tensors.end()) return {};
  return {reinterpret_cast<const float*>(it->second.bytes.data()), static_cast<size_t>(it->second.NumElements())};
}

std::span<float> FloatsOf(TensorMap& tensors, const std::string& name) {
  std::span<const float> floats = FloatsOf(static_cast<const TensorMap&>(tensors), name);
  return {const_cast<float*>(floats.data()), floats.size()};
}

Result<RouteInputs> RouteInputsOf(const Contract& contract, const TensorMap& inputs, Layout layout) {
  RouteInputs route;
  if (!contract.routing) return route;
  std::vector<TensorSpec> specs = InputSpecs(contract, false, layout);
  std::erase_if(specs, [](const TensorSpec& spec) { return spec.name != "q" && spec.name != "k"; });
  std::vector<Violation> violations = CheckNamed(inputs, specs);
  if (!violations.empty()) return Fail(ErrorCode::kTensorMismatch, std::move(violations), "inputs");
  route.q = DenseView(inputs.at("q"), layout);
  route.k = DenseView(inputs.at("k"), layout);
  return route;
}

}  // namespace tessera
