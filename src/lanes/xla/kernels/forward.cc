// Our forward kernel. Grid: (batch row, query head) pair, query tile, slot of the tile's worklist row. Full tiles take
// the body without a mask, partial ones the body whose mask comes from the cleanup's items; padding slots do nothing
// and fetch nothing, since they repeat the last column.
//
// The running maximum begins at a finite floor and pairs that may not attend score -inf, so their weight is exactly 0
// whatever the row's maximum is, and a row without keys ends with a sum of 0.
#include <limits>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Reduction;
using mosaic::Value;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kFloor = kSplashMaskValue;

class Forward {
 public:
  Forward(const AttentionSpec& spec, Builder& b, const KernelArguments& args)
      : spec_(spec), list_(spec.list), b_(b), args_(args), place_{args.grid[0], args.grid[1], args.grid[2]} {}

  void Write() {
    b_.When(b_.Is(Compare::kEq, place_.slot, b_.I32(0)), [&] {
      Fill(b_, args_["m"], kFloor);
      Fill(b_, args_["l"], 0);
      Fill(b_, args_["sum"], 0);
    });
    VisitTile(b_, spec_, args_, place_, [&](const TileKeys& keys) { AddKeys(keys); });
    b_.When(b_.Is(Compare::kEq, place_.slot, b_.I32(list_.width - 1)), [&] { Finish(); });
  }

 private:
  void AddKeys(const TileKeys& keys) {
    const Value q = LoadBlock(b_, args_["q"]);
    const Value k = LoadTokens(b_, args_["k"], b_.I32(keys.first), list_.sub_tile_kv);
    const Value v = LoadTokens(b_, args_["v"], b_.I32(keys.first), list_.sub_tile_kv);
    Value scores = ScoresOf(b_, spec_, args_, q, k).scores;
    if (const std::optional<Value> mask = keys.mask()) scores = b_.Select(*mask, scores, b_.F32(-kInf));
    const Value m_before = b_.LoadAll(args_["m"]);
    const std::vector<int64_t> stat = m_before.type.dims;
    const Value m = b_.Max(m_before, b_.Broadcast(b_.ReduceKeep(Reduction::kMaximumF, scores, 1), stat));
    const Value p = b_.Exp(b_.Sub(scores, TileLanes(b_, m, list_.sub_tile_kv)));
    const Value shrink = b_.Exp(b_.Sub(m_before, m));
    const Value l = b_.Broadcast(b_.ReduceKeep(Reduction::kAdd, p, 1), stat);
    b_.StoreAll(b_.Add(b_.Mul(shrink, b_.LoadAll(args_["l"])), l), args_["l"]);
    b_.StoreAll(m, args_["m"]);
    const Value product = b_.Matmul(AsOperand(b_, spec_, p), v, 1, 0, PrecisionOf(spec_));
    const Value share = TileLanes(b_, shrink, spec_.dim_v);
    const Value before = b_.Mul(share, b_.LoadAll(args_["sum"]));
    b_.StoreAll(b_.Add(before, product), args_["sum"]);
  }

  // Divides by the sum of weights, the sink's share among them.
  void Finish() {
    const Value m = b_.LoadAll(args_["m"]);
    const Value l = b_.LoadAll(args_["l"]);
    Value sum = b_.LoadAll(args_["sum"]);
    const Value is_empty = b_.Is(Compare::kEq, l, b_.F32(0));
    Value top = m;
    Value weight = l;
    if (spec_.has_sink_logits) {
      const Value at[] = {b_.Index(0), b_.Rem(place_.pair, b_.I32(spec_.num_q_heads))};
      const Value sink = b_.Broadcast(b_.LoadScalar(args_["sink_logits"], at), m.type.dims);
      top = b_.Max(m, sink);
      const Value shrink = b_.Exp(b_.Sub(m, top));
      const Value shrunk = b_.Mul(l, shrink);
      weight = b_.Add(shrunk, b_.Exp(b_.Sub(sink, top)));
      sum = b_.Mul(sum, TileLanes(b_, shrink, spec_.dim_v));
    }
    weight = b_.Select(is_empty, b_.F32(1.0), weight);
    const Value o = b_.Div(sum, TileLanes(b_, weight, spec_.dim_v));
    StoreBlock(b_, AsOperand(b_, spec_, o), args_["o"]);
    const Value lse = b_.Add(top, b_.Log(weight));
    const Value lane = b_.Iota(m.type.dims, 1);
    const Value is_lse = b_.Is(Compare::kLt, lane, b_.I32(kLanes / 2));
    const Value stats = b_.Select(is_lse, lse, m);
    StoreBlock(b_, b_.Select(is_empty, b_.F32(-kInf), stats), args_["stats"]);
  }

  const AttentionSpec& spec_;
  const ListSpec& list_;
  Builder& b_;
  const KernelArguments& args_;
  const Place place_;
};

}  // namespace

Result<mosaic::Module> AttentionForward(const AttentionSpec& spec) {
  const ListSpec& list = spec.list;
  const RowWindows windows(spec);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_forward", spec.batch * spec.num_q_heads, list.width);
  if (spec.has_sink_logits) {
    mosaic::Window sinks = ScoreWindow();
    sinks.name = "sink_logits";
    sinks.bounds = {1, spec.num_q_heads};
    kernel.inputs.push_back(sinks);
  }
  kernel.inputs.push_back(windows.Queries("q", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("k", spec.dim_qk));
  kernel.inputs.push_back(windows.Keys("v", spec.dim_v));
  windows.AddMask(kernel.inputs);
  mosaic::Window stats = windows.Queries("stats", kLanes);
  stats.element = Element::kF32;
  kernel.outputs = {windows.Queries("o", spec.dim_v), stats};
  kernel.scratch = {Scratch("m", {list.tile_q, kLanes}), Scratch("l", {list.tile_q, kLanes}),
                    Scratch("sum", {list.tile_q, spec.dim_v})};
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Forward(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
