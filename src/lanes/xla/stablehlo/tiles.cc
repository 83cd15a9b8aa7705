// Operands, tiles and worklists; tile_mask.cc has the masks.
#include "lanes/xla/stablehlo/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "tessera/version.h"

namespace tessera::stablehlo {
namespace {

// Room that every program of a class has: enough for the cleanups of nearly every mask.
constexpr int64_t kLeastItems = 1024;
constexpr int64_t kLeastWords = 1024;

int64_t Ceil2(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

Value ScalarAt(Builder& b, const Value& row, int64_t i) {
  const int64_t begin[] = {i};
  const int64_t end[] = {i + 1};
  return b.Reshape(b.Slice(row, begin, end), {});
}

}  // namespace

Element ElementOf(DType dtype) {
  return dtype == DType::kF32 ? Element::kF32 : dtype == DType::kBf16 ? Element::kBf16 : Element::kF16;
}

int64_t CeilTo(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

ProgramSpec SpecOf(const Contract& contract, const PlanView& plan) {
  ProgramSpec spec;
  spec.class_key = ToHex(plan.class_key);
  spec.shape = contract.shape;
  spec.has_softcap = contract.score.softcap > 0;
  spec.has_sink_logits = contract.score.sink_logits;
  for (const Condition& condition : plan.conditions) {
    spec.has_documents |= condition.kind == ConditionKind::kDocuments || condition.kind == ConditionKind::kSinkDocument;
    spec.has_valid |= condition.kind == ConditionKind::kValid;
  }
  spec.masks = plan.mask_capacity;
  for (size_t d = 0; d < kNumDirections; ++d) {
    const Worklist& list = plan.worklists[d];
    spec.lists[d] = {list.tile_q, list.tile_kv, list.rows_per_mask, list.width_capacity};
  }
  // One more item for full tiles of a last column that is padded.
  spec.items = Ceil2(std::max(static_cast<int64_t>(plan.items.size()) + 1, kLeastItems));
  spec.words = Ceil2(std::max(static_cast<int64_t>(plan.bit_words.size()) * 2, kLeastWords));
  return spec;
}

std::string ListInput(Direction direction, const char* what) { return fmt::format("{}_{}", what, ToText(direction)); }

std::vector<NamedType> CommonInputs(const ProgramSpec& spec, const std::vector<Direction>& directions) {
  const Shape& s = spec.shape;
  const Element e = ElementOf(s.dtype);
  std::vector<NamedType> inputs = {{"q", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_qk}}},
                                   {"k", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}}},
                                   {"v", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}}},
                                   {"scale", {Element::kF32, {}}}};
  if (spec.has_softcap) inputs.push_back({"softcap", {Element::kF32, {}}});
  if (spec.has_sink_logits) inputs.push_back({"sink_logits", {Element::kF32, {s.num_q_heads}}});
  inputs.push_back({"mask_of", {Element::kI32, {s.batch * s.num_q_heads}}});
  int64_t tile_words = 0;
  for (const Direction direction : directions) {
    const ListShape& list = spec.Of(direction);
    const int64_t rows = spec.masks * list.rows;
    inputs.push_back({ListInput(direction, "counts"), {Element::kI32, {rows}}});
    inputs.push_back({ListInput(direction, "slots"), {Element::kI32, {rows * list.width, kSlotColumns}}});
    tile_words = std::max(tile_words, list.tile_q * CeilTo(list.tile_kv, 64) / 32);
  }
  inputs.push_back({"items", {Element::kI32, {spec.items, kItemColumns}}});
  // A tile's words are read as one piece, which must not run over the end.
  inputs.push_back({"words", {Element::kUi32, {spec.words + tile_words}}});
  if (spec.has_documents) {
    inputs.push_back({"q_documents", {Element::kI32, {s.batch, s.q_len}}});
    inputs.push_back({"kv_documents", {Element::kI32, {s.batch, s.kv_len}}});
    inputs.push_back({"kv_ranks", {Element::kI32, {s.batch, s.kv_len}}});
  }
  if (spec.has_valid) {
    inputs.push_back({"q_valid", {Element::kI32, {s.batch}}});
    inputs.push_back({"kv_valid", {Element::kI32, {s.batch}}});
  }
  return inputs;
}

std::string ModuleName(std::string_view pass, std::string_view class_key) {
  return fmt::format("tessera_{}_{}", pass, class_key);
}

Builder BeginModule(const ProgramSpec& spec, std::string_view pass, const std::vector<NamedType>& inputs) {
  return Builder(ModuleName(pass, spec.class_key),
                 {{"tessera_class", spec.class_key},
                  {"tessera_program", fmt::format("{} {}", pass, kProgramVersion)},
                  {"tessera_version", TESSERA_VERSION}},
                 inputs);
}

