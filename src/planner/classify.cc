// classify: every surviving tile exactly one of partial or full, exactly as a look at every pair would say; each
// partial tile names what it still has to test.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "contract/limits.h"
#include "plan/layout.h"
#include "plan/tile_rows.h"
#include "planner/cleanup.h"
#include "planner/stages.h"

namespace tessera::planner {
namespace {

using plan::ColumnRange;
using plan::TileRows;

// Builds one row of tile runs; neighbouring tiles with equal work join.
class RowWriter {
 public:
  RowWriter(Classified& out, CleanupWriter& cleanups) : out_(out), cleanups_(cleanups) {}

  void Begin(uint32_t tile_row) {
    tile_row_ = tile_row;
    first_run_ = out_.runs.size();
    has_begun_cleanups_ = false;
  }

  void Full(uint32_t begin, uint32_t end) {
    if (begin >= end) return;
    out_.num_tiles += end - begin;
    out_.num_full += end - begin;
    if (CanExtend(begin) && out_.runs.back().item_count == 0) {
      out_.runs.back().end = end;
    } else {
      out_.runs.push_back({begin, end, 0, 0});
    }
  }

  void Partial(uint32_t begin, uint32_t end) {
    for (uint32_t column = begin; column < end; ++column) Partial(column);
  }

  void Partial(uint32_t column) {
    if (!has_begun_cleanups_) {
      cleanups_.BeginRow(tile_row_);
      has_begun_cleanups_ = true;
    }
    ++out_.num_tiles;
    const Items items = ItemsOf(column);
    if (CanExtend(column) && IsSame(out_.runs.back(), items)) {
      ++out_.runs.back().end;
      return;
    }
    out_.runs.push_back({column, column + 1, items.begin, items.count});
  }

 private:
  bool CanExtend(uint32_t column) const { return out_.runs.size() > first_run_ && out_.runs.back().end == column; }

  struct Items {
    uint32_t begin = 0;
    uint32_t count = 0;
  };

  // What was written for a tile with this key, and else for this tile.
  struct Written {
    CleanupWriter::Key key;
    Items items;
  };
  Items ItemsOf(uint32_t column) {
    const CleanupWriter::Key key = cleanups_.KeyOf(column);
    Written& written =
        written_[(static_cast<uint64_t>(key.distance) * 4 + (key.truths & 3) + (key.truths >> 16 & 3) * 2) %
                 written_.size()];
    if (key.pieces != 0 && written.key == key) return written.items;
    const size_t first = out_.items.size();
    cleanups_.Write(column, {&out_.items, &out_.bit_words, &out_.row_words});
    const size_t count = out_.items.size() - first;
    const Items items{Share(first, count), static_cast<uint32_t>(count)};
    if (key.pieces != 0) written = {key, items};
    return items;
  }

  // Equal items may lie in two places.
  bool IsSame(const TileRun& run, const Items& items) const {
    if (run.item_count != items.count) return false;
    const std::span<const CleanupItem> all = out_.items;
    return run.item_begin == items.begin ||
           std::ranges::equal(all.subspan(run.item_begin, items.count), all.subspan(items.begin, items.count));
  }

  // Most tiles need what a tile just before them needed: items that were written lately are found again, and those from
  // `first` on dropped. Equal items always share a place, so the last ones written are always found.
  uint32_t Share(size_t first, size_t count) {
    const std::span<const CleanupItem> all = out_.items;
    const std::span<const CleanupItem> items = all.subspan(first);
    Items& known = known_[PlaceOf(items[0])];
    if (known.count == count && std::ranges::equal(all.subspan(known.begin, count), items)) {
      out_.items.resize(first);
      return known.begin;
    }
    known = {static_cast<uint32_t>(first), static_cast<uint32_t>(count)};
    return known.begin;
  }

  // Field by field, as they were just written: wider loads would wait for all of them.
  static size_t PlaceOf(const CleanupItem& item) {
    const auto sum = static_cast<uint32_t>(item.q_begin) + 3 * static_cast<uint32_t>(item.q_end) +
                     5 * static_cast<uint32_t>(item.kv_begin) + 7 * static_cast<uint32_t>(item.kv_end) +
                     11 * static_cast<uint32_t>(item.diag_begin) + 13 * static_cast<uint32_t>(item.diag_end) +
                     17 * item.conditions;
    return (sum * 0x9e3779b9U) >> 26;
  }

