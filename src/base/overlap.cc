// The search narrows both tensors to the parts whose address ranges cross. Where both step by the same stride, only the
// distance between their places matters, so that a million rows cost no more than two.
#include "base/overlap.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace tessera {
namespace {

// No tensor spans more: offsets in bytes stay far inside 64 bits.
constexpr int64_t kMaxExtent = int64_t{1} << 59;
// Steps of a search before it gives up; far beyond what views of one buffer take.
constexpr int64_t kMaxSteps = int64_t{1} << 16;

using Axis = ByteRows::Axis;

// A tensor from `begin` on: rows of `row_bytes`, axes by ascending stride, each stride above what lies inside it unless
// rows overlap.
struct Grid {
  int64_t row_bytes = 0;
  std::vector<Axis> axes;

  int64_t Extent() const {
    int64_t extent = row_bytes;
    for (const Axis& axis : axes) extent += axis.stride * (axis.count - 1);
    return extent;
  }
  // The same without its outermost axis.
  Grid Inside() const { return {row_bytes, {axes.begin(), axes.end() - 1}}; }
};

// Axes that lie end to end become one, and those that step nowhere vanish.
Grid Simplify(const ByteRows& rows) {
  Grid grid{rows.row_bytes, {}};
  std::vector<Axis> axes;
  for (const Axis& axis : rows.axes) {
    if (axis.count > 1 && axis.stride > 0) axes.push_back(axis);
  }
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  for (const Axis& axis : axes) {
    if (grid.axes.empty() && axis.stride == grid.row_bytes) {
      grid.row_bytes *= axis.count;
    } else if (!grid.axes.empty() && axis.stride == grid.axes.back().stride * grid.axes.back().count) {
      grid.axes.back().count *= axis.count;
    } else {
      grid.axes.push_back(axis);
    }
  }
  return grid;
}

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

class Search {
 public:
  // Whether `a` at 0 and `b` at `distance` share a byte.
  bool Meets(const Grid& a, const Grid& b, int64_t distance) {
    if (distance >= a.Extent() || distance + b.Extent() <= 0) return false;
    if (a.axes.empty() && b.axes.empty()) return true;
    if (++steps_ > kMaxSteps) return true;
    const int64_t stride_a = a.axes.empty() ? 0 : a.axes.back().stride;
    const int64_t stride_b = b.axes.empty() ? 0 : b.axes.back().stride;
    const bool splits_a = stride_a >= stride_b;
    const bool splits_b = stride_b >= stride_a;
    const Grid inner_a = splits_a ? a.Inside() : a;
    const Grid inner_b = splits_b ? b.Inside() : b;
    const int64_t stride = std::max(stride_a, stride_b);
    // The place of b's part less that of a's is `distance + n * stride`, with n in this range.
    int64_t low = splits_a ? 1 - a.axes.back().count : 0;
    int64_t high = splits_b ? b.axes.back().count - 1 : 0;
    low = std::max(low, FloorDiv(-inner_b.Extent() - distance, stride));
    high = std::min(high, FloorDiv(inner_a.Extent() - distance, stride) + 1);
    for (int64_t n = low; n <= high; ++n) {
      if (Meets(inner_a, inner_b, distance + n * stride)) return true;
    }
    return false;
  }

 private:
  int64_t steps_ = 0;
};

}  // namespace

int64_t ExtentOf(const ByteRows& rows) {
  int64_t extent = rows.row_bytes;
  for (const Axis& axis : rows.axes) {
    int64_t step = 0;
    if (__builtin_mul_overflow(axis.stride, axis.count - 1, &step) || __builtin_add_overflow(extent, step, &extent)) {
      return -1;
    }
  }
  return extent <= kMaxExtent ? extent : -1;
}

bool RowsMayOverlap(const ByteRows& rows) {
  std::array<Axis, 3> axes = rows.axes;
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t extent = rows.row_bytes;
  for (const Axis& axis : axes) {
    if (axis.count == 1) continue;
    if (axis.stride < extent) return true;
    extent += axis.stride * (axis.count - 1);
  }
  return false;
}

bool MayOverlap(const ByteRows& a, const ByteRows& b) {
  // Pointers into two objects have an order, though not a difference that the language defines.
  const std::less<const std::byte*> before;
  if (!before(a.data, b.data + ExtentOf(b)) || !before(b.data, a.data + ExtentOf(a))) return false;
  const auto distance = reinterpret_cast<intptr_t>(b.data) - reinterpret_cast<intptr_t>(a.data);
  return Search().Meets(Simplify(a), Simplify(b), distance);
}

}  // namespace tessera
