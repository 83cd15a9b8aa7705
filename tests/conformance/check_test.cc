// The check of a run reports no difference that rounding explains, and finds every one that it does not: an error of
// three times the tolerance, anywhere in any output.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "conformance/conformance.h"
#include "support/random_batch.h"

namespace tessera::conformance {
namespace {

class Check : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Check, testing::ValuesIn(LanesUnderTest()), LaneTestName);

// By name.
std::map<std::string, Comparison> CheckSetting(const Setting& setting, const TensorMap& outputs) {
  std::map<std::string, Comparison> by_name;
  const Result<CheckReport> report =
      CheckOutputs(setting.contract, setting.batch, setting.inputs, outputs, CheckOptionsOf(setting));
  EXPECT_TRUE(report.has_value()) << ToText(report.error());
  if (!report) return by_name;
  for (const Comparison& output : report->outputs) by_name[output.name] = output;
  return by_name;
}

// The largest number that is certainly wrong here, and that the type holds.
double Outlandish(ElementType type) { return type == ElementType::kF16 ? 6e4 : 1e30; }

TEST_P(Check, PlantedErrors_AreFoundInEveryOutput) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const auto flip = [&] { return RandomInt(rng, 0, 1) == 1; };
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 1 : IsInterpreted(GetParam()) ? 3 : 6); ++round) {
    Contract contract = MakeContract({.mask = flip() ? "causal" : "causal and window(9, 0) or sink(2)",
                                      .q_len = 20,
                                      .kv_len = 24,
                                      .dtype = static_cast<DType>(RandomInt(rng, 0, 2)),
                                      .softcap = flip() ? 0.0 : 3.0,
                                      .sink_logits = true});
    // f16 has no number that is outlandish beside gradients of large scores.
    const int64_t most = contract.shape.dtype == DType::kF16 ? 0 : 6;
    // `cuda` takes no softcap that is far from the scale.
    const bool may_be_far = LaneOf(GetParam()) != "cuda" || contract.score.softcap == 0.0;
    if (flip() && may_be_far) contract.score.scale = std::pow(10.0, static_cast<double>(RandomInt(rng, -6, most)));
    const Setting setting = MakeSetting(GetParam(), std::move(contract), {}, seed + static_cast<uint64_t>(round));
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << "\n"
                                    << ToToml(setting.contract));
    const TensorMap right = RunSetting(setting).outputs;
    for (const auto& [name, comparison] : CheckSetting(setting, right)) ASSERT_TRUE(comparison.pass) << comparison.text;
    for (const auto& [name, tensor] : right) {
      for (int plant = 0; plant < 4; ++plant) {
        const int64_t at = RandomInt(rng, 0, tensor.NumElements() - 1);
        SCOPED_TRACE(testing::Message() << name << " " << at);
        TensorMap planted = right;
        // The worst element is reported with what it should be and its tolerance: that is how they are learnt.
        planted.at(name).Set(at, Outlandish(tensor.type));
        const Comparison worst = CheckSetting(setting, planted).at(name);
        ASSERT_FALSE(worst.pass);
        ASSERT_EQ(worst.worst, at);
        if (std::abs(worst.want) + 4.0 * worst.tolerance > Outlandish(tensor.type)) continue;
        const double tolerance = worst.tolerance > 0.0 ? worst.tolerance : 1.0;  // a value that must be exact
        planted.at(name).Set(at, worst.want + (flip() ? 3.0 : -3.0) * tolerance);
        EXPECT_FALSE(CheckSetting(setting, planted).at(name).pass) << worst.want << " +- " << tolerance;
        planted.at(name).Set(at, std::nan(""));
        EXPECT_FALSE(CheckSetting(setting, planted).at(name).pass) << "NaN";
        planted.at(name).Set(at, -std::numeric_limits<double>::infinity());
        EXPECT_FALSE(CheckSetting(setting, planted).at(name).pass) << "minus infinity";
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

// A request that is padded to its class is compared with the picks of its own rows.
TEST_P(Check, PicksAtAClass_AreTheRequests) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 1 : IsInterpreted(GetParam()) ? 3 : 6); ++round) {
    Contract contract = MakeContract({.mask = "causal and blocks",
                                      .q_len = RandomInt(rng, 40, 90),
                                      .kv_len = 100,
                                      .batch = RandomInt(rng, 1, 3),
                                      .num_q_heads = 6,
                                      .num_kv_heads = 3});
    contract.shape.q_len = contract.shape.kv_len = RandomInt(rng, 40, 140);
    contract.mask.offset = 0;
    const bool is_routed = round % 2 == 0;
    Batch batch;
    if (is_routed) {
      Routing& routing = contract.routing.emplace();
      routing.query_tile = 1;
      routing.block_stride = 8;
      routing.compression_block = 16;
      routing.selected_block = 32;
      routing.kv_tile = 64;
      routing.top_n = 2;
      routing.first_blocks = 1;
    } else {
      batch.picks = RandomPicks(rng, contract);
    }
    Setting setting = MakeSetting(GetParam(), contract, batch, seed + static_cast<uint64_t>(round));
    setting.options.row_max = false;
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << "\n"
                                    << ToToml(setting.contract));
    const RunOutcome outcome =
        RunAtClass(setting.contract, setting.batch, setting.inputs, TargetOf(GetParam()), OptionsOf(setting));
    if (!is_routed && IsRefused(outcome)) continue;
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    ASSERT_TRUE(outcome.picks.has_value());
    EXPECT_EQ(outcome.picks->shape[0], contract.shape.batch);
    EXPECT_EQ(outcome.picks->shape[2], contract.shape.num_kv_heads);
    setting.batch.picks = outcome.picks;
    for (const auto& [name, comparison] : CheckSetting(setting, outcome.outputs)) {
      EXPECT_TRUE(comparison.pass) << comparison.text;
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::conformance
