// Our forward kernel: exact online softmax, scores as [keys, queries]. P is then the stationary operand of the second
// product, which uses the whole matrix unit at head dim 128, and the row statistics lie along the lanes.
//
// A step walks its query tile's worklist, with a chunk of keys in vector memory. The products of later blocks are
// written before the softmax of earlier ones, so that the compiler's schedule keeps the matrix unit busy.
//
// The running maximum begins at a finite floor and pairs that may not attend are -inf, so their weight is exactly 0
// whatever the row's maximum is, and a row without keys ends with a sum of 0.
//
// A softcap of up to 60 bounds the scores, and then weights are measured against a score of 0 and nothing is ever
// shrunk; the maximum is still taken, but nothing waits for it. The contract alone decides which of the two runs.
// Without a softcap, full tiles of one document do so where their tokens' sizes bound the scores (attention.h). These
// have sums of their own, which are added to the row's at its end.
//
// Without statistics nothing is given but o, and nobody asks for the maximum of capped scores: it is not taken.
#include <deque>
#include <limits>
#include <map>
#include <numbers>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;
using mosaic::Reduction;
using mosaic::Value;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kFloor = kSplashMaskValue;

class Forward {
 public:
  Forward(const AttentionSpec& spec, Builder& b, const KernelArguments& args)
      : spec_(spec),
        b_(b),
        args_(args),
        place_(PlaceOf(b, spec, Order::kByQuery, args.grid)),
        scales_first_(spec.has_range) {}

  void Write() {
    b_.When(b_.Is(Compare::kEq, place_.chunk, b_.I32(0)), [&] {
      Fill(b_, args_["m"], kFloor);
      Fill(b_, args_["l"], 0);
      Fill(b_, args_["sum"], 0);
      if (TakesCappedMaxima()) Fill(b_, args_["top"], kFloor);
      if (spec_.has_range) SetAnyInRange(false);
    });
    // With a softcap only bounded scores: the others go in small parts.
    ByTwo by_two{spec_.has_range || (spec_.has_softcap && spec_.element == mosaic::Element::kBf16)};
    if (by_two.is_on && spec_.has_softcap) by_two.when = IsBounded();
    VisitTiles(b_, spec_, args_, place_, by_two, [&](const TileKeys& keys) {
      if (keys.is_in_range) return AddKeysInRange(keys);
      if (!spec_.has_softcap) return AddKeys(keys, Softmax::kOnline);
      if (keys.second) return AddKeys(keys, Softmax::kBounded);
      const Value exponent = ScoreNumber(b_, args_, ScoreField::kExponent);
      const Value most = b_.F32(kMostInRange * std::numbers::log2e);
      b_.When(b_.Is(Compare::kLe, exponent, most), [&] { AddKeys(keys, Softmax::kBounded); });
      b_.When(b_.Is(Compare::kGt, exponent, most),
              [&] { VisitFew(b_, keys, [&](const TileKeys& few) { AddKeys(few, Softmax::kOnline); }); });
    });
    b_.When(b_.Is(Compare::kEq, place_.chunk, b_.I32(spec_.chunks() - 1)), [&] {
      if (spec_.has_range) b_.When(IsAnyInRange(), [&] { AddSumsInRange(); });
      Finish();
    });
  }

 private:
  // Whether the softcap bounds the scores.
  Value IsBounded() {
    const Value exponent = ScoreNumber(b_, args_, ScoreField::kExponent);
    return b_.Is(Compare::kLe, exponent, b_.F32(kMostInRange * std::numbers::log2e));
  }
  enum class Softmax : uint8_t { kOnline, kBounded };
  // Where a body keeps its maxima, sums of weights and sums of values.
  struct Sums {
    Value maxima, weights, values;
  };
  Sums SumsOf(Softmax softmax) {
    if (softmax == Softmax::kOnline) return {args_["m"], args_["l"], args_["sum"]};
    if (spec_.has_softcap) return {TakesCappedMaxima() ? args_["top"] : args_["m"], args_["l"], args_["sum"]};
    return {args_["top"], args_["l_in_range"], args_["sum_in_range"]};
  }
  // Sums of capped scores are measured against 0: their maximum is but a result.
  bool TakesCappedMaxima() const { return spec_.has_softcap && spec_.has_stats; }
  // Of queries: the running maximum [1, q], or of bounded scores [8, q] in the rows that they came in; and the sum [8,
  // q] that is to be added up over its rows.
  struct State {
    Value m, l;
  };
  struct Weights {
    Block block;
    std::optional<Value> shrink;  // of what was summed before
    Value p;
  };

