// What the backward of every lane does with a log-sum-exp, so that a recomputed weight is never above 1.
//
// A log-sum-exp comes rounded to f32. Once it is large, that rounding decides whether the exponent of a row's largest
// weight comes out far above 0 or far below it. So exponents are bounded by 0, and a large log-sum-exp leans down by
// what rounding can have moved it: the largest weight of such a row is 1, as it is when logits are that far apart.
#pragma once

#include <cmath>

namespace tessera::lanes {

// From here on a log-sum-exp leans; what is lost below is less than rounding P to bf16 loses.
inline constexpr double kLeanFrom = 1024.0;
inline constexpr double kLean = 0x1p-23;  // of its size: its own rounding, and that of the logits it is compared with

// NaN and infinities stay.
inline double LeanLse(double lse) {
  return std::abs(lse) >= kLeanFrom && std::isfinite(lse) ? lse - kLean * std::abs(lse) : lse;
}

// exp(logit - lse), at most 1; NaN stays.
inline double WeightOf(double logit, double lse) {
  const double exponent = logit - lse;
  return std::exp(exponent > 0.0 ? 0.0 : exponent);
}

}  // namespace tessera::lanes
