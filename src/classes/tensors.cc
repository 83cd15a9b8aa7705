// Tensors to a class's sizes and back, row by row.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "tessera/normalise.h"

namespace tessera {
namespace {

size_t Idx(int64_t i) { return static_cast<size_t>(i); }

// How a tensor of a run lies: on which side's heads and tokens, and what each token holds.
struct TensorForm {
  bool is_query = true;
  bool has_tokens = true;  // else one number per head
  int64_t dim = 1;
  bool has_dim = true;
};

std::optional<TensorForm> FormOf(const std::string& name, const Shape& shape) {
  const std::map<std::string, TensorForm> forms = {
      {"q", {.dim = shape.dim_qk}},
      {"dq", {.dim = shape.dim_qk}},
      {"k", {.is_query = false, .dim = shape.dim_qk}},
      {"dk", {.is_query = false, .dim = shape.dim_qk}},
      {"v", {.is_query = false, .dim = shape.dim_v}},
      {"dv", {.is_query = false, .dim = shape.dim_v}},
      {"o", {.dim = shape.dim_v}},
      {"do", {.dim = shape.dim_v}},
      {"lse", {.has_dim = false}},
      {"max", {.has_dim = false}},
      {"delta", {.has_dim = false}},
      {"sink_logits", {.has_tokens = false, .has_dim = false}},
      {"dsink_logits", {.has_tokens = false, .has_dim = false}},
  };
  const auto found = forms.find(name);
  return found == forms.end() ? std::nullopt : std::optional(found->second);
}

struct Extents {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t len = 1;
  bool tokens_first = false;  // [B,T,H,D]
  int64_t RowAt(int64_t b, int64_t h, int64_t t) const {
    return tokens_first ? (b * len + t) * heads + h : (b * heads + h) * len + t;
  }
};

Extents ExtentsOf(const TensorForm& form, const Shape& shape, Layout layout) {
  const int64_t heads = form.is_query ? shape.num_q_heads : shape.num_kv_heads;
  if (!form.has_tokens) return {.heads = heads};
  return {.batch = shape.batch,
          .heads = heads,
          .len = form.is_query ? shape.q_len : shape.kv_len,
          .tokens_first = layout == Layout::kBthd && form.has_dim};
}

std::vector<int64_t> DimsOf(const TensorForm& form, const Extents& at) {
  if (!form.has_tokens) return {at.heads};
  std::vector<int64_t> dims =
      at.tokens_first ? std::vector{at.batch, at.len, at.heads} : std::vector{at.batch, at.heads, at.len};
  if (form.has_dim) dims.push_back(form.dim);
  return dims;
}

Tensor Filled(ElementType type, std::vector<int64_t> dims, double fill) {
  Tensor tensor = Tensor::Zeros(type, std::move(dims));
  const int64_t count = tensor.NumElements();
  if (fill == 0.0 || count == 0) return tensor;
  tensor.Set(0, fill);
  const size_t size = Idx(BytesOf(type));
  for (int64_t i = 1; i < count; ++i) std::memcpy(&tensor.bytes[Idx(i) * size], tensor.bytes.data(), size);
  return tensor;
}

enum class Way : uint8_t { kPad, kCrop };

Result<TensorMap> Move(const TensorMap& tensors, const RequestClass& at, const PadOptions& options, Way way) {
  const bool is_pad = way == Way::kPad;
  TensorMap moved;
  std::vector<Violation> violations;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<TensorForm> form = FormOf(name, at.request);
    if (!form) {
      violations.push_back({name, "no tensor of a run has that name"});
      continue;
    }
    const Extents small = ExtentsOf(*form, at.request, options.layout);
    const Extents large = ExtentsOf(*form, at.shape, options.layout);
    const std::vector<int64_t> expected = DimsOf(*form, is_pad ? small : large);
    if (tensor.shape != expected) {
      violations.push_back(
          {name, fmt::format("[{}] expected, got [{}]", fmt::join(expected, ", "), fmt::join(tensor.shape, ", "))});
      continue;
    }
    Tensor out = Filled(tensor.type, DimsOf(*form, is_pad ? large : small), is_pad ? options.fill : 0.0);
    const size_t row_bytes = Idx(form->dim * BytesOf(tensor.type));
    for (int64_t b = 0; b < small.batch; ++b) {
      for (int64_t h = 0; h < small.heads; ++h) {
        const int64_t to = form->is_query ? HeadAtClass(at, h) : h;
        for (int64_t t = 0; t < small.len; ++t) {
          const size_t in_small = Idx(small.RowAt(b, h, t)) * row_bytes;
          const size_t in_large = Idx(large.RowAt(b, to, t)) * row_bytes;
          std::memcpy(&out.bytes[is_pad ? in_large : in_small], &tensor.bytes[is_pad ? in_small : in_large], row_bytes);
        }
      }
    }
    moved.emplace(name, std::move(out));
  }
  if (!violations.empty()) return Fail(ErrorCode::kTensorMismatch, std::move(violations), "class");
  return moved;
}

}  // namespace

Result<TensorMap> PadToClass(const TensorMap& tensors, const RequestClass& at, const PadOptions& options) {
  return Move(tensors, at, options, Way::kPad);
}

Result<TensorMap> CropToRequest(const TensorMap& tensors, const RequestClass& at, const PadOptions& options) {
  return Move(tensors, at, options, Way::kCrop);
}

}  // namespace tessera
