// The kernels' softcap as they compute it, in f32 on the host, against tanh: within what docs/numerics.md gives a lane
// for a score of ordinary dims and for the slope, also where the cap is reached and the slope is nothing but rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "lanes/cuda/abi.h"
#include "lanes/cuda/kernels.h"
#include "support/seed.h"

namespace tessera::lanes::cuda {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kFew = 8.0;  // F of docs/numerics.md
constexpr double kLog2e = 1.4426950408889634;

// `off`: how far the machine's exp2 and reciprocal are from the right ones, in units of 2^-22 and 2^-23.
float Capped(const SoftcapParams& p, float x, double off) {
  const float t = x * x;
  float r = p.near[kNearTerms - 1];
  for (int i = kNearTerms - 2; i >= 0; --i) r = std::fma(r, t, p.near[i]);
  if (std::fabs(x) <= p.near_range) return x * r;
  const double exact = std::min(std::exp2(static_cast<double>(std::fabs(x) * p.far_exp)), 1e38);
  const auto power = static_cast<float>(exact * (1 + off * 0x1p-22));
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(1.0F + power) * (1 - off * 0x1p-23));
  return std::copysign(std::fma(-2.0F * p.most, inverse, p.most), x);
}

TEST(CudaSoftcap, ScoreAndSlope_AreWithinTheirTolerance) {
  std::mt19937_64 rng(PrintedSeed());
  std::uniform_real_distribution<double> reach(-12.0, 12.0);
  for (const double cap : {1.5, 5.0, 30.0, 60.0, 1e-6, 1e-3, 2e3, 6e4, 1e15}) {
    for (const double scale : {1e-15, 0.0625, 0.125, 1.0, 1e3, 1e10, 1e15}) {
      if (!FitsSoftcap(scale, cap)) continue;  // refused by reason
      const SoftcapParams p = MakeSoftcap(scale, cap, false);
      const SoftcapParams back = MakeSoftcap(scale, cap, true);
      for (int i = 0; i < 2000; ++i) {
        // Of every size around the cap: far below it, between the two formulas, and far beyond.
        const auto x = static_cast<float>(std::copysign(std::exp2(reach(rng)), reach(rng)) * cap / scale);
        const double off = i % 3 - 1.0;
        const double y = static_cast<double>(x) * scale / cap;
        const double want = cap * std::tanh(y);
        const float u = Capped(p, x, off);
        // A dot product of 64 terms is off by that much more than what a cap adds.
        const double allowed = kUnit * ((32 + kFew) * cap * std::abs(y) + kFew * std::abs(want));
        ASSERT_NEAR(u / kLog2e, want, allowed + kUnit * cap) << "cap " << cap << " scale " << scale << " score " << y;
        const float part = Capped(back, x, off);
        ASSERT_NEAR(static_cast<double>(part * back.cap_log2) / kLog2e, want, allowed + kUnit * cap)
            << "backward, score " << y;
        const auto slope = static_cast<double>(std::fma(-part, part, 1.0F));
        const double exact = 1 - std::tanh(y) * std::tanh(y);
        const double moved = exact * std::expm1(2 * kUnit * (32 + kFew) * std::abs(y));
        ASSERT_NEAR(slope, exact, std::min(1.0, moved) + 3 * kFew * kUnit) << "cap " << cap << " score " << y;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::lanes::cuda
