// Numbers at the ends of the ranges that docs/numerics.md states: every result is finite and within its derived
// tolerance of the oracle, forward and backward, for every type and on every lane. A lane of fewer types and dims gets
// the nearest it has, and one with a range of its own (`cuda`) numbers brought into it.
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
INSTANTIATE_TEST_SUITE_P(Lanes, Numbers, testing::ValuesIn(LanesUnderTest()), LaneTestName);

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

// The largest sum_d abs(a_d b_d) of a row of one tensor and a row of the other, whatever their heads.
double LargestProduct(const Tensor& a, const Tensor& b) {
  const int64_t dim = a.shape[3];
  double most = 0.0;
  for (int64_t i = 0; i < a.NumElements(); i += dim) {
    for (int64_t j = 0; j < b.NumElements(); j += dim) {
      double sum = 0.0;
      for (int64_t d = 0; d < dim; ++d) sum += std::abs(a.At(i + d) * b.At(j + d));
      most = std::max(most, sum);
    }
  }
  return most;
}

// Of `cuda`, where docs/numerics.md has other ranges than those of all lanes.
constexpr double kMostCudaLogit = 0x1p27 / 1.45;  // without softcap
constexpr double kMostF16 = 65504.0;              // of a score gradient
constexpr double kBoundedCap = 60.0;              // up to which weights are measured against a score of 0, in bf16
constexpr double kMostSink = 87.0;                // with such a cap
constexpr double kMostSplashScore = 0x1p12;       // of `splash`, in the backward
constexpr double kFarSink = 300.0;                // from here on no key has a weight that f32 holds

double Largest(const Tensor& tensor) {
  double most = 0.0;
  for (int64_t i = 0; i < tensor.NumElements(); ++i) most = std::max(most, std::abs(tensor.At(i)));
  return most;
}

// q and dO as the ranges of all lanes allow them, by bounds: every product of q and k below 2^127 with each factor that
// it meets, and so the sums of which gradients consist.
void BringIntoCommonRange(Setting& setting) {
  constexpr double kMostSum = 0x1p126;
  const Score& score = setting.contract.score;
  const Shape& shape = setting.contract.shape;
  Tensor& q = setting.inputs.at("q");
  const Tensor& k = setting.inputs.at("k");
  const double factor = 1.45 * std::max({1.0, score.scale, score.softcap > 0.0 ? score.scale / score.softcap : 0.0});
  const double dim_k = static_cast<double>(shape.dim_qk) * Largest(k);
  const double score_bound = factor * Largest(q) * std::max(1.0, dim_k);
  if (score_bound > kMostSum) Multiply(q, kMostSum / score_bound);

  Tensor& dout = setting.inputs.at("do");
  const double score_gradient =
      2.0 * static_cast<double>(shape.dim_v) * Largest(dout) * Largest(setting.inputs.at("v"));
  const auto num_terms = static_cast<double>(shape.kv_len + shape.q_len * shape.num_q_heads);
  const double gradient_bound =
      std::max(1.0, score.scale) * score_gradient * num_terms * std::max({1.0, Largest(q), Largest(k)});
  if (gradient_bound > kMostSum) Multiply(dout, kMostSum / gradient_bound);
}

// Scale, sinks and dO as the lane's ranges allow them.
void BringIntoRange(Setting& setting) {
  BringIntoCommonRange(setting);
  if (LaneOf(setting.lane) != "cuda") return;
  Score& score = setting.contract.score;
  if (score.softcap == 0.0) {
    const double most = LargestProduct(setting.inputs.at("q"), setting.inputs.at("k"));
    score.scale = std::max(std::min(score.scale, kMostCudaLogit / most), 1.0 / kMostFactor);
  }
  if (score.softcap > 0.0 && score.softcap <= kBoundedCap && score.sink_logits) {
    Tensor& sinks = setting.inputs.at("sink_logits");
    for (int64_t h = 0; h < sinks.NumElements(); ++h) {
      if (sinks.At(h) > kMostSink && sinks.At(h) < kFarSink) sinks.Set(h, kMostSink);
    }
  }
  if (setting.contract.shape.dtype == DType::kF16) {
    Tensor& dout = setting.inputs.at("do");
    const double most = 2.0 * LargestProduct(dout, setting.inputs.at("v"));  // dP and delta
    if (most > kMostF16) Multiply(dout, 0.99 * kMostF16 / most);
  }
}

// `cuda` takes a softcap that is this close to the scale, and may refuse others.
bool MayRefuse(const Setting& setting) {
  const Score& score = setting.contract.score;
  const auto is_within = [](double x, double factor) { return x <= factor && x >= 1.0 / factor; };
  return LaneOf(setting.lane) == "cuda" && score.softcap > 0.0 &&
         !(is_within(score.scale, 1e6) && is_within(score.scale / score.softcap, 1e5));
}

void RunFinite(Setting setting) {
  BringIntoRange(setting);
  if (MayRefuse(setting)) {
    const RunOutcome outcome =
        Run(setting.contract, setting.batch, setting.inputs, TargetOf(setting.lane), OptionsOf(setting));
    if (outcome.error) {
      EXPECT_EQ(outcome.error->code, ErrorCode::kLaneRefused) << ToText(*outcome.error);
      EXPECT_NE(ToText(*outcome.error).find(ReasonText(ReasonCode::kCudaSoftcap)), std::string::npos);
      return;
    }
  }
  const RunOutcome outcome = RunAndCheck(setting);
  ASSERT_FALSE(outcome.error.has_value());
  ExpectFinite(outcome.outputs);
}

