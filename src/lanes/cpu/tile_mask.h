// What a panel of queries may see of one tile of keys, read from the plan: a stretch of keys per query where that says
// it all (diagonals, windows, documents, tails), cells otherwise. Allocates nothing.
#pragma once

#include <cstdint>
#include <span>

#include "lanes/cpu/kernel.h"
#include "lanes/scratch.h"
#include "tessera/plan.h"

namespace tessera::lanes::cpu {

// The run-time facts of one batch row, as the plan holds them.
struct RowFacts {
  std::span<const Segment> q_segments;
  std::span<const Segment> kv_segments;
  int64_t q_valid = 0;
  int64_t kv_valid = 0;
};
RowFacts FactsOf(const PlanView& plan, int64_t batch_row);

// Keys past a tile that a step may still ask about.
inline constexpr int64_t kCellSlack = 64;

struct TileAt {
  const PlanView* plan = nullptr;
  const Worklist* worklist = nullptr;
  const RowFacts* facts = nullptr;
  uint32_t cleanup = 0;
  int64_t q_begin = 0;  // of the tile
  int64_t kv_begin = 0;
};

// Memory of one panel's mask.
struct PanelMaskMemory {
  int32_t* begin = nullptr;  // [panel]
  int32_t* end = nullptr;
  uint8_t* cells = nullptr;  // [the tile's keys and the slack, panel]
  uint8_t* seen = nullptr;   // [panel]: set for queries that see a key; null: not wanted
};

// Keys count from the tile's first. Keys outside [begin, end) are seen by no query, those in [inner_begin, inner_end)
// by every one.
struct PanelMask {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t inner_begin = 0;
  int32_t inner_end = 0;
  const int32_t* row_begin = nullptr;
  const int32_t* row_end = nullptr;
  const uint8_t* cells = nullptr;  // null: the stretches say it all

  StepMask From(int32_t first) const { return {first, inner_begin, inner_end, row_begin, row_end, cells}; }
};

// The mask of queries [row_begin, row_begin + num_rows) of the tile, at most a panel. Lanes past num_rows repeat the
// first query: what they compute goes nowhere.
struct PanelRows {
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  int64_t panel = 0;
};
PanelMask MaskPanel(const TileAt& tile, const PanelRows& rows, const PanelMaskMemory& memory);

// The masks of a tile's panels, in one worker's memory.
class TileMasks {
 public:
  TileMasks() = default;
  TileMasks(Scratch& scratch, int64_t num_panels, int64_t panel, int64_t most_keys);

  // For the tile's first `num_rows` queries. `seen`, where given, is set for queries that see a key.
  void Fill(const TileAt& tile, int64_t num_rows, uint8_t* seen = nullptr);
  const PanelMask& operator[](int64_t p) const { return masks_[p]; }

 private:
  int64_t panel_ = 0;
  int64_t cells_per_panel_ = 0;
  PanelMask* masks_ = nullptr;  // [panels]
  int32_t* begin_ = nullptr;    // [panels][panel]
  int32_t* end_ = nullptr;
  uint8_t* cells_ = nullptr;  // [panels][most_keys + slack][panel]
};

// Whether query `lane` sees key `key` (tile-relative).
inline bool Sees(const PanelMask& mask, int64_t panel, int32_t key, int64_t lane) {
  if (mask.cells != nullptr) return key < mask.end && mask.cells[key * panel + lane] != 0;
  return key >= mask.row_begin[lane] && key < mask.row_end[lane];
}

}  // namespace tessera::lanes::cpu
