// The pairs that a mask's conditions leave, exactly: what the planner resolves a batch with, and what routing calls
// legal.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/mask_sets.h"
#include "plan/picks.h"
#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/plan.h"

namespace tessera::plan {

// As a plan names it.
Condition ToCondition(const MaskCondition& condition);

// Pairs of `set` that may be attended where all of `conditions` hold. The terms of a head class do not overlap.
struct ConditionalSet {
  uint16_t conditions = 0;  // bits over Resolved::conditions
  RowSet set;
};
// Splits a head class into terms that do not overlap: what a set of conditions adds to all smaller sets.
std::vector<ConditionalSet> SplitByConditions(const MaskSets& sets, const HeadClass& head_class);

// What one mask is made with: a batch row's facts, and the picks of one of its KV heads (null: not known).
struct MaskInputs {
  const BatchRow* row = nullptr;
  const QueryPicks* picks = nullptr;
  int64_t block_tokens = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
};
// Where one condition holds.
Result<RowSet> PairsWhere(const Condition& condition, const MaskInputs& inputs);
// Exactly the pairs that a head class lets attend, given the set of each condition.
RowSet PairsOf(const std::vector<ConditionalSet>& terms, const std::vector<RowSet>& holds);

// [batch * num_kv_heads]: the pairs that some query head of the group may attend if every block were picked.
Result<std::vector<RowSet>> LegalPairs(const Contract& contract, const MaskSets& sets,
                                       const std::vector<BatchRow>& rows);

}  // namespace tessera::plan
