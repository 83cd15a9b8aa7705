#include "lanes/cpu/turns.h"

#include <algorithm>
#include <memory>
#include <thread>

namespace tessera::lanes::cpu {
namespace {

// As few key heads at a time as keep every thread busy with a head of its own, in the last round too: what few heads
// need stays in the caches.
int64_t KeptHeads(int64_t kv_heads, int64_t threads) {
  int64_t kept = std::min(threads, kv_heads);
  while (kv_heads % kept != 0 && kv_heads % kept < threads) ++kept;
  return kept;
}

}  // namespace

Turns::Turns(const PlanView& plan, const Counts& counts, Scratch& scratch)
    : plan_(plan),
      list_(plan.Of(Direction::kDkv)),
      counts_(counts),
      kept_(KeptHeads(counts.kv_heads, counts.threads)),
      turns_(scratch.Take<std::atomic<uint32_t>>(NumTiles())) {}

void Turns::Begin() {
  std::uninitialized_value_construct_n(turns_, NumTiles());
  num_key_tiles_.assign(static_cast<size_t>(plan_.num_masks * counts_.q_tiles), 0);
  for (size_t row = 0; row + 1 < list_.row_offsets.size(); ++row) {
    const size_t first = row / static_cast<size_t>(list_.rows_per_mask) * static_cast<size_t>(counts_.q_tiles);
    for (uint64_t slot = list_.row_offsets[row]; slot < list_.row_offsets[row + 1]; ++slot) {
      ++num_key_tiles_[first + list_.slots[slot].index];
    }
  }
}

// Round by round; in a round the first key tile of each head, then the second of each.
Turns::KeyTile Turns::UnitAt(int64_t unit) const {
  const int64_t first_head = unit / (list_.rows_per_mask * kept_) * kept_;
  const int64_t heads = std::min(kept_, counts_.kv_heads - first_head);
  const int64_t at = unit - first_head * list_.rows_per_mask;
  return {at / heads, first_head + at % heads};
}

void Turns::Wait(int64_t q_tile, uint32_t rank) const {
  const std::atomic<uint32_t>& turn = turns_[q_tile];
  for (int spins = 0; turn.load(std::memory_order_acquire) != rank; ++spins) {
    if (spins > 64) std::this_thread::yield();
  }
}

void Turns::WaitForMemory(int64_t q_tile) const {
  const int64_t before = q_tile - kept_heads() * counts_.q_tiles;
  if (before >= 0) Wait(before, NumKeyTiles(before));
}

}  // namespace tessera::lanes::cpu
