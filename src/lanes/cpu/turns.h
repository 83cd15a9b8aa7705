// The order of a backward: which key tile is whose unit of work, and who waits for whom. Key tiles are handed out in
// ascending order within a head, and everyone waits only for units that were handed out before, so whoever is waited
// for is running.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes/scratch.h"
#include "tessera/plan.h"

namespace tessera::lanes::cpu {

// How many key tiles each query tile of each mask sees: [mask][query tile].
std::vector<uint32_t> CountKeyTiles(const PlanView& plan, int64_t q_tiles);

class Turns {
 public:
  struct Tables {
    const PlanView* plan = nullptr;
    std::span<const uint32_t> num_key_tiles;  // CountKeyTiles
  };
  struct Counts {
    int64_t kv_heads = 0;  // of all batch rows, as all heads here
    int64_t group = 1;     // query heads per key head
    int64_t q_tiles = 0;   // per head
    int64_t threads = 1;
  };
  Turns(const Tables& tables, const Counts& counts, Scratch& scratch);

  void Begin();

  // Query heads that are worked on at a time. A head has the memory of the one that many heads before it.
  int64_t kept_heads() const { return kept_ * counts_.group; }

  struct KeyTile {
    int64_t column = 0;
    int64_t kv_head = 0;
  };
  int64_t num_units() const { return counts_.kv_heads * list_.rows_per_mask; }
  KeyTile UnitAt(int64_t unit) const;

  // How many key tiles a query tile sees; tiles of all heads are counted through.
  uint32_t NumKeyTiles(int64_t q_tile) const {
    const int64_t mask = plan_.mask_of[static_cast<size_t>(q_tile / counts_.q_tiles)];
    return num_key_tiles_[static_cast<size_t>(mask * counts_.q_tiles + q_tile % counts_.q_tiles)];
  }

  // Until `rank` key tiles are done with a query tile.
  void Wait(int64_t q_tile, uint32_t rank) const;
  // Until the last tile that had this one's memory is done.
  void WaitForMemory(int64_t q_tile) const;
  void Done(int64_t q_tile, uint32_t rank) { turns_[q_tile].store(rank + 1, std::memory_order_release); }

 private:
  int64_t NumTiles() const { return counts_.kv_heads * counts_.group * counts_.q_tiles; }

  const PlanView& plan_;
  const Worklist& list_;
  Counts counts_;
  int64_t kept_;  // key heads
  std::span<const uint32_t> num_key_tiles_;
  std::atomic<uint32_t>* turns_ = nullptr;  // [head][query tile]: key tiles that are done
};

}  // namespace tessera::lanes::cpu
