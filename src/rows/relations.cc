// What chunks are to each other, and what a model makes of it with shapes that never change: pooling and neighbours.
// The last two are definitions: loops on the host whose every step is a product, a sum or a comparison of fixed size,
// as the program of src/model/chunk_program.cc has them.
#include <algorithm>
#include <cstdlib>

#include "rows/batch_rows.h"
#include "rows/parallel.h"
#include "tessera/row_batch.h"

namespace tessera {
namespace {

constexpr std::string_view kRelations[] = {"same_chunk",         "caller_callee",    "callee_caller",
                                           "type_dependency",    "type_dependent",   "same_dep_level",
                                           "adjacent_dep_level", "preamble_to_code", "code_to_preamble"};
static_assert(std::size(kRelations) == size_t{kNumRelations});
enum Relation : int64_t { kSame, kCall, kCalled, kType, kTyped, kLevel, kNextLevel, kFromPreamble, kToPreamble };
constexpr int32_t kPreamble = 1;

}  // namespace

namespace rows {

int64_t RelationBytes(int64_t row_tokens) { return kNumRelations * ChunkWidth(row_tokens) * ChunkWidth(row_tokens); }

// One row's masks, [kNumRelations, C, C].
void FillRelations(const RowShard& shard, int64_t row, int8_t* masks) {
  const int64_t width = ChunkWidth(shard.row_tokens());
  std::fill_n(masks, kNumRelations * width * width, int8_t{0});
  if (shard.chunk_starts().empty()) return;
  const auto at = [&](std::span<const int32_t> list, int64_t i) { return list[static_cast<size_t>(row * width + i)]; };
  const auto set = [&](Relation relation, int64_t i, int64_t j) { masks[(relation * width + i) * width + j] = 1; };
  std::vector<int32_t> documents(static_cast<size_t>(width), 0);  // 0: no chunk
  for (int64_t i = 0; i < width; ++i) {
    const int64_t begin = at(shard.chunk_starts(), i);
    if (begin < 0 || begin >= shard.row_tokens() || at(shard.chunk_ends(), i) <= begin) continue;
    documents[static_cast<size_t>(i)] = shard.doc_ids()[static_cast<size_t>(row * shard.row_tokens() + begin)];
  }
  for (int64_t i = 0; i < width; ++i) {
    if (documents[static_cast<size_t>(i)] <= 0) continue;
    set(kSame, i, i);
    for (int64_t j = 0; j < width; ++j) {
      if (i == j || documents[static_cast<size_t>(j)] != documents[static_cast<size_t>(i)]) continue;
      const int64_t level = at(shard.chunk_dep_levels(), i);
      const int64_t other = at(shard.chunk_dep_levels(), j);
      if (level >= 0 && other >= 0) {  // what nobody said is the same as nothing
        if (level == other) set(kLevel, i, j);
        if (std::abs(level - other) == 1) set(kNextLevel, i, j);
      }
      const bool is_preamble = at(shard.chunk_kinds(), i) == kPreamble;
      const bool is_other_preamble = at(shard.chunk_kinds(), j) == kPreamble;
      if (is_preamble && !is_other_preamble) set(kFromPreamble, i, j);
      if (!is_preamble && is_other_preamble) set(kToPreamble, i, j);
    }
  }
  const auto set_edges = [&](std::span<const ChunkEdge> edges, Relation along, Relation against) {
    for (const ChunkEdge& edge : edges) {
      if (edge.from < 0 || edge.to < 0 || edge.from >= width || edge.to >= width) continue;
      const int32_t document = documents[static_cast<size_t>(edge.from)];
      if (document <= 0 || document != documents[static_cast<size_t>(edge.to)]) continue;
      set(along, edge.from, edge.to);
      set(against, edge.to, edge.from);
    }
  };
  set_edges(shard.call_edges(row), kCall, kCalled);
  set_edges(shard.type_edges(row), kType, kTyped);
}

}  // namespace rows

std::span<const std::string_view> Relations() { return kRelations; }

void RelationMasks(const RowShard& shard, RowRange range, int64_t threads, std::vector<int8_t>& masks) {
  const int64_t row_bytes = rows::RelationBytes(shard.row_tokens());
  const int64_t count = range.last - range.first;
  masks.resize(static_cast<size_t>(count * row_bytes));
  rows::ForEach(threads, count,
                [&](int64_t i) { rows::FillRelations(shard, range.first + i, masks.data() + i * row_bytes); });
}

void PoolChunks(std::span<const float> values, std::span<const int32_t> chunk_ids, PoolShape shape,
                std::span<float> pooled) {
  const auto dim = static_cast<size_t>(shape.dim);
  for (int64_t chunk = 0; chunk < shape.num_chunks; ++chunk) {
    float* const out = pooled.data() + static_cast<size_t>(chunk) * dim;
    std::fill_n(out, dim, 0.0F);
    float count = 0.0F;
    for (size_t t = 0; t < chunk_ids.size(); ++t) {
      const bool is_in = chunk_ids[t] == chunk;
      count += is_in ? 1.0F : 0.0F;
      // Chosen, not multiplied: a value outside of the chunk may be anything.
      for (size_t d = 0; d < dim; ++d) out[d] += is_in ? values[t * dim + d] : 0.0F;
    }
    for (size_t d = 0; d < dim; ++d) out[d] /= std::max(count, 1.0F);
  }
}

void ChooseNeighbours(std::span<const int8_t> adjacent, int64_t num_chunks, int64_t most, std::span<int8_t> chosen) {
  const auto width = static_cast<size_t>(num_chunks);
  for (size_t i = 0; i < width; ++i) {
    int64_t rank = 0;
    for (size_t j = 0; j < width; ++j) {
      rank += adjacent[i * width + j] != 0 ? 1 : 0;
      chosen[i * width + j] = adjacent[i * width + j] != 0 && rank <= most ? 1 : 0;
    }
  }
}

}  // namespace tessera
