// Whether rows are what docs/rows.md says. The digest says that a file is as it was written; the rules, that it was
// written well: both are looked at, so that a shard somebody else made can be judged too.
#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "rows/shard.h"

namespace tessera {
namespace {

constexpr size_t kMostViolations = 20;

class RowChecker {
 public:
  explicit RowChecker(const RowShard& shard) : shard_(shard), width_(static_cast<size_t>(shard.row_tokens())) {}

  std::vector<Violation> Check() {
    for (int64_t row = 0; row < shard_.rows() && violations_.size() < kMostViolations; ++row) {
      row_ = row;
      CheckTokens();
      CheckColumns();
      CheckChunks();
      CheckPlatformIds();
    }
    return std::move(violations_);
  }

 private:
  template <class T>
  std::span<const T> Of(std::span<const T> all, size_t width) const {
    return all.subspan(static_cast<size_t>(row_) * width, width);
  }
  void Violate(std::string_view column, std::string expected) {
    // One of each column and row says enough.
    const std::string field = fmt::format("row {} {}", row_, column);
    if (!violations_.empty() && violations_.back().field == field) return;
    if (violations_.size() < kMostViolations) violations_.push_back({field, std::move(expected)});
  }

  // Documents 1, 2, ... in the valid prefix, padding behind it.
  void CheckTokens() {
    const auto input = Of(shard_.input_ids(), width_);
    const auto target = Of(shard_.target_ids(), width_);
    const auto loss = Of(shard_.loss_mask(), width_);
    const auto ids = Of(shard_.doc_ids(), width_);
    const int64_t valid = shard_.valid_token_count()[static_cast<size_t>(row_)];
    const int64_t documents = shard_.num_docs()[static_cast<size_t>(row_)];
    if (valid < 0 || valid > shard_.row_tokens())
      return Violate("valid_token_count", fmt::format("0 to {}, found {}", width_, valid));
    const auto end = static_cast<size_t>(valid);
    const int32_t last = valid == 0 ? 0 : ids[end - 1];
    if (last != documents) Violate("num_docs", fmt::format("{}, as doc_ids end with, found {}", last, documents));
    for (size_t i = 0; i < width_; ++i) {
      if (i >= end) {
        if (ids[i] != kPaddingDocument) Violate("doc_ids", fmt::format("{} in padding, at {}", kPaddingDocument, i));
        if (input[i] != 0) Violate("input_ids", fmt::format("0 in padding, at {}", i));
      } else {
        const int32_t before = i == 0 ? 0 : ids[i - 1];
        const bool is_new = i == 0 || ids[i] != before;
        if (is_new && ids[i] != before + 1) Violate("doc_ids", fmt::format("1, 2, ... in order, at {}", i));
        if (input[i] < 0 || (shard_.vocab() && input[i] >= *shard_.vocab()))
          Violate("input_ids", fmt::format("a token of the vocabulary, at {}, found {}", i, input[i]));
      }
      const bool has_next = i + 1 < end && ids[i + 1] == ids[i];
      if (loss[i] != (has_next ? 1 : 0))
        Violate("loss_mask", fmt::format("1 where the document goes on and 0 elsewhere, at {}", i));
      if (target[i] != (has_next ? input[i + 1] : 0))
        Violate("target_ids", fmt::format("the document's next token, or 0, at {}", i));
    }
  }

  void CheckColumns() {
    const auto valid = static_cast<size_t>(
        std::clamp<int64_t>(shard_.valid_token_count()[static_cast<size_t>(row_)], 0, shard_.row_tokens()));
    for (size_t c = 0; c < kNumTokenColumns; ++c) {
      const auto all = shard_.column(static_cast<TokenColumn>(c));
      if (all.empty()) continue;
      const auto values = Of(all, width_);
      const ColumnInfo& info = TokenColumns()[c];
      for (size_t i = valid; i < width_; ++i) {
        if (values[i] != info.fill) Violate(info.name, fmt::format("{} in padding, at {}", info.fill, i));
      }
    }
  }

