// JAX's Splash attention as we write it: the same TPU program as the library's own kernel at the same shapes and tiles,
// which is proven by the compiler's fingerprint of both (docs/tpu.md, "Same program as JAX"). The masks, layouts and
// numbers are the library's; kernels of our own that do better are beside these.
#pragma once

#include <cstdint>
#include <optional>

#include "lanes/xla/mosaic/ir.h"
#include "tessera/error.h"

namespace tessera::kernels {

// How the kernel knows which pairs of a visited tile may attend. kFull: all of them. The computed ones compare token
// numbers on every visited tile; kStored loads tiles of cells, and takes no notice of them on full tiles.
enum class SplashMaskKind : uint8_t { kFull, kCausal, kLocal, kStored };

struct SplashMask {
  SplashMaskKind kind = SplashMaskKind::kFull;
  int64_t offset = 0;                 // of kCausal and kLocal: key <= query + offset
  std::optional<int64_t> left = {};   // of kLocal: query + offset - left <= key
  std::optional<int64_t> right = {};  // and key <= query + offset + right
  bool IsComputed() const { return kind == SplashMaskKind::kCausal || kind == SplashMaskKind::kLocal; }
};

struct SplashSpec {
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t dim_qk = 128;
  int64_t dim_v = 128;
  mosaic::Element element = mosaic::Element::kBf16;
  bool is_mqa = false;  // keys and values have no axis of heads
  int64_t block_q = 128;
  int64_t block_kv = 128;
  int64_t block_kv_compute = 128;
  SplashMask mask;
  double softcap = 0;  // 0: none
  bool has_segments = false;
  bool has_lse = false;  // forward: also gives the log-sum-exp, in each of 128 lanes
  // The worklists: [mask_heads, rows, width] of data_next, block_mask and, with stored tiles, mask_next. For dK and dV
  // they are [mask_heads, width, key tiles].
  int64_t mask_heads = 1;
  int64_t grid_width = 0;
  mosaic::Element data_next = mosaic::Element::kI8;
  mosaic::Element block_mask = mosaic::Element::kI8;
  mosaic::Element mask_next = mosaic::Element::kI8;
  int64_t version = 13;  // of the dialect
};

// Operands: data_next, block_mask, [mask_next], q, k, v, [q_segment_ids, kv_segment_ids], [mask tiles], [q_sequence].
// Results: the three running values (JAX keeps them as results), o, [log-sum-exp].
Result<mosaic::Module> SplashForward(const SplashSpec& spec);
// Operands as forward, with log-sum-exp, dO and the row deltas after the segment ids. Results: dK, dV running, dK, dV.
Result<mosaic::Module> SplashDkv(const SplashSpec& spec);
// The same. Results: dQ running, dQ.
Result<mosaic::Module> SplashDq(const SplashSpec& spec);

}  // namespace tessera::kernels
