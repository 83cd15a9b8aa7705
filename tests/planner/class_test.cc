// One class, many batches: what a batch may change, and what happens when it does not fit.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "planner/plans.h"
#include "support/proves.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

TEST(Class, ManyBatches_OneClassAndFixedShapes) {
  Proves("R8 R13");
  std::mt19937_64 rng(PrintedSeed());
  const Contract contract = MakeContract("causal and window(170, 0) and documents and valid", 1000, 1000);
  PlanOptions options;
  options.tile = TileSize{64, 64};
  std::set<std::string> class_keys;
  std::set<std::string> contract_keys;
  std::set<int64_t> active;
  for (int trial = 0; trial < 50; ++trial) {
    Batch batch;
    batch.doc_ids = IdRows{1, 1000, RandomDocIds(rng, 1000, false)};
    batch.valid_tokens = {RandomInt(rng, 0, 1000)};
    const PlanResult made = MakeGood(contract, batch, options);
    const PlanView& plan = made.plan.view();
    class_keys.insert(ToHex(plan.class_key));
    contract_keys.insert(ToHex(plan.contract_key));
    active.insert(static_cast<int64_t>(plan.Of(Direction::kForward).slots.size()));
    EXPECT_EQ(made.shape, *MakeClassShape(contract, TestTarget(), options));
    EXPECT_EQ(plan.Of(Direction::kForward).width_capacity, made.shape.width[0]);
  }
  EXPECT_EQ(class_keys.size(), 1U);
  EXPECT_EQ(contract_keys.size(), 1U);
  EXPECT_GT(active.size(), 10U) << "the batches were all alike: the test shows nothing";
  EXPECT_EQ(*class_keys.begin(), *ClassKey(contract, *MakeClassShape(contract, TestTarget(), options)));
  EXPECT_EQ(*contract_keys.begin(), *ContractKey(contract));
}

TEST(Class, WindowsOfOneWidth_ShareAClassButNotAContract) {
  Proves("R14 R45");
  const Contract a = MakeContract("causal and window(700, 0) and documents", 4096, 4096);
  const Contract b = MakeContract("causal and window(701, 0) and documents", 4096, 4096);
  const Contract wide = MakeContract("causal and window(1500, 0) and documents", 4096, 4096);
  const auto class_key = [](const Contract& c) { return *ClassKey(c, *MakeClassShape(c, TestTarget())); };
  EXPECT_EQ(class_key(a), class_key(b));
  EXPECT_NE(*ContractKey(a), *ContractKey(b));
  EXPECT_NE(class_key(a), class_key(wide)) << "another maximum width is another class";
}

TEST(Class, BatchBeyondTheCapacity_IsAnErrorOrAWiderClass) {
  Proves("R14 R91");
  Contract contract = MakeContract("causal and documents", 2048, 2048);
  contract.capacity.width = {Limit::Kind::kNumber, 2};
  const Batch fits = MakeDocuments({std::vector<int64_t>(8, 256)});
  const Batch too_wide = MakeDocuments({{2048}});
  const PlanResult small = MakeGood(contract, fits);
  EXPECT_EQ(small.shape.width[0], 2);
  const Result<PlanResult> refused = MakePlan(contract, too_wide, TestTarget());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kCapacityExceeded);
  EXPECT_NE(refused.error().message.find("needs 8"), std::string::npos) << refused.error().message;
  PlanOptions options;
  options.widen_class = true;
  const PlanResult widened = MakeGood(contract, too_wide, options);
  EXPECT_EQ(widened.shape.width[0], 8);
  EXPECT_NE(widened.plan.view().class_key, small.plan.view().class_key);
  EXPECT_EQ(widened.plan.view().contract_key, small.plan.view().contract_key);
}

// A GPU's workers take rows of heads: rows are cut only where there are too few of them for the machine.
TEST(Class, HeadsApart_PartsOnlyWhereWorkersWouldBeIdle) {
  Result<Target> found = FindTarget("h200");
  ASSERT_TRUE(found.has_value());
  Target target = *found;
  ASSERT_TRUE(target.heads_apart);
  Contract contract = MakeContract("causal", 16384, 16384);
  const auto cut = [&](int64_t heads, Direction direction) {
    contract.shape.num_q_heads = contract.shape.num_kv_heads = heads;
    const Result<PlanResult> made = MakePlan(contract, {}, target);
    EXPECT_TRUE(made.has_value());
    const Worklist& list = made->plan.view().Of(direction);
    return list.parts.size() > list.rows_per_mask;
  };
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    EXPECT_FALSE(cut(16, direction)) << ToText(direction);
    EXPECT_TRUE(cut(1, direction)) << ToText(direction);
  }
  target.heads_apart = false;
  EXPECT_TRUE(cut(16, Direction::kForward)) << "as if one head existed";
  target.heads_apart = true;
  // Few queries before many keys: the rows of queries are cut, those of keys are many.
  contract = MakeContract("causal", 128, 65536);
  EXPECT_TRUE(cut(16, Direction::kForward));
  EXPECT_TRUE(cut(16, Direction::kDq));
  EXPECT_FALSE(cut(16, Direction::kDkv));
  // Short rows that a worker ends before parts would be put together.
  contract = MakeContract("causal", 1024, 1024);
  EXPECT_FALSE(cut(4, Direction::kForward));
}

TEST(Class, Pow2RoundsUp) {
  Contract contract = MakeContract("causal and window(1000, 0)", 4096, 4096);
  const int64_t exact = MakeGood(contract).shape.width[0];
  EXPECT_EQ(exact, 5);
  contract.capacity.width.kind = Limit::Kind::kPow2;
  EXPECT_EQ(MakeGood(contract).shape.width[0], 8);
}

TEST(Class, MetadataBytes_AgainstScalarMemory) {
  const Target v6e = *FindTarget("v6e");
  const Result<PlanResult> small = MakePlan(MakeContract("causal", 8192, 8192), {}, v6e);
  ASSERT_TRUE(small.has_value());
  EXPECT_TRUE(FitsScalarMemory(small->plan.view(), v6e));
  PlanOptions options;
  options.tile = TileSize{128, 128};
  const Result<PlanResult> large = MakePlan(MakeContract("causal", 262144, 262144), {}, v6e, options);
  ASSERT_TRUE(large.has_value());
  EXPECT_FALSE(FitsScalarMemory(large->plan.view(), v6e)) << MetadataBytes(large->plan.view());
  EXPECT_TRUE(FitsScalarMemory(large->plan.view(), *FindTarget("cpu"))) << "no limit there";
}

TEST(Class, EqualInputs_EqualBytes) {
  const Contract contract = MakeContract("causal and window(100, 3) and documents or sink(4)", 3000, 3000);
  const Batch batch = MakeDocuments({{999, 1, 2000}});
  const PlanResult a = MakeGood(contract, batch);
  const PlanResult b = MakeGood(contract, batch);
  EXPECT_TRUE(std::ranges::equal(a.plan.bytes(), b.plan.bytes()));
}

}  // namespace
}  // namespace tessera
