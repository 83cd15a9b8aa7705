#include "contract/row_set.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace tessera {
namespace {

Edge Constant(int64_t key) { return {.offset = static_cast<int32_t>(key), .diagonal = 0}; }
Edge Diagonal(int64_t offset) { return {.offset = static_cast<int32_t>(offset), .diagonal = 1}; }

// Edges of one list by direction, so that only pairs that can meet are looked at: bitmaps bring thousands of constant
// edges and no diagonal one.
struct EdgesByDirection {
  std::vector<int64_t> constant;
  std::vector<int64_t> diagonal;
  void Assign(std::span<const Interval> intervals) {
    constant.clear();
    diagonal.clear();
    for (const Interval& interval : intervals) {
      for (const Edge& edge : {interval.lo, interval.hi}) {
        (edge.diagonal != 0 ? diagonal : constant).push_back(edge.offset);
      }
    }
  }
};

struct Scratch {
  EdgesByDirection edges_a;
  EdgesByDirection edges_b;
  std::vector<int64_t> cuts;
  std::vector<Interval> merged;
};

// Rows in [q_begin, q_end) at which a constant edge of one list meets a diagonal edge of the other, and the rows just
// after: between two such rows the order of all edges is fixed.
void CollectCuts(int64_t q_begin, int64_t q_end, std::span<const Interval> a, std::span<const Interval> b,
                 Scratch& scratch) {
  scratch.cuts.clear();
  scratch.edges_a.Assign(a);
  scratch.edges_b.Assign(b);
  const auto meet = [&](const std::vector<int64_t>& constant, const std::vector<int64_t>& diagonal) {
    for (const int64_t offset : diagonal) {
      for (const int64_t key : constant) {
        const int64_t row = key - offset;
        if (row > q_begin && row < q_end) scratch.cuts.push_back(row);
        if (row + 1 > q_begin && row + 1 < q_end) scratch.cuts.push_back(row + 1);
      }
    }
  };
  meet(scratch.edges_a.constant, scratch.edges_b.diagonal);
  meet(scratch.edges_b.constant, scratch.edges_a.diagonal);
  std::sort(scratch.cuts.begin(), scratch.cuts.end());
  scratch.cuts.erase(std::unique(scratch.cuts.begin(), scratch.cuts.end()), scratch.cuts.end());
}

bool Holds(SetOp op, bool in_a, bool in_b) {
  switch (op) {
    case SetOp::kAnd:
      return in_a && in_b;
    case SetOp::kOr:
      return in_a || in_b;
    case SetOp::kMinus:
      return in_a && !in_b;
  }
  return false;
}

// Walks the edges of both lists in key order at `row`; valid for every row of a range without cuts.
void MergeAtRow(int64_t row, std::span<const Interval> a, std::span<const Interval> b, SetOp op,
                std::vector<Interval>& out) {
  const auto edge_at = [](std::span<const Interval> list, size_t i) -> const Edge& {
    return i % 2 == 0 ? list[i / 2].lo : list[i / 2].hi;
  };
  size_t i = 0;
  size_t j = 0;
  bool inside = false;
  Edge begin;
  while (i < 2 * a.size() || j < 2 * b.size()) {
    const int64_t key_a = i < 2 * a.size() ? edge_at(a, i).At(row) : std::numeric_limits<int64_t>::max();
    const int64_t key_b = j < 2 * b.size() ? edge_at(b, j).At(row) : std::numeric_limits<int64_t>::max();
    const Edge edge = key_a <= key_b ? edge_at(a, i) : edge_at(b, j);
    if (key_a <= key_b) ++i;
    if (key_b <= key_a) ++j;
    const bool now = Holds(op, i % 2 == 1, j % 2 == 1);
    if (now && !inside) begin = edge;
    if (!now && inside) out.push_back({begin, edge});
    inside = now;
  }
}

// One interval against one, both of whose edges move the same way: the common case, without any walk.
bool IntersectSingle(const Interval& a, const Interval& b, Interval& out) {
  if (a.lo.diagonal != b.lo.diagonal || a.hi.diagonal != b.hi.diagonal) return false;
  if (a.lo.diagonal != a.hi.diagonal) return false;
  out.lo = a.lo.offset >= b.lo.offset ? a.lo : b.lo;
  out.hi = a.hi.offset <= b.hi.offset ? a.hi : b.hi;
  return true;
}

void CombineRows(int64_t q_begin, int64_t q_end, std::span<const Interval> a, std::span<const Interval> b, SetOp op,
                 Scratch& scratch, RowSetBuilder& builder) {
  Interval single;
  if (op == SetOp::kAnd && a.size() == 1 && b.size() == 1 && IntersectSingle(a[0], b[0], single)) {
    if (single.lo.offset < single.hi.offset) builder.Append(q_begin, q_end, {&single, 1});
    return;
  }
  CollectCuts(q_begin, q_end, a, b, scratch);
  scratch.cuts.push_back(q_end);
  int64_t row = q_begin;
  for (const int64_t cut : scratch.cuts) {
    scratch.merged.clear();
    MergeAtRow(row, a, b, op, scratch.merged);
    builder.Append(row, cut, scratch.merged);
    row = cut;
  }
}

}  // namespace

