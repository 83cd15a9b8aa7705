// Numbers at the ends of the ranges that docs/numerics.md states: every result is finite and within its derived
// tolerance of the oracle, forward and backward, for every type and every lane that has any shape: not `cuda`, nor the
// TPU kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/conformance.h"
#include "contract/limits.h"
#include "support/random_mask.h"

namespace tessera::conformance {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMostFactor = kMaxScoreFactor;
constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

class Numbers : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Numbers, testing::ValuesIn(HostLanes()), LaneTestName);

void Multiply(Tensor& tensor, double factor) {
  for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, tensor.At(i) * factor);
}
void Fill(Tensor& tensor, double value) {
  for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, value);
}

// How large inputs are, relative to ordinary ones.
struct Sizes {
  double q = 1.0;
  double k = 1.0;
  double v = 1.0;
  double dout = 1.0;
};
void Resize(Setting& setting, const Sizes& sizes) {
  Multiply(setting.inputs.at("q"), sizes.q);
  Multiply(setting.inputs.at("k"), sizes.k);
  Multiply(setting.inputs.at("v"), sizes.v);
  Multiply(setting.inputs.at("do"), sizes.dout);
}

// NaN nowhere, and infinity only in rows without keys (of which there are none here) or where the type cannot hold
// more.
void ExpectFinite(const TensorMap& outputs) {
  for (const auto& [name, tensor] : outputs) {
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      const double value = tensor.At(i);
      ASSERT_FALSE(std::isnan(value)) << name << " " << i;
      const bool may_be_infinite = tensor.type == ElementType::kF16;
      ASSERT_TRUE(may_be_infinite || std::isfinite(value)) << name << " " << i;
    }
  }
}

void RunFinite(const Setting& setting) {
  const RunOutcome outcome = RunAndCheck(setting);
  if (!outcome.error) ExpectFinite(outcome.outputs);
}

double PowerOfTen(std::mt19937_64& rng, int64_t low, int64_t high) {
  return std::pow(10.0, static_cast<double>(RandomInt(rng, 10 * low, 10 * high)) / 10.0);
}

// The ends of a factor's range, what stood in the reports, and anything between.
double ScoreFactor(std::mt19937_64& rng) {
  switch (RandomInt(rng, 0, 5)) {
    case 0:
      return kMostFactor;
    case 1:
      return 1.0 / kMostFactor;
    case 2:
      return 1e10;
    case 3:
      return 0.125;
    default:
      return PowerOfTen(rng, -15, 15);
  }
}

double SinkLogit(std::mt19937_64& rng) {
  constexpr double kMost = std::numeric_limits<float>::max();
  static constexpr double kCorners[] = {-kInf, kMost, -kMost, 1e30, -1e30, 0.0, 1e10, 1e4, 88.0, -88.0, 1e-40};
  const double sign = RandomInt(rng, 0, 1) == 0 ? 1.0 : -1.0;
  return RandomInt(rng, 0, 1) == 0 ? kCorners[rng() % std::size(kCorners)] : sign * PowerOfTen(rng, -10, 38);
}