  Value ScoresOf(const TileKeys& keys, const Block& block) {
    const Value k = LoadRows(b_, args_["k"], KeysAt(b_, keys, block), block.num_keys);
    const Value q = LoadRows(b_, args_["q"], b_.Index(block.q), block.num_q);
    const Value product = b_.Matmul(k, q, 1, 1, PrecisionOf(spec_));
    const Value scores = scales_first_ ? b_.Mul(product, ScoreNumber(b_, args_, ScoreField::kExponent))
                                       : Compared(b_, spec_, args_, product);
    return Masked(b_, keys.mask(block, b_.I32(0)), scores, -kInf);
  }

  // What exp2 takes of a score: nothing where that is scaled already.
  std::optional<Value> Exponent() {
    if (scales_first_) return std::nullopt;
    return ScoreNumber(b_, args_, ScoreField::kExponent);
  }
  Value Weight(const Value& x, const std::optional<Value>& exponent) {
    return b_.Exp2(exponent ? b_.Mul(x, *exponent) : x);
  }

  Weights WeightsOf(const Block& block, const Value& scores, State& state) {
    const std::optional<Value> exponent = Exponent();
    const Value m = b_.Max(state.m, b_.ReduceKeep(Reduction::kMaximumF, scores, 0));
    const Value shrink = Weight(b_.Sub(state.m, m), exponent);
    const Value p = Weight(b_.Sub(scores, b_.Broadcast(m, scores.type.dims)), exponent);
    const Value rows = b_.ShapeCast(p, {block.num_keys / kSublanes, kSublanes, block.num_q});
    const Value before = b_.Mul(b_.Broadcast(shrink, state.l.type.dims), state.l);
    state = {m, b_.Add(before, b_.Reduce(Reduction::kAdd, rows, {0}))};
    return {block, shrink, AsOperand(b_, spec_, p)};
  }

  Weights BoundedWeightsOf(const Block& block, const Value& scores, State& state) {
    const std::vector<int64_t> by_rows = block.mask_dims();
    const Value p = Weight(scores, Exponent());
    if (spec_.has_softcap && !TakesCappedMaxima()) {
      const Value sum = b_.Reduce(Reduction::kAdd, b_.ShapeCast(p, by_rows), {0});
      state.l = b_.Add(state.l, sum);
      return {block, std::nullopt, AsOperand(b_, spec_, p)};
    }
    const Value top = b_.Reduce(Reduction::kMaximumF, b_.ShapeCast(scores, by_rows), {0});
    const Value sum = b_.Reduce(Reduction::kAdd, b_.ShapeCast(p, by_rows), {0});
    const Value m = b_.Max(state.m, top);
    state = {m, b_.Add(state.l, sum)};
    return {block, std::nullopt, AsOperand(b_, spec_, p)};
  }

  void AddValues(const TileKeys& keys, const Weights& weights, const Value& sums) {
    const Block& block = weights.block;
    const Value v = LoadLanes(b_, args_["v"], KeysAt(b_, keys, block), block.num_keys);
    const Value product = b_.Matmul(v, weights.p, 1, 0, PrecisionOf(spec_));
    const Value at[] = {b_.Index(0), b_.Index(block.q)};
    const Value sum = b_.Load(sums, at, product.type.dims);
    const Value before = weights.shrink ? b_.Mul(b_.Broadcast(*weights.shrink, product.type.dims), sum) : sum;
    b_.Store(b_.Add(before, product), sums, at);
  }

  void AddKeys(const TileKeys& keys, Softmax softmax) {
    const bool is_bounded = softmax == Softmax::kBounded;
    const bool has_maxima = !is_bounded || !spec_.has_softcap || TakesCappedMaxima();
    const Sums sums = SumsOf(softmax);
    const Blocking& by = is_bounded ? spec_.bounded : spec_.online;
    const int64_t tile = keys.second ? keys.count / 2 : keys.count;
    std::vector<Block> blocks = BlocksOf(spec_, tile, by);
    const size_t of_tile = blocks.size();
    for (size_t i = 0; keys.second && i < of_tile; ++i) {
      blocks.push_back(blocks[i]);
      blocks.back().key += tile;
    }
    std::map<int64_t, State> states;
    for (const Block& block : blocks) {
      if (states.count(block.q) != 0) continue;
      const Value at[] = {b_.Index(0), b_.Index(block.q)};
      State& state = states[block.q];
      if (has_maxima) state.m = b_.Load(sums.maxima, at, {is_bounded ? kSublanes : 1, block.num_q});
      state.l = b_.Load(sums.weights, at, {kSublanes, block.num_q});
    }
    std::deque<Value> scores;
    std::deque<Weights> waiting;
    size_t next = 0;
    for (const Block& block : blocks) {
      while (next < blocks.size() && scores.size() <= by.ahead) scores.push_back(ScoresOf(keys, blocks[next++]));
      State& state = states.at(block.q);
      waiting.push_back(is_bounded ? BoundedWeightsOf(block, scores.front(), state)
                                   : WeightsOf(block, scores.front(), state));
      scores.pop_front();
      if (waiting.size() <= by.behind) continue;
      AddValues(keys, waiting.front(), sums.values);
      waiting.pop_front();
    }
    for (const Weights& weights : waiting) AddValues(keys, weights, sums.values);
    for (const auto& [q, state] : states) {
      const Value at[] = {b_.Index(0), b_.Index(q)};
      if (has_maxima) b_.Store(b_.Broadcast(state.m, state.l.type.dims), sums.maxima, at);
      b_.Store(state.l, sums.weights, at);
    }
  }

