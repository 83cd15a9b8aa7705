// Every tile of every plan against every pair of the mask the oracle writes out.
#include <gtest/gtest.h>

#include <random>

#include "oracle/oracle.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "tessera/planner.h"

namespace tessera {
namespace {

void ExpectExact(const PlanView& plan, Direction direction, int64_t b, int64_t h, const std::vector<uint8_t>& mask) {
  const Worklist& list = plan.Of(direction);
  const bool is_dkv = direction == Direction::kDkv;
  const int64_t q_tiles = (plan.q_len + list.tile_q - 1) / list.tile_q;
  const int64_t kv_tiles = (plan.kv_len + list.tile_kv - 1) / list.tile_kv;
  std::vector<int> kind(static_cast<size_t>(q_tiles * kv_tiles), 0);
  const uint64_t first_row = plan.mask_of[b * plan.num_q_heads + h] * list.rows_per_mask;
  for (uint64_t row = 0; row < list.rows_per_mask; ++row) {
    for (const Slot& slot : list.Row(first_row + row)) {
      const uint64_t at = is_dkv ? slot.index * kv_tiles + row : row * kv_tiles + slot.index;
      ASSERT_EQ(kind[at], 0) << "a tile is listed twice";
      kind[at] = slot.cleanup == 0 ? 2 : 1;
    }
  }
  for (int64_t i = 0; i < q_tiles; ++i) {
    for (int64_t j = 0; j < kv_tiles; ++j) {
      bool any = false;
      bool all = true;
      for (int64_t q = i * list.tile_q; q < std::min<int64_t>((i + 1) * list.tile_q, plan.q_len); ++q) {
        for (int64_t k = j * list.tile_kv; k < std::min<int64_t>((j + 1) * list.tile_kv, plan.kv_len); ++k) {
          any |= mask[q * plan.kv_len + k] != 0;
          all &= mask[q * plan.kv_len + k] != 0;
        }
      }
      ASSERT_EQ(kind[i * kv_tiles + j], all ? 2 : any ? 1 : 0) << "tile (" << i << ", " << j << ")";
    }
  }
  const Result<std::vector<uint8_t>> dense = ToDense(plan, direction, b, h);
  ASSERT_TRUE(dense.has_value());
  ASSERT_EQ(*dense, mask);
}

TEST(Planner, RandomMasksAndTiles_ClassifyExactlyAndDecompressToTheMask) {
  Proves("R1 R2 R5 R8 R9 R17 R48 B3 B30 B35");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int trial = 0; trial < 4000; ++trial) {
    const MaskSample sample = RandomMaskSample(rng);
    PlanOptions options;
    options.tile = TileSize{RandomInt(rng, 1, 20), RandomInt(rng, 1, 20)};
    options.verify_stages = true;
    Target target;
    target.name = "test";
    target.workers = RandomInt(rng, 1, 8);
    if (RandomInt(rng, 0, 2) == 0) {  // a different tile in each direction
      options.tile.reset();
      target.forward = {RandomInt(rng, 1, 20), RandomInt(rng, 1, 20)};
      target.dq = RandomInt(rng, 0, 1) == 0 ? target.forward : TileSize{RandomInt(rng, 1, 20), RandomInt(rng, 1, 20)};
      target.dkv = {RandomInt(rng, 1, 20), RandomInt(rng, 1, 20)};
    }
    std::string text = "seed " + std::to_string(seed) + " trial " + std::to_string(trial);
    for (const MaskExpr& expr : sample.contract.mask.heads) text += "\n" + ToText(expr);
    SCOPED_TRACE(text + "\n" + ToJson(sample.batch));
    const Result<PlanResult> made = MakePlan(sample.contract, sample.batch, target, options);
    ASSERT_TRUE(made.has_value()) << ToText(made.error());
    const Result<PlanView> verified = VerifyPlan(made->plan.bytes());
    ASSERT_TRUE(verified.has_value()) << ToText(verified.error());
    for (int64_t b = 0; b < sample.contract.shape.batch; ++b) {
      for (int64_t h = 0; h < sample.contract.shape.num_q_heads; ++h) {
        const Result<std::vector<uint8_t>> mask = DenseMask(sample.contract, sample.batch, b, h);
        ASSERT_TRUE(mask.has_value()) << ToText(mask.error());
        for (size_t d = 0; d < kNumDirections; ++d) {
          ExpectExact(made->plan.view(), static_cast<Direction>(d), b, h, *mask);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Planner, OneValidCount_SpeaksForEveryRow) {
  Proves("R61");
  Contract contract =
      *ParseContract("version = 1\n[shape]\nbatch = 3\nq_len = 20\ndim_qk = 4\n[mask]\nexpr = \"causal and valid\"\n");
  const Batch batch = *ParseBatch(R"({"valid_tokens": 7})");
  PlanOptions options;
  options.tile = TileSize{8, 8};
  const Result<PlanResult> made = MakePlan(contract, batch, *FindTarget("cpu"), options);
  ASSERT_TRUE(made.has_value()) << ToText(made.error());
  for (int64_t b = 0; b < 3; ++b) {
    const Result<std::vector<uint8_t>> mask = DenseMask(contract, batch, b, 0);
    ASSERT_TRUE(mask.has_value()) << ToText(mask.error());
    EXPECT_EQ((*mask)[6 * 20 + 6], 1);
    EXPECT_EQ((*mask)[7 * 20 + 7], 0);
    ExpectExact(made->plan.view(), Direction::kForward, b, 0, *mask);
  }
}

TEST(Planner, MaskDigest_SameOnEveryTargetAndTile) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int trial = 0; trial < 50; ++trial) {
    const MaskSample sample = RandomMaskSample(rng);
    std::string digest;
    for (const Target& target : Targets()) {
      const Result<PlanResult> made = MakePlan(sample.contract, sample.batch, target);
      ASSERT_TRUE(made.has_value()) << ToText(made.error());
      const std::string got = ToHex(made->plan.view().mask_digest);
      if (digest.empty()) digest = got;
      EXPECT_EQ(got, digest) << target.name;
    }
  }
}

}  // namespace
}  // namespace tessera
