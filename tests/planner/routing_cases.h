// Random requests for the routing stages, and a second opinion on them: plain loops over tokens that know nothing of
// means lists, chunks, runs or lanes of a machine.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "planner/routing.h"
#include "support/random_batch.h"

namespace tessera::planner {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// One request with everything in plain arrays. `Input()` points into it.
struct RoutingCase {
  Contract contract;
  std::vector<std::vector<int32_t>> q_docs;  // [batch][q_len]; empty: one document
  std::vector<std::vector<int32_t>> kv_docs;
  std::vector<BatchRow> rows;
  std::vector<std::vector<uint8_t>> allowed;  // [batch * num_kv_heads][q_len * kv_len]
  std::vector<RowSet> legal;
  Tensor q;
  Tensor k;

  RoutingInput Input() {
    const Shape& shape = contract.shape;
    const auto ref = [&](Tensor& tensor, int64_t heads, int64_t len) {
      return TensorRef{tensor.type, tensor.bytes.data(), heads * len * shape.dim_qk, len * shape.dim_qk, shape.dim_qk};
    };
    RoutingInput input;
    input.contract = &contract;
    input.rows = &rows;
    input.legal = &legal;
    input.q = ref(q, shape.num_q_heads, shape.q_len);
    input.k = ref(k, shape.num_kv_heads, shape.kv_len);
    return input;
  }
  float Q(int64_t b, int64_t head, int64_t i, int64_t d) const {
    const Shape& s = contract.shape;
    return static_cast<float>(q.At(((b * s.num_q_heads + head) * s.q_len + i) * s.dim_qk + d));
  }
  float K(int64_t b, int64_t head, int64_t j, int64_t d) const {
    const Shape& s = contract.shape;
    return static_cast<float>(k.At(((b * s.num_kv_heads + head) * s.kv_len + j) * s.dim_qk + d));
  }
  void SetK(int64_t b, int64_t head, int64_t j, double value) {
    const Shape& s = contract.shape;
    for (int64_t d = 0; d < s.dim_qk; ++d) k.Set(((b * s.num_kv_heads + head) * s.kv_len + j) * s.dim_qk + d, value);
  }
  void SetQ(int64_t b, int64_t head, int64_t i, double value) {
    const Shape& s = contract.shape;
    for (int64_t d = 0; d < s.dim_qk; ++d) q.Set(((b * s.num_q_heads + head) * s.q_len + i) * s.dim_qk + d, value);
  }
  bool Allowed(int64_t b, int64_t head, int64_t i, int64_t j) const {
    const Shape& s = contract.shape;
    return allowed[static_cast<size_t>(b * s.num_kv_heads + head)][static_cast<size_t>(i * s.kv_len + j)] != 0;
  }
  int32_t QueryDoc(int64_t b, int64_t i) const {
    const BatchRow& row = rows[static_cast<size_t>(b)];
    if (row.q_valid && i >= *row.q_valid) return -1;
    return q_docs.empty() ? 0 : q_docs[static_cast<size_t>(b)][static_cast<size_t>(i)];
  }
  int32_t KeyDoc(int64_t b, int64_t j) const {
    const BatchRow& row = rows[static_cast<size_t>(b)];
    if (row.kv_valid && j >= *row.kv_valid) return -1;
    return kv_docs.empty() ? 0 : kv_docs[static_cast<size_t>(b)][static_cast<size_t>(j)];
  }
  int64_t NumBlocks() const {
    return (contract.shape.kv_len + contract.routing->selected_block - 1) / contract.routing->selected_block;
  }
};

inline std::vector<Segment> ToSegments(const std::vector<int32_t>& ids) {
  std::vector<Segment> out;
  for (size_t t = 0; t < ids.size(); ++t) {
    if (t == 0 || ids[t] != ids[t - 1]) out.push_back({static_cast<int32_t>(t), 0, ids[t], 0});
    out.back().end = static_cast<int32_t>(t + 1);
  }
  return out;
}

// Fills rows, allowed and legal from documents, validity and a static rule over (query, position, key).
using StaticRule = std::function<bool(int64_t q, int64_t position, int64_t key)>;
inline void SetMask(RoutingCase& out, const StaticRule& rule) {
  const Shape& shape = out.contract.shape;
  out.allowed.clear();
  out.legal.clear();
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
      std::vector<uint8_t>& cells = out.allowed.emplace_back(static_cast<size_t>(shape.q_len * shape.kv_len));
      RowSetBuilder builder;
      for (int64_t i = 0; i < shape.q_len; ++i) {
        std::vector<Interval> intervals;
        for (int64_t j = 0; j < shape.kv_len; ++j) {
          const bool same = out.QueryDoc(b, i) >= 0 && out.QueryDoc(b, i) == out.KeyDoc(b, j);
          const bool cell = same && rule(i, i + out.contract.mask.offset, j);
          cells[static_cast<size_t>(i * shape.kv_len + j)] = cell ? 1 : 0;
          if (!cell) continue;
          if (intervals.empty() || intervals.back().hi.offset != j) {
            intervals.push_back({{static_cast<int32_t>(j), 0}, {static_cast<int32_t>(j), 0}});
          }
          intervals.back().hi.offset = static_cast<int32_t>(j + 1);
        }
        builder.Append(i, i + 1, intervals);
      }
      out.legal.push_back(builder.Finish());
    }
  }
}

