#include "train/goodput.h"

#include <algorithm>
#include <numeric>

namespace tessera {

namespace {
constexpr std::array<std::string_view, kNumSpans> kSpanNames = {"step", "checkpoint", "eval", "compilation",
                                                                "data_loading"};
}  // namespace

std::string_view ToText(SpanKind kind) { return kSpanNames[static_cast<size_t>(kind)]; }

Goodput MakeGoodput(const std::array<double, kNumSpans>& spans_s, double wall_s) {
  Goodput goodput;
  goodput.wall_s = wall_s;
  goodput.spans_s = spans_s;
  const double step = spans_s[static_cast<size_t>(SpanKind::kStep)];
  goodput.goodput = step > 0.0 && wall_s > 0.0 ? std::min(1.0, step / wall_s) : 0.0;
  goodput.idle_s = std::max(0.0, wall_s - std::accumulate(spans_s.begin(), spans_s.end(), 0.0));
  return goodput;
}

}  // namespace tessera
