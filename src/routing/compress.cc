// compress: keys -> the means that score reads, per document, so that neither padding nor a neighbour's keys are in
// one.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "routing/dots.h"
#include "routing/routing.h"
#include "routing/rows.h"

namespace tessera::routing {
namespace {

// With a document per token every key is in a mean of its own, once per compression block that covers it.
constexpr int64_t kMaxMeanElements = int64_t{1} << 33;
constexpr int64_t kMeansPerWork = 32;

// The keys of one document that are not padding, ascending.
using Pieces = std::vector<std::pair<int64_t, int64_t>>;

struct RowDocuments {
  std::vector<Pieces> documents;                // in order of first appearance
  std::unordered_map<int32_t, int32_t> number;  // id -> place
  bool has_ids = false;
};

RowDocuments FindDocuments(const BatchRow& row, int64_t kv_len) {
  RowDocuments out;
  const int64_t valid = std::clamp<int64_t>(row.kv_valid.value_or(kv_len), 0, kv_len);
  out.has_ids = !row.kv_segments.empty() && !row.q_segments.empty();
  if (!out.has_ids) {
    if (valid > 0) out.documents.push_back({{0, valid}});
    return out;
  }
  for (const Segment& segment : row.kv_segments) {
    const int64_t end = std::min<int64_t>(segment.end, valid);
    if (segment.doc < 0 || segment.begin >= end) continue;
    const auto next = static_cast<int32_t>(out.documents.size());
    const auto [found, is_new] = out.number.try_emplace(segment.doc, next);
    if (is_new) out.documents.emplace_back();
    out.documents[static_cast<size_t>(found->second)].emplace_back(segment.begin, end);
  }
  return out;
}

std::vector<QueryStretch> FindStretches(const BatchRow& row, const RowDocuments& documents, int64_t q_len) {
  const int64_t valid = std::clamp<int64_t>(row.q_valid.value_or(q_len), 0, q_len);
  std::vector<QueryStretch> out;
  int64_t covered = 0;
  const auto add = [&](int64_t end, int32_t document) {
    if (end <= covered) return;
    out.push_back({static_cast<int32_t>(covered), static_cast<int32_t>(end), document});
    covered = end;
  };
  if (!documents.has_ids) {
    add(valid, documents.documents.empty() ? -1 : 0);
  } else {
    for (const Segment& segment : row.q_segments) {
      add(std::min<int64_t>(segment.begin, valid), -1);
      const auto found = documents.number.find(segment.doc);
      const bool has_keys = segment.doc >= 0 && found != documents.number.end();
      add(std::min<int64_t>(segment.end, valid), has_keys ? found->second : -1);
    }
  }
  add(q_len, -1);
  return out;
}

// The means of one document. Pieces ascend, so both pointers only move forward.
void ListMeans(const Pieces& pieces, const Routing& routing, std::vector<Mean>& means) {
  const int64_t stride = routing.block_stride;
  const int64_t size = routing.compression_block;
  size_t lo = 0;
  size_t hi = 0;
  for (int64_t c = 0;; ++c) {
    while (lo < pieces.size() && pieces[lo].second <= c * stride) ++lo;
    if (lo == pieces.size()) return;
    // The first compression block that covers the next key; a stride is at most a compression block, so none is
    // skipped.
    if (pieces[lo].first >= c * stride + size) c = (pieces[lo].first - size) / stride + 1;
    const int64_t end = c * stride + size;
    hi = std::max(hi, lo);
    while (hi + 1 < pieces.size() && pieces[hi + 1].first < end) ++hi;
    const int64_t first = std::max(pieces[lo].first, c * stride);
    const int64_t last = std::min(pieces[hi].second, end) - 1;
    means.push_back({.block = static_cast<int32_t>(first / routing.selected_block),
                     .compression = static_cast<int32_t>(c),
                     .first = static_cast<int32_t>(first),
                     .last = static_cast<int32_t>(last)});
  }
}

void ListMetas(const Routing& routing, DocumentMeans& document, CompressedRow& row) {
  document.meta_begin = static_cast<int32_t>(row.metas.size());
  for (int32_t m = document.mean_begin; m < document.mean_end; ++m) {
    const auto index = static_cast<int32_t>(row.means[static_cast<size_t>(m)].compression / routing.meta_ratio);
    const bool is_new = m == document.mean_begin || row.metas.back().index != index;
    if (is_new) row.metas.push_back({index, m, m});
    row.metas.back().mean_end = m + 1;
  }
  document.meta_end = static_cast<int32_t>(row.metas.size());
}

// Keys [mean.first, mean.last] of the document, added in order.
void WriteMean(const RoutingInput& input, int64_t b, int64_t head, const Pieces& pieces, const Mean& mean, float* out) {
  const int64_t dim = input.contract->shape.dim_qk;
  auto piece = std::partition_point(pieces.begin(), pieces.end(),
                                    [&](const std::pair<int64_t, int64_t>& p) { return p.second <= mean.first; });
  int64_t count = 0;
  for (; piece != pieces.end() && piece->first <= mean.last; ++piece) {
    const int64_t end = std::min<int64_t>(piece->second, mean.last + 1);
    for (int64_t key = std::max<int64_t>(piece->first, mean.first); key < end; ++key, ++count) {
      AddRow(input.k.type, RowAt(input.k, b, head, key), dim, out);
    }
  }
  const auto divisor = static_cast<float>(count);
  for (int64_t d = 0; d < dim; ++d) out[d] /= divisor;
}

// A plain mean of the means would thin out what only one of them holds, so each counts by how far it stands out.
void WriteRepresentative(const float* means, int64_t count, int64_t dim, float* out) {
  std::vector<float> middle(static_cast<size_t>(dim), 0.0F);
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t d = 0; d < dim; ++d) middle[static_cast<size_t>(d)] += means[m * dim + d];
  }
  for (float& value : middle) value /= static_cast<float>(count);
  std::vector<float> weights(static_cast<size_t>(count), 0.0F);
  float total = 0.0F;
  for (int64_t m = 0; m < count; ++m) {
    float& weight = weights[static_cast<size_t>(m)];
    for (int64_t d = 0; d < dim; ++d) {
      const float apart = means[m * dim + d] - middle[static_cast<size_t>(d)];
      weight += apart * apart;
    }
    total += weight;
  }
  const bool is_uneven = total > 0.0F && total < std::numeric_limits<float>::infinity();
  for (int64_t m = 0; m < count; ++m) {
    const float share = is_uneven ? weights[static_cast<size_t>(m)] / total : 1.0F / static_cast<float>(count);
    for (int64_t d = 0; d < dim; ++d) out[d] += share * means[m * dim + d];
  }
}

}  // namespace

