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
using mosaic::Values;

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
    const Values scalars = {args_["data_next"], args_["block_mask"]};
    const SplashLists lists(b_, spec_, scalars, {head, slot, args_.grid[0]});
    const Value kind = lists.Kind();
    const Value is_visited = b_.Is(Compare::kGt, kind, b_.I32(0));
    if (spec_.mask.kind == SplashMaskKind::kStored) is_full_ = b_.Is(Compare::kNe, kind, b_.I32(1));
    SplashWhen(b_, is_visited, [&] {
      for (int64_t begin = 0; begin < spec_.block_kv; begin += spec_.block_kv_compute) AddQueries(begin);
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

  void AddQueries(int64_t begin) {
    const Value first = b_.I32(begin);
    const Value q = LoadBlock(b_, args_["q"]);
    const Value k = LoadTokens(b_, args_["k"], first, spec_.block_kv_compute);
    const Value v = LoadTokens(b_, args_["v"], first, spec_.block_kv_compute);
    const Value lse = Row("lse");
    const Value dout = LoadBlock(b_, args_["do"]);
    const Value delta = Row("delta");
    const SplashTile tile{.scores = b_.Matmul(k, q, 1, 1),
                          .should_mask = is_full_,
                          .slice_begin = first,
                          .first_key = b_.Add(b_.Mul(args_.grid[0], b_.I32(spec_.block_kv)), first),
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
  Value is_full_;
};

}  // namespace

Result<mosaic::Module> SplashDkv(const SplashSpec& spec) {
  const auto q_tile = [&spec](Builder& b, const Values& g, const Values& s) {
    return SplashLists(b, spec, s, {g[1], g[2], g[0]}).Data();
  };
  const auto query_map = [&](Builder& b, const Values& g, const Values& s) {
    return Values{g[1], q_tile(b, g, s), b.I32(0)};
  };
  const auto stat_map = [&](Builder& b, const Values& g, const Values& s) {
    return Values{g[1], b.I32(0), q_tile(b, g, s)};
  };
  const auto query_lanes = [&](Builder& b, const Values& g, const Values& s) {
    return Values{b.I32(0), q_tile(b, g, s)};
  };
  const auto key_map = [&](Builder& b, const Values& g, const Values&) {
    Values at = KeyHead(b, spec, g[1]);
    at.push_back(g[0]);
    at.push_back(b.I32(0));
    return at;
  };
  const auto nowhere = [](Builder& b, const Values&, const Values&) { return Values{b.I32(0), b.I32(0)}; };
  const std::vector<int64_t> keys = KeyBlock(spec, spec.block_kv, spec.dim_qk);
  const std::vector<int64_t> values = KeyBlock(spec, spec.block_kv, spec.dim_v);
  mosaic::KernelSpec kernel{
      .name = std::string(spec.is_mqa ? "splash_mqa_dkv" : "splash_mha_dkv") + (spec.has_segments ? "_segmented" : "") +
              "_no_residuals",
      .grid = {spec.kv_len / spec.block_kv, spec.num_q_heads, spec.grid_width},
      .semantics = {mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary},
      .scalars = SplashScalars(spec, spec.grid_width, spec.kv_len / spec.block_kv),
      .inputs = {{"q", spec.element, {1, spec.block_q, spec.dim_qk}, query_map},
                 {"k", spec.element, keys, key_map},
                 {"v", spec.element, values, key_map}},
      .outputs = {},
      .scratch = {},
      .version = spec.version};
  if (spec.has_segments) {
    kernel.inputs.push_back({"q_segment_ids", Element::kI32, {kSublanes, spec.block_q}, query_lanes});
    kernel.inputs.push_back(
        {"kv_segment_ids", Element::kI32, {spec.block_kv, kLanes}, [](Builder& b, const Values& g, const Values&) {
           return Values{g[0], b.I32(0)};
         }});
  }
  kernel.inputs.push_back({"lse", Element::kF32, {1, kSublanes, spec.block_q}, stat_map});
  kernel.inputs.push_back({"do", spec.element, {1, spec.block_q, spec.dim_v}, query_map});
  kernel.inputs.push_back({"delta", Element::kF32, {1, kSublanes, spec.block_q}, stat_map});
  if (spec.mask.kind == SplashMaskKind::kStored) {
    kernel.inputs.push_back(
        {"mask", Element::kI32, {1, spec.block_kv, spec.block_q}, [&](Builder& b, const Values& g, const Values& s) {
           return Values{SplashLists(b, spec, s, {g[1], g[2], g[0]}).Mask(), b.I32(0), b.I32(0)};
         }});
  }
  if (spec.mask.IsComputed()) {
    kernel.inputs.push_back({"q_sequence", Element::kI32, {kSublanes, spec.block_q}, query_lanes});
  }
  for (const auto& [name, dim] : {std::pair{"dk_running", spec.dim_qk}, {"dv_running", spec.dim_v}}) {
    kernel.outputs.push_back({.name = name,
                              .element = Element::kF32,
                              .bounds = {spec.block_kv, dim},
                              .index_map = nowhere,
                              .is_synchronous = true});
  }
  kernel.outputs.push_back({"dk", spec.element, keys, key_map});
  kernel.outputs.push_back({"dv", spec.element, values, key_map});
  return mosaic::BuildKernel(kernel, [&](Builder& b, const KernelArguments& args) { Dkv(spec, b, args).Write(); });
}

}  // namespace tessera::kernels
