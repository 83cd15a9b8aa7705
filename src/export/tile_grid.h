// A mask's surviving tiles as the libraries number them: row-major, with the partial ones deduplicated by content in
// order of first appearance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tessera/plan.h"
#include "tessera/tensor.h"

namespace tessera::exports {

struct GridTile {
  static constexpr int32_t kFull = -1;
  int32_t q = 0;
  int32_t kv = 0;
  int32_t stored = kFull;  // id of a stored tile, or kFull
  bool operator==(const GridTile&) const = default;
  bool IsPartial() const { return stored != kFull; }
  int32_t BlockMask() const { return IsPartial() ? 1 : 2; }  // what the libraries write for it
};

struct TileGrid {
  int64_t q_tiles = 0;
  int64_t kv_tiles = 0;
  std::vector<GridTile> tiles;       // row-major
  std::vector<uint64_t> row_begins;  // [q_tiles + 1]
};

// Gives every row without tiles a partial one in column 0, for kernels that write only what they visit.
void VisitEveryRow(TileGrid& grid);

// Distinct partial tiles, row-major cells of 0 or 1.
class StoredTiles {
 public:
  explicit StoredTiles(TileSize tile) : tile_(tile) {}
  int32_t Intern(std::vector<uint8_t> cells);
  int64_t Size() const { return count_; }
  bool IsEmpty() const { return count_ == 0; }
  // [count, q, kv], or with `transposed` [count, kv, q]. Tiles from Size() on are zeros.
  Tensor ToTensor(ElementType type, bool transposed, int64_t count) const;

 private:
  friend class GridReader;
  TileSize tile_;
  int64_t count_ = 0;
  std::vector<uint8_t> cells_;
  std::unordered_multimap<uint64_t, int32_t> by_hash_;
};

// Reads grids off a plan's forward worklist. With `want_cells` off, partial tiles all get id 0 and nothing is stored.
// A tile that hangs over an end of the lengths is partial here: its pairs outside may not attend.
class GridReader {
 public:
  GridReader(const PlanView& plan, bool want_cells);
  // The grid of one (batch row, head). Ids go on from the grids read before.
  Result<TileGrid> Read(int64_t batch_row, int64_t head);
  bool HasPartial() const { return has_partial_; }
  const StoredTiles& stored() const { return stored_; }

 private:
  int32_t StoredId(const Slot& slot, int64_t q_begin, int64_t kv_begin);
  std::vector<uint8_t> CellsOf(const Slot& slot, int64_t q_begin, int64_t kv_begin) const;
  bool HangsOver(int64_t q_begin, int64_t kv_begin) const;
  const PlanView& plan_;
  const Worklist& list_;
  bool want_cells_;
  bool has_partial_ = false;
  StoredTiles stored_;
  std::map<uint32_t, int32_t> id_of_cleanup_;  // of cleanups without conditions
  std::optional<int64_t> facts_row_;
  TokenFacts facts_;
};

}  // namespace tessera::exports
