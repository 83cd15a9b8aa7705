// Stages alone: each callable by itself, each check able to fail, each refusal at the stage that caused it.
#include "planner/stages.h"

#include <gtest/gtest.h>

#include "planner/plans.h"
#include "support/proves.h"
#include "tessera/batch.h"

namespace tessera::planner {
namespace {

Resolved ResolveGood(const Contract& contract, const Batch& batch = {}) {
  Result<std::vector<BatchRow>> rows = ResolveBatch(contract, batch);
  EXPECT_TRUE(rows.has_value());
  Result<Resolved> resolved = Resolve(contract, *BuildMaskSets(contract), *rows);
  EXPECT_TRUE(resolved.has_value());
  return std::move(*resolved);
}

TEST(Stages, EachRunsAloneOnThePreviousResult) {
  Proves("R1");
  const Resolved resolved = ResolveGood(MakeContract("causal", 100, 100));
  ASSERT_EQ(resolved.masks.size(), 1U);
  const Result<Classified> classified = Classify(resolved, {32, 32});
  ASSERT_TRUE(classified.has_value());
  EXPECT_EQ(classified->num_tiles, 10);
  EXPECT_TRUE(VerifyClassified(resolved, *classified).has_value());
  CleanupTable table;
  const CompactRows rows = Shrink(*classified, table, true);
  EXPECT_EQ(rows.slots.size(), 10U);
  // The ragged last diagonal tile holds 4 rows: its triangle is another cleanup than the whole one.
  EXPECT_EQ(table.Size(), 2);
  EXPECT_TRUE(VerifyCompactRows(*classified, rows, table).has_value());
  const CompactColumns columns = Transpose(rows, 1);
  EXPECT_EQ(columns.row_offsets, (std::vector<uint64_t>{0, 4, 7, 9, 10}));
  EXPECT_EQ(columns.ranks, (std::vector<uint32_t>{0, 0, 0, 0, 1, 1, 1, 2, 2, 3}));
  const std::vector<Part> parts = Balance(rows.row_offsets, 3);
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_EQ(parts[0].row, 2U) << "longest first";
  EXPECT_TRUE(VerifyParts(rows.row_offsets, parts).has_value());
}

TEST(Stages, ABrokenResult_IsCaughtAtItsStage) {
  Proves("R26");
  const Resolved resolved = ResolveGood(MakeContract("causal", 100, 100));
  Classified classified = *Classify(resolved, {32, 32});
  CleanupTable table;
  CompactRows rows = Shrink(classified, table, true);
  CompactColumns columns = Transpose(rows, 1);
  std::vector<Part> parts = Balance(rows.row_offsets, 3);
  const auto stage_of = [](const Status& status) { return status ? "good" : status.error().where; };

  Classified lost = classified;
  lost.runs[0].item_count = 0;  // a partial tile called full
  EXPECT_EQ(stage_of(VerifyClassified(resolved, lost)), "classify");
  rows.slots[4].index = 3;
  EXPECT_EQ(stage_of(VerifyCompactRows(classified, rows, table)), "shrink");
  rows = Shrink(classified, table, true);
  columns.ranks[4] = 0;
  EXPECT_EQ(stage_of(VerifyTransposed(rows, columns, 1)), "transpose");
  parts[0].slot_begin += 1;
  EXPECT_EQ(stage_of(VerifyParts(rows.row_offsets, parts)), "balance");
}

TEST(Stages, Refusals_NameTheStage) {
  Proves("R26");
  PlanOptions options;
  options.tile = TileSize{0, 64};
  Result<PlanResult> made = MakePlan(MakeContract("causal", 100, 100), {}, TestTarget(), options);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kTileInvalid);
  EXPECT_EQ(made.error().where, "classify");
  options.tile = TileSize{1, 1};
  made = MakePlan(MakeContract("full", 1 << 17, 1 << 17), {}, TestTarget(), options);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kPlanTooLarge);
  made = MakePlan(MakeContract("causal and blocks", 100, 100), {}, TestTarget());
  ASSERT_FALSE(made.has_value()) << "no picks given, and none executed yet";
}

