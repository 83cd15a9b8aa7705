// A registered term in plans: the form it was given in leaves no trace, and pairs decide.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "plan/layout.h"
#include "planner/plans.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

// The plan's bytes without what is allowed to differ: the contract key, and the fingerprint that covers it.
std::vector<std::byte> Anonymous(const Plan& plan) {
  std::vector<std::byte> bytes(plan.bytes().begin(), plan.bytes().end());
  std::memset(bytes.data() + offsetof(plan::Header, contract_key), 0, sizeof(Hash128));
  std::memset(bytes.data() + offsetof(plan::Header, fingerprint), 0, sizeof(Hash128));
  return bytes;
}

TEST(OwnTerm, RunsAndRectangles_GiveTheSamePlan) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  PlanOptions options;
  options.verify_stages = true;
  for (int trial = 0; trial < 60; ++trial) {
    const std::string parameters =
        "(" + std::to_string(RandomInt(rng, 1, 9)) + ", " + std::to_string(RandomInt(rng, 0, 20)) + ")";
    const std::string rest[] = {"", " and documents", " or window(3, 0) and documents", " and islands(16)"};
    const std::string& tail = rest[trial % 4];
    const int64_t len = RandomInt(rng, 20, 90);
    const Batch batch = tail.find("documents") == std::string::npos ? Batch() : MakeDocuments({{7, 9, len - 16}});
    options.tile = TileSize{RandomInt(rng, 1, 40), RandomInt(rng, 1, 40)};
    SCOPED_TRACE(testing::Message() << "seed " << seed << " trial " << trial << " " << parameters << tail);
    const Contract as_runs = MakeContract("stride" + parameters + tail, len, len);
    const Contract as_rects = MakeContract("stride_rects" + parameters + tail, len, len);
    const Result<PlanResult> runs = MakePlan(as_runs, batch, TestTarget(), options);
    const Result<PlanResult> rects = MakePlan(as_rects, batch, TestTarget(), options);
    ASSERT_TRUE(runs.has_value()) << ToText(runs.error());
    ASSERT_TRUE(rects.has_value()) << ToText(rects.error());
    EXPECT_EQ(Anonymous(runs->plan), Anonymous(rects->plan));
    EXPECT_NE(runs->plan.view().contract_key, rects->plan.view().contract_key);
    EXPECT_EQ(runs->plan.view().mask_digest, rects->plan.view().mask_digest);
    EXPECT_EQ(runs->plan.view().class_key, rects->plan.view().class_key);
  }
}

TEST(OwnTerm, EqualToABuiltInTerm_SharesDigestAndClass) {
  const Result<PlanResult> own = MakePlan(MakeContract("stride(1)", 300, 300), Batch(), TestTarget());
  const Result<PlanResult> built_in = MakePlan(MakeContract("causal", 300, 300), Batch(), TestTarget());
  ASSERT_TRUE(own.has_value() && built_in.has_value());
  EXPECT_EQ(own->plan.view().mask_digest, built_in->plan.view().mask_digest);
  EXPECT_EQ(own->plan.view().class_key, built_in->plan.view().class_key);
  EXPECT_NE(own->plan.view().contract_key, built_in->plan.view().contract_key);
}

TEST(OwnTerm, TilesWithoutOrder_AreStoredAsBits) {
  PlanOptions options;
  options.tile = TileSize{64, 64};
  const Result<PlanResult> made = MakePlan(MakeContract("specks", 256, 256), Batch(), TestTarget(), options);
  ASSERT_TRUE(made.has_value()) << ToText(made.error());
  const PlanView& plan = made->plan.view();
  EXPECT_TRUE(std::any_of(plan.items.begin(), plan.items.end(),
                          [](const CleanupItem& item) { return item.kind == ItemKind::kBits; }));
}

}  // namespace
}  // namespace tessera
