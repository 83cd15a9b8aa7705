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
constexpr double kMostBoundedCap = 60.0;  // its weights, and sums of them, are far from the ends of f32
// Chosen by the compiler's schedule for v6e at head dim 128 (docs/tpu.md).
constexpr int64_t kBlockQ = 512;
constexpr int64_t kBlockKeys = 256;
constexpr size_t kAhead = 3;   // blocks whose scores are there before the first softmax
constexpr size_t kBehind = 1;  // blocks whose weights wait for their product

class Forward {
 public:
  Forward(const AttentionSpec& spec, Builder& b, const KernelArguments& args)
      : spec_(spec), b_(b), args_(args), place_(PlaceOf(b, spec, Order::kByQuery, args.grid)) {}

  void Write() {
    b_.When(b_.Is(Compare::kEq, place_.chunk, b_.I32(0)), [&] {
      Fill(b_, args_["m"], kFloor);
      Fill(b_, args_["l"], 0);
      Fill(b_, args_["sum"], 0);
      if (spec_.has_softcap) Fill(b_, args_["top"], kFloor);
    });
    VisitTiles(b_, spec_, args_, place_, [&](const TileKeys& keys) {
      if (!spec_.has_softcap) return AddKeys(keys, Softmax::kOnline);
      const Value exponent = ScoreNumber(b_, args_, ScoreField::kExponent);
      const Value most = b_.F32(kMostBoundedCap * std::numbers::log2e);
      b_.When(b_.Is(Compare::kLe, exponent, most), [&] { AddKeys(keys, Softmax::kBounded); });
      b_.When(b_.Is(Compare::kGt, exponent, most),
              [&] { VisitFew(b_, keys, [&](const TileKeys& few) { AddKeys(few, Softmax::kOnline); }); });
    });
    b_.When(b_.Is(Compare::kEq, place_.chunk, b_.I32(spec_.chunks() - 1)), [&] { Finish(); });
  }