// Of `all`, how many a lane takes to which each costs more.
int Rounds(const std::string& lane, int all, int few) {
  return CompilesPerClass(lane) || IsInterpreted(lane) ? few : all;
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
    } else if (IsInterpreted(GetParam())) {
      if (round >= 40) break;
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
    Setting setting = MakeSetting(GetParam(), MakeContract(small), {}, seed + static_cast<uint64_t>(round));
    setting.contract.score.scale = ScoreFactor(rng);
    if (flip()) {
      // Far from 1, where the type has room.
      const int64_t most = setting.contract.shape.dtype == DType::kF16 ? 1 : 7;
      const auto size = [&] { return PowerOfTen(rng, -most, most); };
      Resize(setting, {.q = size(), .k = size(), .v = size(), .dout = size()});
    }
    Tensor& sinks = setting.inputs.at("sink_logits");
    for (int64_t h = 0; h < sinks.NumElements(); ++h) sinks.Set(h, SinkLogit(rng));
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << " sinks " << sinks.At(0) << " "
                                    << sinks.At(sinks.NumElements() - 1) << "\n"
                                    << ToToml(setting.contract));
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
      const Contract contract =
          MakeContract({.mask = "full", .q_len = kLen, .kv_len = kLen, .dim_qk = kLen, .dtype = dtype});
      Setting setting = MakeSetting(GetParam(), contract, {}, seed);
      setting.contract.score.scale = size;
      // Query i has one key, i; every other logit is 0.
      const int64_t dim = setting.contract.shape.dim_qk;
      for (const char* name : {"q", "k"}) {
        Tensor& tensor = setting.inputs.at(name);
        for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, i % dim == i / dim % kLen ? 1.0 : 0.0);
      }
      BringIntoRange(setting);
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
  for (int round = 0; round < Rounds(GetParam(), 60, 10); ++round) {
    const Contract contract = MakeContract({.mask = "causal", .q_len = 30, .kv_len = 30, .num_q_heads = 1});
    Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    setting.contract.score.scale = PowerOfTen(rng, -3, 8);
    Resize(setting, {.q = PowerOfTen(rng, 0, 6), .k = PowerOfTen(rng, 0, 6)});
    Fill(setting.inputs.at("do"), 1.0);
    BringIntoRange(setting);
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << " "
                                    << setting.contract.score.scale);
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

// The stock Splash lane has a range of its own for scores, and neither softcap nor sinks.
TEST(SplashNumbers, ScoresUpToItsRange_AreRight) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 12; ++round) {
    const char* mask = RandomInt(rng, 0, 1) == 0 ? "causal" : "causal and window(9, 0)";
    const Contract contract = MakeContract({.mask = mask, .q_len = 20, .kv_len = 20, .dtype = DType::kBf16});
    Setting setting = MakeSetting("splash:pjrt", contract, {}, seed + static_cast<uint64_t>(round));
    Resize(setting, {.q = PowerOfTen(rng, -12, 3),
                     .k = PowerOfTen(rng, -12, 3),
                     .v = PowerOfTen(rng, -15, 15),
                     .dout = PowerOfTen(rng, -10, 5)});  // larger ones would give gradients that bf16 cannot hold
    const double most = kMostSplashScore / LargestProduct(setting.inputs.at("q"), setting.inputs.at("k"));
    const double below = RandomInt(rng, 0, 2) == 0 ? 1.0 : PowerOfTen(rng, -8, 0);
    const double scale = std::exp2(std::floor(std::log2(most * below)));
    setting.contract.score.scale = std::clamp(scale, 0x1p-49, 0x1p49);  // inside of what a scale may be
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << "\n"
                                    << ToToml(setting.contract));
    RunFinite(setting);
    if (testing::Test::HasFailure()) return;
  }
}

// Results below the normal numbers, from small inputs of each kind and from weights that vanish.
TEST_P(Numbers, SubnormalResults_AreNoErrors) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < Rounds(GetParam(), 60, 12); ++round) {
    const DType dtype = kDTypes[CompilesPerClass(GetParam()) ? seed % 3 : rng() % 3];
    const Contract contract = MakeContract({.q_len = 12, .kv_len = 12, .dtype = dtype});
    Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    setting.contract.score.scale = RandomInt(rng, 0, 1) == 0 ? 0.3 : PowerOfTen(rng, 0, 3);
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
  for (int round = 0; round < Rounds(GetParam(), 40, 10); ++round) {
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
  for (int round = 0; round < Rounds(GetParam(), 40, 10); ++round) {
    const DType dtype = kDTypes[CompilesPerClass(GetParam()) ? seed % 3 : rng() % 3];
    const Contract contract =
        MakeContract({.q_len = 20, .kv_len = 20, .dtype = dtype, .softcap = PowerOfTen(rng, -6, 6)});
    Setting setting = MakeSetting(GetParam(), contract, {}, seed + static_cast<uint64_t>(round));
    Score& score = setting.contract.score;
    score.scale = std::min(score.softcap * PowerOfTen(rng, -1, 5), kMostFactor);
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << " softcap " << score.softcap
                                    << " scale " << score.scale);
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
