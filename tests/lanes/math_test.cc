// exp2 and tanh of every instruction set this machine has, against double over the whole range of f32, with the bounds
// that math-inl.h states; and conversions of f16 against the scalar ones. Compiled once per target, as the kernels are.
#include "lanes/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lanes/math_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "lanes/cpu/half-inl.h"
#include "lanes/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

// A multiple of 16 values, in place.
inline void Exp2All(float* values, int64_t count) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) hn::StoreU(Exp2(hn::LoadU(d, values + i)), d, values + i);
}
inline void TanhAll(float* values, int64_t count) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) hn::StoreU(Tanh(hn::LoadU(d, values + i)), d, values + i);
}
// f32 values to f16 and back, and to f32 from the bits of f16.
inline void RoundAll(float* values, int64_t count) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) hn::StoreU(RoundF16(hn::LoadU(d, values + i)), d, values + i);
}
inline void StoreHalves(const float* from, int64_t count, uint16_t* to) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) StoreF16(hn::LoadU(d, from + i), to + i);
}
inline void LoadHalves(const uint16_t* from, int64_t count, float* to) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) hn::StoreU(LoadF16(from + i), d, to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernel_operands.h"
#include "support/seed.h"

namespace tessera::lanes::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct MathOf {
  std::string_view isa;
  void (*exp2)(float*, int64_t);
  void (*tanh)(float*, int64_t);
  void (*round)(float*, int64_t);
  void (*store)(const float*, int64_t, uint16_t*);
  void (*load)(const uint16_t*, int64_t, float*);
};

std::vector<MathOf> RunnableMath() {
  std::vector<MathOf> all = {
#if defined(__aarch64__)
    {"neon", N_NEON::Exp2All, N_NEON::TanhAll, N_NEON::RoundAll, N_NEON::StoreHalves, N_NEON::LoadHalves},
#elif defined(__x86_64__)
    {"avx512", N_AVX3::Exp2All, N_AVX3::TanhAll, N_AVX3::RoundAll, N_AVX3::StoreHalves, N_AVX3::LoadHalves},
    {"avx2", N_AVX2::Exp2All, N_AVX2::TanhAll, N_AVX2::RoundAll, N_AVX2::StoreHalves, N_AVX2::LoadHalves},
    {"sse4", N_SSE4::Exp2All, N_SSE4::TanhAll, N_SSE4::RoundAll, N_SSE4::StoreHalves, N_SSE4::LoadHalves},
#endif
  };
  std::erase_if(all, [](const MathOf& row) { return !IsAvailable(row.isa); });
  return all;
}

// Every power of two and its neighbours with both signs, ten steps into every power, all bit patterns' sizes at random,
// and the range that logits come from at random.
std::vector<float> Samples() {
  std::vector<float> out = {0.0F,   -0.0F,   kInf,   -kInf, std::numeric_limits<float>::quiet_NaN(),
                            -1e30F, -127.0F, -128.0F};
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0F, exponent);
    for (const float x : {std::nextafter(power, 0.0F), power, std::nextafter(power, kInf)}) {
      out.push_back(x);
      out.push_back(-x);
    }
    for (int step = 1; step < 10; ++step) out.push_back(-power * (1.0F + static_cast<float>(step) / 10.0F));
  }
  // Where the nearest integer changes.
  for (int half = -300; half <= 300; ++half) {
    const float x = static_cast<float>(half) / 2.0F;
    for (const float near : {std::nextafter(x, -kInf), x, std::nextafter(x, kInf)}) out.push_back(near);
  }
  std::mt19937_64 rng(PrintedSeed());
  std::uniform_int_distribution<uint32_t> bits;
  for (int i = 0; i < 1'000'000; ++i) {
    const uint32_t word = bits(rng);
    float x;
    std::memcpy(&x, &word, sizeof(x));
    out.push_back(x);
  }
  std::uniform_real_distribution<float> logit(-130.0F, 128.0F);
  for (int i = 0; i < 1'000'000; ++i) out.push_back(logit(rng));
  std::uniform_real_distribution<float> small(-10.0F, 10.0F);
  for (int i = 0; i < 1'000'000; ++i) out.push_back(small(rng));
  while (out.size() % 16 != 0) out.push_back(0.0F);
  return out;
}

