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

std::vector<uint32_t> CountKeyTiles(const PlanView& plan, int64_t q_tiles) {
  const Worklist& list = plan.Of(Direction::kDkv);
  std::vector<uint32_t> counts(static_cast<size_t>(plan.num_masks * q_tiles), 0);
  for (size_t row = 0; row + 1 < list.row_offsets.size(); ++row) {
    const size_t first = row / static_cast<size_t>(list.rows_per_mask) * static_cast<size_t>(q_tiles);
    for (uint64_t slot = list.row_offsets[row]; slot < list.row_offsets[row + 1]; ++slot) {
      ++counts[first + list.slots[slot].index];
    }
  }
  return counts;
}

Turns::Turns(const Tables& tables, const Counts& counts, Scratch& scratch)
    : plan_(*tables.plan),
      list_(plan_.Of(Direction::kDkv)),
      counts_(counts),
      kept_(KeptHeads(counts.kv_heads, counts.threads)),
      num_key_tiles_(tables.num_key_tiles),
      turns_(scratch.Take<std::atomic<uint32_t>>(NumTiles())) {}

void Turns::Begin() { std::uninitialized_value_construct_n(turns_, NumTiles()); }

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

// A tile without keys never had the memory and waits for nobody, so it says nothing of the one before it: the last tile
// that used the memory is the one to wait for.
void Turns::WaitForMemory(int64_t q_tile) const {
  const int64_t step = kept_heads() * counts_.q_tiles;
  for (int64_t before = q_tile - step; before >= 0; before -= step) {
    const uint32_t num_key_tiles = NumKeyTiles(before);
    if (num_key_tiles == 0) continue;
    Wait(before, num_key_tiles);
    return;
  }
}

}  // namespace tessera::lanes::cpu
