// Random requests for the routing stages, everything in plain arrays. routing_brute.h has a second opinion on them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "routing/routing.h"
#include "support/random_batch.h"

namespace tessera::routing {

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

}  // namespace tessera::routing
