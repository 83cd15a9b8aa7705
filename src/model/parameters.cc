// A model's parameters: names, shapes, and how they begin.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bits_from_seed.h"
#include "model/contracts.h"
#include "model/names.h"
#include "tessera/make_contract.h"
#include "tessera/model.h"

namespace tessera {

namespace model {

std::string LayerName(int64_t layer, std::string_view what) { return fmt::format("layers.{}.{}", layer, what); }

std::vector<std::string> DistinctMasks(const ModelSpec& spec) {
  std::vector<std::string> distinct;
  for (const std::string& mask : spec.masks) {
    if (std::find(distinct.begin(), distinct.end(), mask) == distinct.end()) distinct.push_back(mask);
  }
  return distinct;
}

Result<Contract> ContractOf(const ModelSpec& spec, const std::string& mask) {
  return MakeContract({.batch = spec.rows,
                       .q_len = spec.row_tokens,
                       .num_q_heads = spec.num_q_heads,
                       .num_kv_heads = spec.num_kv_heads,
                       .dim_qk = spec.head_dim,
                       .dtype = spec.dtype,
                       .mask = mask,
                       .softcap = spec.softcap,
                       .sink_logits = spec.sink_logits});
}

}  // namespace model

namespace {

// Over its standard deviation: close to normal, never beyond 3.5.
double Bell(uint64_t bits) { return static_cast<double>(BellSum(bits)) / 37836.0; }

}  // namespace

std::vector<ParameterInfo> ParametersOf(const ModelSpec& spec) {
  std::vector<ParameterInfo> all;
  const auto add = [&](std::string name, std::vector<int64_t> dims, Init init, double deviation = 0.0) {
    // Decay pulls on matrices that multiply, not on tables, norms or single logits.
    const bool has_decay = dims.size() == 2 && (init != Init::kNormal || name.find("emb") == std::string::npos) &&
                           name != model::kEmbedding;
    all.push_back({std::move(name), std::move(dims), init, deviation, has_decay});
  };
  // A product over n terms keeps the size of what comes in; those that end in the residual stream are smaller, as many
  // of them add up there.
  const auto over = [](int64_t n) { return 1.0 / std::sqrt(static_cast<double>(n)); };
  const double residual = over(2 * spec.layers);
  const int64_t q_dims = spec.num_q_heads * spec.head_dim;
  const int64_t qkv_dims = q_dims + 2 * spec.num_kv_heads * spec.head_dim;
  constexpr double kTable = 0.02;
  add(std::string(model::kEmbedding), {spec.PaddedVocab(), spec.width}, Init::kNormal, kTable);
  if (spec.structure) {
    for (const model::StructurePart& part : model::kStructureParts) {
      add(std::string(part.name), {part.ids, spec.structure_width}, Init::kNormal, kTable);
    }
    // Zero: the sum begins as zero, and this matrix, whose gradient is not, is the first to move.
    add(std::string(model::kStructureOut), {spec.structure_width, spec.width}, Init::kZeros);
  }
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const auto name = [&](std::string_view what) { return model::LayerName(layer, what); };
    add(name("attention_norm"), {spec.width}, Init::kOnes);
    add(name("qkv"), {spec.width, qkv_dims}, Init::kNormal, over(spec.width));
    if (spec.sink_logits) add(name("sink_logits"), {spec.num_q_heads}, Init::kZeros);
    if (spec.output_gate) add(name("gate"), {spec.width, q_dims}, Init::kNormal, over(spec.width));
    add(name("proj"), {q_dims, spec.width}, Init::kNormal, over(q_dims) * residual);
    add(name("mlp_norm"), {spec.width}, Init::kOnes);
    add(name("fc1"), {spec.width, 2 * spec.mlp_width}, Init::kNormal, over(spec.width));
    add(name("fc2"), {spec.mlp_width, spec.width}, Init::kNormal, over(spec.mlp_width) * residual);
  }
  add(std::string(model::kFinalNorm), {spec.width}, Init::kOnes);
  add(std::string(model::kHead), {spec.width, spec.PaddedVocab()}, Init::kNormal, over(spec.width));
  return all;
}

TensorMap InitialParameters(const ModelSpec& spec, uint64_t seed) {
  TensorMap out;
  for (const ParameterInfo& info : ParametersOf(spec)) {
    Tensor tensor = Tensor::Zeros(ElementType::kF32, info.dims);
    uint64_t stream = Mix(seed);
    for (const char c : info.name) stream = Mix(stream ^ static_cast<unsigned char>(c));
    const int64_t count = info.init == Init::kZeros ? 0 : tensor.NumElements();
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bits = Mix(stream + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u);
      const auto value = static_cast<float>(info.init == Init::kOnes ? 1.0 : info.deviation * Bell(bits));
      std::memcpy(tensor.bytes.data() + static_cast<size_t>(i) * sizeof(float), &value, sizeof(float));
    }
    out.emplace(info.name, std::move(tensor));
  }
  return out;
}

}  // namespace tessera
