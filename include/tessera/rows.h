// Rows: documents packed into fixed lengths, in shards that are mapped and read in place. docs/rows.md explains them by
// an example.
//
// Goals: nothing is cropped, dropped or padded without a rule and a count; equal documents and options give equal bytes
// for any number of threads, interrupted or not. Not a goal: tokenising.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/documents.h"
#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

inline constexpr int64_t kRowsSchemaVersion = 1;
inline constexpr int32_t kPaddingDocument =
    -1;  // documents of a row are numbered from 1, so that 0 is none of them either
inline constexpr int64_t kVocabMultiple = 64;

// What an embedding has to have: the next multiple of kVocabMultiple.
int64_t PaddedVocab(int64_t vocab);
// Entries of a row's table of chunks: max(128, row_tokens / 32).
int64_t ChunkWidth(int64_t row_tokens);

// kGreedy keeps the documents' order and closes a row when the next one does not fit. kBestFit puts long documents
// first, each into the row that it fills best. Both place whole documents only.
enum class Packer : uint8_t { kGreedy, kBestFit };
std::string_view ToText(Packer packer);
std::string_view ToText(LongDocuments choice);

// Which documents stand in which row, in order: row r has documents[row_begins[r] .. row_begins[r + 1]).
struct RowPlan {
  std::vector<int64_t> row_begins = {0};
  std::vector<int64_t> documents;
  int64_t next_document = 0;  // the first that no row has yet: more documents may go into its row

  int64_t NumRows() const { return static_cast<int64_t>(row_begins.size()) - 1; }
};
// Documents without tokens are in no row; none is longer than a row. `is_end`: no documents follow these.
RowPlan PlanRows(const DocumentSet& documents, int64_t row_tokens, Packer packer, bool is_end = true);

// Rows in memory, each array [rows, width] and maybe longer: what is behind the last row is of no meaning.
struct PackedRows {
  int64_t rows = 0;
  int64_t row_tokens = 0;
  int64_t first_pack_id = 0;
  std::vector<int32_t> input_ids;   // 0 in padding
  std::vector<int32_t> target_ids;  // the next token of the same document, else 0
  std::vector<int8_t> loss_mask;    // 1 where there is such a token
  std::vector<int32_t> doc_ids;
  std::vector<int32_t> valid_token_count;  // [rows]
  std::vector<int32_t> num_docs;           // [rows]
  std::array<std::vector<int32_t>, kNumTokenColumns> columns;
  std::array<bool, kNumTokenColumns> has_column = {};  // that any document has
  std::vector<Chunk> chunks;                           // [rows, ChunkWidth]; an unused entry is {0, 0, 0, 0}
  std::vector<int64_t> call_begins = {0};              // [rows + 1]
  std::vector<ChunkEdge> call_edges;                   // by the row's chunks
  std::vector<int64_t> type_begins = {0};              // [rows + 1]
  std::vector<ChunkEdge> type_edges;
  std::vector<int32_t> platform_ids;  // [rows, kPlatformIds]: each id once, 0 where there are no more
  bool has_chunks = false;
  int64_t dropped_platform_ids = 0;

  // Forgets the rows and keeps the memory.
  void Clear(int64_t tokens_per_row);
};
// Rows [first, last) of a plan, after those that are there.
struct RowRange {
  int64_t first = 0;
  int64_t last = 0;
};
void FillRows(const DocumentSet& documents, const RowPlan& plan, RowRange range, int64_t threads, PackedRows& rows);

struct PackOptions {
  DocumentOptions documents;  // row_tokens must be set
  Packer packer = Packer::kGreedy;
  int64_t shard_rows = 256;
  std::string tokenizer;  // what made the tokens, for the record
  bool resume = false;
  std::function<bool()> should_stop = {};  // asked before every shard and window of documents
};
struct ShardRecord {
  std::string file;  // in the folder
  int64_t rows = 0;
  std::string digest;
  bool operator==(const ShardRecord&) const = default;
};
// The file rows.json of a folder of shards.
struct RowsManifest {
  int64_t row_tokens = 0;
  int64_t rows = 0;
  int64_t documents_in_rows = 0;
  int64_t tokens_in_rows = 0;
  bool is_complete = false;
  std::vector<ShardRecord> shards;
  DocumentCounts counts;  // of everything read, once complete
};
// Packs files of JSONL and token shards (.safetensors) into shards rows-00000.safetensors, ... of a folder. Every shard
// is there whole or not at all; `resume` goes on where an earlier call with the same files and options ended, however
// it did. Where somebody wants it to stop, what is written stays, and the manifest is not complete.
Result<RowsManifest> PackFiles(const std::vector<std::string>& files, const std::string& folder,
                               const PackOptions& options);
Result<RowsManifest> ReadRowsManifest(const std::string& folder);

// A shard, mapped. Spans live as long as it does.
class RowShard {
 public:
  static Result<RowShard> Open(const std::string& path);
  RowShard(RowShard&&) noexcept;
  RowShard& operator=(RowShard&&) noexcept;
  ~RowShard();

  int64_t rows() const;
  int64_t row_tokens() const;
  int64_t first_pack_id() const;
  const std::string& digest() const;
  std::optional<int64_t> vocab() const;
  const std::string& tokenizer() const;  // empty where the shard does not say, as the next
  const std::string& packer() const;
  std::span<const int32_t> input_ids() const;  // [rows, row_tokens], as the next three
  std::span<const int32_t> target_ids() const;
  std::span<const int8_t> loss_mask() const;
  std::span<const int32_t> doc_ids() const;
  std::span<const int32_t> valid_token_count() const;  // [rows]
  std::span<const int32_t> num_docs() const;           // [rows]
  // Empty where the shard has no such column: its fill stands for it.
  std::span<const int32_t> column(TokenColumn column) const;
  // [rows, ChunkWidth(row_tokens)]; empty where the shard has no chunks.
  std::span<const int32_t> chunk_starts() const;
  std::span<const int32_t> chunk_ends() const;
  std::span<const int32_t> chunk_kinds() const;
  std::span<const int32_t> chunk_dep_levels() const;
  std::span<const ChunkEdge> call_edges(int64_t row) const;
  std::span<const ChunkEdge> type_edges(int64_t row) const;
  std::span<const int32_t> platform_ids(int64_t row) const;  // empty, or kPlatformIds

 private:
  struct State;
  explicit RowShard(std::unique_ptr<State> state);
  friend Status CheckRows(const RowShard& shard, const std::string& name);
  std::unique_ptr<State> state_;
};
// A shard of a folder; TSR-D006 where it is not the one that the folder's rows.json tells of, as far as its head says.
Result<RowShard> OpenShard(const std::string& folder, const ShardRecord& record);
// A shard's file, whole: what PackFiles writes.
std::string ToShard(const PackedRows& rows, const PackOptions& options);

// Reads every byte: the digest, and every rule that rows keep. TSR-D005 with the rows that break one.
Status CheckRows(const RowShard& shard, const std::string& name);
// All of a folder's shards, and rows.json: what it says of each and of all together. Good as far as it got where
// somebody wants it to stop.
Status CheckFolder(const std::string& folder, const RowsManifest& manifest,
                   const std::function<bool()>& should_stop = {});

}  // namespace tessera
#pragma GCC visibility pop