// Of both factors and the sinks, at random, with ordinary inputs and with large and small ones.
TEST_P(Numbers, EndsOfEveryRange_FiniteAndRight) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const auto flip = [&] { return RandomInt(rng, 0, 1) == 1; };
  // Programs do not depend on the numbers, so one shape of each kind is enough for lanes that compile.
  for (int round = 0; round < (IsSlow(GetParam()) ? 200 : 400); ++round) {
    const DType dtype = kDTypes[CompilesPerClass(GetParam()) ? seed % 3 : rng() % 3];
    Small small{.mask = "causal", .q_len = 9, .kv_len = 11, .dtype = dtype, .sink_logits = true};
    if (CompilesPerClass(GetParam())) {
      if (round >= 60) break;
    } else if (flip()) {
      small = {.mask = "causal",
               .q_len = RandomInt(rng, 1, 40),
               .kv_len = 40,
               .num_q_heads = 2,
               .num_kv_heads = RandomInt(rng, 1, 2),
               .dim_qk = RandomInt(rng, 1, 40),
               .dim_v = RandomInt(rng, 1, 40),
               .dtype = dtype,
               .sink_logits = true};
    }
    small.softcap = flip() ? 0.0 : ScoreFactor(rng);
    Contract contract = MakeContract(small);
    contract.score.scale = ScoreFactor(rng);
    Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    if (flip()) {
      // Far from 1, where the type has room.
      const int64_t most = dtype == DType::kF16 ? 1 : 7;
      const auto size = [&] { return PowerOfTen(rng, -most, most); };
      Resize(setting, {.q = size(), .k = size(), .v = size(), .dout = size()});
    }
    Tensor& sinks = setting.inputs.at("sink_logits");
    for (int64_t h = 0; h < sinks.NumElements(); ++h) sinks.Set(h, SinkLogit(rng));
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << " sinks " << sinks.At(0) << " "
                                    << sinks.At(sinks.NumElements() - 1) << "\n"
                                    << ToToml(contract));
    RunFinite(setting);
    if (testing::Test::HasFailure()) return;
  }
}

// Logits so far apart that each row has one key: the weights are 1 and 0, and so are the gradients' factors. With
// logits of 1e4 and more the rounding of a log-sum-exp alone would make weights of e^-1 and e^1, then of 0 and
// infinity.
TEST_P(Numbers, LogitsFarApart_WeightsOfOneAndZero) {
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kLen = 7;
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16, DType::kF16})) {
    for (const double size : {1e3, 1e4, 1e5, 12345.678, 1e7, 3e9, 1e10, 7e14}) {
      SCOPED_TRACE(testing::Message() << ToText(dtype) << " " << size);
      Contract contract = MakeContract({.mask = "full", .q_len = kLen, .kv_len = kLen, .dim_qk = kLen, .dtype = dtype});
      contract.score.scale = size;
      Setting setting = MakeSetting(GetParam(), contract, {}, seed);
      // Query i has one key, i; every other logit is 0.
      for (const char* name : {"q", "k"}) {
        Tensor& tensor = setting.inputs.at(name);
        for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, i % kLen == i / kLen % kLen ? 1.0 : 0.0);
      }
      Fill(setting.inputs.at("do"), 3.0);
      const RunOutcome outcome = RunAndCheck(setting);
      ASSERT_FALSE(outcome.error.has_value());
      ExpectFinite(outcome.outputs);
      const Tensor& dv = outcome.outputs.at("dv");
      for (int64_t i = 0; i < dv.NumElements(); ++i) {
        ASSERT_NEAR(dv.At(i), 6.0, 0.01) << "of the two query heads, each key has one query";
      }
    }
  }
}

// Weights beyond 1 would show in dv, which is a sum of them.
TEST_P(Numbers, LargeQueriesAndKeys_NoWeightAboveOne) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 10 : 60); ++round) {
    Contract contract = MakeContract({.mask = "causal", .q_len = 30, .kv_len = 30, .num_q_heads = 1});
    contract.score.scale = PowerOfTen(rng, -3, 8);
    Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    Resize(setting, {.q = PowerOfTen(rng, 0, 6), .k = PowerOfTen(rng, 0, 6)});
    Fill(setting.inputs.at("do"), 1.0);
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << " " << contract.score.scale);
    const RunOutcome outcome = RunAndCheck(setting);
    ASSERT_FALSE(outcome.error.has_value());
    ExpectFinite(outcome.outputs);
    const Tensor& dv = outcome.outputs.at("dv");
    for (int64_t i = 0; i < dv.NumElements(); ++i) {
      ASSERT_GE(dv.At(i), 0.0);
      ASSERT_LE(dv.At(i), 30.001) << "thirty queries of weight 1 at most";
    }
    if (testing::Test::HasFailure()) return;
  }
}

