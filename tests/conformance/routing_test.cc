// Routed contracts on every lane: the outputs are those of the picks that routing made, and routing has no gradient.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "conformance/conformance.h"
#include "support/random_batch.h"

namespace tessera::conformance {
namespace {

class Routed : public testing::TestWithParam<std::string> {};

struct Sample {
  Contract contract;
  Batch batch;
};

Sample RandomRouted(std::mt19937_64& rng) {
  const auto flip = [&] { return RandomInt(rng, 0, 1) == 1; };
  const int64_t kv_heads = RandomInt(rng, 1, 2);
  const int64_t len = RandomInt(rng, 40, 260);
  Sample out;
  out.contract =
      MakeContract({.mask = flip() ? "causal and documents and blocks" : "causal and (blocks or window(9, 0))",
                    .q_len = len,
                    .kv_len = len,
                    .batch = RandomInt(rng, 1, 2),
                    .num_q_heads = kv_heads * RandomInt(rng, 1, 2),
                    .num_kv_heads = kv_heads,
                    .dim_qk = 16,
                    .dim_v = 8,
                    .dtype = static_cast<DType>(RandomInt(rng, 0, 2)),
                    .softcap = flip() ? 0.0 : 3.0});
  Routing routing;
  routing.block_stride = 4;
  routing.compression_block = 8;
  routing.selected_block = 16;
  routing.kv_tile = 64;
  routing.query_tile = flip() ? 32 : 48;
  routing.top_n = RandomInt(rng, 1, 3);
  routing.first_blocks = RandomInt(rng, 0, 1);
  routing.hierarchical = flip();
  routing.meta_ratio = 4;
  routing.meta_keep = RandomInt(rng, 2, 6);
  out.contract.routing = routing;
  if (!DescribeMask(out.contract)->needs_documents) return out;
  IdRows ids{out.contract.shape.batch, len, {}};
  for (int64_t b = 0; b < ids.rows; ++b) {
    const std::vector<int32_t> row = RandomDocIds(rng, len, false);
    ids.values.insert(ids.values.end(), row.begin(), row.end());
  }
  out.batch.doc_ids = ids;
  return out;
}

TEST_P(Routed, Outputs_AreThoseOfItsOwnPicks) {
  Proves("R20 R25 B4");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 1 : IsSlow(GetParam()) ? 6 : 20); ++round) {
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round);
    const Sample sample = RandomRouted(rng);
    ASSERT_TRUE(Validate(sample.contract).empty());
    SCOPED_TRACE(ToToml(sample.contract));
    Setting setting = MakeSetting(GetParam(), sample.contract, sample.batch, seed + static_cast<uint64_t>(round));
    setting.options.backward = true;
    setting.options.plan.verify_stages = true;
    setting.options.plan.tile = TileSize{RandomInt(rng, 16, 96), RandomInt(rng, 16, 96)};
    const RunOutcome routed = RunSetting(setting);
    ASSERT_FALSE(routed.error.has_value());
    ASSERT_TRUE(routed.picks.has_value());

    // The same picks brought by the caller: the same bits, gradients included. So nothing flowed through routing, and
    // the oracle, which knows picks only, is the judge of both.
    Setting given = setting;
    given.contract.routing.reset();
    given.batch.picks = routed.picks;
    const RunOutcome brought = RunAndCheck(given);
    ASSERT_FALSE(brought.error.has_value());
    EXPECT_TRUE(routed.outputs == brought.outputs);
    EXPECT_EQ(brought.picks, routed.picks) << "legal picks stay as they are";
    EXPECT_EQ(brought.picks_report->source, "caller");
    if (testing::Test::HasFailure()) return;
  }
}

// A value that is not finite anywhere: defined picks, no crash, a count.
TEST_P(Routed, NotFiniteInputs_AreCountedAndDoNotStopARun) {
  std::mt19937_64 rng(7);
  const Sample sample = RandomRouted(rng);
  Setting setting = MakeSetting(GetParam(), sample.contract, sample.batch, 7);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t i = 0; i < 16; ++i) setting.inputs.at("k").Set(i, nan);
  const RunOutcome outcome = RunSetting(setting);
  ASSERT_FALSE(outcome.error.has_value());
  EXPECT_GT(outcome.picks_report->nan_scores, 0);
}

INSTANTIATE_TEST_SUITE_P(Lanes, Routed, testing::ValuesIn(HostLanes()), LaneTestName);

}  // namespace
}  // namespace tessera::conformance
