// What both directions share: padded sizes, keys and values packed once for the whole run, and the repair of what
// packing left out because it was not finite.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/tensor_row.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/tile_mask.h"
#include "lanes/lane.h"
#include "lanes/scratch.h"

namespace tessera::lanes::cpu {

inline constexpr double kLog2E = 1.4426950408889634;

// Keys of the largest tile: a tile may be far larger than what there is.
inline int64_t TileKeysOf(const Worklist& list, const PlanView& plan) {
  return std::min<int64_t>(list.tile_kv, plan.kv_len);
}

// One run's sizes: the contract's, padded as the kernel asks.
struct Sizes {
  Sizes(const Contract& contract, const Kernel& kernel);

  Shape shape;
  int64_t group = 1;   // query heads per key head
  int64_t dim_qk = 0;  // padded
  int64_t dim_v = 0;
  int64_t kv_rows = 0;  // rows kept per key head: the keys, and zeros for steps that reach past the last
  ScoreFunction score;
  float query_factor = 1.0F;  // what packed panels of queries are multiplied by
  float scale = 1.0F;
};

// Keys or values as products read them, of a whole tensor or of one tile: packed, [batch, head][row][dim], and
// [batch, head][dim][row] where the kernel's unit reads columns only that way; or left where they are, when they
// already lie so. Where flags are kept, rows that are not finite are zeros and flagged.
struct PackedKeys {
  int64_t dim = 0;
  int64_t padded_dim = 0;
  int64_t num_rows = 0;  // kept per head
  int64_t element_bytes = 0;
  int64_t group = 1;  // rows that lie interleaved: Kernel::a_group
  std::byte* rows = nullptr;
  std::byte* columns = nullptr;   // null: the unit reads columns out of `rows`
  uint8_t* not_finite = nullptr;  // [batch, head][num_rows]; null: rows are kept as they are
  const TensorRef* in_place = nullptr;
  int64_t heads_per_batch = 1;

  // The A of a product over dims, from `row` on.
  std::byte* Row(int64_t head, int64_t row) const {
    if (in_place != nullptr) return RowAt(*in_place, head / heads_per_batch, head % heads_per_batch, row);
    return rows + (head * num_rows + row) * padded_dim * element_bytes;
  }
  // The A of a product over keys, from `row` on.
  std::byte* Column(int64_t head, int64_t row) const {
    if (columns == nullptr) return Row(head, row);
    return columns + (head * padded_dim * num_rows + row * group) * element_bytes;
  }
  // Nothing where rows do not lie together.
  void PrefetchRow(int64_t head, int64_t row) const {
    if (in_place == nullptr && (rows == nullptr || group != 1)) return;
    constexpr int64_t kLine = 64;
    constexpr int kSecondCache = 2;
    const std::byte* at = Row(head, row);
    for (int64_t offset = 0; offset < dim * element_bytes; offset += kLine) {
      __builtin_prefetch(at + offset, 0, kSecondCache);
    }
  }
  int64_t row_stride() const { return in_place == nullptr ? padded_dim : in_place->token_stride; }
  int64_t column_stride() const { return columns == nullptr ? row_stride() : num_rows; }
};
struct PackedForms {
  bool rows = false;
  bool columns = false;
  bool flags = false;
};
// Memory for a whole tensor, and for one tile of it.
PackedKeys TakeKeys(Scratch& scratch, const Kernel& kernel, const Sizes& sizes, int64_t dim, PackedForms forms);
PackedKeys TakeTile(Scratch& scratch, const Kernel& kernel, const Sizes& sizes, int64_t dim, int64_t tile_kv,
                    PackedForms forms);

inline bool HasFlag(const uint8_t* flags, int64_t count) {
  return count > 0 && __builtin_memchr(flags, 1, static_cast<size_t>(count)) != nullptr;
}

// The keys of one tile, counted from its first: among those of the whole tensor, or alone in a worker's memory.
struct TileKeys {
  const PackedKeys* keys = nullptr;
  int64_t head = 0;  // of `keys`
  int64_t row = 0;   // the tile's first, in `keys`

  std::byte* Row(int64_t key) const { return keys->Row(head, row + key); }
  std::byte* Column(int64_t key) const { return keys->Column(head, row + key); }
  // Whether packing left out one of these because it was not finite. Rare; the common path only looks for a flag.
  bool IsLeftOut(int64_t key, int64_t count = 1) const {
    if (keys->not_finite == nullptr) return false;
    return HasFlag(keys->not_finite + head * keys->num_rows + row + key, count);
  }
};

struct PackRun {
  const Kernel* kernel = nullptr;
  const Sizes* sizes = nullptr;
  int64_t tile_kv = 0;
  int64_t threads = 1;
};
struct KeysToPack {
  const TensorRef* from = nullptr;
  PackedKeys* to = nullptr;
};
// Packs whole tensors, all but those that lie as products read them. These stay where they are, and keep no flags:
// where it matters whether they are finite, LookAtTile says so, tile by tile.
void PackAll(const PackRun& run, std::span<const KeysToPack> tensors);

// A tensor of which only single tiles will be packed: where it is, if products can read it there.
PackedKeys InPlace(const PackRun& run, const TensorRef& from, const PackedKeys& tile);
// One tile of `all`, from row `begin` of `head` on: where it is, when it may stay there and is finite, else packed into
// `own`. So whoever is the first to need a tile is the one who looks at it, and memory is read once for both.
TileKeys LookAtTile(const PackRun& run, const TensorRef& from, const PackedKeys& all, const PackedKeys& own,
                    int64_t head, int64_t begin);

float ScalarDot(const std::byte* a, ElementType a_type, const std::byte* b, ElementType b_type, int64_t dim);

}  // namespace tessera::lanes::cpu
