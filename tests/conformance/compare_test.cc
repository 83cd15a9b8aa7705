// The comparison must be able to fail: one wrong element, one leaked key, one NaN out of place. And its bounds must
// accept a correct lane that computes in f32 and rounds its operands, as every fast lane does.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "check/expected.h"
#include "conformance/conformance.h"
#include "oracle/oracle.h"

namespace tessera::conformance {
namespace {

using check::Compare;
using check::ExpectedTensor;

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor Rounded(const ExpectedTensor& from, ElementType type) {
  Tensor tensor = Tensor::Zeros(type, from.shape);
  for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, from.value[static_cast<size_t>(i)]);
  return tensor;
}

TEST(Compare, RoundedValues_Pass) {
  ExpectedTensor want{{3}, {1.0, -2.5, 1.0 / 3.0}, {1e-15, 1e-15, 1e-15}};
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16, ElementType::kF16}) {
    const Comparison result = Compare("o", Rounded(want, type), want);
    EXPECT_TRUE(result.pass) << result.text;
  }
}

TEST(Compare, OneElementOff_FailsAndNamesIt) {
  ExpectedTensor want{{2, 3}, {1, 1, 1, 1, 1, 1}, {1e-15, 1e-15, 1e-15, 1e-15, 1e-15, 1e-15}};
  Tensor got = Rounded(want, ElementType::kF32);
  got.Set(4, 1.0 + 0x1p-22);
  const Comparison result = Compare("o", got, want);
  EXPECT_FALSE(result.pass);
  EXPECT_EQ(result.worst, 4);
  EXPECT_NE(result.text.find("[1, 1]"), std::string::npos) << result.text;
}

TEST(Compare, ExactValues_AllowNothing) {
  const ExpectedTensor want{{1}, {0.0}, {0.0}};
  Tensor got = Rounded(want, ElementType::kF32);
  EXPECT_TRUE(Compare("o", got, want).pass);
  got.Set(0, 1e-40);
  EXPECT_FALSE(Compare("o", got, want).pass);
}

TEST(Compare, NanAndInfinity_MustBeInTheSamePlace) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const ExpectedTensor want{{3}, {-kInf, nan, 1.0}, {0.0, 0.0, 1.0}};
  EXPECT_TRUE(Compare("lse", Rounded(want, ElementType::kF32), want).pass);
  const std::vector<std::vector<double>> wrong = {
      {kInf, nan, 1.0}, {-1e38, nan, 1.0}, {-kInf, 0.0, 1.0}, {-kInf, nan, nan}, {-kInf, nan, -kInf}};
  for (const std::vector<double>& values : wrong) {
    EXPECT_FALSE(Compare("lse", Rounded({{3}, values, {}}, ElementType::kF32), want).pass);
  }
}

TEST(Compare, OtherShape_Fails) {
  const ExpectedTensor want{{2}, {0.0, 0.0}, {0.0, 0.0}};
  EXPECT_FALSE(Compare("o", Tensor::Zeros(ElementType::kF32, {3}), want).pass);
}

// Attention as a fast lane does it: f32 throughout, P and dS rounded to the input dtype. With a tile, P is rounded
// against the maximum so far and rescaled later, and dS takes the scale before it is rounded: what lanes may do.
struct NaiveLane {
  const Contract& contract;
  const Batch& batch;
  const TensorMap& inputs;
  // A key to see in addition, or to drop: what a wrong mask would do to row `row`.
  int64_t row = -1;
  int64_t flipped_key = -1;
  int64_t tile = 0;

  float Round(float x) const {
    if (contract.shape.dtype == DType::kBf16) return Bf16ToF32(F32ToBf16(x));
    if (contract.shape.dtype == DType::kF16) return F16ToF32(F32ToF16(x));
    return x;
  }
  TensorMap Run() const;
};

