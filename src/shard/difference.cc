// See difference.h.
#include "shard/difference.h"

#include <cmath>
#include <cstring>

#include "check/tolerance.h"
#include "tessera/dtype.h"

namespace tessera::shard {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kFew = 8;  // single roundings that no sum explains (docs/numerics.md)

bool IsSame(const float& a, const float& b) { return std::memcmp(&a, &b, sizeof(float)) == 0; }

double Apart(float a, float b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::abs(static_cast<double>(a) - static_cast<double>(b));
}

double WeightBound(const RingSums& sums, float lse) {
  return kUnit * (2 * check::Growth(sums.additions) + 4 * std::abs(static_cast<double>(lse)) + 4 * kFew);
}

}  // namespace

ShardDifference SameBits(const char* name, std::span<const float> got, std::span<const float> want) {
  ShardDifference out{.name = name, .elements = static_cast<int64_t>(want.size())};
  if (got.size() != want.size()) return out;
  for (size_t i = 0; i < got.size(); ++i) {
    if (IsSame(got[i], want[i])) continue;
    ++out.different;
    const double apart = Apart(got[i], want[i]);
    if (!std::isnan(out.largest) && !(apart <= out.largest)) out.largest = apart;  // a NaN stays
  }
  out.is_good = out.different == 0;
  return out;
}

ShardDifference WithinBounds(const char* name, std::span<const float> got, std::span<const float> want,
                             std::span<const double> bounds) {
  ShardDifference out{.name = name, .elements = static_cast<int64_t>(want.size()), .is_bounded = true};
  if (got.size() != want.size() || got.size() != bounds.size()) return out;
  out.is_good = true;
  double nearest = -1;  // to its bound, as a part of it
  for (size_t i = 0; i < got.size(); ++i) {
    if (!IsSame(got[i], want[i])) ++out.different;
    const double apart = Apart(got[i], want[i]);
    const bool is_within = apart <= bounds[i];  // false for NaN on one side, and for a bound that is none
    const double part = apart == 0 ? 0 : apart / bounds[i];
    // The first that is too far stays unless another is farther; one that is no number stays.
    const bool is_first_bad = out.is_good && !is_within;
    const bool is_farther = out.is_good == is_within && !std::isnan(nearest) && !(part <= nearest);
    if (is_first_bad || is_farther) {
      out.largest = apart;
      out.bound = bounds[i];
      nearest = part;
    }
    out.is_good = out.is_good && is_within;
  }
  return out;
}

double ReorderedSum(int64_t count, double magnitude) { return 2 * kUnit * (check::Growth(count) + kFew) * magnitude; }

double RingLseBound(const RingSums& sums, float lse) { return std::isfinite(lse) ? WeightBound(sums, lse) : 0; }

double RingOutputBound(const RingSums& sums, const RingOutput& output) {
  if (!std::isfinite(output.lse)) return 0;  // a row without keys
  const check::CastError cast = check::CastErrorOf(ToElementType(sums.dtype));
  // Weights are rounded to the type of the inputs before they meet v, on each side by their own shift.
  const double of_weights = sums.dtype == DType::kF32 ? 0 : 2 * cast.unit;
  const double before = (WeightBound(sums, output.lse) + of_weights) * output.most;
  return before + 2 * cast.Of(std::abs(static_cast<double>(output.value)) + before);
}

}  // namespace tessera::shard
