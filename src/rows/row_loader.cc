// Batches one ahead: a thread reads the next while the caller works on this one.
#include <algorithm>
#include <future>
#include <utility>

#include "base/try.h"
#include "tessera/row_batch.h"

namespace tessera {

struct RowLoader::State {
  std::vector<RowShard> shards;
  int64_t batch_rows = 0;
  int64_t threads = 1;
  size_t shard = 0;  // where the next batch begins
  int64_t row = 0;
  int64_t left_out = 0;
  std::array<RowBatch, 2> batches;
  size_t ahead = 0;           // which of them is being read
  std::future<bool> reading;  // whether there was a batch

  // Batches lie within a shard: rows of two would be two copies of everything.
  bool ReadInto(RowBatch& batch) {
    while (shard < shards.size()) {
      const int64_t rows_left = shards[shard].rows() - row;
      if (rows_left >= batch_rows) {
        ReadRows(shards[shard], {row, row + batch_rows}, threads, batch);
        row += batch_rows;
        return true;
      }
      left_out += rows_left;
      ++shard;
      row = 0;
    }
    return false;
  }
  void Start() {
    reading = std::async(std::launch::async, [this] { return ReadInto(batches[ahead]); });
  }
};

Result<RowLoader> RowLoader::Open(const std::vector<std::string>& shards, int64_t batch_rows, int64_t threads) {
  if (batch_rows < 1 || threads < 1)
    return Fail(ErrorCode::kBadArgument, "a batch has rows, and somebody reads them: both are at least 1", "rows");
  auto state = std::make_unique<State>();
  state->batch_rows = batch_rows;
  state->threads = threads;
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
