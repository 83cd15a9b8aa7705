// See clipped_items.h.
#include "shard/clipped_items.h"

#include <algorithm>

namespace tessera::shard {

using stablehlo::ItemColumn;

int64_t ClippedCapacity(const PlanView& plan) {
  const auto items = static_cast<int64_t>(plan.items.size()) + 1;
  bool has_ends = false;
  for (const Worklist& list : plan.worklists) {
    has_ends = has_ends || plan.q_len % list.tile_q != 0 || plan.kv_len % list.tile_kv != 0;
  }
  for (const Condition& condition : plan.conditions) has_ends = has_ends || condition.kind == ConditionKind::kValid;
  // Over the end of queries, of keys or of both, in each batch row and with the tiles of each direction.
  constexpr int64_t kEnds = 3;
  return has_ends ? items * (1 + kEnds * plan.batch * static_cast<int64_t>(kNumDirections)) : items;
}

ClippedItems::ClippedItems(const PlanView& plan, std::vector<int32_t> rows)
    : plan_(plan), rows_(std::move(rows)), used_(static_cast<int64_t>(plan.items.size()) + 1) {
  needs_valid_.resize(static_cast<size_t>(used_));
  for (int64_t row = 0; row < used_; ++row) {
    int32_t& conditions = At(row, ItemColumn::kConditions);
    needs_valid_[static_cast<size_t>(row)] = (conditions & stablehlo::kNeedsValid) != 0 ? 1 : 0;
    conditions &= ~stablehlo::kNeedsValid;
  }
}

std::pair<int32_t, int32_t> ClippedItems::Of(const Tile& tile, uint32_t cleanup) {
  const auto b = static_cast<size_t>(tile.batch_row);
  const auto valid = [&](std::span<const int32_t> counts, int64_t len) {
    return b < counts.size() && counts[b] >= 0 ? std::min<int64_t>(counts[b], len) : len;
  };
  const auto within = [](int64_t end, int64_t begin, int64_t tokens) {
    return std::clamp<int64_t>(end - begin, 0, tokens);
  };
  const int64_t q_len = within(plan_.q_len, tile.q_begin, tile.q_tokens);
  const int64_t kv_len = within(plan_.kv_len, tile.kv_begin, tile.kv_tokens);
  const int64_t q_valid = within(valid(plan_.q_valid, plan_.q_len), tile.q_begin, tile.q_tokens);
  const int64_t kv_valid = within(valid(plan_.kv_valid, plan_.kv_len), tile.kv_begin, tile.kv_tokens);
  const bool is_full = cleanup == 0;
  const auto whole = static_cast<int32_t>(plan_.items.size());
  const int32_t begin = is_full ? whole : static_cast<int32_t>(plan_.cleanup_offsets[cleanup]);
  const int32_t end = is_full ? whole + 1 : static_cast<int32_t>(plan_.cleanup_offsets[cleanup + 1]);
  bool is_inside = true;
  for (int32_t row = begin; row < end; ++row) {
    const bool needs = needs_valid_[static_cast<size_t>(row)] != 0;
    is_inside = is_inside &&
                std::min<int64_t>(At(row, ItemColumn::kQEnd), tile.q_tokens) <= (needs ? q_valid : q_len) &&
                std::min<int64_t>(At(row, ItemColumn::kKvEnd), tile.kv_tokens) <= (needs ? kv_valid : kv_len);
  }
  if (is_inside) return is_full ? std::pair{0, 0} : std::pair{begin, end};
  const auto [found, is_new] = made_.emplace(std::tuple{cleanup, q_len, kv_len, q_valid, kv_valid}, std::pair{0, 0});
  if (!is_new) return found->second;
  if ((used_ + end - begin) * stablehlo::kItemColumns > static_cast<int64_t>(rows_.size())) {
    fits_ = false;
    return {begin, end};
  }
  const auto first = static_cast<int32_t>(used_);
  for (int32_t row = begin; row < end; ++row, ++used_) {
    std::copy_n(rows_.begin() + row * stablehlo::kItemColumns, stablehlo::kItemColumns,
                rows_.begin() + used_ * stablehlo::kItemColumns);
    const bool needs = needs_valid_[static_cast<size_t>(row)] != 0;
    At(used_, ItemColumn::kQEnd) =
        static_cast<int32_t>(std::min<int64_t>(At(used_, ItemColumn::kQEnd), needs ? q_valid : q_len));
    At(used_, ItemColumn::kKvEnd) =
        static_cast<int32_t>(std::min<int64_t>(At(used_, ItemColumn::kKvEnd), needs ? kv_valid : kv_len));
  }
  found->second = {first, static_cast<int32_t>(used_)};
  return found->second;
}

}  // namespace tessera::shard