void RowSetBuilder::Reserve(size_t slabs, size_t intervals) {
  set_.slabs_.reserve(slabs);
  set_.intervals_.reserve(intervals);
}

void RowSetBuilder::Push(int64_t q_begin, int64_t q_end, std::span<const Interval> intervals) {
  set_.slabs_.push_back({.q_begin = static_cast<int32_t>(q_begin),
                         .q_end = static_cast<int32_t>(q_end),
                         .first = static_cast<uint32_t>(set_.intervals_.size()),
                         .count = static_cast<uint32_t>(intervals.size())});
  for (Interval interval : intervals) {
    if (q_end - q_begin == 1) {
      // One row alone has no direction: it is written with constant edges until a second row gives it one.
      interval = {Constant(interval.lo.At(q_begin)), Constant(interval.hi.At(q_begin))};
    }
    set_.intervals_.push_back(interval);
  }
}

bool RowSetBuilder::TryExtendByOneRow(int64_t q, std::span<const Interval> intervals) {
  if (set_.slabs_.empty()) return false;
  Slab& slab = set_.slabs_.back();
  if (slab.q_end != q || slab.count != intervals.size()) return false;
  Interval* current = set_.intervals_.data() + slab.first;
  if (slab.q_end - slab.q_begin >= 2) {
    for (size_t i = 0; i < intervals.size(); ++i) {
      if (current[i].lo.At(q) != intervals[i].lo.At(q) || current[i].hi.At(q) != intervals[i].hi.At(q)) return false;
    }
  } else {
    const auto step_ok = [q](const Edge& edge, const Edge& next) {
      const int64_t step = next.At(q) - edge.offset;
      return step == 0 || step == 1;
    };
    for (size_t i = 0; i < intervals.size(); ++i) {
      if (!step_ok(current[i].lo, intervals[i].lo) || !step_ok(current[i].hi, intervals[i].hi)) return false;
    }
    const auto give_direction = [q](Edge& edge, const Edge& next) {
      if (next.At(q) != edge.offset) edge = Diagonal(edge.offset - (q - 1));
    };
    for (size_t i = 0; i < intervals.size(); ++i) {
      give_direction(current[i].lo, intervals[i].lo);
      give_direction(current[i].hi, intervals[i].hi);
    }
  }
  ++slab.q_end;
  return true;
}

void RowSetBuilder::Append(int64_t q_begin, int64_t q_end, std::span<const Interval> intervals) {
  if (q_begin >= q_end || intervals.empty()) return;
  if (TryExtendByOneRow(q_begin, intervals)) {
    if (++q_begin == q_end) return;
    // The slab's edges now have a direction; the remaining rows either follow it to the last or not at all, because
    // two edges that agree at one row and differ in direction differ at the next.
    Slab& slab = set_.slabs_.back();
    if (std::equal(intervals.begin(), intervals.end(), set_.intervals_.begin() + slab.first)) {
      slab.q_end = static_cast<int32_t>(q_end);
      return;
    }
  }
  Push(q_begin, q_end, intervals);
}

