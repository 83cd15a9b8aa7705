#include "planner/stage_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tessera::planner {
namespace {

std::string Text(const Edge& edge) {
  if (edge.diagonal == 0) return fmt::format("{}", edge.offset);
  return edge.offset == 0 ? "q" : fmt::format("q{:+}", edge.offset);
}

std::string Tile(TileSize tile) { return fmt::format("{}x{}", tile.q, tile.kv); }

template <class Slots>
void DumpSlots(std::string& out, size_t row, size_t rows_per_mask, const Slots& slots) {
  fmt::format_to(std::back_inserter(out), "mask {} row {}:", row / rows_per_mask, row % rows_per_mask);
  for (const Slot& slot : slots) {
    if (slot.cleanup == 0) {
      fmt::format_to(std::back_inserter(out), " {}", slot.index);
    } else {
      fmt::format_to(std::back_inserter(out), " {}/{}", slot.index, slot.cleanup);
    }
  }
  out += '\n';
}

}  // namespace

std::string Describe(const Resolved& resolved) {
  size_t slabs = 0;
  for (const ResolvedMask& mask : resolved.masks) slabs += mask.runs.slabs().size();
  return fmt::format(
      "{} (batch row, head) pairs share {} distinct masks, {} runs of rows in all; {} run-time conditions",
      resolved.mask_of.size(), resolved.masks.size(), slabs, resolved.conditions.size());
}

std::string Describe(const Classified& classified) {
  const int64_t rows = static_cast<int64_t>(classified.row_offsets.size()) - 1;
  const int64_t all = rows * classified.kv_tiles;
  return fmt::format("at {} tiles, {} of {} survive ({} full, {} partial)", Tile(classified.tile), classified.num_tiles,
                     all, classified.num_full, classified.num_tiles - classified.num_full);
}

std::string Describe(const CompactRows& rows) {
  return fmt::format("{} slots at {}, widest row {}; {} distinct cleanups so far", rows.slots.size(), Tile(rows.tile),
                     rows.widest, rows.num_cleanups);
}

std::string Describe(const CompactColumns& columns) {
  return fmt::format("the same {} pairs by key column, widest column {}", columns.slots.size(), columns.widest);
}

std::string Dump(const Resolved& resolved) {
  std::string out;
  for (size_t m = 0; m < resolved.masks.size(); ++m) {
    fmt::format_to(std::back_inserter(out), "mask {}: head class {}, facts of batch row {}\n", m,
                   resolved.masks[m].head_class, resolved.masks[m].batch_row);
    const RowSet& runs = resolved.masks[m].runs;
    for (const Slab& slab : runs.slabs()) {
      fmt::format_to(std::back_inserter(out), "  rows [{}, {}):", slab.q_begin, slab.q_end);
      for (const Interval& interval : runs.Intervals(slab)) {
        fmt::format_to(std::back_inserter(out), " [{}, {})", Text(interval.lo), Text(interval.hi));
      }
      out += '\n';
    }
  }
  return out;
}

std::string Dump(const Classified& classified) {
  std::string out = fmt::format("tile {}\n", Tile(classified.tile));
  for (size_t row = 0; row + 1 < classified.row_offsets.size(); ++row) {
    const auto rows_per_mask = static_cast<size_t>(classified.q_tiles);
    fmt::format_to(std::back_inserter(out), "mask {} row {}:", row / rows_per_mask, row % rows_per_mask);
    for (uint64_t i = classified.row_offsets[row]; i < classified.row_offsets[row + 1]; ++i) {
      const TileRun& run = classified.runs[i];
      fmt::format_to(std::back_inserter(out), " [{}, {}) {}", run.begin, run.end,
                     run.item_count == 0 ? "full" : fmt::format("partial/{}", run.item_count));
    }
    out += '\n';
  }
  return out;
}

std::string Dump(const CompactRows& rows) {
  std::string out = fmt::format("tile {}; column, or column/cleanup where partial\n", Tile(rows.tile));
  for (size_t row = 0; row + 1 < rows.row_offsets.size(); ++row) {
    const auto slots =
        std::span(rows.slots).subspan(rows.row_offsets[row], rows.row_offsets[row + 1] - rows.row_offsets[row]);
    DumpSlots(out, row, static_cast<size_t>(rows.q_tiles), slots);
  }
  return out;
}

std::string Dump(const CompactColumns& columns) {
  std::string out = "by key column; query tile, or query tile/cleanup where partial\n";
  for (size_t row = 0; row + 1 < columns.row_offsets.size(); ++row) {
    const auto slots = std::span(columns.slots)
                           .subspan(columns.row_offsets[row], columns.row_offsets[row + 1] - columns.row_offsets[row]);
    DumpSlots(out, row, static_cast<size_t>(columns.kv_tiles), slots);
  }
  return out;
}

}  // namespace tessera::planner

namespace tessera {

std::string Describe(const std::vector<Part>& parts) {
  uint64_t longest = 0;
  size_t split = 0;
  for (const Part& part : parts) {
    longest = std::max<uint64_t>(longest, part.slot_end - part.slot_begin);
    split += part.part_of_row == 1 ? 1 : 0;
  }
  return fmt::format("{} parts, longest {} slots, {} rows split", parts.size(), longest, split);
}

std::string Describe(const Plan& plan) {
  return fmt::format("{} bytes, fingerprint {}", plan.bytes().size(), ToHex(plan.view().fingerprint));
}

std::string Dump(const std::vector<Part>& parts) {
  std::string out;
  for (const Part& part : parts) {
    fmt::format_to(std::back_inserter(out), "row {} part {}: slots [{}, {})\n", part.row, part.part_of_row,
                   part.slot_begin, part.slot_end);
  }
  return out;
}

std::string Dump(const Plan& plan) { return Summary(plan.view()); }

}  // namespace tessera
