// Our dQ kernel: grid and worklist as forward, each visited tile of keys adds dS K. The softcap's derivative is part of
// dS. An empty row's log-sum-exp comes as +inf, which makes every weight of it 0; a large one comes leaning
// (lanes/weights.h).
#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::KernelArguments;
using mosaic::Value;

class Dq {
 public:
  Dq(const AttentionSpec& spec, Builder& b, const KernelArguments& args)
      : spec_(spec), list_(spec.list), b_(b), args_(args), place_{args.grid[0], args.grid[1], args.grid[2]} {}

  void Write() {
    b_.When(b_.Is(Compare::kEq, place_.slot, b_.I32(0)), [&] { Fill(b_, args_["sum"], 0); });
    VisitTile(b_, spec_, args_, place_, [&](const TileKeys& keys) { AddKeys(keys); });
    b_.When(b_.Is(Compare::kEq, place_.slot, b_.I32(list_.width - 1)), [&] {
      const Value sum = b_.LoadAll(args_["sum"]);
      const Value dq = b_.Mul(sum, ScaleOf(b_, args_));
      StoreBlock(b_, AsOperand(b_, spec_, dq), args_["dq"]);
    });
  }

 private:
  // A row's number for each query, from the lanes to the sublanes and over the tile.
  Value Column(const char* name, const std::vector<int64_t>& dims) {
    const Value row = b_.ShapeCast(b_.LoadAll(args_[name]), {list_.tile_q});
    return b_.Broadcast(b_.ShapeCast(row, {list_.tile_q, 1}), dims);
  }

  void AddKeys(const TileKeys& keys) {
    const Value k = LoadTokens(b_, args_["k"], b_.I32(keys.first), list_.sub_tile_kv);
    const Value v = LoadTokens(b_, args_["v"], b_.I32(keys.first), list_.sub_tile_kv);
    const Scores all = ScoresOf(b_, spec_, args_, LoadBlock(b_, args_["q"]), k);
    const std::optional<Value> mask = keys.mask();
    const std::vector<int64_t> dims = all.scores.type.dims;
    const Value p = Weight(b_, b_.Sub(all.scores, Column("lse", dims)));
    const Value dp = b_.Matmul(LoadBlock(b_, args_["do"]), v, 1, 1, PrecisionOf(spec_));
    Value ds = Uncap(b_, spec_, args_, all, b_.Mul(b_.Sub(dp, Column("delta", dims)), p));
    // Here and not before: dP of a token that the row may not see can overflow, which a weight of zero does not undo.
    if (mask) ds = b_.Select(*mask, ds, b_.F32(0));
    const Value product = b_.Matmul(AsOperand(b_, spec_, ds), k, 1, 0, PrecisionOf(spec_));
    b_.StoreAll(b_.Add(b_.LoadAll(args_["sum"]), product), args_["sum"]);
  }

  const AttentionSpec& spec_;
  const ListSpec& list_;
  Builder& b_;
  const KernelArguments& args_;
  const Place place_;
};

}  // namespace

Result<mosaic::Module> AttentionDq(const AttentionSpec& spec) {
  const ListSpec& list = spec.list;
  const RowWindows windows(spec);
  mosaic::KernelSpec kernel = CommonSpec(spec, "tessera_dq", spec.batch * spec.num_q_heads, list.width);
  windows.AddBackward(kernel.inputs);
  kernel.outputs = {windows.Queries("dq", spec.dim_qk)};
  kernel.scratch = {Scratch("sum", {list.tile_q, spec.dim_qk})};
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Dq(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
