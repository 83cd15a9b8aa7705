// Which block of each operand a step of a Splash kernel sees. See splash_parts.h.
#include "lanes/xla/kernels/splash_parts.h"

namespace tessera::kernels {
namespace {

using mosaic::Builder;
using mosaic::Element;
using mosaic::Value;
using mosaic::Values;
using mosaic::Window;

bool IsDkv(SplashPass pass) { return pass == SplashPass::kDkv; }

std::string NameOf(const SplashSpec& spec, SplashPass pass) {
  const char* const names[] = {"fwd", "dq", "dkv"};
  return std::string(spec.is_mqa ? "splash_mqa_" : "splash_mha_") + names[static_cast<size_t>(pass)] +
         (spec.has_segments ? "_segmented" : "") +
         (pass == SplashPass::kForward && spec.has_lse ? "_residuals" : "_no_residuals");
}

std::vector<mosaic::Memory> Scalars(const SplashSpec& spec, SplashPass pass) {
  const std::vector<int64_t> dims =
      IsDkv(pass) ? std::vector<int64_t>{spec.mask_heads, spec.grid_width, spec.kv_len / spec.block_kv}
                  : std::vector<int64_t>{spec.mask_heads, spec.q_len / spec.block_q, spec.grid_width};
  std::vector<mosaic::Memory> scalars = {{"data_next", mosaic::MemrefOf(mosaic::Space::kSmem, spec.data_next, dims)},
                                         {"block_mask", mosaic::MemrefOf(mosaic::Space::kSmem, spec.block_mask, dims)}};
  if (spec.mask.kind == SplashMaskKind::kStored) {
    scalars.push_back({"mask_next", mosaic::MemrefOf(mosaic::Space::kSmem, spec.mask_next, dims)});
  }
  return scalars;
}

// Index maps of a pass. The order in which a map reads is part of a program's identity.
class Maps {
 public:
  Maps(const SplashSpec& spec, SplashPass pass) : spec_(spec), pass_(pass) {}

  // [heads, query tiles, 1]
  Window::IndexMap Queries() const {
    return [maps = *this](Builder& b, const Values& g, const Values& s) {
      const Value tile = maps.QueryTile(b, g, s);
      return Values{maps.Head(g), tile, b.I32(0)};
    };
  }
  // [heads, 1, query tiles]
  Window::IndexMap Stats() const {
    return [maps = *this](Builder& b, const Values& g, const Values& s) {
      return Values{maps.Head(g), b.I32(0), maps.QueryTile(b, g, s)};
    };
  }
  // [key heads, key tiles, 1], or without heads.
  Window::IndexMap Keys() const {
    return [maps = *this](Builder& b, const Values& g, const Values& s) {
      const Value tile = maps.KeyTile(b, g, s);
      const int64_t group = maps.spec_.num_q_heads / maps.spec_.num_kv_heads;
      Values at;
      if (!maps.spec_.is_mqa) at.push_back(group == 1 ? maps.Head(g) : b.Div(maps.Head(g), b.I32(group)));
      at.push_back(tile);
      at.push_back(b.I32(0));
      return at;
    };
  }
  // What lies along the lanes is copied over the sublanes, [1, tiles]; else over the lanes, [tiles, 1].
  Window::IndexMap QueryNumbers() const {
    return [maps = *this](Builder& b, const Values& g, const Values& s) {
      if (!maps.IsTransposed()) return Values{maps.QueryTile(b, g, s), b.I32(0)};
      return Values{b.I32(0), maps.QueryTile(b, g, s)};
    };
  }
  Window::IndexMap KeyNumbers() const {
    return [maps = *this](Builder& b, const Values& g, const Values& s) {
      if (maps.IsTransposed()) return Values{maps.KeyTile(b, g, s), b.I32(0)};
      return Values{b.I32(0), maps.KeyTile(b, g, s)};
    };
  }
  Window::IndexMap Mask() const {
    return [maps = *this](Builder& b, const Values& g, const Values& s) {
      return Values{maps.Lists(b, g, s).Mask(), b.I32(0), b.I32(0)};
    };
  }

