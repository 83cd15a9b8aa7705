// Tensors to a class's sizes and back, row by row, and the run that does both around a run.
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
struct Place {
  bool is_query = true;
  bool has_tokens = true;  // else one number per head
  int64_t dim = 1;
  bool has_dim = true;
};

std::optional<Place> PlaceOf(const std::string& name, const Shape& shape) {
  const std::map<std::string, Place> places = {
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
  const auto found = places.find(name);
  return found == places.end() ? std::nullopt : std::optional(found->second);
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

Extents ExtentsOf(const Place& place, const Shape& shape, Layout layout) {
  const int64_t heads = place.is_query ? shape.num_q_heads : shape.num_kv_heads;
  if (!place.has_tokens) return {.heads = heads};
  return {.batch = shape.batch,
          .heads = heads,
          .len = place.is_query ? shape.q_len : shape.kv_len,
          .tokens_first = layout == Layout::kBthd && place.has_dim};
}

std::vector<int64_t> DimsOf(const Place& place, const Extents& at) {
  if (!place.has_tokens) return {at.heads};
  std::vector<int64_t> dims =
      at.tokens_first ? std::vector{at.batch, at.len, at.heads} : std::vector{at.batch, at.heads, at.len};
  if (place.has_dim) dims.push_back(place.dim);
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
    const std::optional<Place> place = PlaceOf(name, at.request);
    if (!place) {
      violations.push_back({name, "no tensor of a run has that name"});
      continue;
    }
    const Extents small = ExtentsOf(*place, at.request, options.layout);
    const Extents large = ExtentsOf(*place, at.shape, options.layout);
    const std::vector<int64_t> expected = DimsOf(*place, is_pad ? small : large);
    if (tensor.shape != expected) {
      violations.push_back(
          {name, fmt::format("[{}] expected, got [{}]", fmt::join(expected, ", "), fmt::join(tensor.shape, ", "))});
      continue;
    }
    Tensor out = Filled(tensor.type, DimsOf(*place, is_pad ? large : small), is_pad ? options.fill : 0.0);
    const size_t row_bytes = Idx(place->dim * BytesOf(tensor.type));
    for (int64_t b = 0; b < small.batch; ++b) {
      for (int64_t h = 0; h < small.heads; ++h) {
        const int64_t to = place->is_query ? HeadAtClass(at, h) : h;
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

RunOutcome Unbegun(const std::string& step, const Contract& contract, const Target& target, const RunOptions& options,
                   Error error) {
  RunOutcome outcome;
  // A contract that is not valid has no key to say.
  const Contract* known = step == "contract" ? nullptr : &contract;
  outcome.receipt = ReceiptOf({.failed_at = step, .target = target.name, .contract = known}, options, error);
  outcome.error = std::move(error);
  return outcome;
}

}  // namespace

Result<TensorMap> PadToClass(const TensorMap& tensors, const RequestClass& at, const PadOptions& options) {
  return Move(tensors, at, options, Way::kPad);
}

Result<TensorMap> CropToRequest(const TensorMap& tensors, const RequestClass& at, const PadOptions& options) {
  return Move(tensors, at, options, Way::kCrop);
}

RunOutcome RunAtClass(const Contract& contract, const Batch& batch, const TensorMap& inputs, const Target& target,
                      const RunOptions& options) {
  const Result<std::string> key = ContractKey(contract);
  if (!key) return Unbegun("contract", contract, target, options, key.error());
  const Result<RequestClass> at = Normalise(contract, target, options.plan);
  if (!at) return Unbegun("request", contract, target, options, at.error());
  const Result<Contract> padded = AtClass(contract, *at);
  if (!padded) return Unbegun("request", contract, target, options, padded.error());
  const Result<Batch> padded_batch = AtClass(contract, batch, *at);
  if (!padded_batch) return Unbegun("request", contract, target, options, padded_batch.error());
  const PadOptions pad{.layout = options.layout};
  const Result<TensorMap> padded_inputs = PadToClass(inputs, *at, pad);
  if (!padded_inputs) return Unbegun("request", contract, target, options, padded_inputs.error());
  RunOutcome outcome = Run(*padded, *padded_batch, *padded_inputs, target, options);
  outcome.receipt.class_request = {.request = ShapeText(at->request),
                                   .padded = ShapeText(at->shape),
                                   .request_key = *key,
                                   .exact_slots = at->exact_slots,
                                   .class_slots = at->class_slots};
  if (outcome.error) return outcome;
  // The lane wrote tensors of exactly the padded contract, so these are of the right sizes.
  outcome.outputs = CropToRequest(outcome.outputs, *at, pad).value();
  outcome.receipt.output_digest = Digest(outcome.outputs);
  return outcome;
}

}  // namespace tessera