TensorMap NaiveLane::Run() const {
  const Shape& s = contract.shape;
  const ElementType type = ToElementType(s.dtype);
  TensorMap out;
  out["o"] = Tensor::Zeros(type, inputs.at("do").shape);
  out["lse"] = Tensor::Zeros(ElementType::kF32, {s.batch, s.num_q_heads, s.q_len});
  out["dq"] = Tensor::Zeros(type, inputs.at("q").shape);
  out["dk"] = Tensor::Zeros(type, inputs.at("k").shape);
  out["dv"] = Tensor::Zeros(type, inputs.at("v").shape);
  std::vector<float> dk(static_cast<size_t>(out["dk"].NumElements()));
  std::vector<float> dv(static_cast<size_t>(out["dv"].NumElements()));
  const auto at = [](const Tensor& t, int64_t i) { return static_cast<float>(t.At(i)); };
  const float scale = static_cast<float>(contract.score.scale);
  const float cap = static_cast<float>(contract.score.softcap);
  for (int64_t b = 0; b < s.batch; ++b) {
    const OracleFacts facts = *MakeOracleFacts(contract, batch, b);
    for (int64_t h = 0; h < s.num_q_heads; ++h) {
      const int64_t kv_head = h / (s.num_q_heads / s.num_kv_heads);
      const int64_t k0 = (b * s.num_kv_heads + kv_head) * s.kv_len;
      for (int64_t i = 0; i < s.q_len; ++i) {
        const int64_t stat = (b * s.num_q_heads + h) * s.q_len + i;
        std::vector<int64_t> keys;
        for (int64_t j = 0; j < s.kv_len; ++j) {
          if (Allowed(contract, facts, h, i, j) != (i == row && j == flipped_key)) keys.push_back(j);
        }
        out["lse"].Set(stat, -kInf);
        if (keys.empty()) continue;
        std::vector<float> logits, slopes, p;
        float max = -std::numeric_limits<float>::infinity();
        for (const int64_t j : keys) {
          float dot = 0.0F;
          for (int64_t d = 0; d < s.dim_qk; ++d) {
            dot += at(inputs.at("q"), stat * s.dim_qk + d) * at(inputs.at("k"), (k0 + j) * s.dim_qk + d);
          }
          const float tanh = cap > 0.0F ? std::tanh(scale * dot / cap) : 0.0F;
          logits.push_back(cap > 0.0F ? cap * tanh : scale * dot);
          slopes.push_back(1.0F - tanh * tanh);
          max = std::max(max, logits.back());
        }
        float sum = 0.0F;
        std::vector<float> o(static_cast<size_t>(s.dim_v));
        const size_t step = tile > 0 ? static_cast<size_t>(tile) : keys.size();
        float shift = -std::numeric_limits<float>::infinity();
        for (size_t begin = 0; begin < keys.size(); begin += step) {
          const size_t end = std::min(begin + step, keys.size());
          const float before = shift;
          for (size_t n = begin; n < end; ++n) shift = std::max(shift, logits[n]);
          const float shrink = std::exp(before - shift);
          sum *= shrink;
          for (float& x : o) x *= shrink;
          for (size_t n = begin; n < end; ++n) {
            const float weight = std::exp(logits[n] - shift);
            sum += weight;
            for (int64_t d = 0; d < s.dim_v; ++d) {
              o[static_cast<size_t>(d)] += Round(weight) * at(inputs.at("v"), (k0 + keys[n]) * s.dim_v + d);
            }
          }
        }
        for (int64_t d = 0; d < s.dim_v; ++d) out["o"].Set(stat * s.dim_v + d, o[static_cast<size_t>(d)] / sum);
        const float lse = max + std::log(sum);
        out["lse"].Set(stat, lse);

        float delta = 0.0F;
        for (int64_t d = 0; d < s.dim_v; ++d) {
          delta += at(out["o"], stat * s.dim_v + d) * at(inputs.at("do"), stat * s.dim_v + d);
        }
        std::vector<float> dq(static_cast<size_t>(s.dim_qk));
        for (size_t n = 0; n < keys.size(); ++n) {
          const int64_t key = k0 + keys[n];
          const float prob = std::exp(logits[n] - lse);
          float dp = 0.0F;
          for (int64_t d = 0; d < s.dim_v; ++d) {
            dp += at(inputs.at("do"), stat * s.dim_v + d) * at(inputs.at("v"), key * s.dim_v + d);
            dv[static_cast<size_t>(key * s.dim_v + d)] += Round(prob) * at(inputs.at("do"), stat * s.dim_v + d);
          }
          const float unscaled = prob * (dp - delta) * slopes[n];
          const float ds = tile > 0 ? Round(unscaled * scale) / scale : Round(unscaled);
          for (int64_t d = 0; d < s.dim_qk; ++d) {
            dq[static_cast<size_t>(d)] += ds * at(inputs.at("k"), key * s.dim_qk + d);
            dk[static_cast<size_t>(key * s.dim_qk + d)] += ds * at(inputs.at("q"), stat * s.dim_qk + d);
          }
        }
        for (int64_t d = 0; d < s.dim_qk; ++d) out["dq"].Set(stat * s.dim_qk + d, dq[static_cast<size_t>(d)] * scale);
      }
    }
  }
  for (size_t i = 0; i < dk.size(); ++i) out["dk"].Set(static_cast<int64_t>(i), dk[i] * scale);
  for (size_t i = 0; i < dv.size(); ++i) out["dv"].Set(static_cast<int64_t>(i), dv[i]);
  return out;
}

