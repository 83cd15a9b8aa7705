#include "contract/registered_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <queue>
#include <utility>
#include <vector>

#include "base/spelling.h"
#include "contract/limits.h"

namespace tessera {
namespace {

using Asked = tl::expected<RowSet, std::string>;

// Joins sets pairwise, so that each is walked only a logarithmic number of times.
Asked Unite(std::vector<RowSet> sets) {
  if (sets.empty()) return RowSet();
  while (sets.size() > 1) {
    std::vector<RowSet> joined;
    joined.reserve((sets.size() + 1) / 2);
    size_t intervals = 0;
    for (size_t i = 0; i < sets.size(); i += 2) {
      joined.push_back(i + 1 < sets.size() ? Combine(sets[i], sets[i + 1], SetOp::kOr) : std::move(sets[i]));
      intervals += joined.back().NumIntervals();
      if (intervals > kMaxTermIntervals) {
        return tl::unexpected(fmt::format("row {}: the runs cut rows into more than {} intervals",
                                          joined.back().slabs().front().q_begin, kMaxTermIntervals));
      }
    }
    sets = std::move(joined);
  }
  return std::move(sets.front());
}

std::string RunProblem(const MaskRun& run, const MaskTermInput& input, int64_t previous_row) {
  if (run.q_begin < 0 || run.q_end > input.q_len || run.q_begin > run.q_end) {
    return fmt::format("rows [{}, {}), expected an ascending pair inside 0..{}", run.q_begin, run.q_end, input.q_len);
  }
  if (run.kv_begin < 0 || run.kv_end > input.kv_len || run.kv_begin > run.kv_end) {
    return fmt::format("keys [{}, {}), expected an ascending pair inside 0..{}", run.kv_begin, run.kv_end,
                       input.kv_len);
  }
  if (run.q_begin < previous_row) {
    return fmt::format("rows [{}, {}), expected runs with q_begin ascending: the run before begins at row {}",
                       run.q_begin, run.q_end, previous_row);
  }
  return {};
}

Asked AskRuns(const MaskTermSpec& spec, const MaskTermInput& input) {
  const std::vector<MaskRun> runs = spec.runs(input);
  if (runs.size() > kMaxTermRuns) {
    return tl::unexpected(fmt::format("row {}: expected at most {} runs, found {}", runs[kMaxTermRuns].q_begin,
                                      kMaxTermRuns, runs.size()));
  }
  // Runs that share no row go into one layer, in order; only the layers have to be united.
  std::vector<RowSetBuilder> layers;
  using FreeFrom = std::pair<int64_t, size_t>;  // the first row at which a layer is free
  std::priority_queue<FreeFrom, std::vector<FreeFrom>, std::greater<>> free;
  int64_t previous_row = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const MaskRun& run = runs[i];
    if (std::string problem = RunProblem(run, input, previous_row); !problem.empty()) {
      return tl::unexpected(fmt::format("row {}: run {} has {}", run.q_begin, i, problem));
    }
    previous_row = run.q_begin;
    if (run.q_begin == run.q_end || run.kv_begin == run.kv_end) continue;
    size_t layer = layers.size();
    if (!free.empty() && free.top().first <= run.q_begin) {
      layer = free.top().second;
      free.pop();
    } else {
      layers.emplace_back();
    }
    free.emplace(run.q_end, layer);
    // Past kNone a bound is none at any length we accept, and clamping keeps sums in range.
    layers[layer].AppendRun({.q_begin = run.q_begin,
                             .q_end = run.q_end,
                             .kv_begin = run.kv_begin,
                             .kv_end = run.kv_end,
                             .diag_begin = std::clamp(run.diag_begin, -MaskRun::kNone, MaskRun::kNone),
                             .diag_end = std::clamp(run.diag_end, -MaskRun::kNone, MaskRun::kNone)});
  }
  std::vector<RowSet> sets;
  sets.reserve(layers.size());
  for (RowSetBuilder& layer : layers) sets.push_back(layer.Finish());
  return Unite(std::move(sets));
}

// Walks rectangles from the whole mask down to those that are not mixed, or small.
class RectWalk {
 public:
  RectWalk(const MaskTermSpec& spec, const MaskTermInput& input) : spec_(spec), input_(input) {}

