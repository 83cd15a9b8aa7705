// See tile_mask.h. Says the same as TileAllows (tessera/plan.h), in stretches of keys instead of pairs.
#include "lanes/cpu/tile_mask.h"

#include <algorithm>

namespace tessera::lanes::cpu {
namespace {

struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
};

std::span<const Segment> RowOf(std::span<const uint64_t> offsets, std::span<const Segment> segments, int64_t row) {
  return segments.subspan(offsets[row], offsets[row + 1] - offsets[row]);
}

// The first segment that ends after `token`.
const Segment* FirstAfter(std::span<const Segment> segments, int64_t token) {
  return std::upper_bound(segments.data(), segments.data() + segments.size(), token,
                          [](int64_t at, const Segment& segment) { return at < segment.end; });
}

// Calls `visit(item, stretch)` for every stretch of keys, tile-relative and inside the lengths, that an item lets
// queries of a panel see, row by row.
class Rows {
 public:
  explicit Rows(const TileAt& tile)
      : tile_(tile),
        items_(tile.plan->Cleanup(tile.cleanup)),
        num_keys_(std::min<int64_t>(tile.worklist->tile_kv, tile.plan->kv_len - tile.kv_begin)),
        first_kv_(FirstAfter(tile.facts->kv_segments, tile.kv_begin)) {}

  int64_t num_keys() const { return num_keys_; }

  template <class Visit>
  void ForEach(int64_t row, const Visit& visit) const {
    for (const CleanupItem& item : items_) {
      if (row < item.q_begin || row >= item.q_end) continue;
      if (item.kind == ItemKind::kRows && !tile_.plan->HasRow(item, row)) continue;
      Stretch band{std::max<int64_t>({0, item.kv_begin, row + item.diag_begin}),
                   std::min<int64_t>({num_keys_, item.kv_end, row + item.diag_end})};
      const Needs needs = NeedsOf(item);
      if (needs.valid) {
        if (tile_.q_begin + row >= tile_.facts->q_valid) continue;
        band.end = std::min(band.end, tile_.facts->kv_valid - tile_.kv_begin);
      }
      if (band.begin >= band.end || needs.never) continue;
      if (!needs.document) {
        visit(item, band);
        continue;
      }
      ForEachOfDocument(row, item, needs, band, visit);
    }
  }

 private:
  struct Needs {
    bool document = false;
    bool valid = false;
    bool never = false;
    int64_t sink = INT32_MAX;  // leading tokens of the document
  };
  Needs NeedsOf(const CleanupItem& item) const {
    Needs needs;
    const std::span<const Condition> conditions = tile_.plan->conditions;
    for (size_t c = 0; c < conditions.size(); ++c) {
      if ((item.conditions >> c & 1U) == 0) continue;
      switch (conditions[c].kind) {
        case ConditionKind::kDocuments:
          needs.document = true;
          break;
        case ConditionKind::kSinkDocument:
          needs.document = true;
          needs.sink = std::min<int64_t>(needs.sink, conditions[c].count);
          break;
        case ConditionKind::kValid:
          needs.valid = true;
          break;
        case ConditionKind::kBlocks:
          needs.never = true;  // picks are rows of bits: VerifyPlan lets no item ask for this
          break;
      }
    }
    return needs;
  }

  template <class Visit>
  void ForEachOfDocument(int64_t row, const CleanupItem& item, const Needs& needs, Stretch band,
                         const Visit& visit) const {
    const std::span<const Segment> queries = tile_.facts->q_segments;
    const Segment* query = FirstAfter(queries, tile_.q_begin + row);
    if (query == queries.data() + queries.size() || query->begin > tile_.q_begin + row || query->doc < 0) return;
    const std::span<const Segment> keys = tile_.facts->kv_segments;
    for (const Segment* at = first_kv_; at != keys.data() + keys.size(); ++at) {
      if (at->begin >= tile_.kv_begin + band.end) break;
      if (at->doc != query->doc) continue;
      const Stretch stretch{
          std::max(band.begin, at->begin - tile_.kv_begin),
          std::min({band.end, at->end - tile_.kv_begin, at->begin - tile_.kv_begin + needs.sink - at->rank})};
      if (stretch.begin < stretch.end) visit(item, stretch);
    }
  }