CheckOptions SingleOptions() {
  CheckOptions options;
  options.arithmetic = Arithmetic::Single();
  return options;
}

TEST(Compare, SinglePrecisionLane_IsWithinItsBounds) {
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const int64_t tile : {0, 16, 100}) {
      const bool is_capped = tile != 16;
      // The tuned dim, sharp logits that move the running maximum, and both again with softcap.
      const Contract contract = MakeContract({.mask = "causal and documents",
                                              .q_len = 160,
                                              .kv_len = 160,
                                              .num_q_heads = 2,
                                              .num_kv_heads = 1,
                                              .dim_qk = tile == 0 ? 32 : 128,
                                              .dim_v = 16,
                                              .dtype = dtype,
                                              .softcap = is_capped ? 2.0 : 0.0});
      const Batch batch = DocumentBatch(contract, {70, 80});
      TensorMap inputs = MakeInputs(contract, seed + static_cast<uint64_t>(tile), true);
      Tensor& q = inputs.at("q");
      for (int64_t i = 0; tile == 16 && i < q.NumElements(); ++i) q.Set(i, 8.0 * q.At(i));
      const TensorMap outputs = NaiveLane{.contract = contract, .batch = batch, .inputs = inputs, .tile = tile}.Run();
      const Result<CheckReport> report = CheckOutputs(contract, batch, inputs, outputs, SingleOptions());
      ASSERT_TRUE(report.has_value()) << ToText(report.error());
      EXPECT_TRUE(report->pass) << ToText(dtype) << " tile " << tile << "\n" << report->text;
    }
  }
}

// A wrong cell that carries no more weight than any other of 600 moves the log-sum-exp far beyond its bound, at every
// dtype, though it drowns in the rounding of o.
TEST(Compare, OneKeyOfMany_IsCaught) {
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Contract contract = MakeContract(
        {.mask = "sink(599)", .q_len = 3, .kv_len = 600, .num_q_heads = 1, .dim_qk = 128, .dim_v = 16, .dtype = dtype});
    const TensorMap inputs = MakeInputs(contract, seed, true);
    for (const int64_t key : {-1, 0, 300, 599}) {
      const TensorMap outputs =
          NaiveLane{.contract = contract, .batch = {}, .inputs = inputs, .row = 1, .flipped_key = key, .tile = 64}
              .Run();
      const Result<CheckReport> report = CheckOutputs(contract, {}, inputs, outputs, SingleOptions());
      ASSERT_TRUE(report.has_value()) << ToText(report.error());
      EXPECT_EQ(report->pass, key < 0) << ToText(dtype) << ", key " << key << "\n" << report->text;
    }
  }
}

