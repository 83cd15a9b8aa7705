// A plan decompressed, in every direction and at several tile sizes, is the mask that the contract writes.
#include <gtest/gtest.h>

#include "conformance/conformance.h"
#include "oracle/oracle.h"

namespace tessera::conformance {
namespace {

TEST(PlanMask, EveryCaseEveryTile_IsTheDenseMask) {
  Proves("R9 R63 B3");
  const uint64_t seed = PrintedSeed();
  for (const CaseInfo& info : Cases()) {
    SCOPED_TRACE(info.name);
    const Result<Case> built = BuildCase(info.name, seed);
    ASSERT_TRUE(built.has_value()) << ToText(built.error());
    for (const TileSize tile : {TileSize{256, 256}, TileSize{64, 128}, TileSize{16, 16}}) {
      ExpectDenseMask(built->contract, built->batch, tile);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(PlanMask, TilesBelowTheDiagonal_AreFullAndKept) {
  Proves("B3");
  const Contract contract = MakeContract({.mask = "causal", .q_len = 64, .kv_len = 64});
  PlanOptions options;
  options.tile = TileSize{16, 16};
  const Result<PlanResult> made = MakePlan(contract, {}, *FindTarget("cpu"), options);
  ASSERT_TRUE(made.has_value()) << ToText(made.error());
  // 4 x 4 tiles on each of two heads: 4 on the diagonal, 6 below it.
  const TileCounts counts = CountTiles(made->plan.view(), Direction::kForward);
  EXPECT_EQ(counts.partial, 2 * 4);
  EXPECT_EQ(counts.full, 2 * 6);
  EXPECT_EQ(counts.empty, 2 * 6);
}

}  // namespace
}  // namespace tessera::conformance
