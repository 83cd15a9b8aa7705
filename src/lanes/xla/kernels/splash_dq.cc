// Splash dQ. Grid as forward: query head, query tile, slot. Each visited tile of keys adds dS K to the running dQ.
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Value;

class Dq {
 public:
  Dq(const SplashSpec& spec, Builder& b, const KernelArguments& args) : spec_(spec), b_(b), args_(args) {}

  void Write() {
    const Value slot = args_.grid[2];
    SplashWhen(b_, b_.Is(Compare::kEq, slot, b_.I32(0)), [&] { Fill(b_, args_["dq_running"], 0); });
    VisitSplashTile(b_, spec_, args_, SplashPass::kDq, [&](const SplashVisit& visit) { AddKeys(visit); });
    SplashWhen(b_, b_.Is(Compare::kEq, slot, b_.I32(spec_.grid_width - 1)), [&] {
      const Value dq = b_.LoadAll(args_["dq_running"]);
      StoreBlock(b_, spec_.element == Element::kF32 ? dq : b_.Convert(dq, spec_.element), args_["dq"]);
      Fill(b_, args_["dq_running"], 0);
    });
  }

 private:
  // A row's number for each query, from the lanes to the sublanes.
  Value Column(const char* name) {
    return b_.ShapeCast(b_.ShapeCast(b_.LoadAll(args_[name]), {spec_.block_q}), {spec_.block_q, 1});
  }

  void AddKeys(const SplashVisit& visit) {
    const Value q = LoadBlock(b_, args_["q"]);
    const Value k = LoadBlock(b_, args_["k"]);
    const Value v = LoadBlock(b_, args_["v"]);
    const Value lse = Column("lse");
    const Value dout = LoadBlock(b_, args_["do"]);
    const Value delta = Column("delta");
    const SplashTile tile{.scores = b_.Matmul(q, k, 1, 1),
                          .should_mask = visit.is_full,
                          .slice_begin = b_.I32(0),
                          .first_key = b_.Mul(visit.kv_tile, b_.I32(spec_.block_kv)),
                          .num_keys = spec_.block_kv};
    const Value scores = CapAndMask(b_, spec_, args_, tile);
    const std::vector<int64_t> dims = scores.type.dims;
    const Value p = b_.Exp(b_.Sub(scores, b_.Broadcast(lse, dims)));
    const Value dp = b_.Matmul(dout, v, 1, 1);
    Value ds = CapGradient(b_, spec_, tile.scores, b_.Mul(b_.Sub(dp, b_.Broadcast(delta, dims)), p));
    if (spec_.element != Element::kF32) ds = b_.Convert(ds, spec_.element);
    const Value before = b_.LoadAll(args_["dq_running"]);
    b_.StoreAll(b_.Add(before, b_.Matmul(ds, k, 1, 0)), args_["dq_running"]);
  }

  const SplashSpec& spec_;
  Builder& b_;
  const KernelArguments& args_;
};

}  // namespace

Result<mosaic::Module> SplashDq(const SplashSpec& spec) {
  mosaic::KernelSpec kernel = SplashCommon(spec, SplashPass::kDq);
  kernel.outputs = {SplashRunning("dq_running", spec.block_q, spec.dim_qk),
                    SplashResult(spec, SplashPass::kDq, "dq", spec.dim_qk)};
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Dq(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
