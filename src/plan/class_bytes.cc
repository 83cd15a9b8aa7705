#include "plan/class_bytes.h"

#include <algorithm>

#include "plan/layout.h"

namespace tessera::plan {

int64_t ClassBytes(const PlanView& plan) {
  // In floating point, because a hostile plan's capacities can have a product beyond any integer.
  const auto masks = static_cast<double>(plan.mask_capacity);
  const auto cleanups = static_cast<double>(plan.cleanup_capacity) + 1;
  double bytes = sizeof(Header);
  double tile_words = 0;
  for (const Worklist& list : plan.worklists) {
    const double rows = masks * list.rows_per_mask;
    bytes += (rows + 1) * sizeof(uint64_t) + rows * list.width_capacity * (sizeof(Slot) + sizeof(uint32_t)) +
             static_cast<double>(plan.part_capacity) * sizeof(Part);
    tile_words = std::max(tile_words, static_cast<double>(list.tile_q) * ((list.tile_kv + 63) / 64));
  }
  // A term of the mask's gives an item; masks of more are rare.
  constexpr double kItems = 4;
  bytes += (cleanups + 1) * sizeof(uint32_t) + cleanups * kItems * sizeof(CleanupItem);
  if (!plan.bit_words.empty()) bytes += cleanups * (tile_words + 1) * sizeof(uint64_t);
  const auto batch = static_cast<double>(plan.batch);
  bytes += batch * static_cast<double>(plan.num_q_heads) * sizeof(uint32_t) + masks * sizeof(uint32_t);
  bytes += 16 * sizeof(Condition) + 2 * (batch + 1) * (sizeof(uint64_t) + sizeof(int32_t));
  if (!plan.q_segments.empty()) bytes += batch * static_cast<double>(plan.q_len) * sizeof(Segment);
  if (!plan.kv_segments.empty()) bytes += batch * static_cast<double>(plan.kv_len) * sizeof(Segment);
  const double aligned = bytes + 32 * kAlign;  // every section begins at a multiple of it
  return aligned < 0x1p62 ? static_cast<int64_t>(aligned) : int64_t{1} << 62;
}

}  // namespace tessera::plan
