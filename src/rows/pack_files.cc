// Documents to shards, on one page: a window of documents is read, its rows are planned, and rows go into the shard at
// hand until it is full and written. After each shard rows.json says where to go on, so that whoever is interrupted
// loses one shard's work and no more.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/try.h"
#include "io/file_lock.h"
#include "rows/limits.h"
#include "rows/manifest.h"
#include "rows/read_documents.h"
#include "rows/shard.h"
#include "tessera/io.h"

namespace tessera {
namespace rows {
namespace {

namespace fs = std::filesystem;

// Tokens that are read before rows are planned. Best fit chooses among them; greedy rows do not depend on it.
constexpr int64_t kWindowTokens = int64_t{1} << 22;
constexpr int64_t kWindowRows = 16;

std::string ShardName(size_t number) { return fmt::format("rows-{:05}.safetensors", number); }

// Documents a window at a time, cut at the same documents wherever reading begins.
class Window {
 public:
  Window(DocumentReader& reader, int64_t tokens) : reader_(reader), tokens_(tokens) {}

  // Adds documents until there are tokens enough, or no more documents.
  Status Fill() {
    while (documents.token_begins.back() < tokens_) {
      if (used_ == block_.Size()) {
        used_ = 0;
        if (!TESSERA_TRY(reader_.Next(block_))) {
          block_.Clear();
          is_end = true;
          return {};
        }
      }
      const int64_t first = used_;
      int64_t sum = documents.token_begins.back();
      while (used_ < block_.Size() && sum < tokens_) sum += block_.Length(used_++);
      documents.Append(block_, first, used_);
    }
    return {};
  }

  // Forgets documents before that one.
  void DropBefore(int64_t document) {
    DocumentSet rest;
    rest.Append(documents, document, documents.Size());
    documents = std::move(rest);
  }

  DocumentSet documents;
  bool is_end = false;

 private:
  DocumentReader& reader_;
  int64_t tokens_;
  DocumentSet block_;
  int64_t used_ = 0;
};

class FilePacker {
 public:
  FilePacker(std::vector<std::string> files, std::string folder, const PackOptions& options, ManifestFile file)
      : files_(std::move(files)), folder_(std::move(folder)), options_(options), file_(std::move(file)) {}

  Result<RowsManifest> Pack() {
    const NextDocument start = file_.next;
    DocumentReader reader(files_, options_.documents, {start.file, start.offset, start.line});
    Window window(reader, std::max(kWindowTokens, kWindowRows * options_.documents.row_tokens));
    shard_.Clear(options_.documents.row_tokens);
    shard_.first_pack_id = file_.manifest.rows;
    int64_t skip_pieces = start.piece;
    int64_t skip_rows = start.skip_rows;
    while (!window.is_end) {
      if (Stops()) return file_.manifest;
      TESSERA_TRY(window.Fill());
      while (skip_pieces > 0 && window.documents.Size() > 0) {  // those are in rows already
        const int64_t count = std::min(skip_pieces, window.documents.Size());
        window.DropBefore(count);
        skip_pieces -= count;
        if (!window.is_end) TESSERA_TRY(window.Fill());
      }
      const RowPlan plan = PlanRows(window.documents, options_.documents.row_tokens, options_.packer, window.is_end);
      TESSERA_TRY(TakeRows(window.documents, plan, std::min(skip_rows, plan.NumRows())));
      if (Stops()) return file_.manifest;
      skip_rows = 0;
      Count(window.documents, 0, plan.next_document, counts_before_);
      window.DropBefore(plan.next_document);
    }
    if (shard_.rows > 0) TESSERA_TRY(WriteShard());
    file_.manifest.is_complete = true;
    file_.manifest.counts = counts_before_;
    file_.next = {.file = static_cast<int64_t>(files_.size())};
    TESSERA_TRY(WriteManifest());
    return file_.manifest;
  }

  void Resume() { counts_before_ = file_.manifest.counts; }

 private:
  static void Count(const DocumentSet& documents, int64_t first, int64_t last, DocumentCounts& counts) {
    for (int64_t i = first; i < last; ++i) counts += documents.sources[static_cast<size_t>(i)].counts;
  }

  // Once it has said so it is not asked again.
  bool Stops() {
    is_stopped_ = is_stopped_ || (options_.should_stop && options_.should_stop());
    return is_stopped_;
  }

  Status TakeRows(const DocumentSet& documents, const RowPlan& plan, int64_t first) {
    for (int64_t row = first; row < plan.NumRows() && !Stops();) {
      const int64_t last = std::min(plan.NumRows(), row + options_.shard_rows - shard_.rows);
      FillRows(documents, plan, {row, last}, options_.documents.threads, shard_);
      row = last;
      if (shard_.rows < options_.shard_rows) continue;
      TESSERA_TRY(WriteShard());
      file_.next = NextAfter(documents, plan, row);
      TESSERA_TRY(WriteManifest());
    }
    return {};
  }

  // Where to go on once rows before this one are written.
  NextDocument NextAfter(const DocumentSet& documents, const RowPlan& plan, int64_t row) {
    file_.manifest.counts = counts_before_;
    int64_t document = 0;
    if (options_.packer == Packer::kGreedy) {
      document = row < plan.NumRows() ? plan.documents[static_cast<size_t>(plan.row_begins[static_cast<size_t>(row)])]
                                      : plan.next_document;
      Count(documents, 0, document, file_.manifest.counts);
    }
    // Behind the last document of all there is none to go on with; the packing ends there and says so.
    if (document == documents.Size()) return {.file = static_cast<int64_t>(files_.size())};
    const DocumentSource& source = documents.sources[static_cast<size_t>(document)];
    return {source.file, source.offset, source.line, source.piece, options_.packer == Packer::kGreedy ? 0 : row};
  }

