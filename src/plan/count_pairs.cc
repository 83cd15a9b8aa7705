#include "plan/count_pairs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "plan/tile_cells.h"

namespace tessera {
namespace {

int64_t PairsOfMask(const PlanView& plan, int64_t mask, int64_t batch_row) {
  const Worklist& list = plan.Of(Direction::kForward);
  const TokenFacts facts = SpreadTokenFacts(plan, batch_row);
  // A tile may be far larger than what there is.
  const int64_t most_keys = std::min<int64_t>(list.tile_kv, plan.kv_len);
  std::vector<uint8_t> cells(static_cast<size_t>(std::min<int64_t>(list.tile_q, plan.q_len) * most_keys));
  int64_t pairs = 0;
  for (int64_t row = 0; row < list.rows_per_mask; ++row) {
    const int64_t q_begin = row * list.tile_q;
    const int64_t num_rows = std::min<int64_t>(list.tile_q, plan.q_len - q_begin);
    for (const Slot& slot : list.Row(static_cast<size_t>(mask * list.rows_per_mask + row))) {
      const int64_t kv_begin = static_cast<int64_t>(slot.index) * list.tile_kv;
      if (slot.cleanup == 0) {
        pairs += num_rows * std::min<int64_t>(list.tile_kv, plan.kv_len - kv_begin);
        continue;
      }
      std::fill(cells.begin(), cells.end(), uint8_t{0});
      plan::FillTileCells(plan, list, slot.cleanup, facts, q_begin, kv_begin, cells.data(), most_keys);
      pairs += std::count(cells.begin(), cells.end(), uint8_t{1});
    }
  }
  return pairs;
}

}  // namespace

int64_t CountPairs(const PlanView& plan) {
  std::map<uint32_t, int64_t> of_mask;  // a mask belongs to batch rows with equal facts
  int64_t pairs = 0;
  for (int64_t pair = 0; pair < plan.batch * plan.num_q_heads; ++pair) {
    const uint32_t mask = plan.mask_of[static_cast<size_t>(pair)];
    const auto [found, is_new] = of_mask.try_emplace(mask);
    if (is_new) found->second = PairsOfMask(plan, mask, pair / plan.num_q_heads);
    pairs += found->second;
  }
  return pairs;
}

}  // namespace tessera