Tokens LoadTokens(Builder& b, const Value& input, int64_t padded_tokens) {
  const Value dirty = b.Not(b.IsFinite(input));
  return {PadTokens(b, input, padded_tokens), b.Reduce(Reduction::kOr, dirty, {0, 1, 2, 3})};
}

Value PadTokens(Builder& b, const Value& input, int64_t padded_tokens) {
  std::vector<int64_t> dims = input.type.dims;
  dims[2] = padded_tokens;
  return b.PadEnd(input, dims);
}

Value TileOf(Builder& b, const Value& tensor, const HeadAt& at, const Value& first_token, int64_t tokens) {
  const int64_t dim = tensor.type.dims[3];
  const Value starts[] = {at.batch, at.head, first_token, b.Int(0)};
  return b.Reshape(b.SliceAt(tensor, starts, {1, 1, tokens, dim}), {tokens, dim});
}

Value StatOf(Builder& b, const Value& stat, const HeadAt& at, const Value& first_token, int64_t tokens) {
  const Value starts[] = {at.batch, at.head, first_token};
  return b.Reshape(b.SliceAt(stat, starts, {1, 1, tokens}), {tokens});
}

Value StoreTile(Builder& b, const Value& tensor, const Value& tile, const HeadAt& at, const Value& first_token) {
  const Value starts[] = {at.batch, at.head, first_token, b.Int(0)};
  return b.UpdateAt(tensor, b.Reshape(tile, {1, 1, tile.type.dims[0], tile.type.dims[1]}), starts);
}

Value StoreStat(Builder& b, const Value& stat, const Value& row, const HeadAt& at, const Value& first_token) {
  const Value starts[] = {at.batch, at.head, first_token};
  return b.UpdateAt(stat, b.Reshape(row, {1, 1, row.type.dims[0]}), starts);
}

Value Trim(Builder& b, const Value& padded, int64_t tokens) {
  const std::vector<int64_t> begin(padded.type.dims.size(), 0);
  std::vector<int64_t> end = padded.type.dims;
  end[2] = tokens;
  return b.Slice(padded, begin, end);
}

Row RowOf(Builder& b, const ProgramSpec& spec, Direction direction, const HeadAt& q_head, const Value& row) {
  const ListShape& list = spec.Of(direction);
  const Value pair[] = {b.Add(b.Mul(q_head.batch, b.Int(spec.shape.num_q_heads)), q_head.head)};
  const Value mask = b.Reshape(b.SliceAt(b.Input("mask_of"), pair, {1}), {});
  const Value at[] = {b.Add(b.Mul(mask, b.Int(list.rows)), row)};
  const Value count = b.Reshape(b.SliceAt(b.Input(ListInput(direction, "counts")), at, {1}), {});
  return {b.Mul(at[0], b.Int(list.width)), count};
}

SlotValues SlotOf(Builder& b, Direction direction, const Value& slot) {
  const Value at[] = {slot, b.Int(0)};
  const Value row = b.Reshape(b.SliceAt(b.Input(ListInput(direction, "slots")), at, {1, kSlotColumns}), {kSlotColumns});
  return {ScalarAt(b, row, 0), ScalarAt(b, row, 1), ScalarAt(b, row, 2)};
}

Value SafeDot(Builder& b, const Weighted& lhs, const Value& rhs, const Value& is_dirty) {
  const Contract2 axes{lhs.by_key ? 0 : 1, 0};
  const Element e = rhs.type.element;
  const auto clean = [&] { return Values{b.Dot(b.Convert(lhs.weights, e), rhs, axes)}; };
  const auto dirty = [&] {
    const Value is_finite = b.IsFinite(rhs);
    const Value finite = b.Select(is_finite, rhs, b.Constant(rhs.type, 0.0));
    const Value sum = b.Dot(b.Convert(lhs.weights, e), finite, axes);
    const Value visible = b.Convert(Visible(b, lhs.logits), Element::kF32);
    const Value reached = b.Dot(visible, b.Convert(b.Not(is_finite), Element::kF32), axes);
    const Value is_reached = b.Is(Compare::kGt, reached, b.Constant({Element::kF32, {}}, 0.0));
    return Values{b.Select(is_reached, b.Constant(sum.type, std::numeric_limits<double>::quiet_NaN()), sum)};
  };
  return b.If(is_dirty, dirty, clean)[0];
}

}  // namespace tessera::stablehlo
