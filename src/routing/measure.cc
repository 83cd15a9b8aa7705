// How good picks are: against exhaustive ones, and against the attention that they leave out.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "routing/dots.h"
#include "routing/routing.h"
#include "routing/rows.h"

namespace tessera::routing {
namespace {

constexpr int64_t kKeysAtOnce = 64;

struct Mass {
  double kept = 0.0;
  int64_t heads = 0;
};

// One query of one KV head: every head of the group, over the legal keys.
class QueryMass {
 public:
  QueryMass(const RoutingInput& input, int64_t b, int64_t head) : input_(input), b_(b), head_(head) {}

  Mass Of(int64_t q, std::span<const int32_t> picks) {
    const Shape& shape = input_.contract->shape;
    const int64_t group = shape.num_q_heads / shape.num_kv_heads;
    const int64_t dim = PaddedDim(shape.dim_qk);
    queries_.assign(static_cast<size_t>(group * dim), 0.0F);
    std::vector<const float*> rows;
    for (int64_t g = 0; g < group; ++g) {
      float* row = queries_.data() + g * dim;
      CopyRow(input_.q.type, RowAt(input_.q, b_, head_ * group + g, q), shape.dim_qk, row);
      rows.push_back(row);
    }
    ReadScores(q, rows, dim);
    Mass out;
    for (int64_t g = 0; g < group; ++g) {
      const std::vector<float>& scores = scores_[static_cast<size_t>(g)];
      if (scores.empty()) continue;
      const float top = *std::max_element(scores.begin(), scores.end());
      double all = 0.0;
      double kept = 0.0;
      for (size_t n = 0; n < scores.size(); ++n) {
        const double mass = std::exp(static_cast<double>(scores[n]) - static_cast<double>(top));
        const auto block = static_cast<int32_t>(keys_[n] / input_.contract->routing->selected_block);
        all += mass;
        if (std::find(picks.begin(), picks.end(), block) != picks.end()) kept += mass;
      }
      if (!std::isfinite(all)) continue;
      out.kept += kept / all;
      ++out.heads;
    }
    return out;
  }

 private:
  // Scores of every head over the legal keys, keys_ says which.
  void ReadScores(int64_t q, std::span<const float* const> rows, int64_t dim) {
    const tessera::Score& score = input_.contract->score;
    const Shape& shape = input_.contract->shape;
    scores_.assign(rows.size(), {});
    keys_.clear();
    std::vector<float> keys(static_cast<size_t>(kKeysAtOnce * dim), 0.0F);
    std::vector<float> dots(rows.size() * static_cast<size_t>(kKeysAtOnce));
    LegalRows legal((*input_.legal)[static_cast<size_t>(b_ * shape.num_kv_heads + head_)]);
    for (const Interval& interval : legal.At(q)) {
      for (int64_t begin = interval.lo.At(q); begin < interval.hi.At(q); begin += kKeysAtOnce) {
        const int64_t count = std::min(kKeysAtOnce, interval.hi.At(q) - begin);
        for (int64_t n = 0; n < count; ++n) {
          CopyRow(input_.k.type, RowAt(input_.k, b_, head_, begin + n), shape.dim_qk, keys.data() + n * dim);
          keys_.push_back(begin + n);
        }
        Dots({.queries = rows,
              .rows = keys.data(),
              .num_rows = count,
              .dim = dim,
              .out = dots.data(),
              .out_stride = kKeysAtOnce});
        for (size_t g = 0; g < rows.size(); ++g) {
          for (int64_t n = 0; n < count; ++n) {
            double value = score.scale * static_cast<double>(dots[g * kKeysAtOnce + static_cast<size_t>(n)]);
            if (score.softcap > 0.0) value = score.softcap * std::tanh(value / score.softcap);
            scores_[g].push_back(static_cast<float>(value));
          }
        }
      }
    }
  }

  const RoutingInput& input_;
  int64_t b_;
  int64_t head_;
  std::vector<float> queries_;
  std::vector<std::vector<float>> scores_;  // [group][legal key]
  std::vector<int64_t> keys_;
};

}  // namespace

double Recall(const PickRows& picks, const PickRows& exhaustive) {
  int64_t found = 0;
  int64_t all = 0;
  const int64_t rows = exhaustive.batch * exhaustive.q_len * exhaustive.num_kv_heads;
  if (rows != picks.batch * picks.q_len * picks.num_kv_heads) return 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* mine = picks.blocks.data() + row * picks.top_n;
    for (int64_t n = 0; n < exhaustive.top_n; ++n) {
      const int32_t block = exhaustive.blocks[static_cast<size_t>(row * exhaustive.top_n + n)];
      if (block < 0) continue;
      ++all;
      found += std::find(mine, mine + picks.top_n, block) != mine + picks.top_n ? 1 : 0;
    }
  }
  return all == 0 ? 1.0 : static_cast<double>(found) / static_cast<double>(all);
}

Result<double> MassKept(const RoutingInput& input, const PickRows& picks, std::span<const int64_t> queries) {
  if (Status checked = CheckRoutingInput(input, NeedsTensors::kYes, "route"); !checked) {
    return tl::unexpected(std::move(checked.error()));
  }
  const Shape& shape = input.contract->shape;
  if (picks.batch != shape.batch || picks.q_len < shape.q_len || picks.num_kv_heads != shape.num_kv_heads) {
    return Fail(ErrorCode::kPicksShape,
                fmt::format("picks for {} rows of {} queries and {} KV heads; the contract has {}, {} and {}",
                            picks.batch, picks.q_len, picks.num_kv_heads, shape.batch, shape.q_len, shape.num_kv_heads),
                "route");
  }
  for (const int64_t q : queries) {
    if (q >= 0 && q < shape.q_len) continue;
    return Fail(ErrorCode::kBadArgument, fmt::format("query {} of {} was sampled", q, shape.q_len), "route");
  }
  const auto per_head = static_cast<int64_t>(queries.size());
  std::vector<Mass> masses(static_cast<size_t>(shape.batch * shape.num_kv_heads * per_head));
  ForEach(input.parallel, static_cast<int64_t>(masses.size()), [&](int64_t n) {
    const int64_t b = n / per_head / shape.num_kv_heads;
    const int64_t head = n / per_head % shape.num_kv_heads;
    const int64_t q = queries[static_cast<size_t>(n % per_head)];
    masses[static_cast<size_t>(n)] = QueryMass(input, b, head).Of(q, picks.Of(b, q, head));
  });
  double kept = 0.0;
  int64_t heads = 0;
  for (const Mass& mass : masses) {
    kept += mass.kept;
    heads += mass.heads;
  }
  return heads == 0 ? 1.0 : kept / static_cast<double>(heads);
}

}  // namespace tessera::routing
