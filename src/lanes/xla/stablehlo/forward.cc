// xla_chunked, forward: a loop over the query tiles of every (batch row, head), and inside it a loop over the row's
// active slots with a running softmax. Nothing larger than one tile of scores exists.
#include <limits>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class Forward {
 public:
  explicit Forward(const ProgramSpec& spec)
      : spec_(spec),
        shape_(spec.shape),
        list_(spec.Of(Direction::kForward)),
        inputs_(CommonInputs(spec, {Direction::kForward})),
        b_(BeginModule(spec, "xla_chunked_forward", inputs_)) {}

  Result<Program> Lower() {
    const int64_t q_tokens = list_.rows * list_.tile_q;
    const int64_t kv_tokens = CeilTo(shape_.kv_len, list_.tile_kv);
    q_ = PadTokens(b_, b_.Input("q"), q_tokens);
    k_ = PadTokens(b_, b_.Input("k"), kv_tokens);
    v_ = LoadTokens(b_, b_.Input("v"), kv_tokens);
    tables_ = LoadTables(b_, spec_, list_);
    const Type o{Element::kF32, {shape_.batch, shape_.num_q_heads, q_tokens, shape_.dim_v}};
    const Type stat{Element::kF32, {shape_.batch, shape_.num_q_heads, q_tokens}};
    const Values init = {b_.Constant(o, 0.0), b_.Constant(stat, 0.0), b_.Constant(stat, 0.0), b_.Int(0)};
    const int64_t rows = shape_.batch * shape_.num_q_heads * list_.rows;
    const Values done = b_.For(b_.Int(0), b_.Int(rows), init,
                               [&](const Value& n, const Values& carried) { return RunRow(n, carried); });
    const Values outputs = {Trim(b_, done[0], shape_.q_len), Trim(b_, done[1], shape_.q_len),
                            Trim(b_, done[2], shape_.q_len), done[3]};
    return b_.Finish(outputs).map([&](std::string text) {
      return Program{
          ModuleName("xla_chunked_forward", spec_.class_key),
          std::move(text),
          inputs_,
          {{"o", outputs[0].type}, {"lse", outputs[1].type}, {"max", outputs[2].type}, {"tiles", outputs[3].type}}};
    });
  }

 private:
  Value F32(double value) { return b_.Constant({Element::kF32, {}}, value); }

  // carried: o, lse, max, tiles.
  Values RunRow(const Value& n, const Values& carried) {
    const Value row = b_.Rem(n, b_.Int(list_.rows));
    const Value pair = b_.Div(n, b_.Int(list_.rows));
    const HeadAt q_head{b_.Div(pair, b_.Int(shape_.num_q_heads)), b_.Rem(pair, b_.Int(shape_.num_q_heads))};
    const HeadAt kv_head{q_head.batch, b_.Div(q_head.head, b_.Int(shape_.num_q_heads / shape_.num_kv_heads))};
    const Value q_begin = b_.Mul(row, b_.Int(list_.tile_q));
    const Value q = TileOf(b_, q_, q_head, q_begin, list_.tile_q);
    const Row slots = RowOf(b_, spec_, Direction::kForward, q_head, row);

    const Type rows{Element::kF32, {list_.tile_q}};
    const Values empty = {b_.Constant(rows, -kInf), b_.Constant(rows, 0.0),
                          b_.Constant({Element::kF32, {list_.tile_q, shape_.dim_v}}, 0.0)};
    const Values sums = b_.For(b_.Int(0), slots.count, empty, [&](const Value& i, const Values& state) {
      const SlotValues slot = SlotOf(b_, Direction::kForward, b_.Add(slots.first, i));
      return AddTile(q, {q_head, kv_head, q_begin, b_.Mul(slot.index, b_.Int(list_.tile_kv))}, slot, state);
    });
    const Finished done = FinishRows(sums, q_head);
    return {StoreTile(b_, carried[0], done.o, q_head, q_begin), StoreStat(b_, carried[1], done.lse, q_head, q_begin),
            StoreStat(b_, carried[2], sums[0], q_head, q_begin), b_.Add(carried[3], slots.count)};
  }

  // state: row maximum, sum of weights, sum of weighted values.
  Values AddTile(const Value& q, const TileAt& at, const SlotValues& slot, const Values& state) {
    const Value k = TileOf(b_, k_, at.kv_head, at.kv_begin, list_.tile_kv);
    const Value v = TileOf(b_, v_.tensor, at.kv_head, at.kv_begin, list_.tile_kv);
    const Value logits = ScoresOf(b_, spec_, tables_, q, k, at, slot).logits;
    const Value max = b_.Max(state[0], b_.Reduce(Reduction::kMax, logits, {1}));
    const Value shift = ShiftOf(max);
    const Value weights = b_.Exp(b_.Sub(logits, b_.Spread(shift, logits.type.dims, {0})));
    const Value shrink = b_.Exp(b_.Sub(state[0], shift));
    const Value sum = b_.Add(b_.Mul(state[1], shrink), b_.Reduce(Reduction::kAdd, weights, {1}));
    const Value values = SafeDot(b_, {weights, logits}, v, v_.is_dirty);
    const Value kept = b_.Mul(state[2], b_.Spread(shrink, state[2].type.dims, {0}));
    return {max, sum, b_.Add(kept, values)};
  }

  // What weights are measured against: the maximum, and 0 while a row has seen no key, so that -inf minus it stays
  // -inf.
  Value ShiftOf(const Value& max) { return b_.Select(b_.Is(Compare::kEq, max, F32(-kInf)), F32(0.0), max); }

  struct Finished {
    Value o;
    Value lse;
  };
  // Divides by the sum of weights, the sink's share among them. A row without keys gives 0 and -inf.
  Finished FinishRows(const Values& sums, const HeadAt& q_head) {
    const Value& max = sums[0];
    Value shift = ShiftOf(max);
    Value sum = sums[1];
    Value values = sums[2];
    if (spec_.has_sink_logits) {
      const Value at[] = {q_head.head};
      const Value sink = b_.Reshape(b_.SliceAt(b_.Input("sink_logits"), at, {1}), {});
      const Value higher = b_.Max(shift, sink);
      const Value shrink = b_.Exp(b_.Sub(shift, higher));
      sum = b_.Add(b_.Mul(sum, shrink), b_.Exp(b_.Sub(sink, higher)));
      values = b_.Mul(values, b_.Spread(shrink, values.type.dims, {0}));
      shift = higher;
    }
    const Value is_empty = b_.Is(Compare::kEq, max, F32(-kInf));
    const Value one_or_sum = b_.Select(is_empty, F32(1.0), sum);
    const Value o = b_.Div(values, b_.Spread(one_or_sum, values.type.dims, {0}));
    const Value lse = b_.Add(shift, b_.Log(one_or_sum));
    return {b_.Select(b_.Spread(is_empty, o.type.dims, {0}), F32(0.0), o), b_.Select(is_empty, F32(-kInf), lse)};
  }

  const ProgramSpec& spec_;
  const Shape& shape_;
  const ListShape& list_;
  std::vector<NamedType> inputs_;
  Builder b_;
  Value q_, k_;
  Tokens v_;
  MaskTables tables_;
};

}  // namespace

Result<Program> LowerForward(const ProgramSpec& spec) { return Forward(spec).Lower(); }

}  // namespace tessera::stablehlo
