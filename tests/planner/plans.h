// Short ways to write contracts and plans in planner tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/own_terms.h"
#include "tessera/planner.h"

namespace tessera {

inline Contract MakeContract(const std::string& expr, int64_t q_len, int64_t kv_len, int64_t batch = 1) {
  Result<Contract> contract =
      ParseContract("version = 1\n[shape]\nbatch = " + std::to_string(batch) + "\nq_len = " + std::to_string(q_len) +
                        "\nkv_len = " + std::to_string(kv_len) + "\ndim_qk = 16\n[mask]\nexpr = \"" + expr + "\"\n",
                    ".", &TestTerms());
  EXPECT_TRUE(contract.has_value()) << ToText(contract.error());
  return *contract;
}

// One row of documents with these lengths, numbered from 0.
inline Batch MakeDocuments(const std::vector<std::vector<int64_t>>& rows) {
  IdRows ids;
  ids.rows = static_cast<int64_t>(rows.size());
  for (const std::vector<int64_t>& lengths : rows) {
    int32_t doc = 0;
    for (const int64_t length : lengths) ids.values.insert(ids.values.end(), static_cast<size_t>(length), doc++);
  }
  ids.len = static_cast<int64_t>(ids.values.size()) / ids.rows;
  Batch batch;
  batch.doc_ids = std::move(ids);
  return batch;
}

// A machine whose facts are written down, so that plans are the same wherever the test runs.
inline Target TestTarget(int64_t workers = 4) {
  Target target;
  target.name = "test";
  target.workers = workers;
  return target;
}

inline PlanResult MakeGood(const Contract& contract, const Batch& batch = {}, PlanOptions options = {}) {
  options.verify_stages = true;
  Result<PlanResult> made = MakePlan(contract, batch, TestTarget(), options);
  EXPECT_TRUE(made.has_value()) << ToText(made.error());
  return std::move(*made);
}

// 0 empty, 1 partial, 2 full: one digit per tile, one string per query tile.
inline std::vector<std::string> TileMap(const PlanView& plan, int64_t batch_row = 0, int64_t head = 0) {
  const Worklist& list = plan.Of(Direction::kForward);
  const auto columns = static_cast<size_t>((plan.kv_len + list.tile_kv - 1) / list.tile_kv);
  std::vector<std::string> map;
  for (uint64_t row = 0; row < list.rows_per_mask; ++row) {
    map.emplace_back(columns, '0');
    for (const Slot& slot : list.Row(plan.mask_of[batch_row * plan.num_q_heads + head] * list.rows_per_mask + row)) {
      map.back()[slot.index] = slot.cleanup == 0 ? '2' : '1';
    }
  }
  return map;
}

}  // namespace tessera
