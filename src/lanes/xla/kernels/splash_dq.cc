// Splash dQ. Grid as forward: query head, query tile, slot. Each visited tile of keys adds dS K to the running dQ.
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Value;
using mosaic::Values;

class Dq {
 public:
  Dq(const SplashSpec& spec, Builder& b, const KernelArguments& args) : spec_(spec), b_(b), args_(args) {}

  void Write() {
    const Value slot = args_.grid[2];
    SplashWhen(b_, b_.Is(Compare::kEq, slot, b_.I32(0)), [&] { Fill(b_, args_["dq_running"], 0); });
    const Values scalars = {args_["data_next"], args_["block_mask"]};
    const SplashLists lists(b_, spec_, scalars, {args_.grid[0], args_.grid[1], slot});
    const Value kind = lists.Kind();
    const Value is_visited = b_.Is(Compare::kGt, kind, b_.I32(0));
    if (spec_.mask.kind == SplashMaskKind::kStored) is_full_ = b_.Is(Compare::kNe, kind, b_.I32(1));
    const Value kv_tile = lists.Data();
    SplashWhen(b_, is_visited, [&] { AddKeys(kv_tile); });
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

  void AddKeys(const Value& kv_tile) {
    const Value q = LoadBlock(b_, args_["q"]);
    const Value k = LoadBlock(b_, args_["k"]);
    const Value v = LoadBlock(b_, args_["v"]);
    const Value lse = Column("lse");
    const Value dout = LoadBlock(b_, args_["do"]);
    const Value delta = Column("delta");
    const SplashTile tile{.scores = b_.Matmul(q, k, 1, 1),
                          .should_mask = is_full_,
                          .slice_begin = b_.I32(0),
                          .first_key = b_.Mul(kv_tile, b_.I32(spec_.block_kv)),
                          .num_keys = spec_.block_kv};
    const Value scores = CapAndMask(b_, spec_, args_, tile);
    const std::vector<int64_t> dims = scores.type.dims;
    const Value p = b_.Exp(b_.Sub(scores, b_.Broadcast(lse, dims)));
    const Value dp = b_.Matmul(dout, v, 1, 1);
    Value ds = CapGradient(b_, spec_, tile.scores, b_.Mul(b_.Sub(dp, b_.Broadcast(delta, dims)), p));
    if (spec_.element != Element::kF32) ds = b_.Convert(ds, spec_.element);
    b_.StoreAll(b_.Add(b_.LoadAll(args_["dq_running"]), b_.Matmul(ds, k, 1, 0)), args_["dq_running"]);
  }

  const SplashSpec& spec_;
  Builder& b_;
  const KernelArguments& args_;
  Value is_full_;
};

}  // namespace

Result<mosaic::Module> SplashDq(const SplashSpec& spec) {
  const auto kv_tile = [&spec](Builder& b, const Values& g, const Values& s) {
    return SplashLists(b, spec, s, {g[0], g[1], g[2]}).Data();
  };
  const auto query_map = [](Builder& b, const Values& g, const Values&) { return Values{g[0], g[1], b.I32(0)}; };
  const auto stat_map = [](Builder& b, const Values& g, const Values&) { return Values{g[0], b.I32(0), g[1]}; };
  const auto key_map = [&](Builder& b, const Values& g, const Values& s) {
    const Value tile = kv_tile(b, g, s);
    Values at = KeyHead(b, spec, g[0]);
    at.push_back(tile);
    at.push_back(b.I32(0));
    return at;
  };
  const auto query_rows = [](Builder& b, const Values& g, const Values&) { return Values{g[1], b.I32(0)}; };
  mosaic::KernelSpec kernel{
      .name = std::string(spec.is_mqa ? "splash_mqa_dq" : "splash_mha_dq") + (spec.has_segments ? "_segmented" : "") +
              "_no_residuals",
      .grid = {spec.num_q_heads, spec.q_len / spec.block_q, spec.grid_width},
      .semantics = {mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary},
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
  kernel.inputs.push_back({"lse", Element::kF32, {1, 1, spec.block_q}, stat_map});
  kernel.inputs.push_back({"do", spec.element, {1, spec.block_q, spec.dim_v}, query_map});
  kernel.inputs.push_back({"delta", Element::kF32, {1, 1, spec.block_q}, stat_map});
  if (spec.mask.kind == SplashMaskKind::kStored) {
    kernel.inputs.push_back(
        {"mask", Element::kI32, {1, spec.block_q, spec.block_kv}, [&](Builder& b, const Values& g, const Values& s) {
           return Values{SplashLists(b, spec, s, {g[0], g[1], g[2]}).Mask(), b.I32(0), b.I32(0)};
         }});
  }
  if (spec.mask.IsComputed()) {
    kernel.inputs.push_back({"q_sequence", Element::kI32, {spec.block_q, kLanes}, query_rows});
  }
  kernel.outputs.push_back({.name = "dq_running",
                            .element = Element::kF32,
                            .bounds = {spec.block_q, spec.dim_qk},
                            .index_map =
                                [](Builder& b, const Values&, const Values&) {
                                  return Values{b.I32(0), b.I32(0)};
                                },
                            .is_synchronous = true});
  kernel.outputs.push_back({"dq", spec.element, {1, spec.block_q, spec.dim_qk}, query_map});
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Dq(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
