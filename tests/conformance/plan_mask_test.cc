// A plan decompressed, in every direction and at several tile sizes, is the mask that the contract writes.
#include <gtest/gtest.h>

#include "conformance/conformance.h"

namespace tessera::conformance {
namespace {

struct Tally {
  int64_t pairs = 0;
  int64_t allowed = 0;
};

void ExpectDenseMask(const Contract& contract, const Batch& batch, TileSize tile, Tally& tally) {
  PlanOptions options;
  options.tile = tile;
  options.verify_stages = true;
  const Result<PlanResult> made = MakePlan(contract, batch, *FindTarget("cpu"), options);
  ASSERT_TRUE(made.has_value()) << ToText(made.error());
  const PlanView& plan = made->plan.view();
  for (int64_t b = 0; b < contract.shape.batch; ++b) {
    for (int64_t h = 0; h < contract.shape.num_q_heads; ++h) {
      const Result<std::vector<uint8_t>> want = DenseMask(contract, batch, b, h);
      ASSERT_TRUE(want.has_value()) << ToText(want.error());
      for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
        const Result<std::vector<uint8_t>> got = ToDense(plan, direction, b, h);
        ASSERT_TRUE(got.has_value()) << ToText(got.error());
        ASSERT_TRUE(*got == *want) << ToText(direction) << ", batch row " << b << ", head " << h << ", tile " << tile.q
                                   << "x" << tile.kv;
      }
      for (const uint8_t cell : *want) tally.allowed += cell;
      tally.pairs += static_cast<int64_t>(want->size());
    }
  }
}

TEST(PlanMask, EveryCaseEveryTile_IsTheDenseMask) {
  Proves("R9 R40 B3");
  const uint64_t seed = FreshSeed();
  Tally tally;
  for (const CaseInfo& info : Cases()) {
    SCOPED_TRACE(info.name);
    const Result<Case> built = BuildCase(info.name, seed);
    ASSERT_TRUE(built.has_value()) << ToText(built.error());
    for (const TileSize tile : {TileSize{256, 256}, TileSize{64, 128}, TileSize{16, 16}}) {
      ExpectDenseMask(built->contract, built->batch, tile, tally);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(tally.allowed, 0);
  EXPECT_LT(tally.allowed, tally.pairs);
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
