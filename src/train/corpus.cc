#include "train/corpus.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/hash.h"
#include "base/try.h"
#include "rows/limits.h"
#include "rows/manifest.h"
#include "tessera/io.h"
#include "train/scan_source.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxSourceBytes = int64_t{1} << 26;  // of one file
constexpr int64_t kByteVocab = 256;
constexpr const char* kByteTokenizer = "bytes, structure by scan_source 1";
constexpr std::string_view kAnyByteTokenizer = ", tokenizer bytes, structure by scan_source ";
constexpr std::string_view kDocuments = ".documents.safetensors";
// Of a shard: writing it takes longer than waiting for the disk to have it, and it is in memory twice.
constexpr int64_t kShardBytes = int64_t{1} << 26;
constexpr int64_t kTokenBytes = 3 * 4 + 1 + 4 * 4;  // of a row: three columns, the loss mask, four of the scanner

tl::unexpected<Error> DataError(std::string message, std::string where) {
  return Fail(ErrorCode::kRunData, std::move(message), std::move(where));
}

// The folder of a pattern that comes before its first sign, so that only what may match is walked over.
std::string PlainFolder(const std::string& pattern) {
  const size_t sign = pattern.find_first_of("*?[\\");
  const size_t slash = pattern.rfind('/', sign);
  return slash == std::string::npos ? "" : pattern.substr(0, slash);
}

bool Matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

Status AddMatches(const DataSpec& data, const std::string& pattern, std::set<std::string>& names) {
  const fs::path top = fs::path(data.folder) / PlainFolder(pattern);
  std::error_code error;
  size_t matches = 0;
  for (fs::recursive_directory_iterator it(top, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().front() == '.') {  // .git and the like
      if (it->is_directory(error)) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(error)) continue;
    const std::string name = it->path().lexically_relative(data.folder).generic_string();
    if (!Matches(pattern, name)) continue;
    ++matches;
    const bool is_out = std::any_of(data.exclude.begin(), data.exclude.end(),
                                    [&](const std::string& exclude) { return Matches(exclude, name); });
    if (!is_out) names.insert(name);
  }
  if (error) return DataError("cannot list the files: " + error.message(), top.string());
  if (matches == 0) return DataError(fmt::format("no file is '{}'", pattern), data.folder);
  return {};
}

// Documents as a token shard that src/rows packs.
class TokenShard {
 public:
  void Add(const Document& document) {
    for (size_t c = 0; c < kNumTokenColumns; ++c) {
      const std::vector<int32_t>& values = document.columns[c];
      if (!values.empty()) columns_[c].resize(tokens_.size(), TokenColumns()[c].fill);
      if (!values.empty() || !columns_[c].empty()) {
        columns_[c].insert(columns_[c].end(), values.begin(), values.end());
        columns_[c].resize(tokens_.size() + document.tokens.size(), TokenColumns()[c].fill);
      }
    }
    tokens_.insert(tokens_.end(), document.tokens.begin(), document.tokens.end());
    offsets_.push_back(static_cast<int64_t>(tokens_.size()));
  }
  bool IsEmpty() const { return tokens_.empty(); }

  Status Write(const std::string& path) const {
    TensorMap tensors;
    tensors["tokens"] = ToTensor(ElementType::kI32, tokens_);
    tensors["offsets"] = ToTensor(ElementType::kI64, offsets_);
    for (size_t c = 0; c < kNumTokenColumns; ++c) {
      if (!columns_[c].empty()) tensors[std::string(TokenColumns()[c].name)] = ToTensor(ElementType::kI32, columns_[c]);
    }
    return WriteSafetensors(path, tensors);
  }

 private:
  template <class T>
  static Tensor ToTensor(ElementType type, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    return {type, {static_cast<int64_t>(values.size())}, {bytes, bytes + values.size() * sizeof(T)}};
  }
  std::vector<int32_t> tokens_;
  std::vector<int64_t> offsets_ = {0};
  std::array<std::vector<int32_t>, kNumTokenColumns> columns_;
};

int64_t ShardRows(int64_t row_tokens) {
  return std::clamp<int64_t>(kShardBytes / (row_tokens * kTokenBytes), 1,
                             std::max<int64_t>(1, rows::kMaxShardTokens / row_tokens));
}

// The rest of the name of a file that some packing leaves behind: locks, and what was half written.
bool IsTemporary(std::string_view name) { return name.starts_with(".tessera-"); }