 private:
  bool IsTransposed() const { return IsDkv(pass_); }
  Value Head(const Values& g) const { return g[IsTransposed() ? 1 : 0]; }
  SplashLists Lists(Builder& b, const Values& g, const Values& s) const {
    return {b, spec_, s, IsTransposed() ? SplashStep{g[1], g[2], g[0]} : SplashStep{g[0], g[1], g[2]}};
  }
  Value QueryTile(Builder& b, const Values& g, const Values& s) const {
    return IsTransposed() ? Lists(b, g, s).Data() : g[1];
  }
  Value KeyTile(Builder& b, const Values& g, const Values& s) const {
    return IsTransposed() ? g[0] : Lists(b, g, s).Data();
  }

  const SplashSpec& spec_;
  SplashPass pass_;
};

// Keys, or values, as the layout has them.
std::vector<int64_t> KeyBlock(const SplashSpec& spec, int64_t dim) {
  if (spec.is_mqa) return {spec.block_kv, dim};
  return {1, spec.block_kv, dim};
}

}  // namespace

mosaic::KernelSpec SplashCommon(const SplashSpec& spec, SplashPass pass) {
  const bool is_dkv = IsDkv(pass);
  const Maps maps(spec, pass);
  const auto first = pass == SplashPass::kForward ? mosaic::Semantics::kParallel : mosaic::Semantics::kArbitrary;
  mosaic::KernelSpec kernel{
      .name = NameOf(spec, pass),
      .grid = is_dkv ? std::vector<int64_t>{spec.kv_len / spec.block_kv, spec.num_q_heads, spec.grid_width}
                     : std::vector<int64_t>{spec.num_q_heads, spec.q_len / spec.block_q, spec.grid_width},
      .semantics = {first, mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary},
      .scalars = Scalars(spec, pass),
      .inputs = {{"q", spec.element, {1, spec.block_q, spec.dim_qk}, maps.Queries()},
                 {"k", spec.element, KeyBlock(spec, spec.dim_qk), maps.Keys()},
                 {"v", spec.element, KeyBlock(spec, spec.dim_v), maps.Keys()}},
      .outputs = {},
      .scratch = {},
      .version = spec.version};
  const auto numbers = [&](const char* name, int64_t tokens, bool in_lanes, Window::IndexMap map) {
    const std::vector<int64_t> bounds =
        in_lanes ? std::vector<int64_t>{kSublanes, tokens} : std::vector<int64_t>{tokens, kLanes};
    kernel.inputs.push_back({name, Element::kI32, bounds, std::move(map)});
  };
  if (spec.has_segments) {
    numbers("q_segment_ids", spec.block_q, is_dkv, maps.QueryNumbers());
    numbers("kv_segment_ids", spec.block_kv, !is_dkv, maps.KeyNumbers());
  }
  if (pass != SplashPass::kForward) {
    const std::vector<int64_t> stat = {1, is_dkv ? kSublanes : 1, spec.block_q};
    kernel.inputs.push_back({"lse", Element::kF32, stat, maps.Stats()});
    kernel.inputs.push_back({"do", spec.element, {1, spec.block_q, spec.dim_v}, maps.Queries()});
    kernel.inputs.push_back({"delta", Element::kF32, stat, maps.Stats()});
  }
  if (spec.mask.kind == SplashMaskKind::kStored) {
    std::vector<int64_t> bounds = {1, spec.block_q, spec.block_kv};
    if (is_dkv) std::swap(bounds[1], bounds[2]);
    kernel.inputs.push_back({"mask", Element::kI32, bounds, maps.Mask()});
  }
  if (spec.mask.IsComputed()) numbers("q_sequence", spec.block_q, is_dkv, maps.QueryNumbers());
  return kernel;
}

Window SplashResult(const SplashSpec& spec, SplashPass pass, std::string name, int64_t dim) {
  const Maps maps(spec, pass);
  if (IsDkv(pass)) return {std::move(name), spec.element, KeyBlock(spec, dim), maps.Keys()};
  return {std::move(name), spec.element, {1, spec.block_q, dim}, maps.Queries()};
}

Window SplashRunning(std::string name, int64_t tokens, int64_t dim) {
  return {.name = std::move(name),
          .element = Element::kF32,
          .bounds = {tokens, dim},
          .index_map =
              [](Builder& b, const Values&, const Values&) {
                return Values{b.I32(0), b.I32(0)};
              },
          .is_synchronous = true};
}

}  // namespace tessera::kernels
