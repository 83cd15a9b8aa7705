// xla_chunked, backward: dQ over the row worklist, then dK and dV over the transposed one. Weights are computed again
// from the log-sum-exp, a tile at a time.
#include <limits>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Direction kDq = Direction::kDq;
constexpr Direction kDkv = Direction::kDkv;

}  // namespace

std::vector<NamedType> BackwardInputs(const ProgramSpec& spec) {
  const Shape& s = spec.shape;
  std::vector<NamedType> inputs = CommonInputs(spec, {kDq, kDkv});
  const Type stat{Element::kF32, {s.batch, s.num_q_heads, s.q_len}};
  inputs.push_back({"do", {ElementOf(s.dtype), {s.batch, s.num_q_heads, s.q_len, s.dim_v}}});
  inputs.push_back({"lse", stat});
  inputs.push_back({"delta", stat});
  return inputs;
}

namespace {

class Backward {
 public:
  Backward(Builder& b, const ProgramSpec& spec, const GradientTensors& tensors)
      : spec_(spec),
        shape_(spec.shape),
        group_(spec.shape.num_q_heads / spec.shape.num_kv_heads),
        in_(tensors),
        b_(b) {}

  Values Rows() {
    Load(spec_.Of(kDq));
    const Values by_query = LowerDq();
    Load(spec_.Of(kDkv));
    const Values by_key = LowerDkv();
    Values outputs = {by_query[0], by_key[0], by_key[1], by_key[2]};
    if (spec_.has_sink_logits) outputs.push_back(by_query[1]);
    return outputs;
  }

 private:
  Value F32(double value) { return b_.Constant({Element::kF32, {}}, value); }

  // Every tensor, padded to whole tiles of this worklist.
  void Load(const ListShape& list) {
    const int64_t q_tokens = RoundUp(shape_.q_len, list.tile_q);
    const int64_t kv_tokens = RoundUp(shape_.kv_len, list.tile_kv);
    q_ = PadTokens(b_, in_.of.q, q_tokens);
    k_ = PadTokens(b_, in_.of.k, kv_tokens);
    v_ = PadTokens(b_, in_.of.v, kv_tokens);
    do_ = PadTokens(b_, in_.dout, q_tokens);
    tables_ = LoadTables(b_, spec_, list);
    lse_ = PadTokens(b_, in_.lse, q_tokens);
    delta_ = PadTokens(b_, in_.delta, q_tokens);
  }

  // The query side of a tile.
  struct QueryTile {
    Value q, dout, lse, delta;
  };
  QueryTile LoadQueries(const ListShape& list, const HeadAt& head, const Value& begin) {
    return {TileOf(b_, q_, head, begin, list.tile_q), TileOf(b_, do_, head, begin, list.tile_q),
            StatOf(b_, lse_, head, begin, list.tile_q), StatOf(b_, delta_, head, begin, list.tile_q)};
  }

  // Weights and the gradient of the scaled scores; both zero where a pair is not visible.
  struct Gradient {
    Value logits, weights, scores;
  };
  Gradient GradientOf(const QueryTile& t, const Value& k, const Value& v, const TileAt& at, const SlotValues& slot) {
    const Scores scores = ScoresOf(b_, spec_, tables_, t.q, k, at, slot);
    const std::vector<int64_t>& dims = scores.logits.type.dims;
    // A row without keys has log-sum-exp -inf, and none of its pairs is visible: any finite number will do.
    const Value has_none = b_.Is(Compare::kEq, t.lse, F32(-kInf));
    const Value zero = F32(0.0);
    const Value lse = b_.Select(has_none, zero, LeanLse(b_, t.lse));
    Gradient out;
    out.logits = scores.logits;
    // A row whose log-sum-exp is not finite would reach keys that it does not see.
    const Value visible = Visible(b_, scores.logits);
    out.weights = b_.Select(visible, Weight(b_, b_.Sub(scores.logits, b_.Spread(lse, dims, {0}))), zero);
    const Value dp = TileDot(b_, t.dout, v, {1, 1});
    Value ds = b_.Mul(out.weights, b_.Sub(dp, b_.Spread(t.delta, dims, {0})));
    if (spec_.has_softcap) ds = b_.Mul(ds, scores.slope);
    out.scores = b_.Select(visible, ds, zero);
    return out;
  }