Result<CompressedKeys> Compress(const RoutingInput& input) {
  if (Status checked = CheckRoutingInput(input, NeedsTensors::kYes, "score"); !checked) {
    return tl::unexpected(std::move(checked.error()));
  }
  const Shape& shape = input.contract->shape;
  const Routing& routing = *input.contract->routing;
  CompressedKeys out;
  out.dim = PaddedDim(shape.dim_qk);
  out.rows.resize(static_cast<size_t>(shape.batch));
  std::vector<RowDocuments> documents;
  std::vector<std::vector<int32_t>> document_of;  // [batch][mean]
  int64_t elements = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    CompressedRow& row = out.rows[static_cast<size_t>(b)];
    const BatchRow& facts = (*input.rows)[static_cast<size_t>(b)];
    RowDocuments& found = documents.emplace_back(FindDocuments(facts, shape.kv_len));
    std::vector<int32_t>& of = document_of.emplace_back();
    row.stretches = FindStretches(facts, found, shape.q_len);
    for (size_t d = 0; d < found.documents.size(); ++d) {
      DocumentMeans document{.mean_begin = static_cast<int32_t>(row.means.size())};
      ListMeans(found.documents[d], routing, row.means);
      const int64_t total = elements + static_cast<int64_t>(row.means.size()) * shape.num_kv_heads * out.dim;
      if (total > kMaxMeanElements || row.means.size() > std::numeric_limits<int32_t>::max()) {
        return Fail(ErrorCode::kPlanTooLarge,
                    fmt::format("the means of {} compression blocks over documents as short as these need more than {} "
                                "values; use a larger block_stride",
                                (shape.kv_len + routing.block_stride - 1) / routing.block_stride, kMaxMeanElements),
                    "score");
      }
      document.mean_end = static_cast<int32_t>(row.means.size());
      of.resize(row.means.size(), static_cast<int32_t>(d));
      if (routing.hierarchical) ListMetas(routing, document, row);
      row.documents.push_back(document);
    }
    elements += static_cast<int64_t>(row.means.size()) * shape.num_kv_heads * out.dim;
    row.values.assign(row.means.size() * static_cast<size_t>(shape.num_kv_heads * out.dim), 0.0F);
    row.representatives.assign(row.metas.size() * static_cast<size_t>(shape.num_kv_heads * out.dim), 0.0F);

    const auto num_means = static_cast<int64_t>(row.means.size());
    const int64_t works = (num_means + kMeansPerWork - 1) / kMeansPerWork;
    ForEach(input.parallel, works * shape.num_kv_heads, [&](int64_t work) {
      const int64_t head = work / works;
      const int64_t begin = work % works * kMeansPerWork;
      for (int64_t m = begin; m < std::min(begin + kMeansPerWork, num_means); ++m) {
        const Pieces& pieces = found.documents[static_cast<size_t>(of[static_cast<size_t>(m)])];
        WriteMean(input, b, head, pieces, row.means[static_cast<size_t>(m)],
                  row.values.data() + (head * num_means + m) * out.dim);
      }
    });
    const auto num_metas = static_cast<int64_t>(row.metas.size());
    ForEach(input.parallel, num_metas == 0 ? 0 : shape.num_kv_heads, [&](int64_t head) {
      const float* values = row.values.data() + head * num_means * out.dim;
      for (int64_t g = 0; g < num_metas; ++g) {
        const MetaBlock& meta = row.metas[static_cast<size_t>(g)];
        WriteRepresentative(values + meta.mean_begin * out.dim, meta.mean_end - meta.mean_begin, out.dim,
                            row.representatives.data() + (head * num_metas + g) * out.dim);
      }
    });
  }
  return out;
}

}  // namespace tessera::routing
