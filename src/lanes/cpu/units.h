// The forward's units of work, in the order workers take them: the plan's parts, for one group of heads after another,
// from the last row to the first; those of the last group longest first.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/plan.h"

namespace tessera::lanes::cpu {

inline constexpr int64_t kWholeRow = -1;

struct RowUnit {
  uint32_t row = 0;   // query tile
  uint32_t head = 0;  // batch row * num_q_heads + query head
  uint32_t slot_begin = 0;
  uint32_t slot_end = 0;
  int64_t partial = kWholeRow;  // where the results of a part wait to be combined
};

// A row whose parts are units of their own; their partials lie in the parts' order.
struct SplitRow {
  uint32_t row = 0;
  uint32_t head = 0;
  int64_t first_partial = 0;
  int64_t num_parts = 0;
};

struct RowUnits {
  std::vector<RowUnit> units;
  std::vector<SplitRow> splits;
  int64_t num_partials = 0;
};

// Rows are split only where the problem has few of them: with many, whole rows keep every worker busy and nothing has
// to be combined. The plan and the contract decide that, never the number of threads, because splitting changes bits.
// `group` is the number of query heads that share a key head.
RowUnits MakeRowUnits(const PlanView& plan, const Worklist& list, uint32_t group);

}  // namespace tessera::lanes::cpu