  Asked Walk(const MaskRect& rect) {
    if (++num_rects_ > kMaxTermRects) {
      return tl::unexpected(fmt::format("row {}: the mask's edges are too long: more than {} rectangles were asked for",
                                        rect.q_begin, kMaxTermRects));
    }
    switch (spec_.cover(input_, rect)) {
      case MaskCover::kEmpty:
        if (std::string problem = CornerProblem(rect, false); !problem.empty()) return tl::unexpected(problem);
        return RowSet();
      case MaskCover::kFull:
        if (std::string problem = CornerProblem(rect, true); !problem.empty()) return tl::unexpected(problem);
        return RowSet::FromRun(
            {.q_begin = rect.q_begin, .q_end = rect.q_end, .kv_begin = rect.kv_begin, .kv_end = rect.kv_end});
      case MaskCover::kMixed:
        return (rect.q_end - rect.q_begin) * (rect.kv_end - rect.kv_begin) <= kSmallRectPairs ? AskPairs(rect)
                                                                                              : Halve(rect);
    }
    return tl::unexpected(fmt::format("row {}: `cover` gave no value of MaskCover", rect.q_begin));
  }

 private:
  static constexpr int64_t kSmallRectPairs = 64;

  // The number strictly inside (begin, end) that the largest power of two divides: blocks of the user's own, which
  // mostly begin at such numbers, then fall apart into whole rectangles.
  static int64_t RoundestInside(int64_t begin, int64_t end) {
    const auto bit = static_cast<int>(std::bit_width(static_cast<uint64_t>(begin ^ (end - 1)))) - 1;
    return (end - 1) >> bit << bit;
  }

  Asked Halve(const MaskRect& rect) {
    MaskRect first = rect;
    MaskRect second = rect;
    if (rect.q_end - rect.q_begin >= rect.kv_end - rect.kv_begin) {
      first.q_end = second.q_begin = RoundestInside(rect.q_begin, rect.q_end);
    } else {
      first.kv_end = second.kv_begin = RoundestInside(rect.kv_begin, rect.kv_end);
    }
    Asked a = Walk(first);
    if (!a) return a;
    Asked b = Walk(second);
    if (!b) return b;
    if (a->IsEmpty()) return b;
    if (b->IsEmpty()) return a;
    return Combine(*a, *b, SetOp::kOr);
  }

  Asked AskPairs(const MaskRect& rect) {
    RowSetBuilder builder;
    for (int64_t q = rect.q_begin; q < rect.q_end; ++q) {
      row_.clear();
      for (int64_t k = rect.kv_begin; k < rect.kv_end; ++k) {
        if (!spec_.allows(input_, q, k)) continue;
        const auto key = static_cast<int32_t>(k);
        if (!row_.empty() && row_.back().hi.offset == key) {
          row_.back().hi.offset = key + 1;
        } else {
          row_.push_back({{key, 0}, {key + 1, 0}});
        }
      }
      builder.Append(q, q + 1, row_);
    }
    return builder.Finish();
  }

  // A look at the corners finds most pairs of functions that do not agree, at little cost.
  std::string CornerProblem(const MaskRect& rect, bool expected) const {
    for (const int64_t q : {rect.q_begin, rect.q_end - 1}) {
      for (const int64_t k : {rect.kv_begin, rect.kv_end - 1}) {
        if (spec_.allows(input_, q, k) == expected) continue;
        return fmt::format(
            "row {}: `cover` says rows [{}, {}) by keys [{}, {}) are {}, `allows` says otherwise of "
            "key {}",
            q, rect.q_begin, rect.q_end, rect.kv_begin, rect.kv_end, expected ? "full" : "empty", k);
      }
    }
    return {};
  }

  const MaskTermSpec& spec_;
  const MaskTermInput& input_;
  std::vector<Interval> row_;
  int64_t num_rects_ = 0;
};

}  // namespace

Asked AskTerm(const MaskTermSpec& spec, const MaskTermInput& input) {
  // The one place where a foreign function runs below a public header: nothing it throws may pass.
  try {
    if (spec.runs) return AskRuns(spec, input);
    return RectWalk(spec, input).Walk({.q_begin = 0, .q_end = input.q_len, .kv_begin = 0, .kv_end = input.kv_len});
  } catch (const std::exception& thrown) {
    return tl::unexpected(fmt::format("row 0: its function threw: {}", Excerpt(thrown.what())));
  } catch (...) {
    return tl::unexpected(std::string("row 0: its function threw something that is no std::exception"));
  }
}

}  // namespace tessera
