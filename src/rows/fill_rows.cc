// Documents into rows: the copying, which is nearly all of the time that packing takes. Rows are independent, so
// threads take them in turn; what grows with the number of edges is appended by one.
#include <algorithm>
#include <cstring>

#include "rows/parallel.h"
#include "tessera/rows.h"

namespace tessera {
namespace {

// Rows that a thread takes at once: enough to make taking them cheap.
constexpr int64_t kTokensPerUnit = int64_t{1} << 17;

// What all rows of one call share.
struct Filling {
  const DocumentSet& documents;
  const RowPlan& plan;
  int64_t first_row;    // of the plan
  int64_t rows_before;  // in the shard
  PackedRows& rows;

  std::span<const int64_t> DocumentsOf(int64_t i) const {
    const auto begin = static_cast<size_t>(plan.row_begins[static_cast<size_t>(first_row + i)]);
    const auto end = static_cast<size_t>(plan.row_begins[static_cast<size_t>(first_row + i) + 1]);
    return std::span(plan.documents).subspan(begin, end - begin);
  }
};

// Memory that is there is not written twice.
template <class T>
void Grow(std::vector<T>& list, size_t size) {
  if (list.size() < size) list.resize(size);
}

void FillTokens(const Filling& filling, int64_t i) {
  PackedRows& rows = filling.rows;
  const DocumentSet& set = filling.documents;
  const auto row = static_cast<size_t>(filling.rows_before + i);
  const auto width = static_cast<size_t>(rows.row_tokens);
  int32_t* input = rows.input_ids.data() + row * width;
  int32_t* target = rows.target_ids.data() + row * width;
  int8_t* loss = rows.loss_mask.data() + row * width;
  int32_t* ids = rows.doc_ids.data() + row * width;
  size_t at = 0;
  int32_t number = 0;
  for (const int64_t document : filling.DocumentsOf(i)) {
    const int32_t* tokens = set.tokens.data() + set.token_begins[static_cast<size_t>(document)];
    const auto length = static_cast<size_t>(set.Length(document));
    std::memcpy(input + at, tokens, length * sizeof(int32_t));
    std::memcpy(target + at, tokens + 1, (length - 1) * sizeof(int32_t));
    std::memset(loss + at, 1, length - 1);
    std::fill_n(ids + at, length, ++number);
    at += length;
    // The document's last token has no next one to be trained on.
    target[at - 1] = 0;
    loss[at - 1] = 0;
  }
  std::fill(input + at, input + width, 0);
  std::fill(target + at, target + width, 0);
  std::memset(loss + at, 0, width - at);
  std::fill(ids + at, ids + width, kPaddingDocument);
  rows.valid_token_count[row] = static_cast<int32_t>(at);
  rows.num_docs[row] = number;
}

void FillColumn(const Filling& filling, int64_t i, size_t column) {
  PackedRows& rows = filling.rows;
  const DocumentSet& set = filling.documents;
  const auto width = static_cast<size_t>(rows.row_tokens);
  const int32_t fill = TokenColumns()[column].fill;
  int32_t* out = rows.columns[column].data() + static_cast<size_t>(filling.rows_before + i) * width;
  size_t at = 0;
  if (!set.columns[column].empty()) {
    for (const int64_t document : filling.DocumentsOf(i)) {
      const auto length = static_cast<size_t>(set.Length(document));
      std::memcpy(out + at, set.columns[column].data() + set.token_begins[static_cast<size_t>(document)],
                  length * sizeof(int32_t));
      at += length;
    }
  }
  std::fill(out + at, out + width, fill);
}

void FillChunks(const Filling& filling, int64_t i) {
  PackedRows& rows = filling.rows;
  const DocumentSet& set = filling.documents;
  const auto width = static_cast<size_t>(ChunkWidth(rows.row_tokens));
  Chunk* out = rows.chunks.data() + static_cast<size_t>(filling.rows_before + i) * width;
  Chunk* const end = out + width;
  int64_t offset = 0;
  for (const int64_t document : filling.DocumentsOf(i)) {
    const auto at = static_cast<size_t>(document);
    for (int64_t c = set.chunk_begins[at]; c < set.chunk_begins[at + 1]; ++c) {
      Chunk chunk = set.chunks[static_cast<size_t>(c)];
      chunk.begin += static_cast<int32_t>(offset);
      chunk.end += static_cast<int32_t>(offset);
      *out++ = chunk;
    }
    offset += set.Length(document);
  }
  std::fill(out, end, Chunk{0, 0, 0, 0});
}

// A row's edges, by the numbers that their chunks have in the row.
void AppendEdges(const Filling& filling, int64_t i) {
  PackedRows& rows = filling.rows;
  const DocumentSet& set = filling.documents;
  int32_t shift = 0;
  const auto append = [&](const std::vector<int64_t>& begins, const std::vector<ChunkEdge>& from, size_t at,
                          std::vector<ChunkEdge>& to) {
    for (int64_t e = begins[at]; e < begins[at + 1]; ++e) {
      const ChunkEdge& edge = from[static_cast<size_t>(e)];
      to.push_back({edge.from + shift, edge.to + shift});
    }
  };
  for (const int64_t document : filling.DocumentsOf(i)) {
    const auto at = static_cast<size_t>(document);
    append(set.call_begins, set.call_edges, at, rows.call_edges);
    append(set.type_begins, set.type_edges, at, rows.type_edges);
    shift += static_cast<int32_t>(set.chunk_begins[at + 1] - set.chunk_begins[at]);
  }
  rows.call_begins.push_back(static_cast<int64_t>(rows.call_edges.size()));
  rows.type_begins.push_back(static_cast<int64_t>(rows.type_edges.size()));
}

// The ids of the row's documents in order, each once, as many as there is room for.
void FillPlatformIds(const Filling& filling, int64_t i) {
  PackedRows& rows = filling.rows;
  const DocumentSet& set = filling.documents;
  int32_t* out = rows.platform_ids.data() + (filling.rows_before + i) * kPlatformIds;
  int64_t count = 0;
  std::fill_n(out, kPlatformIds, 0);
  for (const int64_t document : filling.DocumentsOf(i)) {
    const auto at = static_cast<size_t>(document);
    for (int64_t p = set.platform_begins[at]; p < set.platform_begins[at + 1]; ++p) {
      const int32_t id = set.platform_ids[static_cast<size_t>(p)];
      if (id == 0 || std::find(out, out + count, id) != out + count) continue;
      if (count == kPlatformIds) {
        ++rows.dropped_platform_ids;
      } else {
        out[count++] = id;
      }
    }
  }
}

}  // namespace

void PackedRows::Clear(int64_t tokens_per_row) {
  rows = 0;
  row_tokens = tokens_per_row;
  has_column = {};
  call_begins = {0};
  call_edges.clear();
  type_begins = {0};
  type_edges.clear();
  has_chunks = false;
  dropped_platform_ids = 0;
}

void FillRows(const DocumentSet& documents, const RowPlan& plan, RowRange range, int64_t threads, PackedRows& rows) {
  const int64_t count = range.last - range.first;
  const Filling filling{documents, plan, range.first, rows.rows, rows};
  rows.rows += count;
  const auto cells = static_cast<size_t>(rows.rows * rows.row_tokens);
  for (std::vector<int32_t>* list : {&rows.input_ids, &rows.target_ids, &rows.doc_ids}) Grow(*list, cells);
  Grow(rows.loss_mask, cells);
  Grow(rows.valid_token_count, static_cast<size_t>(rows.rows));
  Grow(rows.num_docs, static_cast<size_t>(rows.rows));
  Grow(rows.platform_ids, static_cast<size_t>(rows.rows * kPlatformIds));
  Grow(rows.chunks, static_cast<size_t>(rows.rows * ChunkWidth(rows.row_tokens)));
  // What these rows' own documents have, whatever else was read with them.
  uint32_t has_columns = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (const int64_t document : filling.DocumentsOf(i)) {
      const auto at = static_cast<size_t>(document);
      has_columns |= documents.sources[at].columns;
      rows.has_chunks = rows.has_chunks || documents.chunk_begins[at + 1] > documents.chunk_begins[at];
    }
  }
  std::vector<size_t> columns;
  for (size_t c = 0; c < kNumTokenColumns; ++c) {
    if ((has_columns >> c & 1U) == 0 && !rows.has_column[c]) continue;
    Grow(rows.columns[c], cells);
    // A column that earlier rows did not have says nothing of them.
    if (!rows.has_column[c])
      std::fill_n(rows.columns[c].begin(), filling.rows_before * rows.row_tokens, TokenColumns()[c].fill);
    rows.has_column[c] = true;
    columns.push_back(c);
  }
  const int64_t unit = std::max<int64_t>(1, kTokensPerUnit / std::max<int64_t>(1, rows.row_tokens));
  rows::ForEach(threads, (count + unit - 1) / unit, [&](int64_t index) {
    for (int64_t i = index * unit; i < std::min(count, (index + 1) * unit); ++i) {
      FillTokens(filling, i);
      for (const size_t column : columns) FillColumn(filling, i, column);
      FillChunks(filling, i);
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    AppendEdges(filling, i);
    FillPlatformIds(filling, i);
  }
}

}  // namespace tessera
