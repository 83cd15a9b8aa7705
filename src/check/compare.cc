// The comparison of one output with what it should be.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/expected.h"
#include "check/tolerance.h"

namespace tessera::check {
namespace {

// "[b, h, t, d]" of a flat index.
std::string Position(int64_t index, const std::vector<int64_t>& shape) {
  std::vector<int64_t> at(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return fmt::format("[{}]", fmt::join(at, ", "));
}

// Error over tolerance: 0 is exact, above 1 fails. Anything that must be exact and is not gives infinity.
struct Judged {
  double error = 0.0;
  double tolerance = 0.0;
  double ratio = 0.0;
};

Judged Judge(double got, double want, double bound, const CastError& cast) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(want) || std::isnan(got)) return {0.0, 0.0, std::isnan(want) && std::isnan(got) ? 0.0 : kWrong};
  if (want == got) return {};
  if (std::isinf(want)) return {0.0, 0.0, kWrong};
  if (std::isinf(got)) {
    // Right where a result within its tolerance is too large for the output's type.
    const double most = (got > 0.0 ? want : -want) + bound;
    return {0.0, bound, bound > 0.0 && most >= cast.overflow ? 0.0 : kWrong};
  }
  const double error = std::abs(got - want);
  if (bound == 0.0) return {error, 0.0, error == 0.0 ? 0.0 : kWrong};
  const double tolerance = bound + cast.Of(std::abs(want) + bound);  // what is cast may be that much larger
  if (!std::isfinite(tolerance)) return {error, tolerance, kWrong};
  return {error, tolerance, error / tolerance};
}

}  // namespace

Comparison Compare(std::string_view name, const Tensor& got, const ExpectedTensor& want) {
  Comparison result;
  result.name = name;
  if (got.shape != want.shape) {
    result.text = fmt::format("{}: FAIL shape [{}], expected [{}]", name, fmt::join(got.shape, ", "),
                              fmt::join(want.shape, ", "));
    return result;
  }
  const CastError cast = CastErrorOf(got.type);
  double worst_ratio = -1.0;
  int64_t failures = 0;
  for (int64_t i = 0; i < got.NumElements(); ++i) {
    const size_t at = static_cast<size_t>(i);
    const double value = got.At(i);
    const Judged judged = Judge(value, want.value[at], want.bound[at], cast);
    result.max_error = std::max(result.max_error, judged.error);
    if (judged.ratio > 1.0) ++failures;
    if (judged.ratio > worst_ratio) {
      worst_ratio = judged.ratio;
      result.worst = i;
      result.got = value;
      result.want = want.value[at];
      result.tolerance = judged.tolerance;
    }
  }
  result.pass = failures == 0;
  if (result.worst < 0) {
    result.text = fmt::format("{}: ok, no elements", name);
    return result;
  }
  const std::string place = Position(result.worst, want.shape);
  result.text = result.pass
                    ? fmt::format("{}: ok, max error {:.3g}, nearest its limit at {}: error {:.3g} of {:.3g} allowed",
                                  name, result.max_error, place, std::abs(result.got - result.want), result.tolerance)
                    : fmt::format("{}: FAIL in {} of {} elements, worst at {}: got {:.9g}, want {:.9g}, allowed {:.3g}",
                                  name, failures, got.NumElements(), place, result.got, result.want, result.tolerance);
  return result;
}

}  // namespace tessera::check
