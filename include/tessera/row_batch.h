// Rows as a model takes them: the same arrays of the same shapes for every batch, whatever its rows hold, so that what
// was compiled for one serves all. docs/rows.md names the tensors.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"
#include "tessera/rows.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

// What a structure embedding is made of: the first columns of TokenColumns().
inline constexpr size_t kNumStructureInputs = 5;

// [B, T] but where said otherwise; C is ChunkWidth(T).
struct RowBatch {
  int64_t rows = 0;
  int64_t row_tokens = 0;
  std::vector<int32_t> input_ids;
  std::vector<int32_t> target_ids;
  std::vector<int8_t> loss_mask;
  std::vector<int32_t> doc_ids;
  std::vector<int32_t> valid_token_count;  // [B]
  std::array<std::vector<int32_t>, kNumStructureInputs> structure;
  std::vector<int32_t> token_chunk_ids;        // -1: in no chunk
  std::vector<int8_t> token_chunk_valid;       // 1: in a chunk
  std::array<std::vector<int32_t>, 4> chunks;  // [B, C]: starts, ends, kinds, dep_levels
  std::vector<int8_t> chunk_valid;             // [B, C]: end > start
  std::vector<int32_t> platform_ids;           // [B, kPlatformIds]
  std::vector<int8_t> chunk_relation_mask;     // [B, kNumRelations, C, C], where it was asked for, else empty
};
// Rows of a shard; memory that `batch` has is used again.
void ReadRows(const RowShard& shard, RowRange range, int64_t threads, RowBatch& batch);

// For the engine: document ids and valid counts.
Batch ToBatch(const RowBatch& batch);
// Every array under the name a model knows it by.
TensorMap ToTensors(const RowBatch& batch);

// How two chunks of one document stand to each other: same_chunk, caller_callee, callee_caller, type_dependency,
// type_dependent, same_dep_level, adjacent_dep_level, preamble_to_code, code_to_preamble.
std::span<const std::string_view> Relations();
inline constexpr int64_t kNumRelations = 9;
// [B, kNumRelations, C, C], 0 or 1.
void RelationMasks(const RowShard& shard, RowRange range, int64_t threads, std::vector<int8_t>& masks);

// The mean of each chunk's tokens, zero for none: a product with the one-hot matrix of chunk ids, of fixed size.
// values [T, dim], chunk_ids [T], pooled [num_chunks, dim].
struct PoolShape {
  int64_t dim = 0;
  int64_t num_chunks = 0;
};
void PoolChunks(std::span<const float> values, std::span<const int32_t> chunk_ids, PoolShape shape,
                std::span<float> pooled);
// Of each chunk's neighbours the first `most`, by a running count: no sort, no list. adjacent and chosen
// [num_chunks, num_chunks].
inline constexpr int64_t kMostNeighbours = 16;
void ChooseNeighbours(std::span<const int8_t> adjacent, int64_t num_chunks, int64_t most, std::span<int8_t> chosen);

struct LoaderOptions {
  int64_t batch_rows = 1;
  int64_t threads = 1;
  bool relations = false;  // chunk_relation_mask too: of every batch, or of none
};
// Batches of a list of shards in order, the next one being read while this one is in use. A batch may have rows of
// several shards. The last rows of all that make no whole batch are left out, and counted.
class RowLoader {
 public:
  static Result<RowLoader> Open(const std::vector<std::string>& shards, const LoaderOptions& options);
  RowLoader(RowLoader&&) noexcept;
  RowLoader& operator=(RowLoader&&) noexcept;
  ~RowLoader();
  // Good until the next call; null at the end.
  Result<const RowBatch*> Next();
  int64_t rows_left_out() const;  // once there is no batch any more

 private:
  struct State;
  explicit RowLoader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tessera
#pragma GCC visibility pop