TEST(Compare, OneKeyLeakedOrDropped_IsCaught) {
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Contract contract =
        MakeContract({.q_len = 64, .kv_len = 64, .num_q_heads = 1, .dim_qk = 16, .dim_v = 16, .dtype = dtype});
    for (const int64_t key : {20, 41}) {
      // The query is the key itself, so that the key carries weight in the row.
      TensorMap inputs = MakeInputs(contract, seed, true);
      for (int64_t d = 0; d < 16; ++d) inputs.at("q").Set(40 * 16 + d, inputs.at("k").At(key * 16 + d));
      const TensorMap outputs = NaiveLane{contract, {}, inputs, 40, key}.Run();
      const Result<CheckReport> report = CheckOutputs(contract, {}, inputs, outputs, SingleOptions());
      ASSERT_TRUE(report.has_value()) << ToText(report.error());
      EXPECT_FALSE(report->pass) << ToText(dtype) << ", key " << key << "\n" << report->text;
    }
  }
}

TEST(CheckOutputs, TooLarge_ChecksRowsAndSaysSo) {
  const uint64_t seed = PrintedSeed();
  const Setting setting = MakeSetting("reference", MakeContract({.q_len = 90, .kv_len = 90}), {}, seed);
  RunOutcome outcome = RunSetting(setting);
  CheckOptions options;
  options.max_work = 1;
  options.sample_rows = 90;
  Result<CheckReport> report = CheckOutputs(setting.contract, setting.batch, setting.inputs, outcome.outputs, options);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
  EXPECT_TRUE(report->sampled);
  EXPECT_EQ(report->unchecked, (std::vector<std::string>{"dk", "dv"}));

  Tensor& o = outcome.outputs.at("o");
  for (int64_t i = 0; i < o.NumElements(); ++i) o.Set(i, o.At(i) + 0.01);
  report = CheckOutputs(setting.contract, setting.batch, setting.inputs, outcome.outputs, options);
  ASSERT_TRUE(report.has_value());
  EXPECT_FALSE(report->pass);
}

TEST(Oracle, LongLengths_AreRefused) {
  Contract contract = MakeContract({.q_len = 1 << 14, .kv_len = 1 << 14});
  const Result<std::vector<uint8_t>> mask = DenseMask(contract, {}, 0, 0);
  ASSERT_FALSE(mask.has_value());
  EXPECT_EQ(mask.error().code, ErrorCode::kTooLarge);
  const Result<OracleForwardResult> forward = OracleForward(contract, {}, {});
  ASSERT_FALSE(forward.has_value());
  EXPECT_EQ(forward.error().code, ErrorCode::kTooLarge);
  const Result<check::Expected> expected = check::Expect({contract, {}, {}});
  ASSERT_FALSE(expected.has_value());
  EXPECT_EQ(expected.error().code, ErrorCode::kTooLarge);
}

TEST(CheckOutputs, WrongInputs_AreRefused) {
  const Contract contract = MakeContract({});
  TensorMap inputs = MakeInputs(contract, 1, false);
  const TensorMap gradient = {{"dq", Tensor::Zeros(ElementType::kF32, {1, 2, 24, 8})}};
  const Result<CheckReport> no_gradient = CheckOutputs(contract, {}, inputs, gradient);
  ASSERT_FALSE(no_gradient.has_value());
  EXPECT_EQ(no_gradient.error().where, "do");
  inputs.at("k").shape = {1, 1, 24, 7};
  const TensorMap output = {{"o", Tensor::Zeros(ElementType::kF32, {1, 2, 24, 8})}};
  const Result<CheckReport> wrong_shape = CheckOutputs(contract, {}, inputs, output);
  ASSERT_FALSE(wrong_shape.has_value());
  EXPECT_EQ(wrong_shape.error().code, ErrorCode::kTensorMismatch);
  EXPECT_EQ(wrong_shape.error().where, "k");
}

}  // namespace
}  // namespace tessera::conformance
