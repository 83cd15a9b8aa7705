#include "model/chunk_program.h"

#include <limits>

#include "base/try.h"

namespace tessera::model {

using stablehlo::Builder;
using stablehlo::Compare;
using stablehlo::Element;
using stablehlo::NamedType;
using stablehlo::Reduction;
using stablehlo::Type;
using stablehlo::Value;

Value PoolChunks(Builder& b, const Value& values, const Value& chunk_ids, int64_t num_chunks) {
  const int64_t rows = values.type.dims[0];
  const int64_t tokens = values.type.dims[1];
  const std::vector<int64_t> dims = {rows, num_chunks, tokens};
  const Value is_in = b.Is(Compare::kEq, b.Iota({Element::kI32, dims}, 1), b.Spread(chunk_ids, dims, {0, 2}));
  const Value one_hot = b.Convert(is_in, Element::kF32);
  // Zero times what is not finite is NaN, and would reach every chunk: such values are counted apart.
  const Value is_finite = b.IsFinite(values);
  const Value zero = b.Constant({Element::kF32, {}}, 0.0);
  const Value sum = b.BatchDot(one_hot, b.Select(is_finite, values, zero), {1, 0});
  const Value bad = b.BatchDot(one_hot, b.Convert(b.Not(is_finite), Element::kF32), {1, 0});
  const Value count = b.Max(b.Reduce(Reduction::kAdd, one_hot, {2}), b.Constant({Element::kF32, {}}, 1.0));
  const Value mean = b.Div(sum, b.Spread(count, sum.type.dims, {0, 1}));
  const Value nan = b.Constant({Element::kF32, {}}, std::numeric_limits<double>::quiet_NaN());
  return b.Select(b.Is(Compare::kGt, bad, zero), nan, mean);
}

Value ChooseNeighbours(Builder& b, const Value& adjacent, int64_t most) {
  const std::vector<int64_t> dims = adjacent.type.dims;
  const int64_t chunks = dims[2];
  const Value flat = b.Convert(b.Reshape(adjacent, {dims[0] * dims[1], chunks}), Element::kI32);
  const Value is_adjacent = b.Is(Compare::kNe, flat, b.Int(0));
  // How many neighbours there are up to each place, itself among them: a product with ones on and above the diagonal.
  const Type square{Element::kI32, {chunks, chunks}};
  const Value up_to = b.Convert(b.Is(Compare::kLe, b.Iota(square, 0), b.Iota(square, 1)), Element::kF32);
  const Value rank = b.Dot(b.Convert(is_adjacent, Element::kF32), up_to, {1, 0});
  const Value is_early = b.Is(Compare::kLe, rank, b.Constant({Element::kF32, {}}, static_cast<double>(most)));
  return b.Reshape(b.Convert(b.And(is_adjacent, is_early), Element::kI8), dims);
}

Result<stablehlo::Program> LowerChunks(const ChunkShape& shape) {
  const std::vector<NamedType> inputs = {
      {"values", {Element::kF32, {shape.rows, shape.row_tokens, shape.dim}}},
      {"chunk_ids", {Element::kI32, {shape.rows, shape.row_tokens}}},
      {"adjacent", {Element::kI8, {shape.rows, shape.num_chunks, shape.num_chunks}}}};
  Builder b("model_chunks", {}, inputs);
  const Value pooled = PoolChunks(b, b.Input("values"), b.Input("chunk_ids"), shape.num_chunks);
  const Value chosen = ChooseNeighbours(b, b.Input("adjacent"), shape.most);
  std::string text = TESSERA_TRY(b.Finish({pooled, chosen}));
  return stablehlo::Program{
      "model_chunks", std::move(text), inputs, {{"pooled", pooled.type}, {"chosen", chosen.type}}};
}

}  // namespace tessera::model