inline Tensor RandomTensor(std::mt19937_64& rng, ElementType type, std::vector<int64_t> shape) {
  Tensor out = Tensor::Zeros(type, std::move(shape));
  for (int64_t n = 0; n < out.NumElements(); ++n) {
    out.Set(n, static_cast<double>(RandomInt(rng, -100000, 100000)) / 40000.0);
  }
  return out;
}

struct CaseOptions {
  bool documents = true;  // some of the time
  bool causal = false;    // always
  bool hierarchical = false;
  int64_t max_len = 150;
};

inline RoutingCase RandomRoutingCase(std::mt19937_64& rng, const CaseOptions& options = {}) {
  const auto flip = [&] { return RandomInt(rng, 0, 1) == 1; };
  RoutingCase out;
  Contract& contract = out.contract;
  Shape& shape = contract.shape;
  shape.batch = RandomInt(rng, 1, 2);
  shape.q_len = RandomInt(rng, 1, options.max_len);
  shape.kv_len = flip() ? shape.q_len : RandomInt(rng, 1, options.max_len);
  shape.num_kv_heads = RandomInt(rng, 1, 2);
  shape.num_q_heads = shape.num_kv_heads * RandomInt(rng, 1, 3);
  shape.dim_qk = RandomInt(rng, 0, 3) == 0 ? 16 * RandomInt(rng, 1, 4) : RandomInt(rng, 1, 40);
  shape.dim_v = shape.dim_qk;
  shape.dtype = static_cast<DType>(RandomInt(rng, 0, 2));
  contract.score.scale = 1.0 / std::sqrt(static_cast<double>(shape.dim_qk));
  contract.mask.offset = flip() ? shape.kv_len - shape.q_len : RandomInt(rng, -20, 20);
  contract.mask.heads.resize(1);
  Routing& routing = contract.routing.emplace();
  routing.block_stride = RandomInt(rng, 1, 4);
  routing.compression_block = routing.block_stride * RandomInt(rng, 1, 3);
  routing.selected_block = routing.compression_block * RandomInt(rng, 1, 3);
  routing.top_n = RandomInt(rng, 1, std::min<int64_t>(out.NumBlocks(), 8));
  routing.first_blocks = flip() ? 0 : RandomInt(rng, 0, routing.top_n);
  routing.hierarchical = options.hierarchical;
  routing.meta_ratio = RandomInt(rng, 1, 9);
  routing.meta_keep = RandomInt(rng, 1, 12);

  out.rows.resize(static_cast<size_t>(shape.batch));
  const bool reappear = flip();
  const bool documents = options.documents && RandomInt(rng, 0, 2) != 0;
  const bool valid = options.documents && flip();
  for (BatchRow& row : out.rows) {
    if (documents) {
      out.q_docs.push_back(RandomDocIds(rng, shape.q_len, reappear));
      const bool same = shape.q_len == shape.kv_len;
      out.kv_docs.push_back(same ? out.q_docs.back() : RandomDocIds(rng, shape.kv_len, reappear));
      row.q_segments = ToSegments(out.q_docs.back());
      row.kv_segments = ToSegments(out.kv_docs.back());
    }
    if (valid) row.q_valid = RandomInt(rng, 0, shape.q_len);
    if (valid) row.kv_valid = RandomInt(rng, 0, shape.kv_len);
  }
  const int64_t window = RandomInt(rng, 0, 40);
  const int64_t ahead = RandomInt(rng, 0, 20);
  switch (options.causal ? RandomInt(rng, 0, 2) : RandomInt(rng, 0, 5)) {
    case 0:
      SetMask(out, [](int64_t, int64_t p, int64_t j) { return j <= p; });
      break;
    case 1:
      SetMask(out, [=](int64_t, int64_t p, int64_t j) { return j <= p && (j >= p - window || j < 3); });
      break;
    case 2:
      SetMask(out, [=](int64_t i, int64_t p, int64_t j) { return j <= p && (i * 7 + j * 5) % 11 < 4; });
      break;
    case 3:
      SetMask(out, [](int64_t, int64_t, int64_t) { return true; });
      break;
    case 4:
      SetMask(out, [=](int64_t, int64_t p, int64_t j) { return j <= p + ahead && j >= p - window; });
      break;
    default:
      SetMask(out, [=](int64_t, int64_t p, int64_t j) { return j <= p || (p < window && j < window); });
      break;
  }
  const ElementType type = ToElementType(shape.dtype);
  out.q = RandomTensor(rng, type, {shape.batch, shape.num_q_heads, shape.q_len, shape.dim_qk});
  out.k = RandomTensor(rng, type, {shape.batch, shape.num_kv_heads, shape.kv_len, shape.dim_qk});
  return out;
}

inline PickRows PicksOf(const RoutingInput& input) {
  const Result<Scored> scored = Score(input);
  EXPECT_TRUE(scored.has_value()) << ToText(scored.error());
  const Result<PickRows> picks = Expand(input, *scored);
  EXPECT_TRUE(picks.has_value()) << ToText(picks.error());
  return *picks;
}

// ---- the second opinion

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
        for (const int64_t block : best) out.blocks.push_back(static_cast<int32_t>(block));
      }
    }
  }
  return out;
}

}  // namespace tessera::planner
