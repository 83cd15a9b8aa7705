// What rounding a lane is entitled to, as numbers. docs/numerics.md derives every use of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tessera/contract.h"
#include "tessera/tensor.h"

namespace tessera::check {

// Rounding to `type`: at most unit * |x| where x is normal, and at most `tiny` where it is not.
struct CastError {
  double unit = 0.0;
  double tiny = 0.0;
  double overflow = 0.0;  // from here on a number becomes infinity
  double Of(double x) const { return unit * std::abs(x) + tiny; }
};
constexpr CastError CastErrorOf(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return {0x1p-11, 0x1p-25, 65520.0};
    case ElementType::kBf16:
      return {0x1p-8, 0x1p-126, 0x1p128 - 0x1p119};  // a lane may flush subnormal numbers to zero
    default:
      return {0x1p-24, 0x1p-126, 0x1p128 - 0x1p103};
  }
}

// Large log-sum-exps are rounded too coarsely to weigh keys with, and lean down (docs/numerics.md); how far, and from
// which size on at the latest.
inline constexpr double kLseLean = 0x1p-23;
inline constexpr double kLseLeanFrom = 1024.0;

// How far a weight can be from exp(log_weight) when its exponent is off by up to `error`: no weight is above 1.
inline double WeightError(double log_weight, double error) {
  const double weight = std::exp(log_weight);
  const double less = -weight * std::expm1(-error);
  if (log_weight + error >= 0.0) return std::max(less, 1.0 - weight);
  return std::max(less, error < 1.0 ? weight * std::expm1(error) : std::exp(log_weight + error) - weight);
}

// How rounding errors grow over n additions: never more than n of them, and for long sums 4 sqrt(n), which rounding
// to nearest exceeds with negligible probability. The plain n would hide a wrong key among a few thousand.
inline double Growth(int64_t n) {
  const double count = static_cast<double>(n);
  return std::min(count, 4.0 * std::sqrt(count));
}

}  // namespace tessera::check
