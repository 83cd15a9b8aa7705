// Documents as they come: tokens, what is known of each token (columns), and the chunks of source they are made of.
// They are read from JSONL or token shards (docs/rows.md) and packed into rows by tessera/rows.h.
//
// What a document does not say stays unsaid: a column that it lacks is absent here, and becomes the column's own fill
// (0 or -1) only where rows of several documents have to be rectangular. A count of valid tokens is never filled.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

enum class TokenColumn : uint8_t {
#define TESSERA_COLUMN(name, text, characters, fill) name,
#include "tessera/columns.def"
#undef TESSERA_COLUMN
};
struct ColumnInfo {
  std::string_view name;        // of the value of each token
  std::string_view characters;  // of the value of each character, from which those of tokens are made
  int32_t fill = 0;
};
// In the order of TokenColumn.
std::span<const ColumnInfo> TokenColumns();
std::optional<TokenColumn> FindTokenColumn(std::string_view name);
inline constexpr size_t kNumTokenColumns = 13;

// "other", "preamble", "func_signature", ...: kinds of chunks, and values of token_structure_ids.
std::span<const std::string_view> StructureCategories();

// A piece of source: tokens [begin, end) of its document or row.
struct Chunk {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t kind = 0;        // of StructureCategories()
  int32_t dep_level = -1;  // -1: nobody said
  bool operator==(const Chunk&) const = default;
};
// Between two chunks, by their numbers in the document or row.
struct ChunkEdge {
  int32_t from = 0;
  int32_t to = 0;
  bool operator==(const ChunkEdge&) const = default;
};

// Tokens a platform id can be one of: 0 is no platform.
inline constexpr int32_t kPlatformVocab = 113;
inline constexpr int64_t kPlatformIds = 20;  // of one document, and of one row

struct Document {
  std::vector<int32_t> tokens;
  std::array<std::vector<int32_t>, kNumTokenColumns> columns;  // each empty (absent) or a value for each token
  std::vector<Chunk> chunks;                                   // ascending, none empty, none over another
  std::vector<ChunkEdge> call_edges;
  std::vector<ChunkEdge> type_edges;
  std::vector<int32_t> platform_ids;
  bool operator==(const Document&) const = default;
};

// What was read and what became of it. Nothing is left out without being counted.
struct DocumentCounts {
  int64_t documents = 0;
  int64_t tokens = 0;          // of all documents, as read
  int64_t empty = 0;           // documents without a valid token
  int64_t skipped = 0;         // longer than a row
  int64_t skipped_tokens = 0;  // of those
  int64_t split = 0;           // longer than a row, and cut into pieces
  int64_t permuted = 0;        // fill in the middle
  int64_t dropped_chunks = 0;  // without tokens, across a cut, or more than a row's table holds
  int64_t cut_chunks = 0;      // ended where the next one begins, before the end that was given
  int64_t dropped_edges = 0;   // with an end that is no chunk
  int64_t dropped_platform_ids = 0;
  DocumentCounts& operator+=(const DocumentCounts& other);
  bool operator==(const DocumentCounts&) const = default;
};

// Where a document came from, so that work can go on there.
struct DocumentSource {
  int64_t file = 0;      // its number among those given
  int64_t offset = 0;    // of its line in the file in bytes, or its number in a token shard
  int64_t line = 0;      // from 1
  int64_t piece = 0;     // of a document that was split
  uint32_t columns = 0;  // those that the document has, one bit each: a set does not tell them from fills
  DocumentCounts counts = {};
};

// Many documents in few arrays. Document i has tokens[token_begins[i] .. token_begins[i + 1]), and so the other lists.
struct DocumentSet {
  std::vector<int64_t> token_begins = {0};
  std::vector<int32_t> tokens;
  std::array<std::vector<int32_t>, kNumTokenColumns> columns;  // each empty, or as long as tokens
  std::vector<int64_t> chunk_begins = {0};
  std::vector<Chunk> chunks;  // begin and end count from the document's first token
  std::vector<int64_t> call_begins = {0};
  std::vector<ChunkEdge> call_edges;
  std::vector<int64_t> type_begins = {0};
  std::vector<ChunkEdge> type_edges;
  std::vector<int64_t> platform_begins = {0};
  std::vector<int32_t> platform_ids;
  std::vector<DocumentSource> sources;

  int64_t Size() const { return static_cast<int64_t>(token_begins.size()) - 1; }
  int64_t Length(int64_t i) const {
    return token_begins[static_cast<size_t>(i) + 1] - token_begins[static_cast<size_t>(i)];
  }
  void Add(const Document& document, const DocumentSource& source = {});
  // Documents [first, last) of another set.
  void Append(const DocumentSet& other, int64_t first, int64_t last);
  Document Get(int64_t i) const;
  // Forgets the documents and keeps the memory.
  void Clear();
};

// Fill in the middle: tokens [0, prefix_end), [prefix_end, middle_end) and the rest become
// s0 prefix s1 suffix s2 middle s3, or with `suffix_first` s0 s1 suffix s2 prefix middle s3; s are the sentinels.
struct FimCut {
  int64_t prefix_end = 0;
  int64_t middle_end = 0;
  bool suffix_first = false;
  std::array<int32_t, 4> sentinels = {};
};
// Columns go with their tokens, and a sentinel has 0 in every column there is. A chunk across a cut is dropped with its
// edges.
Document PermuteForFim(const Document& document, const FimCut& cut, DocumentCounts* counts);
// Tokens [begin, end) as a document, by the same rules.
Document Slice(const Document& document, int64_t begin, int64_t end, DocumentCounts* counts);
// Pieces of so many tokens, the last of the rest: what Slice gives for each, in the time of one.
std::vector<Document> Split(const Document& document, int64_t most_tokens);

enum class LongDocuments : uint8_t { kRefuse, kSplit, kSkip };

// How documents are read.
struct DocumentOptions {
  int64_t row_tokens = 0;  // longer ones are treated as `long_documents` says; 0: any length
  LongDocuments long_documents = LongDocuments::kRefuse;
  std::vector<TokenColumn> required;  // a document without one of them is refused
  bool bytes = false;                 // a text without tokens is its bytes
  std::optional<int64_t> vocab;       // tokens are below it
  int64_t fim_percent = 0;            // of documents, chosen by seed and place
  uint64_t fim_seed = 0;
  std::array<int32_t, 4> fim_sentinels = {};
  int64_t threads = 1;
};

// A chunk of JSONL: one document a line. `name` is the file's, for messages.
Result<DocumentSet> ParseDocuments(std::string_view jsonl, const std::string& name, const DocumentOptions& options);

}  // namespace tessera
#pragma GCC visibility pop
