// A line of JSONL as it was written, before anything is made of it, and the handler that collects it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_events.h"
#include "tessera/documents.h"

namespace tessera::rows {

// What is wrong with a document.
struct Problem {
  ErrorCode code = ErrorCode::kDocumentColumn;
  std::string text;
};

// A list that the line has, or has not: absent is not empty.
struct RawList {
  bool is_given = false;
  std::vector<int32_t> values;
};

// A chunk as {"start": 0, "end": 9, "kind": "func_body", "dep_level": 2, "id": "f"}, in characters.
struct RawChunk {
  std::optional<int64_t> start;
  std::optional<int64_t> end;
  std::optional<int64_t> kind;
  std::optional<int64_t> dep_level;
  std::optional<int64_t> id;
};
// By the ids of chunks, or by their places where those have no number as id.
struct RawEdge {
  std::optional<int64_t> from;
  std::optional<int64_t> to;
};
struct RawEdges {
  bool is_given = false;
  std::string name;  // of the column, as the line has it
  std::vector<RawEdge> edges;
};

// Ids that are texts become numbers that no line has as an id: the lowest there are.
inline constexpr int64_t kFirstTextId = std::numeric_limits<int64_t>::min();
constexpr bool IsTextId(int64_t id) { return id < kFirstTextId + (int64_t{1} << 40); }

struct RawDocument {
  RawList tokens;
  std::optional<std::string> text;
  RawList spans;  // begin and end of each token, in characters
  std::array<RawList, kNumTokenColumns> columns;
  std::array<RawList, kNumTokenColumns> characters;
  RawList chunk_starts;  // in tokens
  RawList chunk_ends;
  RawList chunk_kinds;
  RawList chunk_dep_levels;
  bool has_chunks = false;
  std::vector<RawChunk> chunks;
  RawEdges call_edges;
  RawEdges type_edges;
  RawList platform_ids;
  std::optional<int64_t> valid_tokens;
  std::map<std::string, int64_t, std::less<>> text_ids;  // ids of chunks that are texts, as numbers: see IsTextId

  // Keeps the memory.
  void Clear();
};

class DocumentHandler final : public JsonHandler {
 public:
  explicit DocumentHandler(RawDocument& raw) : raw_(raw) {}
  void Begin();
  ErrorCode code() const { return code_; }
  // What a column of that name is to a document: nothing, something it may say, or what the packer makes itself.
  enum class Meaning : uint8_t { kNone, kDocument, kMade };
  static Meaning MeaningOf(std::string_view key);

  // Nearly all of a line are numbers of lists.
  bool OnInteger(int64_t value) override {
    if (list_ == nullptr || depth_ != list_depth_) return OnSingle(value);
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
      return OutOfRange(value);
    list_->values.push_back(static_cast<int32_t>(value));
    return true;
  }
  bool OnText(std::string_view value) override;
  bool OnOther(std::string_view what) override;
  bool OnKey(std::string_view key) override;
  bool OnObjectBegin() override;
  bool OnObjectEnd() override;
  bool OnArrayBegin() override;
  bool OnArrayEnd() override;

 private:
  enum class Kind : uint8_t { kIgnored, kList, kKinds, kText, kCount, kSpans, kChunks, kEdges, kMade };
  struct Field {
    Kind kind = Kind::kIgnored;
    RawList* list = nullptr;
    RawEdges* edges = nullptr;
  };
  Field FieldOf(std::string_view key);
  bool IsIgnored() const { return field_.kind == Kind::kIgnored || is_member_ignored_; }
  bool OnSingle(int64_t value);
  bool OutOfRange(int64_t value);
  bool Unfit(std::string_view what);
  bool SetMember(int64_t value);
  std::optional<int64_t> KindOf(std::string_view name);
  int64_t IdOf(std::string_view text);

  RawDocument& raw_;
  Field field_;
  std::string name_;    // of the column
  std::string member_;  // of a chunk or an edge
  std::vector<std::string> seen_;
  RawList* list_ = nullptr;
  int list_depth_ = 0;
  int depth_ = 0;
  int pair_ = 0;  // numbers of the pair so far
  bool is_object_ = false;
  bool is_member_ignored_ = false;
  ErrorCode code_ = ErrorCode::kDocumentSyntax;
};

}  // namespace tessera::rows
