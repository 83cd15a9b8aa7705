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
using mosaic::Values;

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
    Values scalars = {args_["data_next"], args_["block_mask"]};
    const SplashLists lists(b_, spec_, scalars, {args_.grid[0], args_.grid[1], slot});
    const Value kind = lists.Kind();
    const Value is_visited = b_.Is(Compare::kGt, kind, b_.I32(0));
    if (spec_.mask.kind == SplashMaskKind::kStored) is_full_ = b_.Is(Compare::kNe, kind, b_.I32(1));
    const Value kv_tile = lists.Data();
    SplashWhen(b_, is_visited, [&] {
      for (int64_t begin = 0; begin < spec_.block_kv; begin += spec_.block_kv_compute) AddKeys(kv_tile, begin);
    });
    SplashWhen(b_, b_.Is(Compare::kEq, slot, b_.I32(spec_.grid_width - 1)), [&] { Finish(); });
  }

 private:
  void AddKeys(const Value& kv_tile, int64_t begin) {
    const Value first = b_.I32(begin);
    const Value m_before = b_.LoadAll(args_["m"]);
    const Value l_before = b_.LoadAll(args_["l"]);
    const Value q = LoadBlock(b_, args_["q"]);
    const Value k = LoadTokens(b_, args_["k"], first, spec_.block_kv_compute);
    SplashTile tile{.scores = b_.Matmul(q, k, 1, 1),
                    .should_mask = is_full_,
                    .slice_begin = first,
                    .first_key = b_.Add(b_.Mul(kv_tile, b_.I32(spec_.block_kv)), first),
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
    const Value shrunk = b_.Mul(TileLanes(b_, shrink, spec_.dim_v), b_.LoadAll(args_["o_running"]));
    b_.StoreAll(b_.Add(shrunk, o), args_["o_running"]);
  }

  void Finish() {
    const Value l = b_.LoadAll(args_["l"]);
    const Value inverse = b_.Div(b_.Broadcast(b_.F32(1.0), l.type.dims), l);
    Value o = b_.Mul(b_.LoadAll(args_["o_running"]), TileLanes(b_, inverse, spec_.dim_v));
    if (spec_.element != Element::kF32) o = b_.Convert(o, spec_.element);
    StoreBlock(b_, o, args_["o"]);
    if (spec_.has_lse) StoreBlock(b_, b_.Add(b_.Log(l), b_.LoadAll(args_["m"])), args_["lse"]);
    for (const char* running : {"m", "l", "o_running"}) Fill(b_, args_[running], 0);
  }

  const SplashSpec& spec_;
  Builder& b_;
  const KernelArguments& args_;
  Value is_full_;
};

std::string NameOf(const SplashSpec& spec) {
  return std::string(spec.is_mqa ? "splash_mqa_fwd" : "splash_mha_fwd") + (spec.has_segments ? "_segmented" : "") +
         (spec.has_lse ? "_residuals" : "_no_residuals");
}

}  // namespace

Result<mosaic::Module> SplashForward(const SplashSpec& spec) {
  const auto kv_tile = [&spec](Builder& b, const Values& g, const Values& s) {
    return SplashLists(b, spec, s, {g[0], g[1], g[2]}).Data();
  };
  const auto query_map = [](Builder& b, const Values& g, const Values&) { return Values{g[0], g[1], b.I32(0)}; };
  const auto key_map = [&](Builder& b, const Values& g, const Values& s) {
    const Value tile = kv_tile(b, g, s);
    Values at = KeyHead(b, spec, g[0]);
    at.push_back(tile);
    at.push_back(b.I32(0));
    return at;
  };
  const auto query_rows = [](Builder& b, const Values& g, const Values&) { return Values{g[1], b.I32(0)}; };
  const auto nowhere = [](Builder& b, const Values&, const Values&) { return Values{b.I32(0), b.I32(0)}; };

  mosaic::KernelSpec kernel{
      .name = NameOf(spec),
      .grid = {spec.num_q_heads, spec.q_len / spec.block_q, spec.grid_width},
      .semantics = {mosaic::Semantics::kParallel, mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary},
      .scalars = SplashScalars(spec, spec.q_len / spec.block_q, spec.grid_width),
      .inputs = {{"q", spec.element, {1, spec.block_q, spec.dim_qk}, query_map},
                 {"k", spec.element, KeyBlock(spec, spec.block_kv, spec.dim_qk), key_map},
                 {"v", spec.element, KeyBlock(spec, spec.block_kv, spec.dim_v), key_map}},
      .outputs = {},
      .scratch = {},
      .version = spec.version};
  if (spec.has_segments) {
    kernel.inputs.push_back({"q_segment_ids", Element::kI32, {spec.block_q, kLanes}, query_rows});
    kernel.inputs.push_back({"kv_segment_ids",
                             Element::kI32,
                             {kSublanes, spec.block_kv},
                             [&](Builder& b, const Values& g, const Values& s) {
                               return Values{b.I32(0), kv_tile(b, g, s)};
                             }});
  }
  if (spec.mask.kind == SplashMaskKind::kStored) {
    kernel.inputs.push_back(
        {"mask", Element::kI32, {1, spec.block_q, spec.block_kv}, [&](Builder& b, const Values& g, const Values& s) {
           return Values{SplashLists(b, spec, s, {g[0], g[1], g[2]}).Mask(), b.I32(0), b.I32(0)};
         }});
  }
  if (spec.mask.IsComputed()) {
    kernel.inputs.push_back({"q_sequence", Element::kI32, {spec.block_q, kLanes}, query_rows});
  }
  for (const auto& [name, dim] : {std::pair{"m", kLanes}, {"l", kLanes}, {"o_running", spec.dim_v}}) {
    kernel.outputs.push_back({.name = name,
                              .element = Element::kF32,
                              .bounds = {spec.block_q, dim},
                              .index_map = nowhere,
                              .is_synchronous = true});
  }
  kernel.outputs.push_back({"o", spec.element, {1, spec.block_q, spec.dim_v}, query_map});
  if (spec.has_lse) kernel.outputs.push_back({"lse", Element::kF32, {1, spec.block_q, kLanes}, query_map});
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Forward(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
