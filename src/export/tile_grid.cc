#include "export/tile_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "export/arrays.h"
#include "plan/tile_cells.h"

namespace tessera::exports {
namespace {

bool IsUnconditional(std::span<const CleanupItem> items) {
  return std::all_of(items.begin(), items.end(), [](const CleanupItem& item) { return item.conditions == 0; });
}

}  // namespace

int32_t StoredTiles::Intern(std::vector<uint8_t> cells) {
  const uint64_t hash = Hash64(cells.data(), cells.size());
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto same = begin; same != end; ++same) {
    if (std::memcmp(cells_.data() + static_cast<size_t>(same->second) * cells.size(), cells.data(), cells.size()) ==
        0) {
      return same->second;
    }
  }
  const auto id = static_cast<int32_t>(count_++);
  cells_.insert(cells_.end(), cells.begin(), cells.end());
  by_hash_.emplace(hash, id);
  return id;
}

void VisitEveryRow(TileGrid& grid) {
  std::vector<GridTile> tiles;
  tiles.reserve(grid.tiles.size());
  std::vector<uint64_t> row_begins{0};
  for (int64_t row = 0; row < grid.q_tiles; ++row) {
    const auto begin = grid.tiles.begin() + static_cast<std::ptrdiff_t>(grid.row_begins[row]);
    const auto end = grid.tiles.begin() + static_cast<std::ptrdiff_t>(grid.row_begins[row + 1]);
    if (begin == end) tiles.push_back({.q = static_cast<int32_t>(row), .kv = 0, .stored = 0});
    tiles.insert(tiles.end(), begin, end);
    row_begins.push_back(tiles.size());
  }
  grid.tiles = std::move(tiles);
  grid.row_begins = std::move(row_begins);
}

Tensor StoredTiles::ToTensor(ElementType type, bool transposed, int64_t count) const {
  Tensor out =
      Tensor::Zeros(type, transposed ? std::vector{count, tile_.kv, tile_.q} : std::vector{count, tile_.q, tile_.kv});
  auto* to = reinterpret_cast<uint8_t*>(out.bytes.data());
  if (!transposed) {
    std::copy(cells_.begin(), cells_.end(), to);
    return out;
  }
  const uint8_t* from = cells_.data();
  for (int64_t tile = 0; tile < count_; ++tile, from += tile_.q * tile_.kv, to += tile_.q * tile_.kv) {
    for (int64_t q = 0; q < tile_.q; ++q) {
      for (int64_t kv = 0; kv < tile_.kv; ++kv) to[kv * tile_.q + q] = from[q * tile_.kv + kv];
    }
  }
  return out;
}

GridReader::GridReader(const PlanView& plan, bool want_cells)
    : plan_(plan),
      list_(plan.Of(Direction::kForward)),
      want_cells_(want_cells),
      stored_({static_cast<int64_t>(list_.tile_q), static_cast<int64_t>(list_.tile_kv)}) {}

Result<TileGrid> GridReader::Read(int64_t batch_row, int64_t head) {
  TileGrid grid;
  grid.q_tiles = list_.rows_per_mask;
  grid.kv_tiles = (plan_.kv_len + list_.tile_kv - 1) / list_.tile_kv;
  grid.row_begins.push_back(0);
  if (want_cells_ && facts_row_ != batch_row) {
    facts_ = SpreadTokenFacts(plan_, batch_row);
    facts_row_ = batch_row;
  }
  const uint64_t mask = plan_.mask_of[batch_row * plan_.num_q_heads + head];
  for (uint32_t row = 0; row < list_.rows_per_mask; ++row) {
    const int64_t q_begin = int64_t{row} * list_.tile_q;
    for (const Slot& slot : list_.Row(mask * list_.rows_per_mask + row)) {
      const int64_t kv_begin = int64_t{slot.index} * list_.tile_kv;
      GridTile tile{static_cast<int32_t>(row), static_cast<int32_t>(slot.index), GridTile::kFull};
      if (slot.cleanup != 0 || HangsOver(q_begin, kv_begin)) {
        has_partial_ = true;
        tile.stored = want_cells_ ? StoredId(slot, q_begin, kv_begin) : 0;
      }
      grid.tiles.push_back(tile);
    }
    grid.row_begins.push_back(grid.tiles.size());
    if (stored_.Size() * list_.tile_q * list_.tile_kv > kMaxArrayBytes) {
      return Fail(ErrorCode::kTooLarge,
                  fmt::format("the stored partial tiles alone would pass {} bytes", kMaxArrayBytes),
                  "partial_mask_blocks");
    }
  }
  return grid;
}

bool GridReader::HangsOver(int64_t q_begin, int64_t kv_begin) const {
  return q_begin + list_.tile_q > plan_.q_len || kv_begin + list_.tile_kv > plan_.kv_len;
}

int32_t GridReader::StoredId(const Slot& slot, int64_t q_begin, int64_t kv_begin) {
  // Without conditions a cleanup looks the same in every whole tile.
  const bool repeats = !HangsOver(q_begin, kv_begin) && IsUnconditional(plan_.Cleanup(slot.cleanup));
  if (repeats) {
    const auto known = id_of_cleanup_.find(slot.cleanup);
    if (known != id_of_cleanup_.end()) return known->second;
  }
  const int32_t id = stored_.Intern(CellsOf(slot, q_begin, kv_begin));
  if (repeats) id_of_cleanup_.emplace(slot.cleanup, id);
  return id;
}

std::vector<uint8_t> GridReader::CellsOf(const Slot& slot, int64_t q_begin, int64_t kv_begin) const {
  std::vector<uint8_t> cells(static_cast<size_t>(list_.tile_q) * list_.tile_kv, 0);
  plan::FillTileCells(plan_, list_, slot.cleanup, facts_, q_begin, kv_begin, cells.data(), list_.tile_kv);
  return cells;
}

}  // namespace tessera::exports
