// Plans written down by hand: the maps, rows and cleanups a reader can check on paper.
#include <gtest/gtest.h>

#include "planner/plans.h"
#include "support/proves.h"

namespace tessera {
namespace {

using Map = std::vector<std::string>;

std::vector<std::vector<uint32_t>> Columns(const Worklist& list) {
  std::vector<std::vector<uint32_t>> rows;
  for (uint64_t row = 0; row + 1 < list.row_offsets.size(); ++row) {
    rows.emplace_back();
    for (const Slot& slot : list.Row(row)) rows.back().push_back(slot.index);
  }
  return rows;
}

TEST(Golden, Causal) {
  Proves("R2 R17 B3");
  const PlanResult made = MakeGood(MakeContract("causal", 1024, 1024));
  const PlanView& plan = made.plan.view();
  EXPECT_EQ(TileMap(plan), (Map{"1000", "2100", "2210", "2221"}));
  EXPECT_EQ(Columns(plan.Of(Direction::kDkv)),
            (std::vector<std::vector<uint32_t>>{{0, 1, 2, 3}, {1, 2, 3}, {2, 3}, {3}}));
  EXPECT_EQ(made.shape.width[0], 4);
  EXPECT_EQ(made.shape.width[2], 4);
  // The diagonal is one cleanup, shared by all four tiles: c < r + 1.
  ASSERT_EQ(plan.NumCleanups(), 2U);
  ASSERT_EQ(plan.Cleanup(1).size(), 1U);
  CleanupItem diagonal;
  diagonal.q_end = 256;
  diagonal.kv_end = 256;
  diagonal.diag_end = 1;
  EXPECT_EQ(plan.Cleanup(1)[0], diagonal);
}

TEST(Golden, CausalWindow_BoundaryDecidesTheWidth) {
  const PlanResult narrow = MakeGood(MakeContract("causal and window(256, 0)", 1024, 1024));
  EXPECT_EQ(TileMap(narrow.plan.view()), (Map{"1000", "1100", "0110", "0011"}));
  EXPECT_EQ(narrow.shape.width[0], 2);
  const PlanResult wide = MakeGood(MakeContract("causal and window(257, 0)", 1024, 1024));
  EXPECT_EQ(TileMap(wide.plan.view()), (Map{"1000", "1100", "1110", "0111"}));
  EXPECT_EQ(wide.shape.width[0], 3);
}

TEST(Golden, CausalDocuments_BoundaryInsideATile) {
  Proves("R3 R5 R15 B17");
  const Contract contract = MakeContract("causal and documents", 1024, 1024);
  const PlanResult made = MakeGood(contract, MakeDocuments({{300, 724}}));
  // Tile (2, 0) is legal by causality alone; its documents differ, so it is not there at all.
  EXPECT_EQ(TileMap(made.plan.view()), (Map{"1000", "1100", "0110", "0121"}));
  // The class is the mask with documents at their widest.
  EXPECT_EQ(made.shape.width[0], 4);
}

TEST(Golden, WindowEdgesShareCleanups) {
  Proves("R15");
  const PlanResult made = MakeGood(MakeContract("causal and window(1000, 0)", 8192, 8192));
  // The diagonal, the two tiles that hold the trailing edge, and no more, however long the sequence.
  EXPECT_LE(made.plan.view().NumCleanups() - 1, 4U);
}

TEST(Golden, FullAndEmptyMasks) {
  Proves("R18");
  const PlanResult full = MakeGood(MakeContract("full", 300, 700));
  EXPECT_EQ(TileMap(full.plan.view()), (Map{"222", "222"}));
  EXPECT_EQ(full.plan.view().NumCleanups(), 1U);
  const PlanResult empty = MakeGood(MakeContract("sink(0)", 300, 700));
  EXPECT_EQ(TileMap(empty.plan.view()), (Map{"000", "000"}));
  EXPECT_EQ(empty.shape.width[0], 1) << "a padded view of an empty mask still has one slot per row";
  // Empty rows still have a part: somebody must write their zeros.
  EXPECT_EQ(empty.plan.view().Of(Direction::kForward).parts.size(), 2U);
}

TEST(Golden, BottomRightAlignment_WhenLengthsDiffer) {
  const PlanResult made = MakeGood(MakeContract("causal", 512, 1024));
  EXPECT_EQ(TileMap(made.plan.view()), (Map{"2210", "2221"}));
}

TEST(Golden, Fingerprint_HoldsOnEveryMachine) {
  const PlanResult made = MakeGood(MakeContract("causal and window(1000, 0) and documents or sink(4)", 5000, 5000),
                                   MakeDocuments({{1234, 1, 765, 3000}}));
  EXPECT_EQ(ToHex(made.plan.view().mask_digest), "7b107ac23feea48c8f12a9da54317069");
  EXPECT_EQ(ToHex(made.plan.view().fingerprint), "a0b475b3fc801268366dcb718e3ab913");
}

TEST(Golden, ManyDocumentsAndHeads_ShareMasks) {
  Contract contract = MakeContract("causal and documents", 512, 512, 3);
  contract.shape.num_q_heads = 4;
  contract.mask.heads = {*ParseMaskExpr("causal and documents"), *ParseMaskExpr("causal"),
                         *ParseMaskExpr("documents and window(-1, 0)"), *ParseMaskExpr("causal")};
  // Rows 0 and 2 cut alike, under other ids.
  Batch batch = MakeDocuments({{100, 412}, {200, 312}, {100, 412}});
  for (size_t i = 1024; i < 1536; ++i) batch.doc_ids->values[i] += 70;
  const PlanResult made = MakeGood(contract, batch);
  const PlanView& plan = made.plan.view();
  EXPECT_EQ(plan.num_masks, 3) << "two cuts of `causal and documents`, one `causal` for all rows";
  EXPECT_EQ(std::vector<uint32_t>(plan.mask_of.begin(), plan.mask_of.end()),
            (std::vector<uint32_t>{0, 1, 0, 1, 2, 1, 2, 1, 0, 1, 0, 1}));
  EXPECT_EQ(made.shape.masks, 4) << "three batch rows might all differ";
}

}  // namespace
}  // namespace tessera
