#include "plan/tile_cells.h"

#include <algorithm>
#include <vector>

namespace tessera::plan {
namespace {

// A stretch of a tile's columns with one document and consecutive ranks in it.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t doc = -1;
  int32_t rank = 0;  // of the first token
};

std::vector<Stretch> StretchesOf(const TokenFacts& facts, int64_t kv_begin, int64_t kv_end) {
  if (facts.kv_doc.empty()) return {{0, kv_end - kv_begin, -1, 0}};
  std::vector<Stretch> stretches;
  for (int64_t k = kv_begin; k < kv_end; ++k) {
    const int32_t doc = facts.kv_doc[k];
    const int32_t rank = facts.kv_rank[k];
    const int64_t column = k - kv_begin;
    if (!stretches.empty()) {
      Stretch& last = stretches.back();
      if (last.doc == doc && last.rank + (column - last.begin) == rank) {
        last.end = column + 1;
        continue;
      }
    }
    stretches.push_back({column, column + 1, doc, rank});
  }
  return stretches;
}

// The columns of one stretch that a query may see under the conditions, cut out of [begin, end).
struct Columns {
  int64_t begin = 0;
  int64_t end = 0;
};

Columns Restrict(const PlanView& plan, const TokenFacts& facts, uint16_t conditions, int64_t q, int64_t kv_begin,
                 const Stretch& stretch, Columns columns) {
  columns.begin = std::max(columns.begin, stretch.begin);
  columns.end = std::min(columns.end, stretch.end);
  const bool same_document = !facts.q_doc.empty() && facts.q_doc[q] >= 0 && facts.q_doc[q] == stretch.doc;
  for (size_t c = 0; c < plan.conditions.size(); ++c) {
    if ((conditions >> c & 1U) == 0) continue;
    const Condition& condition = plan.conditions[c];
    switch (condition.kind) {
      case ConditionKind::kDocuments:
        if (!same_document) return {};
        break;
      case ConditionKind::kValid:
        if (q >= facts.q_valid) return {};
        columns.end = std::min(columns.end, facts.kv_valid - kv_begin);
        break;
      case ConditionKind::kSinkDocument:
        if (!same_document) return {};
        columns.end = std::min(columns.end, stretch.begin + condition.count - stretch.rank);
        break;
      case ConditionKind::kBlocks:
        return {};  // picks are rows of bits: VerifyPlan lets no item ask for this
    }
  }
  return columns;
}

}  // namespace

void FillTileCells(const PlanView& plan, const Worklist& worklist, uint32_t cleanup, const TokenFacts& facts,
                   int64_t q_begin, int64_t kv_begin, uint8_t* cells, int64_t row_stride) {
  const int64_t rows = std::min<int64_t>(worklist.tile_q, plan.q_len - q_begin);
  const int64_t kv_end = std::min<int64_t>(kv_begin + worklist.tile_kv, plan.kv_len);
  if (cleanup == 0) {
    for (int64_t r = 0; r < rows; ++r) std::fill_n(cells + r * row_stride, kv_end - kv_begin, uint8_t{1});
    return;
  }
  const std::vector<Stretch> anywhere{{0, kv_end - kv_begin, -1, 0}};
  std::vector<Stretch> stretches;
  const int64_t words_per_row = (int64_t{worklist.tile_kv} + 63) / 64;
  for (const CleanupItem& item : plan.Cleanup(cleanup)) {
    if (item.conditions != 0 && stretches.empty()) stretches = StretchesOf(facts, kv_begin, kv_end);
    for (int64_t r = item.q_begin; r < std::min<int64_t>(item.q_end, rows); ++r) {
      if (item.kind == ItemKind::kRows && !plan.HasRow(item, r)) continue;
      uint8_t* row = cells + r * row_stride;
      const Columns band{std::max<int64_t>(item.kv_begin, r + item.diag_begin),
                         std::min<int64_t>(item.kv_end, r + item.diag_end)};
      for (const Stretch& stretch : item.conditions == 0 ? anywhere : stretches) {
        const Columns seen = Restrict(plan, facts, item.conditions, q_begin + r, kv_begin, stretch, band);
        if (seen.begin >= seen.end) continue;
        if (item.kind != ItemKind::kBits) {
          std::fill(row + seen.begin, row + seen.end, uint8_t{1});
          continue;
        }
        const uint64_t* bits = plan.bit_words.data() + plan.bit_tile_offsets[item.bits] + r * words_per_row;
        for (int64_t c = seen.begin; c < seen.end; ++c) {
          if ((bits[c / 64] >> (c % 64) & 1U) != 0) row[c] = 1;
        }
      }
    }
  }
}

}  // namespace tessera::plan
