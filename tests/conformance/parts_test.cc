// Rows that the planner cuts into parts, threads, and repeats: the same bits however the work is shared out, and the
// right ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "conformance/conformance.h"
#include "support/random_mask.h"

namespace tessera::conformance {
namespace {

class Parts : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Parts, testing::ValuesIn(HostLanes()), LaneTestName);

// Whether some row of the direction is cut.
bool IsCut(const Setting& setting, Direction direction) {
  const Result<PlanResult> made = MakePlan(setting.contract, setting.batch, CpuTarget(), setting.options.plan);
  EXPECT_TRUE(made.has_value());
  if (!made) return false;
  const std::span<const Part> parts = made->plan.view().Of(direction).parts;
  return std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.part_of_row > 0; });
}

void ExpectSameBitsOnAnyThreads(Setting setting, const RunOutcome& want) {
  for (const int64_t threads : {1, 2, 5}) {
    setting.options.threads = threads;
    const RunOutcome got = RunSetting(setting);
    EXPECT_TRUE(got.outputs == want.outputs) << threads << " threads";
  }
}

TEST_P(Parts, LongRows_MatchOracleOnAnyThreads) {
  Proves("R10");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (const int64_t q_len : SomeOf<int64_t>(GetParam(), seed, {1, 2, 15, 16, 40})) {
    for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16, DType::kF16})) {
      if (IsSlow(GetParam()) && dtype == DType::kF16) continue;
      const int64_t kv_len = 16 * RandomInt(rng, 17, 45) + RandomInt(rng, 0, 15);
      SCOPED_TRACE(testing::Message() << q_len << " x " << kv_len << " " << ToText(dtype) << " TESSERA_SEED=" << seed);
      Setting setting = MakeSetting(GetParam(),
                                    MakeContract({.mask = q_len % 2 == 0 ? "causal" : "causal or sink(7)",
                                                  .q_len = q_len,
                                                  .kv_len = kv_len,
                                                  .num_q_heads = 2,
                                                  .dim_qk = 64,
                                                  .dim_v = 48,
                                                  .dtype = dtype,
                                                  .softcap = q_len == 15 ? 4.0 : 0.0,
                                                  .sink_logits = q_len == 16}),
                                    {}, seed);
      setting.options.plan.tile = TileSize{16, 16};
      ASSERT_TRUE(IsCut(setting, Direction::kForward));
      ExpectSameBitsOnAnyThreads(setting, RunAndCheck(setting));
      if (testing::Test::HasFailure()) return;
    }
  }
}

// A few heads at a time pass through the same memory, and values are looked at by whoever comes first. The first
// queries have no key at all.
TEST_P(Parts, MoreHeadsThanThreads_MatchOracleOnAnyThreads) {
  Proves("R10");
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16})) {
    for (const bool has_bad_tokens : {false, true}) {
      if (has_bad_tokens && !IsolatesNonFinite(GetParam())) continue;
      SCOPED_TRACE(testing::Message() << ToText(dtype) << (has_bad_tokens ? ", bad tokens" : "")
                                      << " TESSERA_SEED=" << seed);
      Setting setting = MakeSetting(GetParam(),
                                    MakeContract({.mask = "causal and window(70, 0)",
                                                  .q_len = 192,
                                                  .kv_len = 128,
                                                  .batch = 2,
                                                  .num_q_heads = IsSlow(GetParam()) ? 3 : 10,
                                                  .num_kv_heads = IsSlow(GetParam()) ? 3 : 5,
                                                  .dim_qk = 64,
                                                  .dim_v = 32,
                                                  .dtype = dtype}),
                                    {}, seed);
      setting.options.plan.tile = TileSize{32, 32};
      setting.options.threads = 1;
      if (has_bad_tokens) {
        for (const char* name : {"q", "k", "v", "do"})
          FillToken(setting.inputs.at(name), {1, 77}, std::numeric_limits<double>::quiet_NaN());
      }
      const RunOutcome want = has_bad_tokens ? RunSetting(setting) : RunAndCheck(setting);
      ASSERT_FALSE(want.error.has_value());
      ExpectSameBitsOnAnyThreads(setting, want);
    }
  }
}

