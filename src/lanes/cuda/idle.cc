#include "lanes/cuda/idle.h"

#include <algorithm>
#include <limits>

namespace tessera::lanes::cuda {
namespace {

constexpr int64_t kMostCells = 255;

bool AsksForDocuments(const PlanView& plan, const CleanupItem& item) {
  for (size_t c = 0; c < plan.conditions.size(); ++c) {
    const ConditionKind kind = plan.conditions[c].kind;
    const bool is_of_documents = kind == ConditionKind::kDocuments || kind == ConditionKind::kSinkDocument;
    if (is_of_documents && (item.conditions >> c & 1U) != 0) return true;
  }
  return false;
}

}  // namespace

IdleCells::IdleCells(const PlanView& plan, Direction direction, std::span<const TokenSpan> tokens)
    : plan_(plan),
      list_(plan.Of(direction)),
      keys_are_rows_(direction == Direction::kDkv),
      row_cells_(static_cast<int32_t>(keys_are_rows_ ? list_.tile_kv : list_.tile_q) / kCellTokens),
      col_cells_(static_cast<int32_t>(keys_are_rows_ ? list_.tile_q : list_.tile_kv) / kCellTokens),
      rows_per_batch_(static_cast<int64_t>(list_.rows_per_mask) * row_cells_) {
  pairs_.resize(plan.NumCleanups(), 0xFF);
  documents_.resize(plan.NumCleanups(), 0);
  for (uint32_t id = 1; id < plan.NumCleanups(); ++id) {
    const std::span<const CleanupItem> items = plan.Cleanup(id);
    pairs_[id] = CellsWithPairs(items);
    documents_[id] =
        std::all_of(items.begin(), items.end(), [&](const CleanupItem& item) { return AsksForDocuments(plan, item); });
  }
  if (tokens.empty()) return;
  reach_.resize(static_cast<size_t>(plan.batch * rows_per_batch_));
  for (size_t cell = 0; cell < reach_.size(); ++cell) {
    Columns& reach = reach_[cell];
    for (const TokenSpan& token : tokens.subspan(cell * kCellTokens, kCellTokens)) {
      if (token.begin >= token.end) continue;
      if (reach.begin == reach.end) reach.begin = token.begin;
      reach.begin = std::min(reach.begin, token.begin);
      reach.end = token.next != 0 ? std::numeric_limits<int32_t>::max() : std::max(reach.end, token.end);
    }
  }
}

// Stored bits of pairs are not looked into; those of whole rows of queries are.
uint8_t IdleCells::CellsWithPairs(std::span<const CleanupItem> items) const {
  uint32_t found = 0;
  for (const CleanupItem& item : items) {
    for (int32_t r = 0; r < row_cells_; ++r) {
      for (int32_t c = 0; c < col_cells_; ++c) {
        const int32_t q = (keys_are_rows_ ? c : r) * kCellTokens;
        const int32_t kv = (keys_are_rows_ ? r : c) * kCellTokens;
        const int32_t q_begin = std::max(item.q_begin, q);
        const int32_t q_end = std::min(item.q_end, q + kCellTokens);
        const int32_t kv_begin = std::max(item.kv_begin, kv);
        const int32_t kv_end = std::min(item.kv_end, kv + kCellTokens);
        if (q_begin >= q_end || kv_begin >= kv_end) continue;
        // kv - q takes every value from the one corner to the other.
        if (kv_end - 1 - q_begin < item.diag_begin || kv_begin - (q_end - 1) >= item.diag_end) continue;
        if (item.kind == ItemKind::kRows &&
            plan_.bit_words[plan_.bit_tile_offsets[item.bits] + static_cast<size_t>(q / kCellTokens)] == 0) {
          continue;
        }
        found |= 1U << (r * col_cells_ + c);
      }
    }
  }
  return static_cast<uint8_t>(found);
}

bool IdleCells::IsIdle(int64_t batch, int64_t row, int64_t slot, int32_t row_cell, int32_t col_cell) const {
  const tessera::Slot& at = list_.slots[static_cast<size_t>(slot)];
  if (at.cleanup == 0) return false;
  if ((pairs_[at.cleanup] >> (row_cell * col_cells_ + col_cell) & 1U) == 0) return true;
  if (documents_[at.cleanup] == 0) return false;
  const Columns& reach = reach_[static_cast<size_t>(batch * rows_per_batch_ + row * row_cells_ + row_cell)];
  const int64_t begin = (int64_t{at.index} * col_cells_ + col_cell) * kCellTokens;
  return reach.end <= begin || begin + kCellTokens <= reach.begin;
}

Idle IdleCells::Of(int64_t batch, int64_t row, int64_t begin, int64_t end) const {
  Idle out{};
  if (row_cells_ != 2) return out;  // both warpgroups have the same rows
  const int64_t cells = (end - begin) * col_cells_;
  for (int32_t half = 0; half < 2; ++half) {
    const auto count = [&](int64_t most, const auto& cell_at) {
      int64_t idle = 0;
      while (idle < std::min(most, kMostCells)) {
        const int64_t cell = cell_at(idle);
        if (!IsIdle(batch, row, begin + cell / col_cells_, half, static_cast<int32_t>(cell % col_cells_))) break;
        ++idle;
      }
      return idle;
    };
    const int64_t lead = count(cells, [](int64_t i) { return i; });
    const int64_t trail = count(cells - lead, [&](int64_t i) { return cells - 1 - i; });
    out.lead[half] = static_cast<uint8_t>(lead);
    out.trail[half] = static_cast<uint8_t>(trail);
  }
  return out;
}

}  // namespace tessera::lanes::cuda