void RowSetBuilder::AppendRun(const MaskRun& run) {
  if (run.kv_begin >= run.kv_end || run.diag_begin >= run.diag_end) return;
  // Rows where the run holds at least one key.
  const int64_t first = std::max(run.q_begin, run.kv_begin - run.diag_end + 1);
  const int64_t last = std::min(run.q_end, run.kv_end - run.diag_begin);
  if (first >= last) return;
  // From these rows on the lower edge is diagonal, and the upper edge constant.
  const int64_t lo_turns = std::clamp(run.kv_begin - run.diag_begin, first, last);
  const int64_t hi_turns = std::clamp(run.kv_end - run.diag_end, first, last);
  std::array<int64_t, 4> cuts{first, lo_turns, hi_turns, last};
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    const Interval interval{cuts[i] >= lo_turns ? Diagonal(run.diag_begin) : Constant(run.kv_begin),
                            cuts[i] >= hi_turns ? Constant(run.kv_end) : Diagonal(run.diag_end)};
    Append(cuts[i], cuts[i + 1], {&interval, 1});
  }
}

RowSet RowSetBuilder::Finish() { return std::exchange(set_, RowSet()); }

RowSet RowSet::FromRun(const MaskRun& run) {
  RowSetBuilder builder;
  builder.AppendRun(run);
  return builder.Finish();
}

bool RowSet::Contains(int64_t q, int64_t k) const {
  const auto slab = std::upper_bound(slabs_.begin(), slabs_.end(), q,
                                     [](int64_t row, const Slab& candidate) { return row < candidate.q_end; });
  if (slab == slabs_.end() || q < slab->q_begin) return false;
  for (const Interval& interval : Intervals(*slab)) {
    if (interval.lo.At(q) <= k && k < interval.hi.At(q)) return true;
  }
  return false;
}

void RowSet::AddTo(Hasher& hasher) const {
  static_assert(sizeof(Slab) == 16 && sizeof(Interval) == 16);
  hasher.Int(static_cast<int64_t>(slabs_.size()));
  hasher.Bytes(slabs_.data(), slabs_.size() * sizeof(Slab));
  hasher.Int(static_cast<int64_t>(intervals_.size()));
  hasher.Bytes(intervals_.data(), intervals_.size() * sizeof(Interval));
}

RowSet Combine(const RowSet& a, const RowSet& b, SetOp op) {
  RowSetBuilder builder;
  builder.Reserve(a.slabs().size() + b.slabs().size(), a.NumIntervals() + b.NumIntervals());
  Scratch scratch;
  const std::span<const Slab> slabs_a = a.slabs();
  const std::span<const Slab> slabs_b = b.slabs();
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  size_t i = 0;
  size_t j = 0;
  int64_t row = 0;
  while (i < slabs_a.size() || j < slabs_b.size()) {
    if (op != SetOp::kOr && i == slabs_a.size()) break;
    if (op == SetOp::kAnd && j == slabs_b.size()) break;
    const int64_t begin_a = i < slabs_a.size() ? slabs_a[i].q_begin : kEnd;
    const int64_t begin_b = j < slabs_b.size() ? slabs_b[j].q_begin : kEnd;
    row = std::max(row, std::min(begin_a, begin_b));
    const bool in_a = begin_a <= row;
    const bool in_b = begin_b <= row;
    const int64_t end_a = in_a ? slabs_a[i].q_end : begin_a;
    const int64_t end_b = in_b ? slabs_b[j].q_end : begin_b;
    const int64_t end = std::min(end_a, end_b);
    const std::span<const Interval> list_a = in_a ? a.Intervals(slabs_a[i]) : std::span<const Interval>();
    const std::span<const Interval> list_b = in_b ? b.Intervals(slabs_b[j]) : std::span<const Interval>();
    if (in_a && in_b) {
      CombineRows(row, end, list_a, list_b, op, scratch, builder);
    } else if (in_a && op != SetOp::kAnd) {
      builder.Append(row, end, list_a);
    } else if (in_b && op == SetOp::kOr) {
      builder.Append(row, end, list_b);
    }
    row = end;
    if (in_a && end == end_a) ++i;
    if (in_b && end == end_b) ++j;
  }
  return builder.Finish();
}

}  // namespace tessera
