// Operands, tiles and worklists; tile_mask.cc has the masks.
#include "lanes/xla/stablehlo/tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "lanes/weights.h"
#include "tessera/version.h"

namespace tessera::stablehlo {
namespace {

// Room that every program of a class has: enough for the cleanups of nearly every mask.
constexpr int64_t kLeastItems = 1024;
constexpr int64_t kLeastWords = 1024;
// Parts of a pass on a CPU, where it has so many rows: enough for the cores to end together, and few enough for what a
// call costs. Not a count of cores, so that a program is the same on every machine.
constexpr int64_t kCpuParts = 64;

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

PartRows ProgramSpec::RowsOf(Direction direction) const {
  const int64_t heads = direction == Direction::kDkv ? shape.num_kv_heads : shape.num_q_heads;
  const int64_t rows = shape.batch * heads * Of(direction).rows;
  return {rows, CeilDiv(rows, parts)};
}

ProgramSpec SpecOf(const Contract& contract, const PlanView& plan, TargetKind target) {
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
    spec.lists[d] = {.tile_q = std::min<int64_t>(list.tile_q, plan.q_len),
                     .tile_kv = std::min<int64_t>(list.tile_kv, plan.kv_len),
                     .rows = list.rows_per_mask,
                     .width = list.width_capacity,
                     .row_words = RoundUp(int64_t{list.tile_kv}, 64) / 32};
  }
  // One more item for full tiles of a last column that is padded.
  spec.items = Ceil2(std::max(static_cast<int64_t>(plan.items.size()) + 1, kLeastItems));
  spec.words = Ceil2(std::max(static_cast<int64_t>(plan.bit_words.size()) * 2, kLeastWords));
  if (target == TargetKind::kCpu) {
    const int64_t rows = std::max<int64_t>(spec.RowsOf(Direction::kForward).rows, 1);
    spec.parts = CeilDiv(rows, CeilDiv(rows, kCpuParts));  // none is empty
  }
  return spec;
}

std::string ListInput(Direction direction, const char* what) { return fmt::format("{}_{}", what, ToText(direction)); }

std::vector<NamedType> CommonInputs(const ProgramSpec& spec, const std::vector<Direction>& directions) {
  const Shape& s = spec.shape;
  const Element e = ElementOf(s.dtype);
  std::vector<NamedType> inputs = {{"q", {e, {s.batch, s.num_q_heads, s.q_len, s.dim_qk}}},
                                   {"k", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk}}},
                                   {"v", {e, {s.batch, s.num_kv_heads, s.kv_len, s.dim_v}}},
                                   {"scale", {Element::kF32, {}}},
                                   {"part", {Element::kI32, {}}}};
  if (spec.has_softcap) inputs.push_back({"softcap", {Element::kF32, {}}});
  if (spec.has_sink_logits) inputs.push_back({"sink_logits", {Element::kF32, {s.num_q_heads}}});
  inputs.push_back({"mask_of", {Element::kI32, {s.batch * s.num_q_heads}}});
  int64_t tile_words = 0;
  for (const Direction direction : directions) {
    const ListShape& list = spec.Of(direction);
    const int64_t rows = spec.masks * list.rows;
    inputs.push_back({ListInput(direction, "counts"), {Element::kI32, {rows}}});
    inputs.push_back({ListInput(direction, "slots"), {Element::kI32, {rows * list.width, kSlotColumns}}});
    tile_words = std::max(tile_words, list.tile_q * list.row_words);
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

Value LeanLse(Builder& b, const Value& lse) {
  const auto number = [&](double value) { return b.Constant({Element::kF32, {}}, value); };
  const Value size = b.Max(lse, b.Neg(lse));
  const Value is_large = b.Is(Compare::kGe, size, number(lanes::kLeanFrom));
  const Value leans = b.And(is_large, b.IsFinite(lse));
  return b.Select(leans, b.Sub(lse, b.Mul(size, number(lanes::kLean))), lse);
}

Value Weight(Builder& b, const Value& exponent) {
  const Value zero = b.Constant({Element::kF32, {}}, 0.0);
  return b.Exp(b.Select(b.Is(Compare::kGt, exponent, zero), zero, exponent));
}

Values ForRowsOfPart(Builder& b, const ProgramSpec& spec, Direction direction, const Values& init,
                     const std::function<Values(const PartRow&, const Values&)>& body) {
  const PartRows part = spec.RowsOf(direction);
  const Value rows = b.Int(spec.Of(direction).rows);
  const Value heads = b.Int(direction == Direction::kDkv ? spec.shape.num_kv_heads : spec.shape.num_q_heads);
  const Value first = b.Mul(b.Input("part"), b.Int(part.per_part));
  const Value left = b.Sub(b.Int(part.rows), first);
  const Value count = b.Min(left, b.Int(part.per_part));
  return b.For(b.Int(0), count, init, [&](const Value& i, const Values& carried) {
    const Value n = b.Add(first, i);
    const Value pair = b.Div(n, rows);
    return body({i, {b.Div(pair, heads), b.Rem(pair, heads)}, b.Rem(n, rows)}, carried);
  });
}

Value Store(Builder& b, const Value& into, const Value& tile, const Value& place) {
  std::vector<int64_t> dims = {1};
  dims.insert(dims.end(), tile.type.dims.begin(), tile.type.dims.end());
  Values at(dims.size(), b.Int(0));
  at[0] = place;
  return b.UpdateAt(into, b.Reshape(tile, dims), at);
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

Values SumSafely(Builder& b, const Values& init, const std::vector<size_t>& sums,
                 const std::function<Values(const Trial&)>& run) {
  constexpr int64_t kFirst = 0;
  constexpr int64_t kCounting = 2;
  const Value nan = b.Constant({Element::kF32, {}}, std::numeric_limits<double>::quiet_NaN());
  const Value zero = b.Constant({Element::kF32, {}}, 0.0);
  Values carried = {b.Int(kFirst)};
  carried.insert(carried.end(), init.begin(), init.end());
  const auto goes_on = [&](const Values& state) { return b.Is(Compare::kLe, state[0], b.Int(kCounting)); };
  Values done = b.While(carried, goes_on, [&](const Values& state) {
    const Value is_first = b.Is(Compare::kEq, state[0], b.Int(kFirst));
    const Trial trial{b.Not(is_first), b.Is(Compare::kEq, state[0], b.Int(kCounting))};
    Values results = run(trial);
    Value is_dirty = b.Constant({Element::kI1, {}}, 0);
    for (const size_t i : sums) {
      Value& sum = results[i];
      std::vector<int64_t> axes(sum.type.dims.size());
      std::iota(axes.begin(), axes.end(), 0);
      is_dirty = b.Or(is_dirty, b.Reduce(Reduction::kOr, b.Not(b.IsFinite(sum)), axes));
      const Value with_others = b.Select(b.Is(Compare::kGt, sum, zero), nan, state[i + 1]);
      sum = b.Select(trial.is_counting, with_others, sum);
    }
    const Value second = b.Int(kFirst + 1);
    const Value after_first = b.Select(is_dirty, second, b.Int(kCounting + 1));
    const Value next = b.Select(is_first, after_first, b.Add(state[0], b.Int(1)));
    results.insert(results.begin(), next);
    return results;
  });
  done.erase(done.begin());
  return done;
}

Value TileDot(Builder& b, const Value& lhs, const Value& rhs, Contract2 axes) {
  constexpr int64_t kSmall = 16;
  const auto is_small = [](const Value& x) {
    return *std::min_element(x.type.dims.begin(), x.type.dims.end()) < kSmall;
  };
  const bool is_bf16 = lhs.type.element == Element::kBf16 && rhs.type.element == Element::kBf16;
  if (!is_bf16 || !(is_small(lhs) || is_small(rhs))) return b.Dot(lhs, rhs, axes);
  const Value wide = b.Convert(lhs, Element::kF32);  // on a line of its own: the order of operations is the text's
  return b.Dot(wide, b.Convert(rhs, Element::kF32), axes);
}

Value SafeDot(Builder& b, const Weighted& lhs, const Value& values, const Trial& trial) {
  // A score gradient may be beyond what f16 holds where no result is.
  const Value rhs = values.type.element == Element::kF16 ? b.Convert(values, Element::kF32) : values;
  const Value zero = b.Constant({Element::kF32, {}}, 0.0);
  const Value one = b.Constant({Element::kF32, {}}, 1.0);
  const Value visible = b.Select(Visible(b, lhs.logits), one, zero);
  const Value weights = b.Convert(b.Select(trial.is_counting, visible, lhs.weights), rhs.type.element);
  const Value others = b.Convert(b.Select(trial.is_counting, one, zero), rhs.type.element);
  const Value finite = b.Select(trial.is_counting, b.Constant({rhs.type.element, {}}, 0.0), rhs);
  const Value with_care = b.Select(b.IsFinite(rhs), finite, others);
  return TileDot(b, weights, b.Select(trial.is_careful, with_care, rhs), {lhs.by_key ? 0 : 1, 0});
}

}  // namespace tessera::stablehlo