bool IsShardName(std::string_view name) {
  return name.starts_with("rows-") && name.ends_with(".safetensors") &&
         name.find_first_not_of("0123456789", 5) == name.size() - std::string_view(".safetensors").size();
}

// What earlier runs left in the folder of rows, file by file; whatever else is there is somebody's, and an error.
class OldRows {
 public:
  explicit OldRows(std::string folder) : folder_(std::move(folder)) {}

  Status Remove() {
    std::error_code error;
    if (fs::symlink_status(folder_, error).type() == fs::file_type::not_found) return {};
    TESSERA_TRY(Each(folder_, [&](const fs::directory_entry& entry, const std::string& name) -> Status {
      if (name == "train" || name == "held_out") return AddFolder(entry);
      const bool is_documents = name.ends_with(kDocuments) || IsTemporary(name);
      return is_documents && IsFile(entry) ? Add(entry) : NotOurs(entry);
    }));
    for (const fs::path& file : ours_) {
      if (!fs::remove(file, error) && error)
        return Fail(ErrorCode::kFileWrite, "cannot remove the file: " + error.message(), file.string());
    }
    return {};
  }

 private:
  static bool IsFile(const fs::directory_entry& entry) {
    std::error_code ignored;
    return entry.symlink_status(ignored).type() == fs::file_type::regular;
  }
  Status Add(const fs::directory_entry& entry) {
    ours_.push_back(entry.path());
    return {};
  }
  Status NotOurs(const fs::directory_entry& entry) const {
    return DataError(fmt::format("{} is there, which no run has made: move it away, or name another folder",
                                 entry.path().lexically_relative(folder_).string()),
                     folder_);
  }

  template <class Visit>
  Status Each(const std::string& folder, const Visit& visit) const {
    std::error_code error;
    if (!fs::is_directory(fs::symlink_status(folder, error)))
      return DataError("it is there, and is no folder that a run has made", folder);
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
      TESSERA_TRY(visit(*it, it->path().filename().string()));
    if (error) return DataError("cannot list the files: " + error.message(), folder);
    return {};
  }

  // Rows are a run's where rows.json says that they were made of a run's documents, or where those are beside them
  // still, as in a packing that was killed.
  Status AddFolder(const fs::directory_entry& entry) {
    const std::string path = entry.path().string();
    const std::string documents = entry.path().filename().string() + std::string(kDocuments);
    std::error_code ignored;
    bool is_ours = fs::exists(path + std::string(kDocuments), ignored);
    if (fs::exists(rows::ManifestPath(path), ignored)) {
      const auto manifest = rows::ReadManifestFile(path);
      is_ours = manifest && manifest->options.find(kAnyByteTokenizer) != std::string::npos &&
                manifest->inputs.size() == 1 && manifest->inputs[0].file.ends_with(documents);
    }
    return Each(path, [&](const fs::directory_entry& file, const std::string& name) -> Status {
      const bool is_packed = name == "rows.json" || IsShardName(name);
      const bool is_known = (is_packed && is_ours) || IsTemporary(name);
      return is_known && IsFile(file) ? Add(file) : NotOurs(file);
    });
  }

  std::string folder_;
  std::vector<fs::path> ours_;
};

Result<RowFolder> PackDocuments(const TokenShard& documents, const std::string& folder, const RunFile& run,
                                const StopFunction& should_stop) {
  const std::string file = folder + std::string(kDocuments);
  TESSERA_TRY(documents.Write(file));
  PackOptions options;
  options.documents.row_tokens = run.model.row_tokens;
  options.documents.long_documents = LongDocuments::kSplit;
  options.documents.vocab = kByteVocab;
  options.packer = run.data.packer;
  options.tokenizer = kByteTokenizer;
  options.shard_rows = ShardRows(run.model.row_tokens);
  options.should_stop = should_stop;
  RowFolder packed{folder, TESSERA_TRY(PackFiles({file}, folder, options))};
  std::error_code ignored;
  fs::remove(file, ignored);  // its tokens are in the rows
  return packed;
}

bool Asks(const StopFunction& should_stop) { return should_stop && should_stop(); }

