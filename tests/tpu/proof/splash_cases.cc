// See splash_cases.h.
#include "tpu/proof/splash_cases.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "lanes/xla/mosaic/print.h"

namespace tessera::proof {
namespace {

using kernels::SplashMaskKind;
using kernels::SplashSpec;

bool MayAttend(const kernels::SplashMask& mask, int64_t q, int64_t k) {
  const int64_t at = q + mask.offset;
  switch (mask.kind) {
    case SplashMaskKind::kFull:
      return true;
    case SplashMaskKind::kCausal:
      return k <= at;
    case SplashMaskKind::kLocal:
      return (!mask.left || at - *mask.left <= k) && (!mask.right || k <= at + *mask.right);
    case SplashMaskKind::kStored:  // causal and local(100, 0), which the library has to store
      return k <= q && q - 100 <= k;
  }
  return false;
}

bool HasPair(const SplashSpec& spec, int64_t q_tile, int64_t kv_tile) {
  for (int64_t q = q_tile * spec.block_q; q < (q_tile + 1) * spec.block_q; ++q) {
    for (int64_t k = kv_tile * spec.block_kv; k < (kv_tile + 1) * spec.block_kv; ++k) {
      if (MayAttend(spec.mask, q, k)) return true;
    }
  }
  return false;
}

// Of the longest row, or of the longest column: as the library shrinks its grids.
int64_t WidthOf(const SplashSpec& spec, bool is_dkv) {
  const int64_t q_tiles = spec.q_len / spec.block_q;
  const int64_t kv_tiles = spec.kv_len / spec.block_kv;
  std::vector<int64_t> counts(static_cast<size_t>(is_dkv ? kv_tiles : q_tiles), 0);
  for (int64_t i = 0; i < q_tiles; ++i) {
    for (int64_t j = 0; j < kv_tiles; ++j) counts[static_cast<size_t>(is_dkv ? j : i)] += HasPair(spec, i, j) ? 1 : 0;
  }
  return *std::max_element(counts.begin(), counts.end());
}

struct Wish {
  const char* name;
  SplashSpec spec;
};

SplashSpec Base() {
  SplashSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 2;
  spec.q_len = spec.kv_len = 512;
  spec.block_kv = 256;
  spec.mask = {.kind = SplashMaskKind::kCausal};
  return spec;
}

template <class Change>
SplashSpec With(const Change& change) {
  SplashSpec spec = Base();
  change(spec);
  return spec;
}

std::vector<Wish> Wishes() {
  const kernels::SplashMask local{.kind = SplashMaskKind::kLocal, .left = 100, .right = 0};
  return {
      {"causal", Base()},
      {"causal_offset", With([](SplashSpec& s) { s.mask.offset = 3; })},
      {"full", With([](SplashSpec& s) { s.mask.kind = SplashMaskKind::kFull; })},
      {"local", With([&](SplashSpec& s) { s.mask = local; })},
      {"local_both",
       With([&](SplashSpec& s) { s.mask = {.kind = SplashMaskKind::kLocal, .offset = 7, .left = 100, .right = 50}; })},
      {"softcap", With([](SplashSpec& s) { s.softcap = 30; })},
      {"segments", With([](SplashSpec& s) { s.has_segments = true; })},
      {"stored", With([](SplashSpec& s) { s.mask = {.kind = SplashMaskKind::kStored}; })},
      {"stored_segments_softcap", With([](SplashSpec& s) {
         s.mask = {.kind = SplashMaskKind::kStored};
         s.has_segments = true;
         s.softcap = 30;
       })},
      {"grouped", With([](SplashSpec& s) { s.num_q_heads = 4; })},
      {"mqa", With([](SplashSpec& s) {
         s.num_q_heads = 4;
         s.num_kv_heads = 1;
         s.is_mqa = true;
       })},
      {"dim64", With([](SplashSpec& s) { s.dim_qk = s.dim_v = 64; })},
      {"dim192_128", With([](SplashSpec& s) { s.dim_qk = 192; })},
      {"dim256", With([](SplashSpec& s) { s.dim_qk = s.dim_v = 256; })},
      {"f32", With([](SplashSpec& s) { s.element = mosaic::Element::kF32; })},
      {"compute256", With([](SplashSpec& s) { s.block_kv_compute = 256; })},
  };
}

const char* ToText(SplashKernel kernel) {
  switch (kernel) {
    case SplashKernel::kForward:
      return "forward";
    case SplashKernel::kForwardLse:
      return "forward_lse";
    case SplashKernel::kDkv:
      return "dkv";
    case SplashKernel::kDq:
      return "dq";
  }
  return "";
}

const char* ToText(SplashMaskKind kind) {
  switch (kind) {
    case SplashMaskKind::kFull:
      return "full";
    case SplashMaskKind::kCausal:
      return "causal";
    case SplashMaskKind::kLocal:
      return "local";
    case SplashMaskKind::kStored:
      return "stored";
  }
  return "";
}

}  // namespace

std::vector<SplashCase> SplashCases() {
  std::vector<SplashCase> cases;
  for (const Wish& wish : Wishes()) {
    for (const SplashKernel kernel :
         {SplashKernel::kForward, SplashKernel::kForwardLse, SplashKernel::kDkv, SplashKernel::kDq}) {
      SplashCase made{fmt::format("{}_{}", wish.name, ToText(kernel)), kernel, wish.spec};
      made.spec.has_lse = kernel == SplashKernel::kForwardLse;
      made.spec.grid_width = WidthOf(made.spec, kernel == SplashKernel::kDkv);
      cases.push_back(std::move(made));
    }
  }
  return cases;
}

Result<mosaic::Module> KernelOf(const SplashCase& wish) {
  switch (wish.kernel) {
    case SplashKernel::kDkv:
      return kernels::SplashDkv(wish.spec);
    case SplashKernel::kDq:
      return kernels::SplashDq(wish.spec);
    default:
      return kernels::SplashForward(wish.spec);
  }
}

Result<std::string> TextDigest(const SplashCase& wish) {
  return KernelOf(wish).map([](const mosaic::Module& kernel) {
    Hasher hasher;
    hasher.Text(mosaic::Print(kernel));
    return Hex(hasher.Finish());
  });
}

std::string ToJson(const std::vector<SplashCase>& cases) {
  const auto number = [](const std::optional<int64_t>& n) { return n ? std::to_string(*n) : std::string("null"); };
  std::string text;
  for (const SplashCase& c : cases) {
    const SplashSpec& s = c.spec;
    text += fmt::format(
        "{}\n {{\"name\": \"{}\", \"kernel\": \"{}\", \"q_heads\": {}, \"kv_heads\": {}, \"q_len\": {}, \"kv_len\": "
        "{}, \"dim_qk\": {}, \"dim_v\": {}, \"f32\": {}, \"mqa\": {}, \"block_q\": {}, \"block_kv\": {}, "
        "\"block_kv_compute\": {}, \"mask\": \"{}\", \"offset\": {}, \"left\": {}, \"right\": {}, \"softcap\": {}, "
        "\"segments\": {}}}",
        text.empty() ? "[" : ",", c.name, ToText(c.kernel), s.num_q_heads, s.num_kv_heads, s.q_len, s.kv_len, s.dim_qk,
        s.dim_v, s.element == mosaic::Element::kF32, s.is_mqa, s.block_q, s.block_kv, s.block_kv_compute,
        ToText(s.mask.kind), s.mask.offset, number(s.mask.left), number(s.mask.right), s.softcap, s.has_segments);
  }
  return text + "\n]\n";
}

}  // namespace tessera::proof
