// What a contract's own numbers could make the planner build is counted first: at the corners of every documented limit
// a plan is made or refused, and a refusal has cost no memory to speak of.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>

#include "plan/layout.h"
#include "support/random_mask.h"
#include "support/seed.h"
#include "tessera/planner.h"

namespace tessera {
namespace {

int64_t PeakBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

TEST(Bounds, CornersOfEveryLimit_AreRefusedBeforeMemoryIsTaken) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  constexpr int64_t kSomeBytes = int64_t{256} << 20;
  const auto corner = [&](int64_t limit) { return rng() % 2 == 0 ? limit : RandomInt(rng, 1, 3); };
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    Contract contract;
    Shape& shape = contract.shape;
    shape.batch = corner(65536);
    shape.num_kv_heads = corner(65536);
    shape.num_q_heads = shape.num_kv_heads;
    shape.q_len = rng() % 3 == 0 ? int64_t{1} << 30 : RandomInt(rng, 1, 4);
    shape.kv_len = shape.q_len;
    shape.dim_qk = shape.dim_v = 1;
    contract.score.scale = 1.0;
    contract.mask.heads = {*ParseMaskExpr(rng() % 2 == 0 ? "causal" : "full")};
    contract.tiles = rng() % 2 == 0 ? TileSize{1, 1} : TileSize{65536, 65536};
    contract.tiles_reason = "a corner";
    if (!Validate(contract).empty()) continue;
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << "\n" << ToToml(contract));
    // A plan that is made may be as large as it must; this looks at those that are not.
    const bool is_wide = static_cast<uint64_t>(shape.batch * shape.num_q_heads) > plan::kMaxPlanHeads;
    const bool is_long = shape.q_len / contract.tiles.q > static_cast<int64_t>(plan::kMaxRows);
    if (!is_wide && !is_long) continue;
    const int64_t before = PeakBytes();
    PlanOptions options;
    options.tile = contract.tiles;
    const Result<PlanResult> made = MakePlan(contract, {}, *FindTarget("cpu"), options);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::kPlanTooLarge) << ToText(made.error());
    EXPECT_LT(PeakBytes() - before, kSomeBytes);
    ++refused;
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace tessera
