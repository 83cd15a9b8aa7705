// Walks a run set one row of tiles at a time: which columns hold an allowed pair, and which are full.
//
// An interval's edges move at most one key per row and it is never empty, so over any rows it touches one unbroken
// range of columns; and a tile is full exactly when, in every one of its rows, a single interval spans it. So ranges
// and row counts suffice: no pair is ever looked at.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "contract/row_set.h"
#include "tessera/contract.h"

namespace tessera::plan {

struct ColumnRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t full_begin = 0;  // columns in here are spanned in all of `rows`
  uint32_t full_end = 0;
  uint32_t rows = 0;
};

// Division by the side of a tile, which is a power of two almost always and then costs a shift.
class TileDivider {
 public:
  explicit TileDivider(uint32_t side)
      : side_(side), shift_(std::has_single_bit(side) ? static_cast<int>(std::countr_zero(side)) : -1) {}
  uint32_t Floor(uint32_t value) const { return shift_ >= 0 ? value >> shift_ : value / side_; }
  uint32_t Ceil(uint32_t value) const { return Floor(value + side_ - 1); }

 private:
  uint32_t side_;
  int shift_;
};

class TileRows {
 public:
  TileRows(const RowSet& set, TileSize tile, int64_t q_len, int64_t kv_len)
      : set_(set),
        slabs_(set.slabs()),
        tile_q_(static_cast<uint32_t>(tile.q)),
        tile_kv_(static_cast<uint32_t>(tile.kv)),
        q_len_(static_cast<uint32_t>(q_len)),
        kv_len_(static_cast<uint32_t>(kv_len)),
        kv_tiles_(tile_kv_.Ceil(kv_len_)) {}

  // The ranges of the next row of tiles, sorted by their first column; they may overlap.
  std::span<const ColumnRange> Next() {
    const uint32_t row_begin = row_;
    const uint32_t row_end = std::min(row_begin + tile_q_, q_len_);
    row_ = row_end;
    num_rows_ = row_end - row_begin;
    ranges_.clear();
    while (slab_ < slabs_.size() && static_cast<uint32_t>(slabs_[slab_].q_end) <= row_begin) ++slab_;
    bool sorted = true;
    for (size_t i = slab_; i < slabs_.size() && static_cast<uint32_t>(slabs_[i].q_begin) < row_end; ++i) {
      const uint32_t begin = std::max(static_cast<uint32_t>(slabs_[i].q_begin), row_begin);
      const uint32_t end = std::min(static_cast<uint32_t>(slabs_[i].q_end), row_end);
      for (const Interval& interval : set_.Intervals(slabs_[i])) {
        const auto lo_first = static_cast<uint32_t>(interval.lo.At(begin));
        const auto lo_last = static_cast<uint32_t>(interval.lo.At(end - 1));
        const auto hi_first = static_cast<uint32_t>(interval.hi.At(begin));
        const auto hi_last = static_cast<uint32_t>(interval.hi.At(end - 1));
        ColumnRange range;
        range.begin = tile_kv_.Floor(lo_first);
        range.end = tile_kv_.Floor(hi_last - 1) + 1;
        range.full_begin = tile_kv_.Ceil(lo_last);
        range.full_end = hi_first == kv_len_ ? kv_tiles_ : tile_kv_.Floor(hi_first);
        range.full_end = std::max(range.full_end, range.full_begin);
        range.rows = end - begin;
        sorted = sorted && (ranges_.empty() || ranges_.back().begin <= range.begin);
        ranges_.push_back(range);
      }
    }
    if (!sorted) {
      std::sort(ranges_.begin(), ranges_.end(),
                [](const ColumnRange& a, const ColumnRange& b) { return a.begin < b.begin; });
    }
    return ranges_;
  }

  // Rows of the tile row Next() last gave: fewer than a tile at the ragged end.
  uint32_t num_rows() const { return num_rows_; }

 private:
  const RowSet& set_;
  std::span<const Slab> slabs_;
  uint32_t tile_q_;
  TileDivider tile_kv_;
  uint32_t q_len_, kv_len_, kv_tiles_;
  uint32_t row_ = 0;
  uint32_t num_rows_ = 0;
  size_t slab_ = 0;
  std::vector<ColumnRange> ranges_;
};

}  // namespace tessera::plan
