// The order of the CPU lane's backward: every key tile once, ascending within a head, and nobody writes where another
// still reads.
#include "lanes/cpu/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tessera/planner.h"
#include "tessera/tessera.h"

namespace tessera::lanes::cpu {
namespace {

constexpr int64_t kTile = 32;
constexpr int64_t kTiles = 4;

Plan MakePlanOf(int64_t heads, const std::vector<std::string>& masks) {
  Contract contract;
  contract.shape = {.batch = 1,
                    .q_len = kTile * kTiles,
                    .kv_len = kTile * kTiles,
                    .num_q_heads = heads,
                    .num_kv_heads = heads,
                    .dim_qk = 8,
                    .dim_v = 8,
                    .dtype = DType::kF32};
  for (const std::string& mask : masks) contract.mask.heads.push_back(*ParseMaskExpr(mask));
  contract.score.scale = 1.0;
  PlanOptions options;
  options.tile = TileSize{kTile, kTile};
  Result<PlanResult> made = MakePlan(contract, {}, *FindTarget("cpu"), options);
  EXPECT_TRUE(made.has_value()) << (made ? "" : ToText(made.error()));
  return std::move(made->plan);
}

Plan MakeCausalPlan(int64_t heads) { return MakePlanOf(heads, {"causal"}); }

// Turns over memory of their own.
struct Made {
  Made(const PlanView& plan, const Turns::Counts& counts)
      : key_tiles(CountKeyTiles(plan, counts.q_tiles)),
        memory(static_cast<size_t>(Bytes({&plan, key_tiles}, counts))),
        scratch(memory),
        turns({&plan, key_tiles}, counts, scratch) {
    turns.Begin();
  }
  static int64_t Bytes(const Turns::Tables& tables, const Turns::Counts& counts) {
    Scratch counting;
    const Turns turns(tables, counts, counting);
    return counting.bytes();
  }
  std::vector<uint32_t> key_tiles;
  std::vector<std::byte> memory;
  Scratch scratch;
  Turns turns;
};

TEST(Turns, Units_AreEachKeyTileOnceAscendingWithinAHead) {
  for (const int64_t heads : {1, 2, 5, 7, 8}) {
    const Plan plan = MakeCausalPlan(heads);
    for (const int64_t threads : {1, 2, 3, 4, 16}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, " << threads << " threads");
      const Made made(plan.view(), {.kv_heads = heads, .group = 1, .q_tiles = kTiles, .threads = threads});
      ASSERT_EQ(made.turns.num_units(), heads * kTiles);
      // A head for every thread, as far as there are so many.
      EXPECT_GE(made.turns.kept_heads(), std::min(threads, heads));
      EXPECT_LE(made.turns.kept_heads(), heads);
      std::vector<int64_t> next(static_cast<size_t>(heads), 0);
      int64_t last_round = 0;
      for (int64_t unit = 0; unit < made.turns.num_units(); ++unit) {
        const Turns::KeyTile at = made.turns.UnitAt(unit);
        ASSERT_EQ(at.column, next[static_cast<size_t>(at.kv_head)]++);
        // Heads that share memory come in different rounds, one after the other.
        ASSERT_GE(at.kv_head / made.turns.kept_heads(), last_round);
        last_round = at.kv_head / made.turns.kept_heads();
      }
      EXPECT_EQ(next, std::vector<int64_t>(static_cast<size_t>(heads), kTiles));
    }
  }
}

TEST(Turns, NumKeyTiles_IsHowManyAQueryTileSees) {
  const Plan plan = MakeCausalPlan(3);
  const Made made(plan.view(), {.kv_heads = 3, .group = 1, .q_tiles = kTiles, .threads = 1});
  for (int64_t tile = 0; tile < 3 * kTiles; ++tile) EXPECT_EQ(made.turns.NumKeyTiles(tile), tile % kTiles + 1);
}

TEST(Turns, Memory_IsFreeOnlyWhenTheTileBeforeIsDone) {
  const Plan plan = MakeCausalPlan(2);
  Made made(plan.view(), {.kv_heads = 2, .group = 1, .q_tiles = kTiles, .threads = 1});
  ASSERT_EQ(made.turns.kept_heads(), 1);
  made.turns.WaitForMemory(2);  // of the first head: nothing to wait for
  std::atomic<bool> is_free{false};
  std::thread waiting([&] {
    made.turns.WaitForMemory(kTiles + 2);
    is_free = true;
  });
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 100; ++i) {
      EXPECT_FALSE(is_free) << "after " << rank << " of 3 key tiles";
      std::this_thread::yield();
    }
    made.turns.Done(2, rank);
  }
  waiting.join();
  EXPECT_TRUE(is_free);
}

// A head that sees nothing stands between two that have the same memory, and is never done with anything.
TEST(Turns, Memory_IsNotFreeBecauseAHeadWithoutKeysHadItBetween) {
  const Plan plan = MakePlanOf(4, {"causal", "sink(0)", "sink(0)", "causal"});
  Made made(plan.view(), {.kv_heads = 4, .group = 1, .q_tiles = kTiles, .threads = 1});
  ASSERT_EQ(made.turns.kept_heads(), 1);
  ASSERT_EQ(made.turns.NumKeyTiles(kTiles), 0U);
  std::atomic<bool> is_free{false};
  std::thread waiting([&] {
    made.turns.WaitForMemory(3 * kTiles);
    is_free = true;
  });
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(is_free) << "the first head has not been there";
    std::this_thread::yield();
  }
  made.turns.Done(0, 0);
  waiting.join();
  EXPECT_TRUE(is_free);
}

}  // namespace
}  // namespace tessera::lanes::cpu