// Results below the normal numbers, from small inputs of each kind and from weights that vanish.
TEST_P(Numbers, SubnormalResults_AreNoErrors) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 12 : 60); ++round) {
    const DType dtype = kDTypes[CompilesPerClass(GetParam()) ? seed % 3 : rng() % 3];
    Contract contract = MakeContract({.q_len = 12, .kv_len = 12, .dtype = dtype});
    contract.score.scale = RandomInt(rng, 0, 1) == 0 ? 0.3 : PowerOfTen(rng, 0, 3);
    Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    const auto size = [&] { return PowerOfTen(rng, dtype == DType::kF16 ? -8 : -42, 0); };
    Resize(setting, {.q = size(), .k = size(), .v = size(), .dout = size()});
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << " " << ToText(dtype));
    RunFinite(setting);
    if (testing::Test::HasFailure()) return;
  }
}

// f16 ends at 65504: results beyond become infinity, and what is computed on the way must not.
TEST_P(Numbers, LargeGradientsOfF16_RightOrInfinite) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 10 : 40); ++round) {
    const Contract contract = MakeContract({.q_len = 20, .kv_len = 20, .dtype = DType::kF16});
    Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    Resize(setting, {.q = PowerOfTen(rng, -4, 1),
                     .k = PowerOfTen(rng, -4, 1),
                     .v = PowerOfTen(rng, 0, 4),
                     .dout = PowerOfTen(rng, 0, 4)});
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round);
    RunFinite(setting);
    if (testing::Test::HasFailure()) return;
  }
}

// Every logit at its cap: the slope is zero but for rounding.
TEST_P(Numbers, SaturatedSoftcap_IsNoError) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < (CompilesPerClass(GetParam()) ? 10 : 40); ++round) {
    const DType dtype = kDTypes[CompilesPerClass(GetParam()) ? seed % 3 : rng() % 3];
    Contract contract = MakeContract({.q_len = 20, .kv_len = 20, .dtype = dtype, .softcap = PowerOfTen(rng, -6, 6)});
    contract.score.scale = std::min(contract.score.softcap * PowerOfTen(rng, -1, 5), kMostFactor);
    const Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << " softcap "
                                    << contract.score.softcap << " scale " << contract.score.scale);
    RunFinite(setting);
    if (testing::Test::HasFailure()) return;
  }
}

// A sink that is not there, in every head and in some.
TEST_P(Numbers, SinksOfMinusInfinity_AreNone) {
  const uint64_t seed = PrintedSeed();
  const Setting plain = MakeSetting(GetParam(), MakeContract({}), {}, seed);
  Setting setting = MakeSetting(GetParam(), MakeContract({.sink_logits = true}), {}, seed);
  for (const char* name : {"q", "k", "v", "do"}) setting.inputs.at(name) = plain.inputs.at(name);
  Fill(setting.inputs.at("sink_logits"), -kInf);
  const RunOutcome with = RunAndCheck(setting);
  const RunOutcome without = RunAndCheck(plain);
  ASSERT_FALSE(with.error || without.error);
  for (const auto& [name, tensor] : without.outputs) EXPECT_TRUE(with.outputs.at(name) == tensor) << name;
  for (int64_t h = 0; h < 2; ++h) EXPECT_EQ(with.outputs.at("dsink_logits").At(h), 0.0);
}

TEST(NumbersOfContracts, FactorsBeyondTheirRange_AreRefused) {
  for (const double bad : {0.9e-15, 1.1e15, 2.4e38, 3e38, 1e-38, 1e300, kInf, -kInf, -1.0, std::nan("")}) {
    for (const bool is_scale : {false, true}) {
      Contract contract = MakeContract({});
      (is_scale ? contract.score.scale : contract.score.softcap) = bad;
      const std::vector<Violation> violations = Validate(contract);
      ASSERT_EQ(violations.size(), 1U) << bad;
      EXPECT_EQ(violations[0].field, is_scale ? "score.scale" : "score.softcap");
    }
  }
  for (const double good : {1e-15, 1e15}) {
    Contract contract = MakeContract({.softcap = good});
    contract.score.scale = good;
    EXPECT_TRUE(Validate(contract).empty()) << good;
  }
}

}  // namespace
}  // namespace tessera::conformance