  const TileAt& tile_;
  std::span<const CleanupItem> items_;
  int64_t num_keys_;
  const Segment* first_kv_;
};

void FillStretches(const PanelRows& rows, const PanelMaskMemory& memory, int64_t begin, int64_t end) {
  std::fill_n(memory.begin, rows.panel, static_cast<int32_t>(begin));
  std::fill_n(memory.end, rows.panel, static_cast<int32_t>(end));
}

// One stretch per query, or false when a query needs more than that.
bool TryStretches(const Rows& tile, const PanelRows& rows, const PanelMaskMemory& memory) {
  bool fits = true;
  for (int64_t lane = 0; lane < rows.num_rows; ++lane) {
    Stretch one;
    tile.ForEach(rows.row_begin + lane, [&](const CleanupItem& item, const Stretch& stretch) {
      if (item.kind == ItemKind::kBits) {
        fits = false;
      } else if (one.begin == one.end) {
        one = stretch;
      } else if (stretch.begin <= one.end && one.begin <= stretch.end) {
        one = {std::min(one.begin, stretch.begin), std::max(one.end, stretch.end)};
      } else {
        fits = false;
      }
    });
    if (!fits) return false;
    memory.begin[lane] = static_cast<int32_t>(one.begin);
    memory.end[lane] = static_cast<int32_t>(one.end);
  }
  for (int64_t lane = rows.num_rows; lane < rows.panel; ++lane) {
    memory.begin[lane] = memory.begin[0];
    memory.end[lane] = memory.end[0];
  }
  return true;
}

void FillCells(const TileAt& at, const Rows& tile, const PanelRows& rows, uint8_t* cells) {
  const int64_t words_per_row = (int64_t{at.worklist->tile_kv} + 63) / 64;
  for (int64_t lane = 0; lane < rows.num_rows; ++lane) {
    const int64_t row = rows.row_begin + lane;
    tile.ForEach(row, [&](const CleanupItem& item, const Stretch& stretch) {
      const bool is_band = item.kind != ItemKind::kBits;
      const uint64_t* bits =
          is_band ? nullptr : at.plan->bit_words.data() + at.plan->bit_tile_offsets[item.bits] + row * words_per_row;
      for (int64_t key = stretch.begin; key < stretch.end; ++key) {
        if (is_band || (bits[key / 64] >> (key % 64) & 1U) != 0) cells[key * rows.panel + lane] = 1;
      }
    });
  }
}

PanelMask FromStretches(const PanelRows& rows, const PanelMaskMemory& memory) {
  PanelMask mask{.begin = INT32_MAX, .inner_end = INT32_MAX, .row_begin = memory.begin, .row_end = memory.end};
  for (int64_t lane = 0; lane < rows.num_rows; ++lane) {
    mask.inner_begin = std::max(mask.inner_begin, memory.begin[lane]);
    mask.inner_end = std::min(mask.inner_end, memory.end[lane]);
    if (memory.begin[lane] >= memory.end[lane]) continue;
    mask.begin = std::min(mask.begin, memory.begin[lane]);
    mask.end = std::max(mask.end, memory.end[lane]);
    if (memory.seen != nullptr) memory.seen[lane] = 1;
  }
  mask.begin = std::min(mask.begin, mask.end);
  if (mask.inner_begin >= mask.inner_end) mask.inner_begin = mask.inner_end = mask.begin;
  return mask;
}

PanelMask FromCells(const PanelRows& rows, const PanelMaskMemory& memory, int64_t num_keys) {
  PanelMask mask{.row_begin = memory.begin, .row_end = memory.end, .cells = memory.cells};
  for (int64_t key = 0; key < num_keys; ++key) {
    bool any = false;
    for (int64_t lane = 0; lane < rows.num_rows; ++lane) {
      if (memory.cells[key * rows.panel + lane] == 0) continue;
      any = true;
      if (memory.seen != nullptr) memory.seen[lane] = 1;
    }
    if (!any) continue;
    if (mask.end == 0) mask.begin = static_cast<int32_t>(key);
    mask.end = static_cast<int32_t>(key) + 1;
  }
  mask.inner_begin = mask.inner_end = mask.begin;
  return mask;
}

}  // namespace

RowFacts FactsOf(const PlanView& plan, int64_t batch_row) {
  return {.q_segments = RowOf(plan.q_segment_offsets, plan.q_segments, batch_row),
          .kv_segments = RowOf(plan.kv_segment_offsets, plan.kv_segments, batch_row),
          .q_valid = plan.q_valid[batch_row] < 0 ? plan.q_len : plan.q_valid[batch_row],
          .kv_valid = plan.kv_valid[batch_row] < 0 ? plan.kv_len : plan.kv_valid[batch_row]};
}

PanelMask MaskPanel(const TileAt& tile, const PanelRows& rows, const PanelMaskMemory& memory) {
  const Rows of_tile(tile);
  if (tile.cleanup == 0) {
    FillStretches(rows, memory, 0, of_tile.num_keys());
    return FromStretches(rows, memory);
  }
  if (TryStretches(of_tile, rows, memory)) return FromStretches(rows, memory);
  // Steps read whole groups of keys, so the cells go on past the last key.
  const int64_t num_cells = (of_tile.num_keys() + kCellSlack) * rows.panel;
  std::fill_n(memory.cells, num_cells, uint8_t{0});
  FillStretches(rows, memory, 0, 0);
  FillCells(tile, of_tile, rows, memory.cells);
  return FromCells(rows, memory, of_tile.num_keys());
}

TileMasks::TileMasks(Scratch& scratch, int64_t num_panels, int64_t panel, int64_t most_keys)
    : panel_(panel),
      cells_per_panel_((most_keys + kCellSlack) * panel),
      masks_(scratch.Take<PanelMask>(num_panels)),
      begin_(scratch.Take<int32_t>(num_panels * panel)),
      end_(scratch.Take<int32_t>(num_panels * panel)),
      cells_(scratch.Take<uint8_t>(num_panels * cells_per_panel_)) {}

void TileMasks::Fill(const TileAt& tile, int64_t num_rows, uint8_t* seen) {
  for (int64_t p = 0; p * panel_ < num_rows; ++p) {
    const int64_t lane = p * panel_;
    masks_[p] = MaskPanel(tile, {lane, std::min(panel_, num_rows - lane), panel_},
                          {.begin = begin_ + lane,
                           .end = end_ + lane,
                           .cells = cells_ + p * cells_per_panel_,
                           .seen = seen == nullptr ? nullptr : seen + lane});
  }
}

}  // namespace tessera::lanes::cpu
