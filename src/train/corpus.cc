#include "train/corpus.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/hash.h"
#include "base/try.h"
#include "tessera/io.h"
#include "train/scan_source.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxSourceBytes = int64_t{1} << 26;  // of one file
constexpr int64_t kByteVocab = 256;
constexpr const char* kByteTokenizer = "bytes, structure by scan_source 1";

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

Result<RowFolder> PackDocuments(const TokenShard& documents, const std::string& folder, const RunFile& run) {
  const std::string file = folder + ".documents.safetensors";
  TESSERA_TRY(documents.Write(file));
  PackOptions options;
  options.documents.row_tokens = run.model.row_tokens;
  options.documents.long_documents = LongDocuments::kSplit;
  options.documents.vocab = kByteVocab;
  options.packer = run.data.packer;
  options.tokenizer = kByteTokenizer;
  RowFolder packed{folder, TESSERA_TRY(PackFiles({file}, folder, options))};
  std::error_code ignored;
  fs::remove(file, ignored);  // its tokens are in the rows
  return packed;
}

Status PackSources(const RunFile& run, const std::string& rows, Corpus& corpus) {
  const std::vector<std::string> names = TESSERA_TRY(MatchFiles(run.data));
  TokenShard train;
  TokenShard held_out;
  for (const std::string& name : names) {
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
  std::error_code error;
  fs::remove_all(rows, error);
  fs::create_directories(rows, error);
  if (error) return Fail(ErrorCode::kFileWrite, "cannot make the folder: " + error.message(), rows);
  corpus.train = TESSERA_TRY(PackDocuments(train, corpus.train.path, run));
  corpus.held_out = TESSERA_TRY(PackDocuments(held_out, corpus.held_out.path, run));
  return {};
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

Result<Corpus> PrepareCorpus(const RunFile& run, const std::string& run_folder, bool keep) {
  Corpus corpus;
  if (run.data.files.empty()) {
    corpus.train = {run.data.rows, TESSERA_TRY(ReadRowsManifest(run.data.rows))};
    corpus.held_out = {run.data.held_out_rows, TESSERA_TRY(ReadRowsManifest(run.data.held_out_rows))};
    corpus.tokenizer = "of the rows";
    corpus.packer = "of the rows";
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
      TESSERA_TRY(PackSources(run, rows, corpus));
    }
  }
  Hasher hasher;
  AddRows(corpus.train.manifest, hasher);
  AddRows(corpus.held_out.manifest, hasher);
  corpus.digest = Hex(hasher.Finish());
  return corpus;
}

}  // namespace tessera::train