  Status WriteShard() {
    const std::string name = ShardName(file_.manifest.shards.size());
    const std::string bytes = ToShard(shard_, options_);
    TESSERA_TRY(WriteFile(folder_ + "/" + name, bytes));
    const TensorFileView view = TESSERA_TRY(ViewSafetensors(bytes, name));
    file_.manifest.shards.push_back({name, shard_.rows, view.metadata.at("digest")});
    file_.manifest.rows += shard_.rows;
    for (int64_t i = 0; i < shard_.rows; ++i) {
      file_.manifest.tokens_in_rows += shard_.valid_token_count[static_cast<size_t>(i)];
      file_.manifest.documents_in_rows += shard_.num_docs[static_cast<size_t>(i)];
    }
    counts_before_.dropped_platform_ids += shard_.dropped_platform_ids;
    shard_.Clear(options_.documents.row_tokens);
    shard_.first_pack_id = file_.manifest.rows;
    return {};
  }

  Status WriteManifest() { return WriteFile(ManifestPath(folder_), ToJson(file_)); }

  std::vector<std::string> files_;
  std::string folder_;
  const PackOptions& options_;
  ManifestFile file_;
  PackedRows shard_;
  bool is_stopped_ = false;
  DocumentCounts counts_before_;  // of documents that no window has any more, and of rows that are written
};

Status CheckOptions(const PackOptions& options) {
  std::vector<Violation> violations;
  const int64_t length = options.documents.row_tokens;
  if (length < 2 || length > kMaxRowTokens)
    violations.push_back({"row_tokens", fmt::format("2 to {}, found {}", kMaxRowTokens, length)});
  if (options.shard_rows < 1 || (length > 0 && options.shard_rows > kMaxShardTokens / length))
    violations.push_back(
        {"shard_rows", fmt::format("1 to {} tokens in all, found {} rows", kMaxShardTokens, options.shard_rows)});
  if (options.documents.threads < 1) violations.push_back({"threads", "1 or more"});
  if (options.documents.fim_percent < 0 || options.documents.fim_percent > 100)
    violations.push_back({"fim_percent", "0 to 100"});
  if (options.documents.vocab && (*options.documents.vocab < 1 || *options.documents.vocab > (int64_t{1} << 31)))
    violations.push_back({"vocab", "1 to 2147483648"});
  for (const int32_t sentinel : options.documents.fim_sentinels) {
    if (options.documents.fim_percent == 0) break;
    if (sentinel < 0 || (options.documents.vocab && sentinel >= *options.documents.vocab))
      violations.push_back({"fim_sentinels", "tokens of the vocabulary"});
  }
  const auto& sentinels = options.documents.fim_sentinels;
  if (options.documents.fim_percent > 0 && std::set<int32_t>(sentinels.begin(), sentinels.end()).size() < 4)
    violations.push_back(
        {"fim_sentinels", "four different tokens, found " + fmt::format("{}", fmt::join(sentinels, ","))});
  if (violations.empty()) return {};
  return Fail(ErrorCode::kBadArgument, std::move(violations), "rows");
}

// What an earlier packing left when it was killed. Nobody else writes here: the folder's lock is ours.
void RemoveTemporaries(const std::string& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".tessera-") && name.ends_with(".tmp")) fs::remove(entry.path(), ignored);
  }
}

// Every shard that the manifest has must be there as it was written, as far as its head says.
Status CheckShards(const ManifestFile& file, const std::string& folder) {
  for (const ShardRecord& record : file.manifest.shards) TESSERA_TRY(OpenShard(folder, record));
  return {};
}

}  // namespace
}  // namespace rows

Result<RowsManifest> PackFiles(const std::vector<std::string>& files, const std::string& folder,
                               const PackOptions& options) {
  TESSERA_TRY(rows::CheckOptions(options));
  rows::ManifestFile file;
  file.options = rows::OptionsText(options);
  file.manifest.row_tokens = options.documents.row_tokens;
  for (const std::string& name : files) file.inputs.push_back(TESSERA_TRY(rows::RecordOf(name)));
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (error) return Fail(ErrorCode::kFileWrite, "cannot make the folder: " + error.message(), folder);
  const FileLock lock = TESSERA_TRY(FileLock::Take(rows::ManifestPath(folder)));
  const bool has_manifest = std::filesystem::exists(rows::ManifestPath(folder), error);
  if (has_manifest && !options.resume)
    return Fail(ErrorCode::kRowsMismatch, "there are rows already: --resume goes on with them, or name another folder",
                folder);
  rows::RemoveTemporaries(folder);
  if (!has_manifest) return rows::FilePacker(files, folder, options, std::move(file)).Pack();
  rows::ManifestFile there = TESSERA_TRY(rows::ReadManifestFile(folder));
  TESSERA_TRY(rows::CheckSame(there, file, folder));
  TESSERA_TRY(rows::CheckShards(there, folder));
  if (there.manifest.is_complete) return std::move(there.manifest);
  rows::FilePacker packer(files, folder, options, std::move(there));
  packer.Resume();
  return packer.Pack();
}

}  // namespace tessera
