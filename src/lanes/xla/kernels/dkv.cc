// Our dK and dV kernel. Grid: (batch row, key head), key tile, and then every slot of every query head of the group, so
// that the group's gradients add up in one place and no key is copied. Scores are [keys, queries], so that both
// gradients are plain products.
#include <optional>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Value;
using mosaic::Values;

class Dkv {
 public:
  Dkv(const AttentionSpec& spec, Builder& b, const KernelArguments& args)
      : spec_(spec), list_(spec.list), b_(b), args_(args), place_(ColumnWindows::PlaceOf(b, spec, args.grid)) {}

  void Write() {
    const Value step = args_.grid[2];
    b_.When(b_.Is(Compare::kEq, step, b_.I32(0)), [&] {
      Fill(b_, args_["dk_sum"], 0);
      Fill(b_, args_["dv_sum"], 0);
    });
    const Values scalars = ScalarValues(spec_, args_);
    const Lists lists(b_, spec_, scalars);
    const Value kind = lists.Entry("kinds", place_);
    b_.When(b_.Is(Compare::kEq, kind, b_.I32(2)), [&] { AddTile(false); });
    b_.When(b_.Is(Compare::kEq, kind, b_.I32(1)), [&] {
      q_begin_ = b_.Mul(lists.Entry("columns", place_), b_.I32(list_.tile_q));
      AddTile(true);
    });
    b_.When(b_.Is(Compare::kEq, step, b_.I32(spec_.group() * list_.width - 1)), [&] {
      const Value dk = b_.Mul(b_.LoadAll(args_["dk_sum"]), ScaleOf(b_, args_));
      StoreBlock(b_, AsOperand(b_, spec_, dk), args_["dk"]);
      StoreBlock(b_, AsOperand(b_, spec_, b_.LoadAll(args_["dv_sum"])), args_["dv"]);
    });
  }

 private:
  void AddTile(bool is_partial) {
    for (int64_t first = 0; first < list_.tile_kv; first += list_.sub_tile_kv) AddQueries(first, is_partial);
  }

  // A row's number for each query, along the lanes and over the tile.
  Value Row(const char* name, const std::vector<int64_t>& dims) {
    const Value at[] = {b_.Index(0), b_.Index(0), b_.Index(0)};
    const Value row = b_.Load(args_[name], at, {1, 1, list_.tile_q});
    return b_.Broadcast(b_.ShapeCast(row, {1, list_.tile_q}), dims);
  }

  void AddTo(const char* name, int64_t first, const Value& product) {
    const Value at[] = {b_.Index(first), b_.Index(0)};
    const Value before = b_.Load(args_[name], at, product.type.dims);
    b_.Store(b_.Add(before, product), args_[name], at);
  }

  void AddQueries(int64_t first, bool is_partial) {
    const Value q = LoadBlock(b_, args_["q"]);
    const Value dout = LoadBlock(b_, args_["do"]);
    const Value k = LoadTokens(b_, args_["k"], b_.I32(first), list_.sub_tile_kv);
    const Value v = LoadTokens(b_, args_["v"], b_.I32(first), list_.sub_tile_kv);
    const Scores all = ScoresOf(b_, spec_, args_, k, q);
    std::optional<Value> mask;
    if (is_partial) {
      const MaskAt at{.place = place_,
                      .q_begin = q_begin_,
                      .kv_begin = b_.Mul(place_.row, b_.I32(list_.tile_kv)),
                      .first_key = first,
                      .num_keys = list_.sub_tile_kv,
                      .keys_in_lanes = false};
      mask = MaskOf(b_, spec_, args_, at);
    }
    const std::vector<int64_t> dims = all.scores.type.dims;
    Value p = b_.Exp(b_.Sub(all.scores, Row("lse", dims)));
    // On the results and not before: what a row may not see can make dP overflow, and a row whose own scores did has no
    // log-sum-exp; neither is undone by a weight of zero.
    if (mask) p = b_.Select(*mask, p, b_.F32(0));
    AddTo("dv_sum", first, b_.Matmul(AsOperand(b_, spec_, p), dout, 1, 0, PrecisionOf(spec_)));
    const Value dp = b_.Matmul(v, dout, 1, 1, PrecisionOf(spec_));
    Value ds = Uncap(b_, spec_, args_, all, b_.Mul(b_.Sub(dp, Row("delta", dims)), p));
    if (mask) ds = b_.Select(*mask, ds, b_.F32(0));
    AddTo("dk_sum", first, b_.Matmul(AsOperand(b_, spec_, ds), q, 1, 0, PrecisionOf(spec_)));
  }

  const AttentionSpec& spec_;
  const ListSpec& list_;
  Builder& b_;
  const KernelArguments& args_;
  const Place place_;
  Value q_begin_;
};

}  // namespace

Result<mosaic::Module> AttentionDkv(const AttentionSpec& spec) {
  const ListSpec& list = spec.list;
  const ColumnWindows windows(spec);
  mosaic::KernelSpec kernel{
      .name = "tessera_dkv",
      .grid = {spec.batch * spec.num_kv_heads, list.rows, spec.group() * list.width},
      .semantics = {mosaic::Semantics::kParallel, mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary},
      .scalars = ScalarsOf(spec),
      .inputs = {ScoreWindow(), windows.Queries("q", spec.dim_qk), windows.Keys("k", spec.dim_qk),
                 windows.Keys("v", spec.dim_v), windows.Queries("do", spec.dim_v), windows.Stat("lse"),
                 windows.Stat("delta")},
      .outputs = {windows.Keys("dk", spec.dim_qk), windows.Keys("dv", spec.dim_v)},
      .scratch = {Scratch("dk_sum", {list.tile_kv, spec.dim_qk}), Scratch("dv_sum", {list.tile_kv, spec.dim_v})},
      .version = spec.version};
  windows.AddMask(kernel.inputs);
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Dkv(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