  // Whether the row has had a tile in range: its sums are there from the first on.
  void SetAnyInRange(bool is_any) {
    const Value at[] = {b_.Index(0)};
    b_.StoreScalar(b_.I32(is_any ? 1 : 0), args_["any_in_range"], at);
  }
  Value IsAnyInRange() {
    const Value at[] = {b_.Index(0)};
    const Value flag = b_.LoadScalar(args_["any_in_range"], at);
    return b_.Is(Compare::kEq, flag, b_.I32(1));
  }
  void AddKeysInRange(const TileKeys& keys) {
    const Value is_any = IsAnyInRange();
    b_.When(b_.Xor(is_any, b_.Bool(true)), [&] {
      const Sums sums = SumsOf(Softmax::kBounded);
      Fill(b_, sums.maxima, kFloor);
      Fill(b_, sums.weights, 0);
      Fill(b_, sums.values, 0);
      SetAnyInRange(true);
    });
    AddKeys(keys, Softmax::kBounded);
  }
  // From there on all are measured against the larger maximum. Of scores in range it is no smaller than -kMostInRange.
  void AddSumsInRange() {
    const Sums row = SumsOf(Softmax::kOnline);
    const Sums in_range = SumsOf(Softmax::kBounded);
    const Value at[] = {b_.Index(0), b_.Index(0)};
    const Value m = b_.Load(row.maxima, at, {1, spec_.list.tile_q});
    const Value top = b_.Max(m, b_.ReduceKeep(Reduction::kMaximumF, b_.LoadAll(in_range.maxima), 0));
    const Value shrink = b_.Exp2(b_.Sub(m, top));
    const Value ratio = b_.Exp2(b_.Mul(top, b_.F32(-1.0)));
    const auto add = [&](const Value& to, const Value& from) {
      const Value before = b_.LoadAll(to);
      const Value shrunk = b_.Mul(before, b_.Broadcast(shrink, before.type.dims));
      const Value sums = b_.LoadAll(from);
      const Value more = b_.Mul(sums, b_.Broadcast(ratio, before.type.dims));
      b_.StoreAll(b_.Add(shrunk, more), to);
    };
    add(row.weights, in_range.weights);
    add(row.values, in_range.values);
    b_.StoreAll(b_.Broadcast(top, {kSublanes, spec_.list.tile_q}), row.maxima);
  }

  // Of sums with a softcap, as if measured against the row's maximum from here on; where that was not taken, against
  // what the sink is in the scores' range, so that neither is lost beside the other. A number and not a branch: 1 where
  // scores are bounded.
  void Remeasure(Value& m, Value& l, Value& sum) {
    const bool has_maxima = TakesCappedMaxima();
    if (!has_maxima && !spec_.has_sink_logits) return;  // they are divided by each other, and by nothing else
    const Value exponent = ScoreNumber(b_, args_, ScoreField::kExponent);
    const Value is_bounded = b_.Is(Compare::kLe, exponent, b_.F32(kMostInRange * std::numbers::log2e));
    const Value one = b_.F32(1.0);
    const Value bounded = b_.Select(is_bounded, one, b_.F32(0));
    const Value largest =
        has_maxima ? b_.ReduceKeep(Reduction::kMaximumF, b_.LoadAll(args_["top"]), 0) : CappedSink(m.type.dims);
    const Value lowest = b_.Broadcast(b_.F32(has_maxima ? -1.0 : 0.0), m.type.dims);  // of a row without keys too
    const Value shift = b_.Mul(b_.Max(largest, lowest), bounded);
    const Value others = b_.Mul(m, b_.Sub(b_.F32(1.0), bounded));
    m = b_.Add(others, shift);
    const Value scaled = b_.Mul(shift, exponent);
    const Value ratio = b_.Exp2(b_.Mul(scaled, b_.F32(-1.0)));
    l = b_.Mul(l, ratio);
    sum = b_.Mul(sum, b_.Broadcast(ratio, sum.type.dims));
  }

