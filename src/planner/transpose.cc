// transpose: the surviving pairs by key column, for dK and dV. A slot's rank is its place in its query row: adding
// dQ contributions in rank order is deterministic whichever way columns are walked.
#include <algorithm>
#include <utility>

#include "planner/stages.h"

namespace tessera::planner {

CompactColumns Transpose(const CompactRows& rows, int64_t num_masks) {
  CompactColumns out;
  out.kv_tiles = rows.kv_tiles;
  const auto kv_tiles = static_cast<size_t>(rows.kv_tiles);
  const auto q_tiles = static_cast<size_t>(rows.q_tiles);
  out.row_offsets.assign(static_cast<size_t>(num_masks) * kv_tiles + 1, 0);
  out.slots.resize(rows.slots.size());
  out.ranks.resize(rows.slots.size());
  std::vector<uint64_t> next(kv_tiles);
  for (size_t mask = 0; mask < static_cast<size_t>(num_masks); ++mask) {
    uint64_t* offsets = out.row_offsets.data() + mask * kv_tiles;
    const uint64_t begin = rows.row_offsets[mask * q_tiles];
    const uint64_t end = rows.row_offsets[(mask + 1) * q_tiles];
    for (uint64_t i = begin; i < end; ++i) ++offsets[rows.slots[i].index + 1];
    for (size_t column = 0; column < kv_tiles; ++column) {
      next[column] = offsets[column];
      out.widest = std::max(out.widest, static_cast<int64_t>(offsets[column + 1]));  // still its own count
      offsets[column + 1] += offsets[column];
    }
    for (size_t row = 0; row < q_tiles; ++row) {
      const uint64_t row_begin = rows.row_offsets[mask * q_tiles + row];
      const uint64_t row_end = rows.row_offsets[mask * q_tiles + row + 1];
      for (uint64_t i = row_begin; i < row_end; ++i) {
        const uint64_t to = next[rows.slots[i].index]++;
        out.slots[to] = {static_cast<uint32_t>(row), rows.slots[i].cleanup};
        out.ranks[to] = static_cast<uint32_t>(i - row_begin);
      }
    }
  }
  return out;
}

Status VerifyTransposed(const CompactRows& rows, const CompactColumns& columns, int64_t num_masks) {
  const auto fail = [](std::string message) {
    return Fail(ErrorCode::kStageInvariant, std::move(message), "transpose");
  };
  if (columns.slots.size() != rows.slots.size()) return fail("the number of pairs changed");
  for (int64_t mask = 0; mask < num_masks; ++mask) {
    for (int64_t column = 0; column < rows.kv_tiles; ++column) {
      const auto at = static_cast<size_t>(mask * rows.kv_tiles + column);
      for (uint64_t i = columns.row_offsets[at]; i < columns.row_offsets[at + 1]; ++i) {
        const Slot& slot = columns.slots[i];
        if (i > columns.row_offsets[at] && columns.slots[i - 1].index >= slot.index) return fail("rows do not ascend");
        const auto row = static_cast<size_t>(mask * rows.q_tiles + slot.index);
        const uint64_t twin = rows.row_offsets[row] + columns.ranks[i];
        if (twin >= rows.row_offsets[row + 1] || rows.slots[twin].index != column ||
            rows.slots[twin].cleanup != slot.cleanup) {
          return fail("a pair is not in the forward rows");
        }
      }
    }
  }
  return {};
}

}  // namespace tessera::planner
