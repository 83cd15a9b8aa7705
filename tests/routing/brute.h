// A second opinion on routing: plain loops over tokens that know nothing of lists of means, chunks, runs or the lanes
// of a machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "routing/cases.h"

namespace tessera::routing {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Each product rounded to f32 before anything is added to it: a compiler may otherwise fuse the two.
inline float Times(float a, float b) {
  const volatile float product = a * b;
  return product;
}

inline float LaneDot(const std::vector<float>& a, const std::vector<float>& b) {
  float lanes[16] = {};
  for (size_t d = 0; d < a.size(); ++d) lanes[d % 16] += Times(a[d], b[d]);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

struct BruteMean {
  int64_t c = 0;
  int64_t block = 0;
  int64_t last = 0;
  std::vector<float> value;
};

inline std::vector<BruteMean> BruteMeans(const RoutingCase& at, int64_t b, int64_t head, int32_t doc) {
  const Shape& shape = at.contract.shape;
  const Routing& routing = *at.contract.routing;
  std::vector<BruteMean> out;
  for (int64_t c = 0; c * routing.block_stride < shape.kv_len && doc >= 0; ++c) {
    BruteMean mean{.c = c, .value = std::vector<float>(static_cast<size_t>(shape.dim_qk), 0.0F)};
    int64_t count = 0;
    for (int64_t j = c * routing.block_stride; j < c * routing.block_stride + routing.compression_block; ++j) {
      if (j >= shape.kv_len || at.KeyDoc(b, j) != doc) continue;
      if (count++ == 0) mean.block = j / routing.selected_block;
      mean.last = j;
      for (int64_t d = 0; d < shape.dim_qk; ++d) mean.value[static_cast<size_t>(d)] += at.K(b, head, j, d);
    }
    for (float& value : mean.value) value /= static_cast<float>(count);
    if (count > 0) out.push_back(std::move(mean));
  }
  return out;
}

// The first `keep` ids: the forced ones in their order, then by score, equal scores by lower id.
inline std::vector<int64_t> BruteBest(const std::vector<int64_t>& ids, const std::vector<float>& scores,
                                      const std::vector<int64_t>& forced, int64_t keep) {
  std::vector<int64_t> order = ids;
  const auto rank = [&](int64_t id) {
    const auto found = std::find(forced.begin(), forced.end(), id);
    return found - forced.begin();
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    const float x = scores[static_cast<size_t>(a)];
    const float y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.resize(std::min(order.size(), static_cast<size_t>(keep)));
  std::sort(order.begin(), order.end());
  return order;
}

struct BruteQuery {
  std::vector<float> sum;
  int64_t horizon = 0;
  int64_t own = -1;
  std::vector<bool> legal;  // [blocks]
};

inline BruteQuery BruteQueryOf(const RoutingCase& at, int64_t b, int64_t head, int64_t i) {
  const Shape& shape = at.contract.shape;
  const int64_t group = shape.num_q_heads / shape.num_kv_heads;
  BruteQuery out;
  for (int64_t d = 0; d < shape.dim_qk; ++d) {
    float sum = at.Q(b, head * group, i, d);
    for (int64_t g = 1; g < group; ++g) sum += at.Q(b, head * group + g, i, d);
    out.sum.push_back(sum);
  }
  const int64_t position = i + at.contract.mask.offset;
  out.horizon = position;
  out.legal.assign(static_cast<size_t>(at.NumBlocks()), false);
  for (int64_t j = 0; j < shape.kv_len; ++j) {
    if (!at.Allowed(b, head, i, j)) continue;
    out.horizon = std::max(out.horizon, j);
    out.legal[static_cast<size_t>(j / at.contract.routing->selected_block)] = true;
  }
  if (position >= 0 && position < shape.kv_len) out.own = position / at.contract.routing->selected_block;
  return out;
}

// The mean of some means, each weighed by its squared distance from their plain mean.
inline std::vector<float> BruteRepresentative(const std::vector<std::vector<float>>& means) {
  const size_t dim = means[0].size();
  const auto count = static_cast<float>(means.size());
  std::vector<float> plain(dim, 0.0F);
  std::vector<float> out(dim, 0.0F);
  for (size_t d = 0; d < dim; ++d) {
    for (const std::vector<float>& mean : means) plain[d] += mean[d];
    plain[d] /= count;
  }
  std::vector<float> weights;
  float total = 0.0F;
  for (const std::vector<float>& mean : means) {
    float weight = 0.0F;
    for (size_t d = 0; d < dim; ++d) weight += Times(mean[d] - plain[d], mean[d] - plain[d]);
    weights.push_back(weight);
    total += weight;
  }
  for (size_t m = 0; m < means.size(); ++m) {
    const float share = total > 0.0F && std::isfinite(total) ? weights[m] / total : 1.0F / count;
    for (size_t d = 0; d < dim; ++d) out[d] += Times(share, means[m][d]);
  }
  return out;
}

// Meta-blocks that hierarchical routing keeps for a query, by number.
inline std::vector<int64_t> BruteMetas(const RoutingCase& at, const BruteQuery& query,
                                       const std::vector<BruteMean>& means) {
  const Routing& routing = *at.contract.routing;
  const auto scale = static_cast<float>(at.contract.score.scale);
  std::vector<int64_t> ids;
  std::vector<int64_t> own;
  std::vector<int64_t> cut;
  std::vector<int64_t> first;
  const int64_t num = means.empty() ? 0 : means.back().c / routing.meta_ratio + 1;
  std::vector<float> scores(static_cast<size_t>(num), kMinusInf);
  for (int64_t m = 0; m < num; ++m) {
    std::vector<std::vector<float>> values;
    int64_t seen = 0;
    bool legal = false;
    bool holds_own = false;
    bool holds_first = false;
    for (const BruteMean& mean : means) {
      if (mean.c / routing.meta_ratio != m) continue;
      values.push_back(mean.value);
      seen += mean.last <= query.horizon ? 1 : 0;
      legal = legal || query.legal[static_cast<size_t>(mean.block)];
      holds_own = holds_own || mean.block == query.own;
      holds_first = holds_first || mean.block < routing.first_blocks;
    }
    if (!legal || seen == 0) continue;
    const auto count = static_cast<int64_t>(values.size());
    ids.push_back(m);
    const float score = Times(scale, LaneDot(query.sum, BruteRepresentative(values)));
    if (seen == count && score > kMinusInf) scores[static_cast<size_t>(m)] = score;
    if (holds_own && query.own >= 0 && query.legal[static_cast<size_t>(query.own)]) own.push_back(m);
    if (seen < count) cut.push_back(m);
    if (holds_first) first.push_back(m);
  }
  std::vector<int64_t> forced = own;
  for (const std::vector<int64_t>* more : {&cut, &first}) forced.insert(forced.end(), more->begin(), more->end());
  return BruteBest(ids, scores, forced, routing.meta_keep);
}

inline PickRows BrutePicks(const RoutingCase& at) {
  const Shape& shape = at.contract.shape;
  const Routing& routing = *at.contract.routing;
  const auto scale = static_cast<float>(at.contract.score.scale);
  PickRows out;
  out.batch = shape.batch;
  out.q_len = shape.q_len;
  out.num_kv_heads = shape.num_kv_heads;
  out.top_n = routing.top_n;
  out.block_tokens = routing.selected_block;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t i = 0; i < shape.q_len; ++i) {
      for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
        const BruteQuery query = BruteQueryOf(at, b, head, i);
        const std::vector<BruteMean> means = BruteMeans(at, b, head, at.QueryDoc(b, i));
        const std::vector<int64_t> metas = BruteMetas(at, query, means);
        std::vector<float> scores(query.legal.size(), kMinusInf);
        for (const BruteMean& mean : means) {
          if (mean.last > query.horizon) continue;
          if (routing.hierarchical && std::count(metas.begin(), metas.end(), mean.c / routing.meta_ratio) == 0)
            continue;
          const float score = Times(scale, LaneDot(query.sum, mean.value));
          float& best = scores[static_cast<size_t>(mean.block)];
          if (score > best) best = score;
        }
        std::vector<int64_t> ids;
        for (size_t block = 0; block < query.legal.size(); ++block) {
          if (query.legal[block]) ids.push_back(static_cast<int64_t>(block));
        }
        std::vector<int64_t> forced{query.own};
        for (int64_t block = 0; block < routing.first_blocks; ++block) forced.push_back(block);
        std::vector<int64_t> best = BruteBest(ids, scores, forced, routing.top_n);
        best.resize(static_cast<size_t>(routing.top_n), -1);
        for (const int64_t block : best) {
          const bool is_forced = block >= 0 && std::count(forced.begin(), forced.end(), block) > 0;
          out.blocks.push_back(static_cast<int32_t>(block));
          out.scores.push_back(is_forced    ? std::numeric_limits<float>::quiet_NaN()
                               : block >= 0 ? scores[static_cast<size_t>(block)]
                                            : kMinusInf);
        }
      }
    }
  }
  return out;
}

}  // namespace tessera::routing
