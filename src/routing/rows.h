// What the routing stages ask of rows and legal sets, in one place: the facts are checked once, rows are walked in
// order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "routing/routing.h"

namespace tessera::routing {

enum class NeedsTensors : uint8_t { kNo, kYes };
// That the input is whole and consistent; `stage` is where an error says it happened.
Status CheckRoutingInput(const RoutingInput& input, NeedsTensors needs, const char* stage);

inline int64_t NumBlocks(const Contract& contract) {
  const int64_t block = contract.routing->selected_block;
  return (contract.shape.kv_len + block - 1) / block;
}

inline void ForEach(const ParallelFor& parallel, int64_t count, const std::function<void(int64_t)>& work) {
  if (parallel) return parallel(count, work);
  for (int64_t i = 0; i < count; ++i) work(i);
}

// The intervals of one query after another; cheap when queries ascend.
class LegalRows {
 public:
  explicit LegalRows(const RowSet& set) : set_(set) {}
  // Evaluate the edges at `q`. Sorted, non-empty, not touching.
  std::span<const Interval> At(int64_t q) {
    const std::span<const Slab> slabs = set_.slabs();
    if (next_ >= slabs.size() || slabs[next_].q_begin > q || slabs[next_].q_end <= q) {
      const auto found = std::partition_point(slabs.begin(), slabs.end(), [q](const Slab& s) { return s.q_end <= q; });
      next_ = static_cast<size_t>(found - slabs.begin());
    }
    if (next_ >= slabs.size() || slabs[next_].q_begin > q) return {};
    return set_.Intervals(slabs[next_]);
  }
  // Whether the query may attend some key of [begin, end).
  bool HasKeyIn(int64_t q, int64_t begin, int64_t end) {
    const std::span<const Interval> intervals = At(q);
    const auto found = std::partition_point(intervals.begin(), intervals.end(),
                                            [&](const Interval& i) { return i.hi.At(q) <= begin; });
    return found != intervals.end() && found->lo.At(q) < end;
  }

 private:
  const RowSet& set_;
  size_t next_ = 0;
};

}  // namespace tessera::routing
