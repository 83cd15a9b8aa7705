// What a plan says about single pairs: the slow, plain reading that tests, `explain` and the reference lane use.
#include <algorithm>

#include "plan/count_tiles.h"
#include "plan/layout.h"
#include "plan/tile_cells.h"

namespace tessera {
namespace {

bool ConditionHolds(const Condition& condition, const TokenFacts& facts, int64_t q, int64_t k) {
  const auto same_document = [&] {
    return !facts.q_doc.empty() && !facts.kv_doc.empty() && facts.q_doc[q] >= 0 && facts.q_doc[q] == facts.kv_doc[k];
  };
  switch (condition.kind) {
    case ConditionKind::kDocuments:
      return same_document();
    case ConditionKind::kValid:
      return q < facts.q_valid && k < facts.kv_valid;
    case ConditionKind::kSinkDocument:
      return same_document() && facts.kv_rank[k] < condition.count;
    case ConditionKind::kBlocks:
      return false;  // picks are rows of bits: VerifyPlan lets no item ask for this
  }
  return false;
}

void Spread(std::span<const Segment> segments, int64_t len, std::vector<int32_t>& docs, std::vector<int32_t>* ranks) {
  if (segments.empty()) return;
  docs.assign(static_cast<size_t>(len), -1);
  if (ranks != nullptr) ranks->assign(static_cast<size_t>(len), 0);
  for (const Segment& segment : segments) {
    for (int32_t token = segment.begin; token < segment.end; ++token) {
      docs[token] = segment.doc;
      if (ranks != nullptr) (*ranks)[token] = segment.rank + token - segment.begin;
    }
  }
}

}  // namespace

TokenFacts SpreadTokenFacts(const PlanView& plan, int64_t batch_row) {
  TokenFacts facts;
  const auto of_row = [&](std::span<const uint64_t> offsets, std::span<const Segment> segments) {
    return segments.subspan(offsets[batch_row], offsets[batch_row + 1] - offsets[batch_row]);
  };
  Spread(of_row(plan.q_segment_offsets, plan.q_segments), plan.q_len, facts.q_doc, nullptr);
  Spread(of_row(plan.kv_segment_offsets, plan.kv_segments), plan.kv_len, facts.kv_doc, &facts.kv_rank);
  facts.q_valid = plan.q_valid[batch_row] < 0 ? plan.q_len : plan.q_valid[batch_row];
  facts.kv_valid = plan.kv_valid[batch_row] < 0 ? plan.kv_len : plan.kv_valid[batch_row];
  return facts;
}

bool TileAllows(const PlanView& plan, const Worklist& worklist, uint32_t cleanup, const TokenFacts& facts, int64_t q,
                int64_t k) {
  if (cleanup == 0) return true;
  const auto row = static_cast<int32_t>(q % worklist.tile_q);
  const auto column = static_cast<int32_t>(k % worklist.tile_kv);
  for (const CleanupItem& item : plan.Cleanup(cleanup)) {
    if (row < item.q_begin || row >= item.q_end) continue;
    if (column < std::max(item.kv_begin, row + item.diag_begin)) continue;
    if (column >= std::min(item.kv_end, row + item.diag_end)) continue;
    if (item.kind == ItemKind::kBits) {
      const uint64_t words_per_row = (worklist.tile_kv + uint64_t{63}) / 64;
      const uint64_t word = plan.bit_tile_offsets[item.bits] + row * words_per_row + column / 64;
      if ((plan.bit_words[word] >> (column % 64) & 1U) == 0) continue;
    }
    if (item.kind == ItemKind::kRows && !plan.HasRow(item, row)) continue;
    bool holds = true;
    for (size_t c = 0; c < plan.conditions.size() && holds; ++c) {
      if ((item.conditions >> c & 1U) != 0) holds = ConditionHolds(plan.conditions[c], facts, q, k);
    }
    if (holds) return true;
  }
  return false;
}

Result<std::vector<uint8_t>> ToDense(const PlanView& plan, Direction direction, int64_t batch_row, int64_t head) {
  if (batch_row < 0 || batch_row >= plan.batch || head < 0 || head >= plan.num_q_heads) {
    return Fail(ErrorCode::kBadArgument, "no such batch row or head in this plan");
  }
  if (plan.q_len * plan.kv_len > int64_t{1} << 30) {
    return Fail(ErrorCode::kTooLarge, "a dense mask of this plan would have more than 2^30 cells");
  }
  const Worklist& list = plan.Of(direction);
  const bool is_dkv = direction == Direction::kDkv;
  const TokenFacts facts = SpreadTokenFacts(plan, batch_row);
  const uint64_t mask = plan.mask_of[batch_row * plan.num_q_heads + head];
  std::vector<uint8_t> dense(static_cast<size_t>(plan.q_len * plan.kv_len), 0);
  for (uint64_t row = 0; row < list.rows_per_mask; ++row) {
    for (const Slot& slot : list.Row(mask * list.rows_per_mask + row)) {
      const int64_t q_begin = static_cast<int64_t>(is_dkv ? slot.index : row) * list.tile_q;
      const int64_t kv_begin = static_cast<int64_t>(is_dkv ? row : slot.index) * list.tile_kv;
      plan::FillTileCells(plan, list, slot.cleanup, facts, q_begin, kv_begin,
                          dense.data() + q_begin * plan.kv_len + kv_begin, plan.kv_len);
    }
  }
  return dense;
}

TileCounts plan::CountTilesOfRows(const PlanView& plan, Direction direction, int64_t first_row, int64_t num_rows) {
  const Worklist& list = plan.Of(direction);
  std::vector<TileCounts> per_mask(static_cast<size_t>(plan.num_masks));
  for (uint64_t row = 0; row + 1 < list.row_offsets.size(); ++row) {
    TileCounts& counts = per_mask[row / list.rows_per_mask];
    for (const Slot& slot : list.Row(row)) ++(slot.cleanup == 0 ? counts.full : counts.partial);
  }
  const int64_t q_tiles = (plan.q_len + list.tile_q - 1) / list.tile_q;
  const int64_t kv_tiles = (plan.kv_len + list.tile_kv - 1) / list.tile_kv;
  TileCounts total;
  for (const uint32_t mask : plan.mask_of.subspan(first_row * plan.num_q_heads, num_rows * plan.num_q_heads)) {
    total.partial += per_mask[mask].partial;
    total.full += per_mask[mask].full;
    total.empty += q_tiles * kv_tiles - per_mask[mask].partial - per_mask[mask].full;
  }
  return total;
}

TileCounts CountTiles(const PlanView& plan, Direction direction) {
  return plan::CountTilesOfRows(plan, direction, 0, plan.batch);
}

int64_t MetadataBytes(const PlanView& plan) {
  // Per row and slot: column, cleanup id and tile kind, each as narrow as the class's bounds allow.
  int64_t bytes = 0;
  for (const Direction direction : {Direction::kForward, Direction::kDkv}) {
    const Worklist& list = plan.Of(direction);
    const uint64_t columns = direction == Direction::kForward
                                 ? (static_cast<uint64_t>(plan.kv_len) + list.tile_kv - 1) / list.tile_kv
                                 : (static_cast<uint64_t>(plan.q_len) + list.tile_q - 1) / list.tile_q;
    const auto width_of = [](uint64_t max_value) { return max_value <= 127 ? 1 : max_value <= 32767 ? 2 : 4; };
    // In floating point, because a hostile plan's capacities can have a product beyond any integer.
    const double cells = static_cast<double>(plan.mask_capacity) * list.rows_per_mask * list.width_capacity;
    const double total = cells * (width_of(columns - 1) + width_of(static_cast<uint64_t>(plan.cleanup_capacity)) + 1);
    // One direction's operands are resident at a time.
    bytes = std::max(bytes, total < 0x1p62 ? static_cast<int64_t>(total) : int64_t{1} << 62);
  }
  return bytes;
}

bool FitsScalarMemory(const PlanView& plan, const Target& target) {
  return target.scalar_bytes == 0 || MetadataBytes(plan) <= target.scalar_bytes;
}

}  // namespace tessera
