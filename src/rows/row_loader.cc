// Batches one ahead: a thread reads the next while the caller works on this one.
#include <algorithm>
#include <future>
#include <utility>

#include "base/try.h"
#include "rows/batch_rows.h"
#include "rows/parallel.h"
#include "tessera/row_batch.h"

namespace tessera {

struct RowLoader::State {
  std::vector<RowShard> shards;
  LoaderOptions options;
  size_t shard = 0;  // where the next batch begins
  int64_t row = 0;
  int64_t left_out = 0;
  std::array<RowBatch, 2> batches;
  size_t ahead = 0;           // which of them is being read
  std::future<bool> reading;  // whether there was a batch

  bool ReadInto(RowBatch& batch) {
    std::vector<std::pair<size_t, int64_t>> from;  // shard and row
    while (shard < shards.size() && static_cast<int64_t>(from.size()) < options.batch_rows) {
      if (row < shards[shard].rows()) {
        from.emplace_back(shard, row++);
      } else {
        ++shard;
        row = 0;
      }
    }
    if (static_cast<int64_t>(from.size()) < options.batch_rows) {
      left_out = static_cast<int64_t>(from.size());
      return false;
    }
    const int64_t row_tokens = shards.front().row_tokens();
    const int64_t relation_bytes = options.relations ? rows::RelationBytes(row_tokens) : 0;
    rows::ShapeBatch(options.batch_rows, row_tokens, batch);
    batch.chunk_relation_mask.resize(static_cast<size_t>(options.batch_rows * relation_bytes));
    rows::ForEach(options.threads, options.batch_rows, [&](int64_t i) {
      const auto& [place, number] = from[static_cast<size_t>(i)];
      rows::CopyRow(shards[place], number, i, batch);
      if (!options.relations) return;
      rows::FillRelations(shards[place], number, batch.chunk_relation_mask.data() + i * relation_bytes);
    });
    return true;
  }
  void Start() {
    reading = std::async(std::launch::async, [this] { return ReadInto(batches[ahead]); });
  }
};

Result<RowLoader> RowLoader::Open(const std::vector<std::string>& shards, const LoaderOptions& options) {
  if (options.batch_rows < 1 || options.threads < 1)
    return Fail(ErrorCode::kBadArgument, "a batch has rows, and somebody reads them: both are at least 1", "rows");
  auto state = std::make_unique<State>();
  state->options = options;
  for (const std::string& path : shards) {
    state->shards.push_back(TESSERA_TRY(RowShard::Open(path)));
    if (state->shards.back().row_tokens() != state->shards.front().row_tokens())
      return Fail(ErrorCode::kRowsMismatch, "its rows are of another length than those before", path);
  }
  state->Start();
  return RowLoader(std::move(state));
}

RowLoader::RowLoader(std::unique_ptr<State> state) : state_(std::move(state)) {}
RowLoader::RowLoader(RowLoader&&) noexcept = default;
RowLoader& RowLoader::operator=(RowLoader&&) noexcept = default;
RowLoader::~RowLoader() = default;  // waits for the thread

Result<const RowBatch*> RowLoader::Next() {
  if (!state_->reading.valid()) return nullptr;
  if (!state_->reading.get()) return nullptr;
  const RowBatch* const batch = &state_->batches[state_->ahead];
  state_->ahead = 1 - state_->ahead;
  state_->Start();
  return batch;
}

int64_t RowLoader::rows_left_out() const { return state_->left_out; }

}  // namespace tessera