  // Ascending, each within one document, used entries first; edges between chunks of one document.
  void CheckChunks() {
    if (shard_.chunk_starts().empty()) return;
    const auto width = static_cast<size_t>(ChunkWidth(shard_.row_tokens()));
    const auto starts = Of(shard_.chunk_starts(), width);
    const auto ends = Of(shard_.chunk_ends(), width);
    const auto kinds = Of(shard_.chunk_kinds(), width);
    const auto ids = Of(shard_.doc_ids(), width_);
    const auto kind_count = static_cast<int32_t>(StructureCategories().size());
    int32_t last = 0;
    size_t count = 0;
    for (size_t i = 0; i < width; ++i) {
      if (ends[i] == 0 && starts[i] == 0) continue;
      if (i != count) Violate("token_chunk_starts", fmt::format("no empty entry before another, at {}", i));
      count = i + 1;
      const bool is_within = starts[i] >= last && ends[i] > starts[i] && static_cast<size_t>(ends[i]) <= width_;
      if (!is_within)
        return Violate("token_chunk_ends", fmt::format("chunks that ascend and do not overlap, at {}", i));
      const int32_t first_id = ids[static_cast<size_t>(starts[i])];
      if (first_id < 0 || first_id != ids[static_cast<size_t>(ends[i]) - 1])
        Violate("token_chunk_starts", fmt::format("a chunk within one document, at {}", i));
      if (kinds[i] < 0 || kinds[i] >= kind_count) Violate("token_chunk_kinds", fmt::format("0 to {}", kind_count - 1));
      last = ends[i];
    }
    const auto document = [&](int32_t chunk) { return ids[static_cast<size_t>(starts[static_cast<size_t>(chunk)])]; };
    const auto check = [&](std::span<const ChunkEdge> edges, const char* name) {
      for (const ChunkEdge& edge : edges) {
        const auto limit = static_cast<int32_t>(count);
        if (edge.from < 0 || edge.to < 0 || edge.from >= limit || edge.to >= limit ||
            document(edge.from) != document(edge.to))
          return Violate(name, fmt::format("two chunks of one document, found {} and {}", edge.from, edge.to));
      }
    };
    check(shard_.call_edges(row_), "token_call_edges");
    check(shard_.type_edges(row_), "token_type_edges");
  }

  void CheckPlatformIds() {
    for (const int32_t id : shard_.platform_ids(row_)) {
      if (id < 0 || id >= kPlatformVocab) Violate("platform_ids", fmt::format("0 to {}", kPlatformVocab - 1));
    }
  }

  const RowShard& shard_;
  size_t width_;
  int64_t row_ = 0;
  std::vector<Violation> violations_;
};

}  // namespace

Status CheckRows(const RowShard& shard, const std::string& name) {
  std::vector<Violation> violations = RowChecker(shard).Check();
  if (DigestOf(shard.state_->view.tensors) != shard.digest())
    violations.insert(violations.begin(), {"digest", "that of the tensors that are there"});
  const auto& ids = shard.state_->pack_id;
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] == ids[0] + static_cast<int64_t>(i)) continue;
    violations.push_back({fmt::format("row {} pack_id", i), "one more than the row before"});
    break;
  }
  if (violations.empty()) return {};
  return Fail(ErrorCode::kRowsInvalid, std::move(violations), name);
}

Result<RowShard> OpenShard(const std::string& folder, const ShardRecord& record) {
  const std::string path = folder + "/" + record.file;
  RowShard shard = TESSERA_TRY(RowShard::Open(path));
  if (shard.digest() != record.digest || shard.rows() != record.rows)
    return Fail(ErrorCode::kRowsMismatch, "the shard is not the one that rows.json tells of", path);
  return shard;
}

Status CheckFolder(const std::string& folder, const RowsManifest& manifest, const std::function<bool()>& should_stop) {
  std::vector<Violation> violations;
  const auto expect = [&](const std::string& field, int64_t is, int64_t says) {
    if (is != says) violations.push_back({field, fmt::format("{}, as in the shards, found {}", is, says)});
  };
  int64_t rows = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  for (const ShardRecord& record : manifest.shards) {
    if (should_stop && should_stop()) return {};
    const RowShard shard = TESSERA_TRY(OpenShard(folder, record));
    TESSERA_TRY(CheckRows(shard, folder + "/" + record.file));
    expect("row_tokens", shard.row_tokens(), manifest.row_tokens);
    if (shard.first_pack_id() != rows)
      violations.push_back({record.file, fmt::format("row {} first, found {}", rows, shard.first_pack_id())});
    rows += shard.rows();
    for (const int32_t count : shard.num_docs()) documents += count;
    for (const int32_t count : shard.valid_token_count()) tokens += count;
    if (violations.size() >= kMostViolations) break;
  }
  if (violations.empty()) {
    expect("documents_in_rows", documents, manifest.documents_in_rows);
    expect("tokens_in_rows", tokens, manifest.tokens_in_rows);
  }
  if (violations.empty()) return {};
  return Fail(ErrorCode::kRowsInvalid, std::move(violations), folder + "/rows.json");
}

}  // namespace tessera
