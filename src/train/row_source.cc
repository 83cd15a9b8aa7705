// Rows as a model takes them, in the order of a run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/try.h"
#include "train/corpus.h"

namespace tessera::train {
namespace {

Status CheckTokens(const RowShard& shard, int64_t vocab, const std::string& where) {
  for (const std::span<const int32_t> ids : {shard.input_ids(), shard.target_ids()}) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < vocab) continue;
      const auto row = static_cast<int64_t>(i) / shard.row_tokens();
      return Fail(
          ErrorCode::kRunData,
          fmt::format("row {} has the token {}, and model.vocab is {}", shard.first_pack_id() + row, ids[i], vocab),
          where);
    }
  }
  return {};
}

// Appends each array of a batch to that of another.
void Append(const RowBatch& row, RowBatch& batch) {
  const auto add = [](const auto& from, auto& to) { to.insert(to.end(), from.begin(), from.end()); };
  add(row.input_ids, batch.input_ids);
  add(row.target_ids, batch.target_ids);
  add(row.loss_mask, batch.loss_mask);
  add(row.doc_ids, batch.doc_ids);
  add(row.valid_token_count, batch.valid_token_count);
  for (size_t c = 0; c < row.structure.size(); ++c) add(row.structure[c], batch.structure[c]);
  add(row.token_chunk_ids, batch.token_chunk_ids);
  add(row.token_chunk_valid, batch.token_chunk_valid);
  for (size_t c = 0; c < row.chunks.size(); ++c) add(row.chunks[c], batch.chunks[c]);
  add(row.chunk_valid, batch.chunk_valid);
  add(row.platform_ids, batch.platform_ids);
  batch.row_tokens = row.row_tokens;
  ++batch.rows;
}

// A row without a document.
RowBatch Padding(int64_t row_tokens) {
  const auto width = static_cast<size_t>(row_tokens);
  const auto chunks = static_cast<size_t>(ChunkWidth(row_tokens));
  RowBatch row;
  row.row_tokens = row_tokens;
  row.input_ids.assign(width, 0);
  row.target_ids.assign(width, 0);
  row.loss_mask.assign(width, 0);
  row.doc_ids.assign(width, kPaddingDocument);
  row.valid_token_count = {0};
  for (size_t c = 0; c < row.structure.size(); ++c) row.structure[c].assign(width, TokenColumns()[c].fill);
  row.token_chunk_ids.assign(width, -1);
  row.token_chunk_valid.assign(width, 0);
  for (std::vector<int32_t>& column : row.chunks) column.assign(chunks, 0);
  row.chunk_valid.assign(chunks, 0);
  row.platform_ids.assign(static_cast<size_t>(kPlatformIds), 0);
  return row;
}

// The next number of a sequence that is the same on every machine: splitmix64.
uint64_t NextRandom(uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

}  // namespace

Result<RowSource> RowSource::Open(const RowFolder& folder, const ModelSpec& model, const StopFunction& should_stop) {
  const RowsManifest& manifest = folder.manifest;
  if (!manifest.is_complete)
    return Fail(ErrorCode::kRunData, "the packing of these rows has not ended: tessera rows pack --resume",
                folder.path);
  if (manifest.row_tokens != model.row_tokens) {
    return Fail(ErrorCode::kRunData,
                fmt::format("rows have {} tokens, and model.row_tokens is {}", manifest.row_tokens, model.row_tokens),
                folder.path);
  }
  if (manifest.rows == 0) return Fail(ErrorCode::kRunData, "there are no rows", folder.path);
  TESSERA_TRY(CheckFolder(folder.path, manifest, should_stop));
  RowSource source;
  source.row_tokens_ = model.row_tokens;
  for (const ShardRecord& record : manifest.shards) {
    if (should_stop && should_stop()) break;
    RowShard shard = TESSERA_TRY(OpenShard(folder.path, record));
    const std::string where = folder.path + "/" + record.file;
    if (shard.vocab().value_or(0) > model.vocab) {
      return Fail(ErrorCode::kRunData,
                  fmt::format("the rows' vocabulary has {} tokens, and model.vocab is {}", *shard.vocab(), model.vocab),
                  where);
    }
    TESSERA_TRY(CheckTokens(shard, model.vocab, where));
    source.rows_ += shard.rows();
    source.begins_.push_back(source.rows_);
    source.shards_.push_back(std::move(shard));
  }
  return source;
}

RowBatch RowSource::Read(const std::vector<int64_t>& rows) const {
  RowBatch batch;
  RowBatch one;
  for (const int64_t row : rows) {
    if (row < 0) {
      one = Padding(row_tokens_);
    } else {
      const auto after = std::upper_bound(begins_.begin(), begins_.end(), row);
      const auto shard = static_cast<size_t>(after - begins_.begin()) - 1;
      const int64_t first = row - begins_[shard];
      ReadRows(shards_[shard], {first, first + 1}, 1, one);
    }
    Append(one, batch);
  }
  return batch;
}

int64_t RowOrder::At(int64_t place) {
  const int64_t epoch = place / rows_;
  if (epoch != epoch_) {
    epoch_ = epoch;
    order_.resize(static_cast<size_t>(rows_));
    std::iota(order_.begin(), order_.end(), int64_t{0});
    uint64_t state = seed_ ^ (static_cast<uint64_t>(epoch) * 0xD1B54A32D192ED03U);
    for (size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[NextRandom(state) % (i + 1)]);
  }
  return order_[static_cast<size_t>(place % rows_)];
}

double BigramLoss(const std::vector<RowShard>& train, const std::vector<RowShard>& held_out, int64_t vocab,
                  int64_t held_out_rows) {
  constexpr double kAdded = 0.1;
  const auto width = static_cast<size_t>(vocab);
  std::vector<int64_t> pairs(width * width);
  std::vector<int64_t> firsts(width);
  const auto each = [&](const std::vector<RowShard>& shards, int64_t rows, const auto& visit) {
    for (const RowShard& shard : shards) {
      const int64_t own = std::min(rows, shard.rows());
      rows -= own;
      for (size_t i = 0; i < static_cast<size_t>(own * shard.row_tokens()); ++i) {
        if (shard.loss_mask()[i] != 0)
          visit(static_cast<size_t>(shard.input_ids()[i]), static_cast<size_t>(shard.target_ids()[i]));
      }
    }
  };
  each(train, std::numeric_limits<int64_t>::max(), [&](size_t first, size_t second) {
    ++pairs[first * width + second];
    ++firsts[first];
  });
  double nats = 0.0;
  int64_t tokens = 0;
  each(held_out, held_out_rows, [&](size_t first, size_t second) {
    const double all = static_cast<double>(firsts[first]) + kAdded * static_cast<double>(vocab);
    nats -= std::log((static_cast<double>(pairs[first * width + second]) + kAdded) / all);
    ++tokens;
  });
  return tokens == 0 ? 0.0 : nats / static_cast<double>(tokens);
}

}  // namespace tessera::train
