// Rows out of a mapped shard into a batch's arrays.
#include "tessera/row_batch.h"

#include <algorithm>
#include <cstring>

#include "rows/batch_rows.h"
#include "rows/parallel.h"

namespace tessera {
namespace {

// From row `from` of a shard's column to row `to` of a batch's.
template <class T>
void CopyWidth(std::span<const T> column, int64_t from, int64_t to, int64_t width, std::vector<T>& out) {
  const auto count = static_cast<size_t>(width);
  std::memcpy(out.data() + static_cast<size_t>(to) * count, column.data() + static_cast<size_t>(from) * count,
              count * sizeof(T));
}

template <class T>
void Resize(std::vector<T>& list, int64_t size) {
  list.resize(static_cast<size_t>(size));
}

void CopyTokens(const RowShard& shard, int64_t from, int64_t to, RowBatch& batch) {
  const int64_t width = batch.row_tokens;
  CopyWidth(shard.input_ids(), from, to, width, batch.input_ids);
  CopyWidth(shard.target_ids(), from, to, width, batch.target_ids);
  CopyWidth(shard.loss_mask(), from, to, width, batch.loss_mask);
  CopyWidth(shard.doc_ids(), from, to, width, batch.doc_ids);
  batch.valid_token_count[static_cast<size_t>(to)] = shard.valid_token_count()[static_cast<size_t>(from)];
  for (size_t c = 0; c < kNumStructureInputs; ++c) {
    const auto column = shard.column(static_cast<TokenColumn>(c));
    if (!column.empty()) {
      CopyWidth(column, from, to, width, batch.structure[c]);
    } else {
      std::fill_n(batch.structure[c].begin() + to * width, width, TokenColumns()[c].fill);
    }
  }
  const auto platform_ids = shard.platform_ids(from);
  const auto first = batch.platform_ids.begin() + to * kPlatformIds;
  std::fill_n(first, kPlatformIds, 0);
  std::copy(platform_ids.begin(), platform_ids.end(), first);
}

void CopyChunks(const RowShard& shard, int64_t from, int64_t to, RowBatch& batch) {
  const int64_t width = ChunkWidth(batch.row_tokens);
  int32_t* ids = batch.token_chunk_ids.data() + to * batch.row_tokens;
  std::fill_n(ids, batch.row_tokens, -1);
  int8_t* in_chunk = batch.token_chunk_valid.data() + to * batch.row_tokens;
  std::fill_n(in_chunk, batch.row_tokens, int8_t{0});
  int8_t* valid = batch.chunk_valid.data() + to * width;
  if (shard.chunk_starts().empty()) {
    for (auto& list : batch.chunks) std::fill_n(list.begin() + to * width, width, 0);
    std::fill_n(valid, width, int8_t{0});
    return;
  }
  CopyWidth(shard.chunk_starts(), from, to, width, batch.chunks[0]);
  CopyWidth(shard.chunk_ends(), from, to, width, batch.chunks[1]);
  CopyWidth(shard.chunk_kinds(), from, to, width, batch.chunks[2]);
  CopyWidth(shard.chunk_dep_levels(), from, to, width, batch.chunks[3]);
  for (int64_t i = 0; i < width; ++i) {
    // A shard is mapped, not checked: what it says is cut to the row.
    const auto at = static_cast<size_t>(to * width + i);
    const int64_t begin = std::clamp<int64_t>(batch.chunks[0][at], 0, batch.row_tokens);
    const int64_t end = std::clamp<int64_t>(batch.chunks[1][at], 0, batch.row_tokens);
    valid[i] = end > begin ? 1 : 0;
    if (end <= begin) continue;
    std::fill(ids + begin, ids + end, static_cast<int32_t>(i));
    std::fill(in_chunk + begin, in_chunk + end, int8_t{1});
  }
}

Tensor ToTensor(ElementType type, std::vector<int64_t> shape, const void* data) {
  Tensor tensor{type, std::move(shape), {}};
  tensor.bytes.resize(static_cast<size_t>(tensor.NumElements() * BytesOf(type)));
  if (!tensor.bytes.empty()) std::memcpy(tensor.bytes.data(), data, tensor.bytes.size());
  return tensor;
}

}  // namespace

namespace rows {

void ShapeBatch(int64_t rows, int64_t row_tokens, RowBatch& batch) {
  batch.rows = rows;
  batch.row_tokens = row_tokens;
  const int64_t cells = rows * row_tokens;
  for (auto* list : {&batch.input_ids, &batch.target_ids, &batch.doc_ids, &batch.token_chunk_ids}) Resize(*list, cells);
  for (auto* list : {&batch.loss_mask, &batch.token_chunk_valid}) Resize(*list, cells);
  Resize(batch.valid_token_count, rows);
  for (auto& list : batch.structure) Resize(list, cells);
  for (auto& list : batch.chunks) Resize(list, rows * ChunkWidth(row_tokens));
  Resize(batch.chunk_valid, rows * ChunkWidth(row_tokens));
  Resize(batch.platform_ids, rows * kPlatformIds);
}

void CopyRow(const RowShard& shard, int64_t from, int64_t to, RowBatch& batch) {
  CopyTokens(shard, from, to, batch);
  CopyChunks(shard, from, to, batch);
}

}  // namespace rows

void ReadRows(const RowShard& shard, RowRange range, int64_t threads, RowBatch& batch) {
  rows::ShapeBatch(range.last - range.first, shard.row_tokens(), batch);
  batch.chunk_relation_mask.clear();
  rows::ForEach(threads, batch.rows, [&](int64_t i) { rows::CopyRow(shard, range.first + i, i, batch); });
}

Batch ToBatch(const RowBatch& batch) {
  Batch made;
  made.doc_ids = IdRows{batch.rows, batch.row_tokens, batch.doc_ids};
  made.valid_tokens = std::vector<int64_t>(batch.valid_token_count.begin(), batch.valid_token_count.end());
  return made;
}

TensorMap ToTensors(const RowBatch& batch) {
  const int64_t width = ChunkWidth(batch.row_tokens);
  const std::vector<int64_t> tokens = {batch.rows, batch.row_tokens};
  const std::vector<int64_t> chunks = {batch.rows, width};
  TensorMap tensors;
  const auto add = [&](std::string_view name, ElementType type, const std::vector<int64_t>& shape, const void* data) {
    tensors.emplace(name, ToTensor(type, shape, data));
  };
  add("input_ids", ElementType::kI32, tokens, batch.input_ids.data());
  add("target_ids", ElementType::kI32, tokens, batch.target_ids.data());
  add("loss_mask", ElementType::kI8, tokens, batch.loss_mask.data());
  add("doc_ids", ElementType::kI32, tokens, batch.doc_ids.data());
  add("valid_token_count", ElementType::kI32, {batch.rows}, batch.valid_token_count.data());
  for (size_t c = 0; c < kNumStructureInputs; ++c)
    add(TokenColumns()[c].name, ElementType::kI32, tokens, batch.structure[c].data());
  add("token_chunk_ids", ElementType::kI32, tokens, batch.token_chunk_ids.data());
  add("token_chunk_valid", ElementType::kI8, tokens, batch.token_chunk_valid.data());
  const char* const names[] = {"semantic_block_starts", "semantic_block_ends", "semantic_block_kinds",
                               "semantic_block_dep_levels"};
  for (size_t i = 0; i < batch.chunks.size(); ++i) add(names[i], ElementType::kI32, chunks, batch.chunks[i].data());
  add("semantic_block_valid", ElementType::kI8, chunks, batch.chunk_valid.data());
  add("platform_ids", ElementType::kI32, {batch.rows, kPlatformIds}, batch.platform_ids.data());
  if (!batch.chunk_relation_mask.empty())
    add("chunk_relation_mask", ElementType::kI8, {batch.rows, kNumRelations, width, width},
        batch.chunk_relation_mask.data());
  return tensors;
}

}  // namespace tessera
