// Splash forward. Grid: query head, query tile, slot of the tile's worklist row. A visited tile of keys is taken in
// pieces of block_kv_compute, each an update of the running maximum, sum and output.
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Reduction;
using mosaic::Value;

class Forward {
 public:
  Forward(const SplashSpec& spec, Builder& b, const KernelArguments& args) : spec_(spec), b_(b), args_(args) {}

  void Write() {
    const Value slot = args_.grid[2];
    SplashWhen(b_, b_.Is(Compare::kEq, slot, b_.I32(0)), [&] {
      Fill(b_, args_["o_running"], 0);
      Fill(b_, args_["m"], kSplashMaskValue);
      Fill(b_, args_["l"], 0);
    });
    VisitSplashTile(b_, spec_, args_, SplashPass::kForward, [&](const SplashVisit& visit) {
      for (int64_t begin = 0; begin < spec_.block_kv; begin += spec_.block_kv_compute) AddKeys(visit, begin);
    });
    SplashWhen(b_, b_.Is(Compare::kEq, slot, b_.I32(spec_.grid_width - 1)), [&] { Finish(); });
  }

 private:
  void AddKeys(const SplashVisit& visit, int64_t begin) {
    const Value first = b_.I32(begin);
    const Value m_before = b_.LoadAll(args_["m"]);
    const Value l_before = b_.LoadAll(args_["l"]);
    const Value q = LoadBlock(b_, args_["q"]);
    const Value k = LoadTokens(b_, args_["k"], first, spec_.block_kv_compute);
    SplashTile tile{.scores = b_.Matmul(q, k, 1, 1),
                    .should_mask = visit.is_full,
                    .slice_begin = first,
                    .first_key = b_.Add(b_.Mul(visit.kv_tile, b_.I32(spec_.block_kv)), first),
                    .num_keys = spec_.block_kv_compute};
    const Value scores = CapAndMask(b_, spec_, args_, tile);
    const std::vector<int64_t> stat = m_before.type.dims;
    const Value m = b_.Max(m_before, b_.Broadcast(b_.ReduceKeep(Reduction::kMaximumF, scores, 1), stat));
    const Value p = b_.Exp(b_.Sub(scores, TileLanes(b_, m, spec_.block_kv_compute)));
    const Value sum = b_.Broadcast(b_.ReduceKeep(Reduction::kAdd, p, 1), stat);
    const Value shrink = b_.Exp(b_.Sub(m_before, m));
    const Value l = b_.Add(sum, b_.Mul(shrink, l_before));
    b_.StoreAll(m, args_["m"]);
    b_.StoreAll(l, args_["l"]);
    Value v = LoadTokens(b_, args_["v"], first, spec_.block_kv_compute);
    if (v.type.element != Element::kF32) v = b_.Convert(v, Element::kF32);
    const Value o = b_.Matmul(p, v, 1, 0);
    const Value share = TileLanes(b_, shrink, spec_.dim_v);
    const Value shrunk = b_.Mul(share, b_.LoadAll(args_["o_running"]));
    b_.StoreAll(b_.Add(shrunk, o), args_["o_running"]);
  }

  void Finish() {
    const Value l = b_.LoadAll(args_["l"]);
    const Value inverse = b_.Div(b_.Broadcast(b_.F32(1.0), l.type.dims), l);
    Value o = b_.LoadAll(args_["o_running"]);
    o = b_.Mul(o, TileLanes(b_, inverse, spec_.dim_v));
    if (spec_.element != Element::kF32) o = b_.Convert(o, spec_.element);
    StoreBlock(b_, o, args_["o"]);
    if (spec_.has_lse) {
      const Value log = b_.Log(l);
      StoreBlock(b_, b_.Add(log, b_.LoadAll(args_["m"])), args_["lse"]);
    }
    for (const char* running : {"m", "l", "o_running"}) Fill(b_, args_[running], 0);
  }

  const SplashSpec& spec_;
  Builder& b_;
  const KernelArguments& args_;
};

}  // namespace

Result<mosaic::Module> SplashForward(const SplashSpec& spec) {
  mosaic::KernelSpec kernel = SplashCommon(spec, SplashPass::kForward);
  kernel.outputs = {SplashRunning("m", spec.block_q, kLanes), SplashRunning("l", spec.block_q, kLanes),
                    SplashRunning("o_running", spec.block_q, spec.dim_v),
                    SplashResult(spec, SplashPass::kForward, "o", spec.dim_v)};
  if (spec.has_lse) {
    kernel.outputs.push_back(SplashResult(spec, SplashPass::kForward, "lse", kLanes));
    kernel.outputs.back().element = Element::kF32;
  }
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Forward(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