TEST_P(Parts, LongColumns_MatchOracleOnAnyThreads) {
  Proves("R10");
  const uint64_t seed = PrintedSeed();
  for (const int64_t kv_len : SomeOf<int64_t>(GetParam(), seed, {1, 16, 33})) {
    SCOPED_TRACE(testing::Message() << kv_len << " TESSERA_SEED=" << seed);
    Setting setting = MakeSetting(
        GetParam(),
        MakeContract(
            {.mask = "full", .q_len = 16 * 23 + 5, .kv_len = kv_len, .num_q_heads = 2, .dim_qk = 32, .dim_v = 40}),
        {}, seed);
    setting.options.plan.tile = TileSize{16, 16};
    ASSERT_TRUE(IsCut(setting, Direction::kDkv));
    ExpectSameBitsOnAnyThreads(setting, RunAndCheck(setting));
  }
}

TEST_P(Parts, UnevenDocuments_SameBitsOnAnyThreads) {
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16})) {
    const Contract contract = MakeContract({.mask = "causal and documents",
                                            .q_len = 400,
                                            .kv_len = 400,
                                            .num_q_heads = 4,
                                            .num_kv_heads = 2,
                                            .dim_qk = 64,
                                            .dim_v = 64,
                                            .dtype = dtype});
    Setting setting = MakeSetting(GetParam(), contract, DocumentBatch(contract, {3, 290, 1, 60, 40}), seed);
    setting.options.plan.tile = TileSize{32, 32};
    ExpectSameBitsOnAnyThreads(setting, RunAndCheck(setting));
  }
}

// Grown step by step: the running maximum changes at every tile, and weights of early tiles vanish.
TEST_P(Parts, AscendingScores_MatchOracle) {
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16, DType::kF16})) {
    for (const double slope : {0.25, -0.25}) {
      SCOPED_TRACE(testing::Message() << ToText(dtype) << " slope " << slope);
      Setting setting = MakeSetting(GetParam(),
                                    MakeContract({.mask = "full",
                                                  .q_len = 20,
                                                  .kv_len = 400,
                                                  .num_q_heads = 1,
                                                  .dim_qk = 16,
                                                  .dim_v = 16,
                                                  .dtype = dtype}),
                                    {}, seed);
      setting.options.plan.tile = TileSize{16, 16};
      for (int64_t i = 0; i < 20; ++i) setting.inputs.at("q").Set(i * 16, 4.0);
      for (int64_t j = 0; j < 400; ++j) setting.inputs.at("k").Set(j * 16, slope * static_cast<double>(j));
      RunAndCheck(setting);
    }
  }
}

TEST_P(Parts, ManyRepeats_SameBits) {
  Proves("R90");
  const uint64_t seed = PrintedSeed();
  const Contract contract = MakeContract({.mask = "causal and documents or sink(3)",
                                          .q_len = 90,
                                          .kv_len = 90,
                                          .num_q_heads = 4,
                                          .num_kv_heads = 2,
                                          .dtype = seed % 2 == 0 ? DType::kF32 : DType::kBf16,
                                          .sink_logits = true});
  Setting setting = MakeSetting(GetParam(), contract, DocumentBatch(contract, {21, 60, 5}), seed);
  setting.options.threads = 3;
  setting.options.plan.tile = TileSize{16, 16};
  const RunOutcome first = RunAndCheck(setting);
  ASSERT_FALSE(first.error.has_value());
  for (int repeat = 1; repeat < (IsSlow(GetParam()) || CompilesPerClass(GetParam()) ? 50 : 1000); ++repeat) {
    const RunOutcome again = RunSetting(setting);
    ASSERT_EQ(again.receipt.output_digest, first.receipt.output_digest) << "repeat " << repeat;
  }
}

}  // namespace
}  // namespace tessera::conformance