 private:
  enum class Softmax : uint8_t { kOnline, kBounded };
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
    const Value k = LoadRows(b_, args_["k"], Along(b_, keys.first, block.key), block.num_keys);
    const Value q = LoadRows(b_, args_["q"], b_.Index(block.q), block.num_q);
    const Value scores = Compared(b_, spec_, args_, b_.Matmul(k, q, 1, 1, PrecisionOf(spec_)));
    return Masked(b_, keys.mask(block, b_.I32(0)), scores, -kInf);
  }

  Weights WeightsOf(const Block& block, const Value& scores, State& state) {
    const Value exponent = ScoreNumber(b_, args_, ScoreField::kExponent);
    const Value m = b_.Max(state.m, b_.ReduceKeep(Reduction::kMaximumF, scores, 0));
    const Value shrink = b_.Exp2(b_.Mul(b_.Sub(state.m, m), exponent));
    const Value p = b_.Exp2(b_.Mul(b_.Sub(scores, b_.Broadcast(m, scores.type.dims)), exponent));
    const Value rows = b_.ShapeCast(p, {block.num_keys / kSublanes, kSublanes, block.num_q});
    const Value before = b_.Mul(b_.Broadcast(shrink, state.l.type.dims), state.l);
    state = {m, b_.Add(before, b_.Reduce(Reduction::kAdd, rows, {0}))};
    return {block, shrink, AsOperand(b_, spec_, p)};
  }

  Weights BoundedWeightsOf(const Block& block, const Value& scores, State& state) {
    const std::vector<int64_t> by_rows = block.mask_dims();
    const Value p = b_.Exp2(b_.Mul(scores, ScoreNumber(b_, args_, ScoreField::kExponent)));
    const Value top = b_.Reduce(Reduction::kMaximumF, b_.ShapeCast(scores, by_rows), {0});
    const Value sum = b_.Reduce(Reduction::kAdd, b_.ShapeCast(p, by_rows), {0});
    const Value m = b_.Max(state.m, top);
    state = {m, b_.Add(state.l, sum)};
    return {block, std::nullopt, AsOperand(b_, spec_, p)};
  }

  void AddValues(const TileKeys& keys, const Weights& weights) {
    const Block& block = weights.block;
    const Value v = LoadLanes(b_, args_["v"], Along(b_, keys.first, block.key), block.num_keys);
    const Value product = b_.Matmul(v, weights.p, 1, 0, PrecisionOf(spec_));
    const Value at[] = {b_.Index(0), b_.Index(block.q)};
    const Value sum = b_.Load(args_["sum"], at, product.type.dims);
    const Value before = weights.shrink ? b_.Mul(b_.Broadcast(*weights.shrink, product.type.dims), sum) : sum;
    b_.Store(b_.Add(before, product), args_["sum"], at);
  }

  void AddKeys(const TileKeys& keys, Softmax softmax) {
    const bool is_bounded = softmax == Softmax::kBounded;
    const Value maxima = args_[is_bounded ? "top" : "m"];
    const std::vector<Block> blocks = BlocksOf(spec_, keys.count, kBlockQ, kBlockKeys);
    std::map<int64_t, State> states;
    for (const Block& block : blocks) {
      if (states.count(block.q) != 0) continue;
      const Value at[] = {b_.Index(0), b_.Index(block.q)};
      const Value m = b_.Load(maxima, at, {is_bounded ? kSublanes : 1, block.num_q});
      states[block.q] = {m, b_.Load(args_["l"], at, {kSublanes, block.num_q})};
    }
    std::deque<Value> scores;
    std::deque<Weights> waiting;
    size_t next = 0;
    for (const Block& block : blocks) {
      while (next < blocks.size() && scores.size() <= kAhead) scores.push_back(ScoresOf(keys, blocks[next++]));
      State& state = states.at(block.q);
      waiting.push_back(is_bounded ? BoundedWeightsOf(block, scores.front(), state)
                                   : WeightsOf(block, scores.front(), state));
      scores.pop_front();
      if (waiting.size() <= kBehind) continue;
      AddValues(keys, waiting.front());
      waiting.pop_front();
    }
    for (const Weights& weights : waiting) AddValues(keys, weights);
    for (const auto& [q, state] : states) {
      const Value at[] = {b_.Index(0), b_.Index(q)};
      b_.Store(b_.Broadcast(state.m, state.l.type.dims), maxima, at);
      b_.Store(state.l, args_["l"], at);
    }
  }

  // Divides by the sum of weights, the sink's share among them.
  void Finish() {
    const Value factor = ScoreNumber(b_, args_, ScoreField::kFactor);
    const Value at[] = {b_.Index(0), b_.Index(0)};
    Value m = b_.Load(args_["m"], at, {1, spec_.list.tile_q});
    Value l = b_.ReduceKeep(Reduction::kAdd, b_.LoadAll(args_["l"]), 0);
    const Value is_empty = b_.Is(Compare::kEq, l, b_.F32(0));
    Value sum = b_.LoadAll(args_["sum"]);
    if (spec_.has_softcap) {
      // From here on as if measured against the row's maximum. A number and not a branch: 1 where scores are bounded.
      const Value exponent = ScoreNumber(b_, args_, ScoreField::kExponent);
      const Value is_bounded = b_.Is(Compare::kLe, exponent, b_.F32(kMostBoundedCap * std::numbers::log2e));
      const Value one = b_.F32(1.0);
      const Value bounded = b_.Select(is_bounded, one, b_.F32(0));
      const Value largest = b_.ReduceKeep(Reduction::kMaximumF, b_.LoadAll(args_["top"]), 0);
      const Value lowest = b_.Broadcast(b_.F32(-1.0), m.type.dims);  // of a row without keys too
      const Value shift = b_.Mul(b_.Max(largest, lowest), bounded);
      const Value others = b_.Mul(m, b_.Sub(b_.F32(1.0), bounded));
      m = b_.Add(others, shift);
      const Value scaled = b_.Mul(shift, exponent);
      const Value ratio = b_.Exp2(b_.Mul(scaled, b_.F32(-1.0)));
      l = b_.Mul(l, ratio);
      sum = b_.Mul(sum, b_.Broadcast(ratio, sum.type.dims));
    }
    m = b_.Mul(m, factor);
    Value top = m;
    Value weight = l;
    Value share = b_.Broadcast(b_.F32(1.0), m.type.dims);
    if (spec_.has_sink_logits) {
      const Value of_head[] = {b_.Index(0), b_.Rem(place_.pair, b_.I32(spec_.num_q_heads))};
      const Value sink = b_.Broadcast(b_.LoadScalar(args_["sink_logits"], of_head), m.type.dims);
      top = b_.Max(m, sink);
      share = b_.Exp(b_.Sub(m, top));
      const Value shrunk = b_.Mul(l, share);
      weight = b_.Add(shrunk, b_.Exp(b_.Sub(sink, top)));
    }
    weight = b_.Select(is_empty, b_.F32(1.0), weight);
    const Value o = b_.Mul(sum, b_.Broadcast(b_.Div(share, weight), sum.type.dims));
    StoreBlock(b_, AsOperand(b_, spec_, b_.Transpose(o, {1, 0})), args_["o"]);
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
};

}  // namespace

Result<mosaic::Module> AttentionForward(const AttentionSpec& spec) {
  const int64_t tile_q = spec.list.tile_q;
  const Windows windows(spec, Order::kByQuery);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_forward", Order::kByQuery);
  if (spec.has_sink_logits) kernel.inputs.push_back(ScoreWindow("sink_logits", spec.num_q_heads));
  kernel.inputs.push_back(windows.Queries("q", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("k", spec.dim_qk));
  kernel.inputs.push_back(windows.KeyLanes("v", spec.dim_v));
  windows.AddMask(kernel.inputs);
  kernel.outputs = {windows.Queries("o", spec.dim_v), windows.QueryNumbers("stats", kSublanes)};
  kernel.scratch = {Scratch("m", {kSublanes, tile_q}), Scratch("l", {kSublanes, tile_q}),
                    Scratch("sum", {spec.dim_v, tile_q})};
  if (spec.has_softcap) kernel.scratch.push_back(Scratch("top", {kSublanes, tile_q}));
  AddMaskScratch(spec, kernel.scratch);
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Forward(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
