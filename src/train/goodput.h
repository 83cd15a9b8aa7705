// Where a run's time went: spans by what they were for, and the arithmetic on them (docs/training.md).
#pragma once

#include "base/clock.h"
#include "tessera/train.h"

namespace tessera::train {

class GoodputMeter {
 public:
  // Adds what the callable took to a span, and gives what it gave.
  template <class Call>
  auto During(SpanKind kind, Call&& call) {
    const Clock clock;
    auto result = call();
    Add(kind, clock.Ns());
    return result;
  }
  void Add(SpanKind kind, int64_t ns) { spans_[static_cast<size_t>(kind)] += static_cast<double>(ns) * 1e-9; }
  double Seconds(SpanKind kind) const { return spans_[static_cast<size_t>(kind)]; }
  Goodput Now() const { return MakeGoodput(spans_, static_cast<double>(wall_.Ns()) * 1e-9); }

 private:
  Clock wall_;
  std::array<double, kNumSpans> spans_ = {};
};

}  // namespace tessera::train
