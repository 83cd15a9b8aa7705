// xla_chunked, forward: a loop over the query tiles of every (batch row, head), and inside it a loop over the row's
// active slots with a running softmax. Nothing larger than one tile of scores exists.
#include <limits>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class Forward {
 public:
  Forward(Builder& b, const ProgramSpec& spec)
      : spec_(spec), shape_(spec.shape), list_(spec.Of(Direction::kForward)), b_(b) {}

  Values Rows(const AttentionTensors& tensors) {
    const int64_t kv_tokens = RoundUp(shape_.kv_len, list_.tile_kv);
    q_ = PadTokens(b_, tensors.q, list_.rows * list_.tile_q);
    k_ = PadTokens(b_, tensors.k, kv_tokens);
    v_ = PadTokens(b_, tensors.v, kv_tokens);
    tables_ = LoadTables(b_, spec_, list_);
    const int64_t rows = spec_.RowsOf(Direction::kForward).per_part;
    const Type o{Element::kF32, {rows, list_.tile_q, shape_.dim_v}};
    const Type stat{Element::kF32, {rows, list_.tile_q}};
    const Values init = {b_.Constant(o, 0.0), b_.Constant(stat, 0.0), b_.Constant(stat, 0.0), b_.Int(0)};
    return ForRowsOfPart(b_, spec_, Direction::kForward, init,
                         [&](const PartRow& at, const Values& carried) { return RunRow(at, carried); });
  }

 private:
  Value F32(double value) { return b_.Constant({Element::kF32, {}}, value); }

  // carried: o, lse, max, tiles.
  Values RunRow(const PartRow& at, const Values& carried) {
    const HeadAt kv_head{at.head.batch, b_.Div(at.head.head, b_.Int(shape_.num_q_heads / shape_.num_kv_heads))};
    const Value q_begin = b_.Mul(at.row, b_.Int(list_.tile_q));
    const Value q = TileOf(b_, q_, at.head, q_begin, list_.tile_q);
    const Row slots = RowOf(b_, spec_, Direction::kForward, at.head, at.row);

    const Type rows{Element::kF32, {list_.tile_q}};
    const Values empty = {b_.Constant(rows, -kInf), b_.Constant(rows, 0.0),
                          b_.Constant({Element::kF32, {list_.tile_q, shape_.dim_v}}, 0.0)};
    const Values sums = SumSafely(b_, empty, {2}, [&](const Trial& trial) {
      return b_.For(b_.Int(0), slots.count, empty, [&](const Value& i, const Values& state) {
        const SlotValues slot = SlotOf(b_, Direction::kForward, b_.Add(slots.first, i));
        return AddTile(q, {at.head, kv_head, q_begin, b_.Mul(slot.index, b_.Int(list_.tile_kv))}, slot, state, trial);
      });
    });
    const Finished done = FinishRows(sums, at.head);
    return {Store(b_, carried[0], done.o, at.place), Store(b_, carried[1], done.lse, at.place),
            Store(b_, carried[2], done.max, at.place), b_.Add(carried[3], slots.count)};
  }

  // state: row maximum, sum of weights, sum of weighted values.
  Values AddTile(const Value& q, const TileAt& at, const SlotValues& slot, const Values& state, const Trial& trial) {
    const Value k = TileOf(b_, k_, at.kv_head, at.kv_begin, list_.tile_kv);
    const Value v = TileOf(b_, v_, at.kv_head, at.kv_begin, list_.tile_kv);
    const Value logits = ScoresOf(b_, spec_, tables_, q, k, at, slot).logits;
    const Value max = b_.Max(state[0], b_.Reduce(Reduction::kMax, logits, {1}));
    const Value shift = ShiftOf(max);
    const Value weights = b_.Exp(b_.Sub(logits, b_.Spread(shift, logits.type.dims, {0})));
    const Value shrink = b_.Exp(b_.Sub(state[0], shift));
    const Value kept_sum = b_.Mul(state[1], shrink);
    const Value sum = b_.Add(kept_sum, b_.Reduce(Reduction::kAdd, weights, {1}));
    const Value values = SafeDot(b_, {weights, logits}, v, trial);
    const Value shrink_values = b_.Select(trial.is_counting, F32(1.0), shrink);
    const Value kept = b_.Mul(state[2], b_.Spread(shrink_values, state[2].type.dims, {0}));
    return {max, sum, b_.Add(kept, values)};
  }

  // What weights are measured against: the maximum, and 0 while a row has seen no key, so that -inf minus it stays
  // -inf.
  Value ShiftOf(const Value& max) {
    const Value has_none = b_.Is(Compare::kEq, max, F32(-kInf));
    return b_.Select(has_none, F32(0.0), max);
  }

  struct Finished {
    Value o;
    Value lse;
    Value max;
  };
  // Divides by the sum of weights, the sink's share among them. A row without keys gives 0 and -inf; one with a score
  // that is not a number, which XLA's maximum may pass over, gives that.
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
      sum = b_.Mul(sum, shrink);
      sum = b_.Add(sum, b_.Exp(b_.Sub(sink, higher)));
      values = b_.Mul(values, b_.Spread(shrink, values.type.dims, {0}));
      shift = higher;
    }
    const Value is_nan = b_.Is(Compare::kNe, sums[1], sums[1]);
    const Value has_none = b_.Is(Compare::kEq, max, F32(-kInf));
    const Value is_empty = b_.And(has_none, b_.Not(is_nan));
    const Value one_or_sum = b_.Select(is_empty, F32(1.0), sum);
    const Value o = b_.Div(values, b_.Spread(one_or_sum, values.type.dims, {0}));
    const Value lse = b_.Add(shift, b_.Log(one_or_sum));
    const Value no_row = b_.Spread(is_empty, o.type.dims, {0});
    return {b_.Select(no_row, F32(0.0), o), b_.Select(is_empty, F32(-kInf), lse),
            b_.Select(b_.And(is_nan, b_.Is(Compare::kNe, max, F32(kInf))), sums[1], max)};
  }

  const ProgramSpec& spec_;
  const Shape& shape_;
  const ListShape& list_;
  Builder& b_;
  Value q_, k_, v_;
  MaskTables tables_;
};

}  // namespace

Values ForwardRows(Builder& b, const ProgramSpec& spec, const AttentionTensors& tensors) {
  return Forward(b, spec).Rows(tensors);
}

Result<Program> LowerForward(const ProgramSpec& spec) {
  const std::vector<NamedType> inputs = CommonInputs(spec, {Direction::kForward});
  Builder b = BeginModule(spec, "xla_chunked_forward", inputs);
  const Values done = ForwardRows(b, spec, {b.Input("q"), b.Input("k"), b.Input("v")});
  return b.Finish(done).map([&](std::string text) {
    return Program{ModuleName("xla_chunked_forward", spec.class_key),
                   std::move(text),
                   inputs,
                   {{"o", done[0].type}, {"lse", done[1].type}, {"max", done[2].type}, {"tiles", done[3].type}},
                   spec.parts};
  });
}

}  // namespace tessera::stablehlo