TEST(Stages, Disable_KeepsThePlanExactOrRefuses) {
  const Contract contract = MakeContract("causal and window(90, 0)", 700, 700);
  PlanOptions options;
  options.tile = TileSize{64, 64};
  const std::vector<uint8_t> want = *ToDense(MakeGood(contract, {}, options).plan.view(), Direction::kForward, 0, 0);
  for (const StageInfo& stage : Stages()) {
    options.disable = {stage.name};
    options.verify_stages = true;
    const Result<PlanResult> made = MakePlan(contract, {}, TestTarget(), options);
    ASSERT_EQ(made.has_value(), stage.can_disable) << stage.name;
    if (!made) {
      EXPECT_EQ(made.error().code, ErrorCode::kStageUnknown);
      continue;
    }
    EXPECT_EQ(*ToDense(made->plan.view(), Direction::kForward, 0, 0), want) << stage.name;
    EXPECT_TRUE(VerifyPlan(made->plan.bytes()).has_value()) << stage.name;
    bool reported = false;
    for (const StageReport& report : made->stages) reported |= report.name == stage.name && report.disabled;
    EXPECT_TRUE(reported) << stage.name;
  }
  options.disable = {"fuse"};
  const Result<PlanResult> unknown = MakePlan(contract, {}, TestTarget(), options);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("classify"), std::string::npos) << "the message lists the stages";
}

TEST(Stages, Reports_HaveTimesSummariesAndDumps) {
  PlanOptions options;
  options.dump_stages = true;
  Contract contract = MakeContract("causal and blocks", 600, 600);
  contract.routing = Routing{.top_n = 2};
  std::vector<float> values(static_cast<size_t>(600 * contract.shape.dim_qk), 0.5F);
  RouteInputs route;
  route.q = route.k = {ElementType::kF32, reinterpret_cast<std::byte*>(values.data()), 0, 0, contract.shape.dim_qk};
  Result<PlanResult> routed = MakePlan(contract, {}, TestTarget(), options, &route);
  ASSERT_TRUE(routed.has_value()) << ToText(routed.error());
  ASSERT_EQ(routed->stages.size(), Stages().size());
  for (size_t i = 0; i < routed->stages.size(); ++i) {
    EXPECT_EQ(routed->stages[i].name, Stages()[i].name);
    EXPECT_FALSE(routed->stages[i].summary.empty());
    EXPECT_FALSE(routed->stages[i].dump.empty());
    EXPECT_GT(routed->stages[i].ns, 0);
  }
  const PlanResult made = MakeGood(MakeContract("causal", 600, 600), {}, options);
  EXPECT_EQ(made.stages[0].dump, "mask 0: head class 0, facts of batch row 0\n  rows [0, 600): [0, q+1)\n");
}

TEST(Balance, Parts_CoverRowsLongestFirstInEqualShares) {
  const std::vector<uint64_t> offsets{0, 3, 3, 20, 21};
  const std::vector<Part> parts = Balance(offsets, 16);
  EXPECT_EQ(parts, (std::vector<Part>{{2, 3, 12, 0}, {2, 12, 20, 1}, {0, 0, 3, 0}, {3, 20, 21, 0}, {1, 3, 3, 0}}));
}

TEST(Stages, AlternatingDocuments_AreExactAndBounded) {
  Proves("B30");
  Contract contract = MakeContract("documents(equal)", 500, 500);
  Batch batch;
  batch.doc_ids = IdRows{1, 500, {}};
  for (int32_t i = 0; i < 500; ++i) batch.doc_ids->values.push_back(i % 3);
  const PlanResult made = MakeGood(contract, batch);
  const std::vector<uint8_t> dense = *ToDense(made.plan.view(), Direction::kDkv, 0, 0);
  for (int64_t q = 0; q < 500; ++q) {
    for (int64_t k = 0; k < 500; ++k) ASSERT_EQ(dense[q * 500 + k] != 0, q % 3 == k % 3);
  }
  contract = MakeContract("documents(equal)", 1 << 16, 1 << 16);
  batch.doc_ids = IdRows{1, 1 << 16, {}};
  for (int32_t i = 0; i < 1 << 16; ++i) batch.doc_ids->values.push_back(i % 2);
  const Result<PlanResult> refused = MakePlan(contract, batch, TestTarget());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kPlanTooLarge);
  EXPECT_EQ(refused.error().where, "resolve");
}

}  // namespace
}  // namespace tessera::planner