  Classified& out_;
  CleanupWriter& cleanups_;
  std::array<Items, 64> known_{};
  std::array<Written, 256> written_{};
  size_t first_run_ = 0;
  uint32_t tile_row_ = 0;
  bool has_begun_cleanups_ = false;
};

// Several stretches meet in this row of tiles: count, per column, the rows that are spanned.
void WriteMixedRow(std::span<const ColumnRange> ranges, uint32_t num_rows, std::vector<uint32_t>& full_rows,
                   RowWriter& writer) {
  for (const ColumnRange& range : ranges) {
    for (uint32_t column = range.full_begin; column < range.full_end; ++column) full_rows[column] += range.rows;
  }
  uint32_t column = 0;
  for (const ColumnRange& range : ranges) {
    for (column = std::max(column, range.begin); column < range.end; ++column) {
      if (full_rows[column] == num_rows) {
        writer.Full(column, column + 1);
      } else {
        writer.Partial(column);
      }
      full_rows[column] = 0;
    }
  }
}

}  // namespace

Result<Classified> Classify(const Resolved& resolved, TileSize tile) {
  if (tile.q < 1 || tile.kv < 1 || tile.q > kMaxTile || tile.kv > kMaxTile) {
    return Fail(ErrorCode::kTileInvalid,
                fmt::format("tile {}x{}: each side must be between 1 and {}", tile.q, tile.kv, kMaxTile), "classify");
  }
  Classified out;
  out.tile = tile;
  out.q_tiles = (resolved.q_len + tile.q - 1) / tile.q;
  out.kv_tiles = (resolved.kv_len + tile.kv - 1) / tile.kv;
  const auto num_rows = static_cast<uint64_t>(out.q_tiles) * resolved.masks.size();
  if (std::max(num_rows, static_cast<uint64_t>(out.kv_tiles) * resolved.masks.size()) > plan::kMaxRows) {
    return Fail(ErrorCode::kPlanTooLarge,
                fmt::format("{} masks of {} x {} tiles: a plan holds at most {} rows; use a larger tile",
                            resolved.masks.size(), out.q_tiles, out.kv_tiles, plan::kMaxRows),
                "classify");
  }
  out.row_offsets.reserve(num_rows + 1);
  out.row_offsets.push_back(0);
  // A few runs for each row of tiles is what windows and documents leave; more grow from there.
  constexpr uint64_t kReserved = 1 << 16;
  out.runs.reserve(std::min(4 * num_rows, kReserved));
  std::vector<uint32_t> full_rows(static_cast<size_t>(out.kv_tiles), 0);
  for (const ResolvedMask& mask : resolved.masks) {
    TileRows rows(mask.runs, tile, resolved.q_len, resolved.kv_len);
    CleanupWriter cleanups(resolved, mask, tile);
    RowWriter writer(out, cleanups);
    for (int64_t tile_row = 0; tile_row < out.q_tiles; ++tile_row) {
      const std::span<const ColumnRange> ranges = rows.Next();
      writer.Begin(static_cast<uint32_t>(tile_row));
      if (ranges.size() == 1 && ranges[0].rows == rows.num_rows()) {
        const ColumnRange& range = ranges[0];
        writer.Partial(range.begin, std::min(range.full_begin, range.end));
        writer.Full(range.full_begin, range.full_end);
        writer.Partial(std::max(range.full_end, range.begin), range.end);
      } else {
        WriteMixedRow(ranges, rows.num_rows(), full_rows, writer);
      }
      out.row_offsets.push_back(out.runs.size());
      if (static_cast<uint64_t>(out.num_tiles) > plan::kMaxSlots) {
        return Fail(ErrorCode::kPlanTooLarge,
                    fmt::format("more than {} tiles survive; use a larger tile", plan::kMaxSlots), "classify");
      }
    }
  }
  return out;
}

Status VerifyClassified(const Resolved& resolved, const Classified& classified) {
  if (resolved.q_len * resolved.kv_len > int64_t{1} << 24) return {};  // pair by pair is for small lengths
  const TileSize tile = classified.tile;
  for (size_t m = 0; m < resolved.masks.size(); ++m) {
    for (int64_t row = 0; row < classified.q_tiles; ++row) {
      const size_t at = m * static_cast<size_t>(classified.q_tiles) + static_cast<size_t>(row);
      uint64_t run = classified.row_offsets[at];
      for (int64_t column = 0; column < classified.kv_tiles; ++column) {
        int64_t allowed = 0;
        int64_t pairs = 0;
        for (int64_t q = row * tile.q; q < std::min((row + 1) * tile.q, resolved.q_len); ++q) {
          for (int64_t k = column * tile.kv; k < std::min((column + 1) * tile.kv, resolved.kv_len); ++k, ++pairs) {
            allowed += resolved.masks[m].runs.Contains(q, k) ? 1 : 0;
          }
        }
        while (run < classified.row_offsets[at + 1] && classified.runs[run].end <= column) ++run;
        const bool listed = run < classified.row_offsets[at + 1] && classified.runs[run].begin <= column;
        const bool full = listed && classified.runs[run].item_count == 0;
        if (listed != (allowed > 0) || full != (allowed == pairs)) {
          return Fail(
              ErrorCode::kStageInvariant,
              fmt::format("mask {} tile ({}, {}) holds {} of {} pairs but is {}", m, row, column, allowed, pairs,
                          full     ? "full"
                          : listed ? "partial"
                                   : "empty"),
              "classify");
        }
      }
    }
  }
  return {};
}

}  // namespace tessera::planner
