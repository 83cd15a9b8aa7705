// What rounding a lane is entitled to, as numbers. docs/numerics.md derives every use of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tessera/contract.h"
#include "tessera/tensor.h"

namespace tessera {

// How a lane computes: the unit roundoff of its scores, softmax state and accumulators, and whether the
// probabilities and dS are rounded to the input dtype before they enter the second matmul.
struct Arithmetic {
  double unit = 0x1p-53;
  bool round_operands = false;
  static constexpr Arithmetic Double() { return {0x1p-53, false}; }  // the reference lane
  static constexpr Arithmetic Single() { return {0x1p-24, true}; }   // every fast lane
};

// Rounding to `type`: at most unit * |x| where x is normal, and at most `tiny` where it is not.
struct CastError {
  double unit = 0.0;
  double tiny = 0.0;
  double Of(double x) const { return unit * std::abs(x) + tiny; }
};
constexpr CastError CastErrorOf(ElementType type) {
  switch (type) {
    case ElementType::kF16:
      return {0x1p-11, 0x1p-25};
    case ElementType::kBf16:
      return {0x1p-8, 0x1p-126};  // a lane may flush subnormal numbers to zero
    default:
      return {0x1p-24, 0x1p-126};
  }
}

// How rounding errors grow over n additions: never more than n of them, and for long sums 4 sqrt(n), which rounding
// to nearest exceeds with negligible probability. The plain n would hide a wrong key among a few thousand.
inline double Growth(int64_t n) {
  const double count = static_cast<double>(n);
  return std::min(count, 4.0 * std::sqrt(count));
}

}  // namespace tessera
