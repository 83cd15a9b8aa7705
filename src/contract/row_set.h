// Row-interval runs: an exact set of (query, key) pairs, held as slabs of rows whose key intervals have edges that
// are either constant or move one key per row. `and`, `or` and difference act exactly, in time linear in the slabs.
//
// A RowSet is always canonical: it depends only on which pairs it holds, never on how it was built. So equality of
// sets is equality of values, and hashing a RowSet hashes its meaning. Canonical means: intervals of a row are
// sorted, non-empty and do not touch; and, from the top row down, each slab extends as far as it can.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "tessera/mask_term.h"

namespace tessera {

// The key at a given row: `offset`, or row + `offset` when diagonal.
struct Edge {
  int32_t offset = 0;
  int32_t diagonal = 0;  // 0 or 1
  int64_t At(int64_t q) const { return offset + (diagonal != 0 ? q : 0); }
  bool operator==(const Edge&) const = default;
};

struct Interval {
  Edge lo;  // first key
  Edge hi;  // one past the last key
  bool operator==(const Interval&) const = default;
};

// Rows [q_begin, q_end), with intervals [first, first + count) of the set.
struct Slab {
  int32_t q_begin = 0;
  int32_t q_end = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const Slab&) const = default;
};

class RowSet {
 public:
  static RowSet FromRun(const MaskRun& run);
  std::span<const Slab> slabs() const { return slabs_; }
  std::span<const Interval> Intervals(const Slab& slab) const {
    return std::span<const Interval>(intervals_).subspan(slab.first, slab.count);
  }
  size_t NumIntervals() const { return intervals_.size(); }
  bool IsEmpty() const { return slabs_.empty(); }
  bool Contains(int64_t q, int64_t k) const;
  void AddTo(Hasher& hasher) const;
  bool operator==(const RowSet&) const = default;

 private:
  friend class RowSetBuilder;
  std::vector<Slab> slabs_;
  std::vector<Interval> intervals_;
};

// Takes row ranges top-down and keeps the set canonical as it grows.
class RowSetBuilder {
 public:
  void Reserve(size_t slabs, size_t intervals);
  // Rows [q_begin, q_end) at or below everything appended before; intervals sorted, non-empty in every one of these
  // rows, and not touching. An empty list is a gap.
  void Append(int64_t q_begin, int64_t q_end, std::span<const Interval> intervals);
  void AppendRun(const MaskRun& run);
  RowSet Finish();

 private:
  bool TryExtendByOneRow(int64_t q, std::span<const Interval> intervals);
  void Push(int64_t q_begin, int64_t q_end, std::span<const Interval> intervals);
  RowSet set_;
};

enum class SetOp : uint8_t { kAnd, kOr, kMinus };
RowSet Combine(const RowSet& a, const RowSet& b, SetOp op);

}  // namespace tessera
