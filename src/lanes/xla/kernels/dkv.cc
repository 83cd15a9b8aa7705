// Our dK and dV kernel. Grid: (batch row, key head), key tile, and then every slot of every query head of the group, so
// that the group's gradients add up in one place and no key is copied. Scores are [keys, queries], so that both
// gradients are plain products.
#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;
using mosaic::Value;

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
    VisitTile(b_, spec_, args_, place_, [&](const TileKeys& keys) { AddQueries(keys); });
    b_.When(b_.Is(Compare::kEq, step, b_.I32(spec_.group() * list_.width - 1)), [&] {
      const Value dk_sum = b_.LoadAll(args_["dk_sum"]);
      const Value dk = b_.Mul(dk_sum, ScaleOf(b_, args_));
      StoreBlock(b_, AsOperand(b_, spec_, dk), args_["dk"]);
      StoreBlock(b_, AsOperand(b_, spec_, b_.LoadAll(args_["dv_sum"])), args_["dv"]);
    });
  }

 private:
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

  void AddQueries(const TileKeys& keys) {
    const Value q = LoadBlock(b_, args_["q"]);
    const Value dout = LoadBlock(b_, args_["do"]);
    const Value k = LoadTokens(b_, args_["k"], b_.I32(keys.first), list_.sub_tile_kv);
    const Value v = LoadTokens(b_, args_["v"], b_.I32(keys.first), list_.sub_tile_kv);
    const Scores all = ScoresOf(b_, spec_, args_, k, q);
    const std::optional<Value> mask = keys.mask();
    const std::vector<int64_t> dims = all.scores.type.dims;
    Value p = Weight(b_, b_.Sub(all.scores, Row("lse", dims)));
    // On the results and not before: what a row may not see can make dP overflow, and a row whose own scores did has no
    // log-sum-exp; neither is undone by a weight of zero.
    if (mask) p = b_.Select(*mask, p, b_.F32(0));
    AddTo("dv_sum", keys.first, b_.Matmul(AsOperand(b_, spec_, p), dout, 1, 0, PrecisionOf(spec_)));
    const Value dp = b_.Matmul(v, dout, 1, 1, PrecisionOf(spec_));
    Value ds = Uncap(b_, spec_, args_, all, b_.Mul(b_.Sub(dp, Row("delta", dims)), p));
    if (mask) ds = b_.Select(*mask, ds, b_.F32(0));
    AddTo("dk_sum", keys.first, b_.Matmul(AsOperand(b_, spec_, ds), q, 1, 0, PrecisionOf(spec_)));
  }

  const AttentionSpec& spec_;
  const ListSpec& list_;
  Builder& b_;
  const KernelArguments& args_;
  const Place place_;
};

}  // namespace

Result<mosaic::Module> AttentionDkv(const AttentionSpec& spec) {
  const ListSpec& list = spec.list;
  const ColumnWindows windows(spec);
  mosaic::KernelSpec kernel =
      CommonSpec(spec, "tessera_dkv", spec.batch * spec.num_kv_heads, spec.group() * list.width);
  windows.AddBackward(kernel.inputs);
  kernel.outputs = {windows.Keys("dk", spec.dim_qk), windows.Keys("dv", spec.dim_v)};
  kernel.scratch = {Scratch("dk_sum", {list.tile_kv, spec.dim_qk}), Scratch("dv_sum", {list.tile_kv, spec.dim_v})};
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Dkv(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
