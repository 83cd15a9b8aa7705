// Root-mean-square norms of rows of f32, and their gradients, each row read once.
#if defined(TESSERA_CPU_NORM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_NORM_INL_H
#undef TESSERA_CPU_NORM_INL_H
#else
#define TESSERA_CPU_NORM_INL_H
#endif

#include <cmath>

#include "hwy/highway.h"
#include "lanes/cpu/kernel.h"
#include "lanes/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::lanes::cpu {
namespace HWY_NAMESPACE {

constexpr int kNormSums = 4;

// The sum of `whole(at)`, a vector from `at` on, and of `one(at)` for what is left of a row.
template <class Whole, class One>
HWY_INLINE float SumOfRow(int64_t width, const Whole& whole, const One& one) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sums[kNormSums];
  for (VF& sum : sums) sum = hn::Zero(d);
  int64_t at = 0;
  for (; at + kNormSums * lanes <= width; at += kNormSums * lanes) {
    for (int i = 0; i < kNormSums; ++i) sums[i] = hn::Add(sums[i], whole(at + i * lanes));
  }
  for (; at + lanes <= width; at += lanes) sums[0] = hn::Add(sums[0], whole(at));
  const VF all = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  float sum = hn::GetLane(hn::SumOfLanes(d, all));
  for (; at < width; ++at) sum += one(at);
  return sum;
}

inline void NormForward(const NormRows& n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < n.num_rows; ++row) {
    const float* HWY_RESTRICT x = n.x + row * n.width;
    float* HWY_RESTRICT y = n.y + row * n.width;
    const float squares = SumOfRow(
        n.width,
        [&](int64_t at) HWY_ATTR {
          const VF v = hn::LoadU(d, x + at);
          return hn::Mul(v, v);
        },
        [&](int64_t at) { return x[at] * x[at]; });
    const float scale = 1.0F / std::sqrt(squares / static_cast<float>(n.width) + n.eps);
    n.scale[row] = scale;
    const VF factor = hn::Set(d, scale);
    int64_t at = 0;
    for (; at + lanes <= n.width; at += lanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + at), factor), hn::LoadU(d, n.weight + at)), d, y + at);
    }
    for (; at < n.width; ++at) y[at] = x[at] * scale * n.weight[at];
  }
}

// dx = scale (w dy - x_hat mean(w dy x_hat)), dw += dy x_hat, with x_hat = scale x.
inline void NormBackward(const NormGradient& n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < n.num_rows; ++row) {
    const float* HWY_RESTRICT x = n.x + row * n.width;
    const float* HWY_RESTRICT dy = n.dy + row * n.width;
    float* HWY_RESTRICT dx = n.dx + row * n.width;
    const float* HWY_RESTRICT weight = n.weight;
    float* HWY_RESTRICT dweight = n.dweight;
    const float dot = SumOfRow(
        n.width,
        [&](int64_t at) HWY_ATTR {
          return hn::Mul(hn::Mul(hn::LoadU(d, dy + at), hn::LoadU(d, weight + at)), hn::LoadU(d, x + at));
        },
        [&](int64_t at) { return dy[at] * weight[at] * x[at]; });
    const float scale = n.scale[row];
    const float mean = scale * dot / static_cast<float>(n.width);
    const VF factor = hn::Set(d, scale);
    const VF along = hn::Set(d, mean);
    int64_t at = 0;
    for (; at + lanes <= n.width; at += lanes) {
      const VF x_hat = hn::Mul(hn::LoadU(d, x + at), factor);
      const VF dy_at = hn::LoadU(d, dy + at);
      hn::StoreU(hn::MulAdd(dy_at, x_hat, hn::LoadU(d, dweight + at)), d, dweight + at);
      const VF inner = hn::NegMulAdd(x_hat, along, hn::Mul(dy_at, hn::LoadU(d, weight + at)));
      hn::StoreU(hn::Mul(inner, factor), d, dx + at);
    }
    for (; at < n.width; ++at) {
      const float x_hat = x[at] * scale;
      dweight[at] += dy[at] * x_hat;
      dx[at] = (dy[at] * weight[at] - x_hat * mean) * scale;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::lanes::cpu
HWY_AFTER_NAMESPACE();
#endif
