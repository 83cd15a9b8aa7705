// Splash dK and dV. Grid: key tile, query head, slot; scores are kept as [keys, queries], so that both gradients are
// plain products. The heads that share a key head come one after the other and add to the same running gradients.
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Value;

class Dkv {
 public:
  Dkv(const SplashSpec& spec, Builder& b, const KernelArguments& args)
      : spec_(spec), b_(b), args_(args), group_(spec.num_q_heads / (spec.is_mqa ? 1 : spec.num_kv_heads)) {}

  void Write() {
    const Value head = args_.grid[1];
    const Value slot = args_.grid[2];
    const Value is_first = b_.Is(Compare::kEq, slot, b_.I32(0));
    if (group_ > 1) of_group_ = spec_.is_mqa ? head : b_.Rem(head, b_.I32(group_));
    SplashWhen(b_, AtHeadOfGroup(is_first, 0), [&] { Clear(); });
    VisitSplashTile(b_, spec_, args_, SplashPass::kDkv, [&](const SplashVisit& visit) {
      for (int64_t begin = 0; begin < spec_.block_kv; begin += spec_.block_kv_compute) AddQueries(visit, begin);
    });
    SplashWhen(b_, AtHeadOfGroup(b_.Is(Compare::kEq, slot, b_.I32(spec_.grid_width - 1)), group_ - 1), [&] {
      for (const auto& [running, out] : {std::pair{"dk_running", "dk"}, {"dv_running", "dv"}}) {
        const Value sum = b_.LoadAll(args_[running]);
        StoreBlock(b_, spec_.element == Element::kF32 ? sum : b_.Convert(sum, spec_.element), args_[out]);
      }
      Clear();
    });
  }

 private:
  Value AtHeadOfGroup(const Value& at_slot, int64_t head) {
    return group_ == 1 ? at_slot : b_.And(at_slot, b_.Is(Compare::kEq, of_group_, b_.I32(head)));
  }

  void Clear() {
    Fill(b_, args_["dk_running"], 0);
    Fill(b_, args_["dv_running"], 0);
  }

  Value AsOperand(const Value& x) { return spec_.element == Element::kF32 ? x : b_.Convert(x, spec_.element); }

  void AddTo(const char* running, const Value& begin, const Value& product) {
    const Value memref = args_[running];
    const Value at[] = {begin, b_.Index(0)};
    const Value before = LoadTokens(b_, memref, begin, spec_.block_kv_compute);
    b_.Store(b_.Add(product, before), memref, at);
  }

  // A row's number for each query, along the lanes.
  Value Row(const char* name) {
    const Value at[] = {b_.Index(0), b_.Index(0), b_.Index(0)};
    return b_.ShapeCast(b_.Load(args_[name], at, {1, 1, spec_.block_q}), {1, spec_.block_q});
  }

  void AddQueries(const SplashVisit& visit, int64_t begin) {
    const Value first = b_.I32(begin);
    const Value q = LoadBlock(b_, args_["q"]);
    const Value k = LoadTokens(b_, args_["k"], first, spec_.block_kv_compute);
    const Value v = LoadTokens(b_, args_["v"], first, spec_.block_kv_compute);
    const Value lse = Row("lse");
    const Value dout = LoadBlock(b_, args_["do"]);
    const Value delta = Row("delta");
    const SplashTile tile{.scores = b_.Matmul(k, q, 1, 1),
                          .should_mask = visit.is_full,
                          .slice_begin = first,
                          .first_key = b_.Add(b_.Mul(visit.kv_tile, b_.I32(spec_.block_kv)), first),
                          .num_keys = spec_.block_kv_compute,
                          .keys_in_lanes = false};
    const Value scores = CapAndMask(b_, spec_, args_, tile);
    const std::vector<int64_t> dims = scores.type.dims;
    const Value p = b_.Exp(b_.Sub(scores, b_.Broadcast(lse, dims)));
    AddTo("dv_running", first, b_.Matmul(AsOperand(p), dout, 1, 0));
    const Value dp = b_.Matmul(v, dout, 1, 1);
    const Value ds = CapGradient(b_, spec_, tile.scores, b_.Mul(b_.Sub(dp, b_.Broadcast(delta, dims)), p));
    AddTo("dk_running", first, b_.Matmul(AsOperand(ds), q, 1, 0));
  }

  const SplashSpec& spec_;
  Builder& b_;
  const KernelArguments& args_;
  const int64_t group_;
  Value of_group_;
};

}  // namespace

Result<mosaic::Module> SplashDkv(const SplashSpec& spec) {
  mosaic::KernelSpec kernel = SplashCommon(spec, SplashPass::kDkv);
  kernel.outputs = {
      SplashRunning("dk_running", spec.block_kv, spec.dim_qk), SplashRunning("dv_running", spec.block_kv, spec.dim_v),
      SplashResult(spec, SplashPass::kDkv, "dk", spec.dim_qk), SplashResult(spec, SplashPass::kDkv, "dv", spec.dim_v)};
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Dkv(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