class Math : public testing::TestWithParam<MathOf> {};

TEST_P(Math, Exp2_WithinItsBoundEverywhere) {
  const std::vector<float> x = Samples();
  std::vector<float> y = x;
  GetParam().exp2(y.data(), static_cast<int64_t>(y.size()));
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i])) << "a NaN became " << y[i];
      continue;
    }
    if (x[i] > 128.0F) continue;  // not promised
    if (x[i] > 127.5F) {
      ASSERT_EQ(y[i], kInf) << x[i];
      continue;
    }
    if (x[i] < -126.5F) {
      ASSERT_EQ(y[i], 0.0F) << x[i];
      continue;
    }
    const double want = std::exp2(static_cast<double>(x[i]));
    if (want < 0x1p-126 || x[i] == 127.5F || x[i] == -126.5F) {
      // Subnormal, or 0 where a machine has none; and the two points at which either neighbour is right.
      ASSERT_TRUE((y[i] >= 0.0F && y[i] <= 0x1p-126F) || x[i] > 0.0F) << x[i];
      continue;
    }
    const double error = std::abs(static_cast<double>(y[i]) / want - 1.0);
    ASSERT_LT(error, 3e-7) << "at " << x[i];
    worst = std::max(worst, error);
  }
  RecordProperty("worst", fmt::format("{:.3g}", worst));
  EXPECT_GT(worst, 1e-8) << "nothing was measured";
}

TEST_P(Math, Tanh_WithinItsBoundEverywhere) {
  const std::vector<float> x = Samples();
  std::vector<float> y = x;
  GetParam().tanh(y.data(), static_cast<int64_t>(y.size()));
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i])) << "a NaN became " << y[i];
      continue;
    }
    ASSERT_LE(std::abs(y[i]), 1.0F + 4e-7F) << x[i];
    const double want = std::tanh(static_cast<double>(x[i]));
    // Below the smallest normal number a result has fewer bits.
    if (std::abs(want) < 0x1p-126) {
      ASSERT_LE(std::abs(static_cast<double>(y[i]) - want), 0x1p-126) << x[i];
      continue;
    }
    const double error = std::abs(static_cast<double>(y[i]) / want - 1.0);
    ASSERT_LT(error, 4e-7) << "at " << x[i];
    worst = std::max(worst, error);
  }
  RecordProperty("worst", fmt::format("{:.3g}", worst));
  EXPECT_GT(worst, 1e-8) << "nothing was measured";
}

bool IsSame(float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

TEST_P(Math, F16_EveryValueIsWidened) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(bits.size());
  GetParam().load(bits.data(), static_cast<int64_t>(bits.size()), wide.data());
  for (size_t i = 0; i < bits.size(); ++i) ASSERT_TRUE(IsSame(wide[i], F16ToF32(bits[i]))) << i << ": " << wide[i];
}

TEST_P(Math, F16_IsTheNearest) {
  std::vector<float> x = Samples();
  // Halfway between neighbours, and just beside.
  for (uint32_t i = 0; i < 0x7BFF; ++i) {
    const float middle = (F16ToF32(static_cast<uint16_t>(i)) + F16ToF32(static_cast<uint16_t>(i + 1))) / 2.0F;
    for (const float near : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, kInf), -middle}) {
      x.push_back(near);
    }
  }
  for (const float near : {65504.0F, 65519.99F, 65520.0F, 65536.0F, 1e9F}) x.push_back(near);
  while (x.size() % 16 != 0) x.push_back(1.0F);
  std::vector<float> rounded = x;
  GetParam().round(rounded.data(), static_cast<int64_t>(x.size()));
  std::vector<uint16_t> halves(x.size());
  GetParam().store(x.data(), static_cast<int64_t>(x.size()), halves.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const float want = F16ToF32(F32ToF16(x[i]));
    ASSERT_TRUE(IsSame(rounded[i], want)) << x[i] << " became " << rounded[i] << ", not " << want;
    ASSERT_TRUE(IsSame(F16ToF32(halves[i]), want)) << x[i] << " was stored as " << F16ToF32(halves[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Math, testing::ValuesIn(RunnableMath()),
                         [](const auto& test) { return std::string(test.param.isa); });

}  // namespace
}  // namespace tessera::lanes::cpu
#endif
