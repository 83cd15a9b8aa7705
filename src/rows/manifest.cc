// See manifest.h.
#include "rows/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/hash.h"
#include "base/try.h"
#include "io/json_writer.h"
#include "io/mapped_file.h"
#include "io/tree_reader.h"
#include "rows/limits.h"
#include "tessera/io.h"

namespace tessera {
namespace rows {
namespace {

constexpr JsonLimits kLimits{.max_depth = 8, .max_values = int64_t{1} << 24};

// The counts by their names, once for reading and for writing.
template <class Counts, class Visit>
void VisitCounts(Counts& counts, const Visit& visit) {
  visit("documents", counts.documents);
  visit("tokens", counts.tokens);
  visit("empty", counts.empty);
  visit("skipped", counts.skipped);
  visit("skipped_tokens", counts.skipped_tokens);
  visit("split", counts.split);
  visit("permuted", counts.permuted);
  visit("dropped_chunks", counts.dropped_chunks);
  visit("cut_chunks", counts.cut_chunks);
  visit("dropped_edges", counts.dropped_edges);
  visit("dropped_platform_ids", counts.dropped_platform_ids);
}

template <class Next, class Visit>
void VisitNext(Next& next, const Visit& visit) {
  visit("file", next.file);
  visit("offset", next.offset);
  visit("line", next.line);
  visit("piece", next.piece);
  visit("skip_rows", next.skip_rows);
}

template <class Manifest, class Visit>
void VisitNumbers(Manifest& manifest, const Visit& visit) {
  visit("row_tokens", manifest.row_tokens);
  visit("rows", manifest.rows);
  visit("documents_in_rows", manifest.documents_in_rows);
  visit("tokens_in_rows", manifest.tokens_in_rows);
}

// Numbers of a manifest are counts and places.
class Reader : public TreeReader {
 public:
  template <class T>
  void Field(const DocumentValue& table, const std::string& at, const char* name, T& out) {
    if (const DocumentValue* value = Find(table, at, name)) Read(*value, Place(at, name), out);
    if constexpr (std::is_same_v<T, int64_t>) {
      if (out < 0) Violate(Place(at, name), "0 or more expected");
    }
  }
  const DocumentValue* Table(const DocumentValue& table, const char* name) {
    const DocumentValue* value = Find(table, "", name);
    return value != nullptr && IsTable(*value, name) ? value : nullptr;
  }
};

void ReadLists(Reader& reader, const DocumentValue& tree, ManifestFile& file) {
  if (const DocumentValue* list = reader.Find(tree, "", "inputs"); list != nullptr && reader.IsArray(*list, "inputs")) {
    for (size_t i = 0; i < list->items.size(); ++i) {
      const std::string at = fmt::format("inputs[{}]", i);
      if (!reader.IsTable(list->items[i], at)) continue;
      InputRecord& input = file.inputs.emplace_back();
      reader.Field(list->items[i], at, "file", input.file);
      reader.Field(list->items[i], at, "bytes", input.bytes);
      reader.Field(list->items[i], at, "digest", input.digest);
    }
  }
  if (const DocumentValue* list = reader.Find(tree, "", "shards"); list != nullptr && reader.IsArray(*list, "shards")) {
    for (size_t i = 0; i < list->items.size(); ++i) {
      const std::string at = fmt::format("shards[{}]", i);
      if (!reader.IsTable(list->items[i], at)) continue;
      ShardRecord& shard = file.manifest.shards.emplace_back();
      reader.Field(list->items[i], at, "file", shard.file);
      reader.Field(list->items[i], at, "rows", shard.rows);
      reader.Field(list->items[i], at, "digest", shard.digest);
      if (shard.file.find('/') != std::string::npos) reader.Violate(at + ".file", "a file of the folder expected");
    }
  }
}

// What the numbers say of each other, so that nobody counts with them who should not.
void CheckNumbers(Reader& reader, const ManifestFile& file) {
  const RowsManifest& manifest = file.manifest;
  if (manifest.row_tokens < 2 || manifest.row_tokens > kMaxRowTokens) {
    reader.Violate("row_tokens", fmt::format("2 to {} expected", kMaxRowTokens));
    return;
  }
  int64_t rows = 0;
  std::set<std::string_view> names;
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardRecord& shard = manifest.shards[i];
    if (!names.insert(shard.file).second)
      reader.Violate(fmt::format("shards[{}].file", i), "a shard that is not there twice expected");
    const int64_t most = kMaxShardTokens / manifest.row_tokens;
    if (shard.rows < 1 || shard.rows > most)
      reader.Violate(fmt::format("shards[{}].rows", i), fmt::format("1 to {} expected", most));
    rows += std::clamp<int64_t>(shard.rows, 0, most);
  }
  if (manifest.rows != rows) reader.Violate("rows", fmt::format("{} expected, as many as the shards have", rows));
  if (manifest.tokens_in_rows > rows * manifest.row_tokens)
    reader.Violate("tokens_in_rows", fmt::format("at most {} expected", rows * manifest.row_tokens));
  const auto inputs = static_cast<int64_t>(file.inputs.size());
  const NextDocument& next = file.next;
  if (next.file > inputs) reader.Violate("next.file", fmt::format("at most {} expected", inputs));
  const bool is_end =
      next.file == inputs && next.offset == 0 && next.line == 1 && next.piece == 0 && next.skip_rows == 0;
  if (manifest.is_complete && !is_end) reader.Violate("next", "the end of all files expected, as packing is complete");
  if (next.file < inputs && next.offset > file.inputs[static_cast<size_t>(next.file)].bytes)
    reader.Violate("next.offset", "a place in the file expected");
  if (next.skip_rows > rows) reader.Violate("next.skip_rows", fmt::format("at most {} expected", rows));
}

}  // namespace

Result<InputRecord> RecordOf(const std::string& file) {
  const MappedFile mapped = TESSERA_TRY(MappedFile::Open(file));
  const std::string_view bytes = mapped.bytes();
  Hasher hasher;
  hasher.Bytes(bytes.data(), bytes.size());  // every byte: a change anywhere is other documents
  return InputRecord{file, static_cast<int64_t>(bytes.size()), Hex(hasher.Finish())};
}

std::string OptionsText(const PackOptions& options) {
  const DocumentOptions& documents = options.documents;
  std::string text = fmt::format("length {}, packer {}, long {}, shard rows {}, bytes {}", documents.row_tokens,
                                 ToText(options.packer), ToText(documents.long_documents), options.shard_rows,
                                 documents.bytes ? "yes" : "no");
  if (documents.vocab)
    text += fmt::format(", vocab {}, padded vocab {}", *documents.vocab, PaddedVocab(*documents.vocab));
  if (documents.fim_percent > 0)
    text += fmt::format(", fim {} percent, seed {}, sentinels {}", documents.fim_percent, documents.fim_seed,
                        fmt::join(documents.fim_sentinels, " "));
  for (const TokenColumn column : documents.required)
    text += fmt::format(", requires {}", TokenColumns()[static_cast<size_t>(column)].name);
  if (!options.tokenizer.empty()) text += ", tokenizer " + options.tokenizer;
  return text;
}

std::string ManifestPath(const std::string& folder) { return folder + "/rows.json"; }

std::string ToJson(const ManifestFile& file) {
  JsonWriter json(1);
  const auto write = [&](const char* name, int64_t value) { json.Key(name).Int(value); };
  json.BeginObject().Key("format").Text("tessera rows").Key("schema_version").Int(kRowsSchemaVersion);
  json.Key("options").Text(file.options);
  VisitNumbers(file.manifest, write);
  json.Key("is_complete").Bool(file.manifest.is_complete);
  json.Key("counts").BeginObject();
  VisitCounts(file.manifest.counts, write);
  json.EndObject().Key("next").BeginObject();
  VisitNext(file.next, write);
  json.EndObject().Key("inputs").BeginArray();
  for (const InputRecord& input : file.inputs) {
    json.BeginObject().Key("file").Text(input.file).Key("bytes").Int(input.bytes);
    json.Key("digest").Text(input.digest).EndObject();
  }
  json.EndArray().Key("shards").BeginArray();
  for (const ShardRecord& shard : file.manifest.shards) {
    json.BeginObject().Key("file").Text(shard.file).Key("rows").Int(shard.rows);
    json.Key("digest").Text(shard.digest).EndObject();
  }
  return json.EndArray().EndObject().Take() + "\n";
}

Result<ManifestFile> ReadManifestFile(const std::string& folder) {
  const std::string path = ManifestPath(folder);
  const std::string text = TESSERA_TRY(ReadFile(path, kMaxManifestBytes));
  return ParseManifest(text, path);
}

Result<ManifestFile> ParseManifest(std::string_view text, const std::string& path) {
  auto tree = ReadJsonTree(text, kLimits);
  if (!tree) return Fail(ErrorCode::kRowsInvalid, "not a rows.json: " + tree.error(), path);
  ManifestFile file;
  Reader reader;
  if (!reader.IsTable(*tree, "")) return Fail(ErrorCode::kRowsInvalid, std::move(reader.violations), path);
  std::string format;
  int64_t version = 0;
  reader.Field(*tree, "", "format", format);
  reader.Field(*tree, "", "schema_version", version);
  if (format != "tessera rows" || version < 1 || version > kRowsSchemaVersion)
    return Fail(ErrorCode::kRowsInvalid, fmt::format("not a rows.json of schema_version 1 to {}", kRowsSchemaVersion),
                path);
  reader.Field(*tree, "", "options", file.options);
  VisitNumbers(file.manifest, [&](const char* name, int64_t& out) { reader.Field(*tree, "", name, out); });
  reader.Field(*tree, "", "is_complete", file.manifest.is_complete);
  if (const DocumentValue* counts = reader.Table(*tree, "counts"))
    VisitCounts(file.manifest.counts, [&](const char* name, int64_t& out) {
      if (&out == &file.manifest.counts.cut_chunks && counts->Find(name) == nullptr) return;  // older than the count
      reader.Field(*counts, "counts", name, out);
    });
  if (const DocumentValue* next = reader.Table(*tree, "next"))
    VisitNext(file.next, [&](const char* name, int64_t& out) { reader.Field(*next, "next", name, out); });
  ReadLists(reader, *tree, file);
  if (reader.violations.empty()) CheckNumbers(reader, file);
  if (!reader.violations.empty()) return Fail(ErrorCode::kRowsInvalid, std::move(reader.violations), path);
  return file;
}

Status CheckSame(const ManifestFile& there, const ManifestFile& wanted, const std::string& folder) {
  std::vector<Violation> violations;
  if (there.options != wanted.options)
    violations.push_back({"options", fmt::format("\"{}\", as they were, found \"{}\"", there.options, wanted.options)});
  if (there.inputs.size() != wanted.inputs.size()) {
    violations.push_back(
        {"files", fmt::format("{}, as there were, found {}", there.inputs.size(), wanted.inputs.size())});
  } else {
    for (size_t i = 0; i < there.inputs.size(); ++i) {
      if (there.inputs[i].bytes == wanted.inputs[i].bytes && there.inputs[i].digest == wanted.inputs[i].digest)
        continue;
      violations.push_back({wanted.inputs[i].file, "the bytes that it had"});
    }
  }
  if (violations.empty()) return {};
  return Fail(ErrorCode::kRowsMismatch, std::move(violations), folder);
}

}  // namespace rows

Result<RowsManifest> ReadRowsManifest(const std::string& folder) {
  rows::ManifestFile file = TESSERA_TRY(rows::ReadManifestFile(folder));
  return std::move(file.manifest);
}

}  // namespace tessera