  Value Sink(const std::vector<int64_t>& dims) {
    const Value of_head[] = {b_.Index(0), b_.Rem(place_.pair, b_.I32(spec_.num_q_heads))};
    return b_.Broadcast(b_.LoadScalar(args_["sink_logits"], of_head), dims);
  }
  // As a capped score is compared, at most 1.
  Value CappedSink(const std::vector<int64_t>& dims) {
    const Value sink = Sink(dims);
    const Value compared = b_.Div(sink, b_.Broadcast(ScoreNumber(b_, args_, ScoreField::kFactor), dims));
    return b_.Min(compared, b_.Broadcast(b_.F32(1.0), dims));
  }

  // Divides by the sum of weights, the sink's share among them.
  void Finish() {
    const Value factor = scales_first_ ? b_.F32(std::numbers::ln2) : ScoreNumber(b_, args_, ScoreField::kFactor);
    const Value at[] = {b_.Index(0), b_.Index(0)};
    Value m = b_.Load(args_["m"], at, {1, spec_.list.tile_q});
    Value l = b_.ReduceKeep(Reduction::kAdd, b_.LoadAll(args_["l"]), 0);
    const Value is_empty = b_.Is(Compare::kEq, l, b_.F32(0));
    Value sum = b_.LoadAll(args_["sum"]);
    if (spec_.has_softcap) Remeasure(m, l, sum);
    m = b_.Mul(m, factor);
    Value top = m;
    Value weight = l;
    Value share = b_.Broadcast(b_.F32(1.0), m.type.dims);
    if (spec_.has_sink_logits) {
      const Value sink = Sink(m.type.dims);
      top = b_.Max(m, sink);
      share = b_.Exp(b_.Sub(m, top));
      const Value shrunk = b_.Mul(l, share);
      weight = b_.Add(shrunk, b_.Exp(b_.Sub(sink, top)));
    }
    weight = b_.Select(is_empty, b_.F32(1.0), weight);
    const Value o = b_.Mul(sum, b_.Broadcast(b_.Div(share, weight), sum.type.dims));
    const Value rows = b_.Transpose(o, {1, 0});
    StoreBlock(b_, spec_.is_wide ? rows : AsOperand(b_, spec_, rows), args_["o"]);
    if (!spec_.has_stats) return;
    const Value lse = b_.Add(top, b_.Log(weight));
    const std::vector<int64_t> dims = {kSublanes, spec_.list.tile_q};
    const auto given = [&](const Value& x) { return b_.Broadcast(b_.Select(is_empty, b_.F32(-kInf), x), dims); };
    const Value row = b_.Iota(dims, 0);
    const Value is_lse = b_.Is(Compare::kLt, row, b_.I32(kSublanes / 2));
    const Value all_lse = given(lse);
    StoreBlock(b_, b_.Select(is_lse, all_lse, given(m)), args_["stats"]);
  }

  const AttentionSpec& spec_;
  Builder& b_;
  const KernelArguments& args_;
  const Place place_;
  // Scores are powers of two when they are compared. It shortens what waits for a maximum; the difference of two is
  // rounded a little more than when it is scaled itself, which is far below what bf16 inputs have.
  const bool scales_first_;
};

}  // namespace

Result<mosaic::Module> AttentionForward(const AttentionSpec& spec) {
  const int64_t tile_q = spec.list.tile_q;
  const Windows windows(spec, Order::kByQuery);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_forward", Order::kByQuery);
  if (spec.has_sink_logits) kernel.inputs.push_back(ScoreWindow("sink_logits", spec.num_q_heads));
  windows.AddBounds(kernel.inputs);
  kernel.inputs.push_back(windows.Queries("q", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("k", spec.dim_qk));
  kernel.inputs.push_back(windows.KeyLanes("v", spec.dim_v));
  windows.AddMask(kernel.inputs);
  kernel.outputs = {windows.Queries("o", spec.dim_v)};
  if (spec.is_wide) kernel.outputs[0].element = mosaic::Element::kF32;
  if (spec.has_stats) kernel.outputs.push_back(windows.QueryNumbers("stats", kSublanes));
  kernel.scratch = {Scratch("m", {kSublanes, tile_q}), Scratch("l", {kSublanes, tile_q}),
                    Scratch("sum", {spec.dim_v, tile_q})};
  if ((spec.has_softcap && spec.has_stats) || spec.has_range)
    kernel.scratch.push_back(Scratch("top", {kSublanes, tile_q}));
  if (spec.has_range) {
    kernel.scratch.push_back(Scratch("l_in_range", {kSublanes, tile_q}));
    kernel.scratch.push_back(Scratch("sum_in_range", {spec.dim_v, tile_q}));
    kernel.scratch.push_back({"any_in_range", mosaic::MemrefOf(mosaic::Space::kSmem, mosaic::Element::kI32, {1})});
  }
  AddMaskScratch(spec, kernel.scratch);
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Forward(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