Status PackSources(const RunFile& run, const std::string& rows, const StopFunction& should_stop, Corpus& corpus) {
  const std::vector<std::string> names = TESSERA_TRY(MatchFiles(run.data));
  TokenShard train;
  TokenShard held_out;
  for (const std::string& name : names) {
    if (Asks(should_stop)) return {};
    const std::string path = (fs::path(run.data.folder) / name).string();
    const std::string text = TESSERA_TRY(ReadFile(path, kMaxSourceBytes));
    if (text.empty()) continue;
    (IsHeldOut(name, run.data.held_out) ? held_out : train).Add(ScanSource(text, LanguageOf(name)));
  }
  if (train.IsEmpty() || held_out.IsEmpty()) {
    return DataError(fmt::format("of {} files none {}: name more files or another data.held_out", names.size(),
                                 train.IsEmpty() ? "is trained on" : "is held out"),
                     run.data.folder);
  }
  TESSERA_TRY(OldRows(rows).Remove());
  std::error_code error;
  fs::create_directories(rows, error);
  if (error) return Fail(ErrorCode::kFileWrite, "cannot make the folder: " + error.message(), rows);
  corpus.train = TESSERA_TRY(PackDocuments(train, corpus.train.path, run, should_stop));
  if (Asks(should_stop)) return {};
  corpus.held_out = TESSERA_TRY(PackDocuments(held_out, corpus.held_out.path, run, should_stop));
  return {};
}

// What shards say of how they were made. All of a folder say the same.
struct Making {
  std::string tokenizer = "not said";
  std::string packer = "not said";
};
Result<Making> MakingOf(const RowFolder& folder) {
  Making making;
  if (folder.manifest.shards.empty()) return making;
  const RowShard shard = TESSERA_TRY(OpenShard(folder.path, folder.manifest.shards.front()));
  if (!shard.tokenizer().empty()) making.tokenizer = shard.tokenizer();
  if (!shard.packer().empty()) making.packer = shard.packer();
  return making;
}
std::string Both(const std::string& train, const std::string& held_out) {
  return train == held_out ? train : train + ", held out: " + held_out;
}

void AddRows(const RowsManifest& manifest, Hasher& hasher) {
  hasher.Int(manifest.row_tokens);
  hasher.Int(manifest.rows);
  for (const ShardRecord& shard : manifest.shards) hasher.Text(shard.digest);
}

bool IsComplete(const std::string& folder) {
  const auto manifest = ReadRowsManifest(folder);
  return manifest && manifest->is_complete;
}

}  // namespace

Result<std::vector<std::string>> MatchFiles(const DataSpec& data) {
  std::set<std::string> names;
  for (const std::string& pattern : data.files) TESSERA_TRY(AddMatches(data, pattern, names));
  return std::vector<std::string>(names.begin(), names.end());
}

bool IsHeldOut(const std::string& name, int64_t one_in) {
  Hasher hasher;
  hasher.Text(name);
  const std::array<uint8_t, 16> digest = hasher.Finish();
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number = number << 8 | digest[i];
  return number % static_cast<uint64_t>(one_in) == 0;
}

Result<Corpus> PrepareCorpus(const RunFile& run, const std::string& run_folder, bool keep,
                             const StopFunction& should_stop) {
  Corpus corpus;
  if (run.data.files.empty()) {
    corpus.train = {run.data.rows, TESSERA_TRY(ReadRowsManifest(run.data.rows))};
    corpus.held_out = {run.data.held_out_rows, TESSERA_TRY(ReadRowsManifest(run.data.held_out_rows))};
    const Making train = TESSERA_TRY(MakingOf(corpus.train));
    const Making held_out = TESSERA_TRY(MakingOf(corpus.held_out));
    corpus.tokenizer = Both(train.tokenizer, held_out.tokenizer);
    corpus.packer = Both(train.packer, held_out.packer);
  } else {
    const std::string rows = run_folder + "/rows";
    corpus.train.path = rows + "/train";
    corpus.held_out.path = rows + "/held_out";
    corpus.tokenizer = kByteTokenizer;
    corpus.packer = ToText(run.data.packer);
    if (keep && IsComplete(corpus.train.path) && IsComplete(corpus.held_out.path)) {
      corpus.train.manifest = TESSERA_TRY(ReadRowsManifest(corpus.train.path));
      corpus.held_out.manifest = TESSERA_TRY(ReadRowsManifest(corpus.held_out.path));
    } else {
      TESSERA_TRY(PackSources(run, rows, should_stop, corpus));
    }
  }
  Hasher hasher;
  AddRows(corpus.train.manifest, hasher);
  AddRows(corpus.held_out.manifest, hasher);
  corpus.digest = Hex(hasher.Finish());
  return corpus;
}

}  // namespace tessera::train