  // dQ, and where there are sinks each row's share of their gradient.
  Values LowerDq() {
    const ListShape& list = spec_.Of(kDq);
    const int64_t rows = spec_.RowsOf(kDq).per_part;
    Values init = {b_.Constant({Element::kF32, {rows, list.tile_q, shape_.dim_qk}}, 0.0)};
    if (spec_.has_sink_logits) init.push_back(b_.Constant({Element::kF32, {rows}}, 0.0));
    return ForRowsOfPart(b_, spec_, kDq, init, [&](const PartRow& at, const Values& carried) {
      const HeadAt kv_head{at.head.batch, b_.Div(at.head.head, b_.Int(group_))};
      const Value q_begin = b_.Mul(at.row, b_.Int(list.tile_q));
      const QueryTile queries = LoadQueries(list, at.head, q_begin);
      const Row slots = RowOf(b_, spec_, kDq, at.head, at.row);
      const Values zero = {b_.Constant({Element::kF32, {list.tile_q, shape_.dim_qk}}, 0.0)};
      const Values sum = SumSafely(b_, zero, {0}, [&](const Trial& trial) {
        return b_.For(b_.Int(0), slots.count, zero, [&](const Value& i, const Values& state) {
          const SlotValues slot = SlotOf(b_, kDq, b_.Add(slots.first, i));
          const TileAt tile{at.head, kv_head, q_begin, b_.Mul(slot.index, b_.Int(list.tile_kv))};
          const Value k = TileOf(b_, k_, kv_head, tile.kv_begin, list.tile_kv);
          const Value v = TileOf(b_, v_, kv_head, tile.kv_begin, list.tile_kv);
          const Gradient g = GradientOf(queries, k, v, tile, slot);
          return Values{b_.Add(state[0], SafeDot(b_, {g.scores, g.logits}, k, trial))};
        });
      });
      Values stored = {Store(b_, carried[0], b_.Mul(sum[0], b_.Input("scale")), at.place)};
      if (spec_.has_sink_logits) {
        stored.push_back(Store(b_, carried[1], SinkShare(queries, at.head, q_begin), at.place));
      }
      return stored;
    });
  }

