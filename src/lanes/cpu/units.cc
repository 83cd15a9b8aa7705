#include "lanes/cpu/units.h"

#include <algorithm>

namespace tessera::lanes::cpu {
namespace {

// Enough whole rows for 32 workers to take eight each.
constexpr int64_t kManyRows = 256;

}  // namespace

RowUnits MakeRowUnits(const PlanView& plan, const Worklist& list, uint32_t group) {
  std::vector<std::vector<uint32_t>> heads_of(static_cast<size_t>(plan.num_masks));
  for (uint32_t head = 0; head < plan.mask_of.size(); ++head) heads_of[plan.mask_of[head]].push_back(head);
  const bool may_split = static_cast<int64_t>(plan.mask_of.size()) * list.rows_per_mask < kManyRows;

  const size_t num_rows = list.row_offsets.size() - 1;
  std::vector<uint32_t> num_parts(num_rows, 0);
  for (const Part& part : list.parts) ++num_parts[part.row];

  RowUnits out;
  std::vector<int64_t> first_partial(num_rows, kWholeRow);
  for (const Part& part : list.parts) {
    const bool is_split = may_split && num_parts[part.row] > 1;
    if (!is_split && part.part_of_row != 0) continue;
    const std::vector<uint32_t>& heads = heads_of[part.row / list.rows_per_mask];
    const uint32_t row = part.row % list.rows_per_mask;
    if (is_split && first_partial[part.row] == kWholeRow) {
      first_partial[part.row] = out.num_partials;
      for (const uint32_t head : heads) {
        out.splits.push_back({row, head, out.num_partials, num_parts[part.row]});
        out.num_partials += num_parts[part.row];
      }
    }
    for (size_t i = 0; i < heads.size(); ++i) {
      RowUnit unit{row, heads[i], static_cast<uint32_t>(list.row_offsets[part.row]),
                   static_cast<uint32_t>(list.row_offsets[part.row + 1]), kWholeRow};
      if (is_split) {
        unit.slot_begin = part.slot_begin;
        unit.slot_end = part.slot_end;
        unit.partial = first_partial[part.row] + static_cast<int64_t>(i) * num_parts[part.row] + part.part_of_row;
      }
      out.units.push_back(unit);
    }
  }
  // Heads that share keys one after another, and neighbouring rows, so that keys which fit the second cache are read
  // into it once. The last heads keep the plan's order, longest first, so that all workers end together.
  const uint32_t last_group = plan.mask_of.empty() ? 0 : static_cast<uint32_t>(plan.mask_of.size() - 1) / group;
  std::stable_sort(out.units.begin(), out.units.end(), [&](const RowUnit& a, const RowUnit& b) {
    const uint32_t a_group = a.head / group;
    const uint32_t b_group = b.head / group;
    return a_group != b_group ? a_group < b_group : a_group != last_group && a.row > b.row;
  });
  return out;
}

}  // namespace tessera::lanes::cpu