  // dK, dV and the number of tiles.
  Values LowerDkv() {
    const ListShape& list = spec_.Of(kDkv);
    const int64_t rows = spec_.RowsOf(kDkv).per_part;
    const Values init = {b_.Constant({Element::kF32, {rows, list.tile_kv, shape_.dim_qk}}, 0.0),
                         b_.Constant({Element::kF32, {rows, list.tile_kv, shape_.dim_v}}, 0.0), b_.Int(0)};
    return ForRowsOfPart(b_, spec_, kDkv, init, [&](const PartRow& at, const Values& carried) {
      const HeadAt& kv_head = at.head;
      const Value kv_begin = b_.Mul(at.row, b_.Int(list.tile_kv));
      const Value k = TileOf(b_, k_, kv_head, kv_begin, list.tile_kv);
      const Value v = TileOf(b_, v_, kv_head, kv_begin, list.tile_kv);
      const Value first_head = b_.Mul(kv_head.head, b_.Int(group_));
      const Values zero = {b_.Constant({Element::kF32, {list.tile_kv, shape_.dim_qk}}, 0.0),
                           b_.Constant({Element::kF32, {list.tile_kv, shape_.dim_v}}, 0.0), b_.Int(0)};
      // Every head of the group, and for each the queries that see this tile.
      const Values sums = SumSafely(b_, zero, {0, 1}, [&](const Trial& trial) {
        const Value first = b_.Int(0);
        return b_.For(first, b_.Int(group_), zero, [&](const Value& g, const Values& by_head) {
          const HeadAt q_head{kv_head.batch, b_.Add(first_head, g)};
          const Row slots = RowOf(b_, spec_, kDkv, q_head, at.row);
          const Values before = {by_head[0], by_head[1]};
          Values sum = b_.For(b_.Int(0), slots.count, before, [&](const Value& i, const Values& state) {
            const SlotValues slot = SlotOf(b_, kDkv, b_.Add(slots.first, i));
            const TileAt tile{q_head, kv_head, b_.Mul(slot.index, b_.Int(list.tile_q)), kv_begin};
            const QueryTile queries = LoadQueries(list, q_head, tile.q_begin);
            const Gradient grad = GradientOf(queries, k, v, tile, slot);
            return Values{b_.Add(state[0], SafeDot(b_, {grad.scores, grad.logits, true}, queries.q, trial)),
                          b_.Add(state[1], SafeDot(b_, {grad.weights, grad.logits, true}, queries.dout, trial))};
          });
          sum.push_back(b_.Add(by_head[2], slots.count));
          return sum;
        });
      });
      return Values{Store(b_, carried[0], b_.Mul(sums[0], b_.Input("scale")), at.place),
                    Store(b_, carried[1], sums[1], at.place), b_.Add(carried[2], sums[2])};
    });
  }

  // The sink's value is zero, so only its share of the denominator matters: -weight * delta, over queries that have
  // keys. What fills the last tile up has none.
  Value SinkShare(const QueryTile& t, const HeadAt& head, const Value& q_begin) {
    const Value at[] = {head.head};
    const Value sink = b_.Reshape(b_.SliceAt(b_.Input("sink_logits"), at, {1}), {});
    const Value token = b_.Add(b_.Iota({Element::kI32, t.lse.type.dims}, 0), q_begin);
    const Value has_none = b_.Is(Compare::kEq, t.lse, F32(-kInf));
    const Value is_empty = b_.Or(has_none, b_.Is(Compare::kGe, token, b_.Int(shape_.q_len)));
    const Value zero = F32(0.0);
    const Value weights = Weight(b_, b_.Sub(sink, b_.Select(is_empty, zero, LeanLse(b_, t.lse))));
    return b_.Neg(b_.Reduce(Reduction::kAdd, b_.Select(is_empty, zero, b_.Mul(weights, t.delta)), {0}));
  }

  const ProgramSpec& spec_;
  const Shape& shape_;
  const int64_t group_;
  const GradientTensors& in_;
  Builder& b_;
  Value q_, k_, v_, do_, lse_, delta_;
  MaskTables tables_;
};

}  // namespace

Values BackwardRows(Builder& b, const ProgramSpec& spec, const GradientTensors& tensors) {
  return Backward(b, spec, tensors).Rows();
}

Result<Program> LowerBackward(const ProgramSpec& spec) {
  const std::vector<NamedType> inputs = BackwardInputs(spec);
  Builder b = BeginModule(spec, "xla_chunked_backward", inputs);
  const Values done = BackwardRows(
      b, spec, {{b.Input("q"), b.Input("k"), b.Input("v")}, b.Input("do"), b.Input("lse"), b.Input("delta")});
  std::vector<NamedType> named = {
      {"dq", done[0].type}, {"dk", done[1].type}, {"dv", done[2].type}, {"tiles", done[3].type}};
  if (spec.has_sink_logits) named.push_back({"dsink_logits", done[4].type});
  return b.Finish(done).map([&](std::string text) {
    return Program{ModuleName("xla_chunked_backward", spec.class_key), std::move(text), inputs, std::move(named),
                   spec.parts};
  });
}

}  // namespace tessera::stablehlo
