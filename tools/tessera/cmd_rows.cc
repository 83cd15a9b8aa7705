// `tessera rows`: documents to rows, and what rows hold: pack, show, check, stats.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::vector<std::string> files;
  std::string path;  // of a shard, or of a folder of them
  std::string out;
  int64_t length = 0;
  std::string packer = "greedy";
  std::string long_documents = "refuse";
  int64_t shard_rows = 256;
  std::vector<std::string> require;
  std::optional<int64_t> vocab;
  std::string tokenizer;
  bool bytes = false;
  int64_t fim_percent = 0;
  uint64_t fim_seed = 1;
  std::string fim_tokens;
  int64_t threads = 1;
  bool resume = false;
  int64_t row = 0;
  int64_t count = 1;
  bool json = false;
};

constexpr const char* kFooter =
    "Documents are JSONL, one a line, or token shards (.safetensors); docs/rows.md says what they may hold.\n"
    "Examples:\n"
    "  tessera rows pack examples/documents.jsonl --length 32 --out rows\n"
    "  tessera rows pack examples/documents.jsonl --length 32 --packer best_fit --long split --out rows\n"
    "  tessera rows show rows --row 0\n"
    "  tessera rows show rows --count 2 --out batch.json\n"
    "  tessera rows check rows\n"
    "  tessera rows stats rows";

std::string CountsJson(const DocumentCounts& counts) {
  JsonObject object;
  object.Int("documents", counts.documents).Int("tokens", counts.tokens).Int("empty", counts.empty);
  object.Int("skipped", counts.skipped).Int("skipped_tokens", counts.skipped_tokens).Int("split", counts.split);
  object.Int("permuted", counts.permuted).Int("dropped_chunks", counts.dropped_chunks);
  object.Int("cut_chunks", counts.cut_chunks);
  object.Int("dropped_edges", counts.dropped_edges).Int("dropped_platform_ids", counts.dropped_platform_ids);
  return object.Done();
}

// What became of the documents, one line for each thing that happened.
std::string CountsText(const DocumentCounts& counts) {
  std::string text;
  const auto add = [&](int64_t number, const std::string& what) {
    if (number > 0) text += fmt::format("  {} {}\n", Grouped(number), what);
  };
  add(counts.skipped, fmt::format("documents skipped: longer than a row, {} tokens", Grouped(counts.skipped_tokens)));
  add(counts.split, "documents split: longer than a row");
  add(counts.empty, "documents empty");
  add(counts.permuted, "documents with the middle last");
  add(counts.dropped_chunks, "chunks dropped: without tokens, across a cut, or too many");
  add(counts.cut_chunks, "chunks ended early: the next one begins inside of them");
  add(counts.dropped_edges, "edges dropped: an end is no chunk");
  add(counts.dropped_platform_ids, "platform ids dropped: too many");
  return text;
}

Result<std::array<int32_t, 4>> ParseSentinels(const std::string& text) {
  std::array<int32_t, 4> sentinels = {};
  size_t begin = 0;
  for (size_t i = 0; i < 4; ++i) {
    const size_t end = i < 3 ? text.find(',', begin) : text.size();
    const std::string word = end == std::string::npos ? "" : text.substr(begin, end - begin);
    if (!NumberProblem(word, {0, INT32_MAX}).empty()) {
      return Fail(ErrorCode::kBadArgument, fmt::format("--fim-tokens is four tokens as 1,2,3,4, found '{}'", text),
                  "tessera rows pack");
    }
    sentinels[i] = static_cast<int32_t>(std::stoll(word));
    begin = end + 1;
  }
  return sentinels;
}

Result<PackOptions> ToPackOptions(const Options& options) {
  PackOptions pack;
  pack.packer = options.packer == "greedy" ? Packer::kGreedy : Packer::kBestFit;
  pack.shard_rows = options.shard_rows;
  pack.tokenizer = options.tokenizer;
  pack.resume = options.resume;
  DocumentOptions& documents = pack.documents;
  documents.row_tokens = options.length;
  documents.long_documents = options.long_documents == "refuse"  ? LongDocuments::kRefuse
                             : options.long_documents == "split" ? LongDocuments::kSplit
                                                                 : LongDocuments::kSkip;
  documents.bytes = options.bytes;
  documents.vocab = options.vocab;
  documents.threads = options.threads;
  for (const std::string& name : options.require) {
    const std::optional<TokenColumn> column = FindTokenColumn(name);
    if (!column) {
      return Fail(ErrorCode::kBadArgument, fmt::format("--require: there is no token column '{}'", name),
                  "tessera rows pack");
    }
    documents.required.push_back(*column);
  }
  documents.fim_percent = options.fim_percent;
  documents.fim_seed = options.fim_seed;
  if (options.fim_percent > 0) {
    auto sentinels = ParseSentinels(options.fim_tokens);
    if (!sentinels) return tl::unexpected(sentinels.error());
    documents.fim_sentinels = *sentinels;
  }
  return pack;
}

int Pack(const Command& command, const Options& options) {
  if (options.fim_percent == 0) {
    const Status used = command.Refuse("no --fim", {"--fim-seed", "--fim-tokens"});
    if (!used) return Report(used.error(), options.json);
  }
  if (options.length == 0) {
    return Report(
        Error{ErrorCode::kBadArgument, "--length is missing: how many tokens a row has", "tessera rows pack", {}},
        options.json);
  }
  auto pack = ToPackOptions(options);
  if (!pack) return Report(pack.error(), options.json);
  const Stopwatch watch;
  const Progress progress("packing", false);
  auto manifest = PackFiles(options.files, options.out, *pack);
  if (!manifest) return Report(manifest.error(), options.json);
  const int64_t places = manifest->rows * manifest->row_tokens;
  const double filled =
      places == 0 ? 0.0 : 100.0 * static_cast<double>(manifest->tokens_in_rows) / static_cast<double>(places);
  Say(options.json,
      fmt::format("{} documents, {} tokens -> {} rows of {} in {} shards, {:.2f} % filled, {}",
                  Grouped(manifest->counts.documents), Grouped(manifest->counts.tokens), Grouped(manifest->rows),
                  Grouped(manifest->row_tokens), manifest->shards.size(), filled, Milliseconds(watch.Ns())));
  std::string text = CountsText(manifest->counts);
  if (!text.empty()) Say(options.json, text.substr(0, text.size() - 1));
  if (options.json) {
    JsonObject object;
    object.Int("rows", manifest->rows).Int("row_tokens", manifest->row_tokens);
    object.Int("shards", static_cast<int64_t>(manifest->shards.size()));
    object.Int("documents_in_rows", manifest->documents_in_rows).Int("tokens_in_rows", manifest->tokens_in_rows);
    object.Raw("counts", CountsJson(manifest->counts));
    Print(object.Done() + "\n");
  }
  return kGood;
}

// A shard, or those of a folder as its rows.json lists them, which are inputs as much as what the command line names.
struct Shards {
  std::string path;
  std::optional<RowsManifest> manifest;  // of a folder

  size_t Count() const { return manifest ? manifest->shards.size() : 1; }
  // A shard alone is whole; a folder's packing may have been interrupted.
  bool IsComplete() const { return !manifest || manifest->is_complete; }
  Result<RowShard> Open(size_t i) const {
    return manifest ? OpenShard(path, manifest->shards[i]) : RowShard::Open(path);
  }
};
Result<Shards> ShardsOf(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return Shards{path, std::nullopt};
  if (Status ok = DeclarePath({.name = "the folder's rows.json", .path = path + "/rows.json"}); !ok)
    return tl::unexpected(ok.error());
  auto manifest = ReadRowsManifest(path);
  if (!manifest) return tl::unexpected(manifest.error());
  for (const ShardRecord& record : manifest->shards) {
    if (Status ok = DeclarePath({.name = "a shard of the folder", .path = path + "/" + record.file}); !ok)
      return tl::unexpected(ok.error());
  }
  return Shards{path, std::move(*manifest)};
}

// Rows [row, row + count) of the first shard that has the first of them.
struct Found {
  RowShard shard;
  RowRange range;
};
Result<Found> FindRows(const Options& options) {
  auto shards = ShardsOf(options.path);
  if (!shards) return tl::unexpected(shards.error());
  int64_t before = 0;
  for (size_t i = 0; i < shards->Count(); ++i) {
    auto shard = shards->Open(i);
    if (!shard) return tl::unexpected(shard.error());
    const int64_t row = options.row - before;
    before += shard->rows();
    if (row >= shard->rows()) continue;
    if (row + options.count > shard->rows()) {
      return Fail(ErrorCode::kBadArgument,
                  fmt::format("--count: the shard ends with row {}, and rows of one shard are shown", before - 1),
                  "tessera rows show");
    }
    return Found{std::move(*shard), {row, row + options.count}};
  }
  return Fail(ErrorCode::kBadArgument, fmt::format("--row: there are {} rows", before), "tessera rows show");
}

template <class T>
std::string List(std::span<const T> values, size_t row, size_t width) {
  return fmt::format("[{}]", fmt::join(values.subspan(row * width, width), ", "));
}

std::string RowJson(const RowShard& shard, int64_t row) {
  const auto at = static_cast<size_t>(row);
  const auto width = static_cast<size_t>(shard.row_tokens());
  const auto chunk_width = static_cast<size_t>(ChunkWidth(shard.row_tokens()));
  JsonObject object;
  object.Int("pack_id", shard.first_pack_id() + row);
  object.Int("valid_token_count", shard.valid_token_count()[at]).Int("num_docs", shard.num_docs()[at]);
  object.Raw("input_ids", List(shard.input_ids(), at, width)).Raw("target_ids", List(shard.target_ids(), at, width));
  std::vector<std::string> loss;
  for (size_t i = 0; i < width; ++i) loss.push_back(std::to_string(shard.loss_mask()[at * width + i]));
  object.Raw("loss_mask", JsonList(loss)).Raw("doc_ids", List(shard.doc_ids(), at, width));
  for (size_t c = 0; c < kNumTokenColumns; ++c) {
    const auto column = shard.column(static_cast<TokenColumn>(c));
    if (!column.empty()) object.Raw(TokenColumns()[c].name, List(column, at, width));
  }
  if (!shard.chunk_starts().empty()) {
    object.Raw("token_chunk_starts", List(shard.chunk_starts(), at, chunk_width));
    object.Raw("token_chunk_ends", List(shard.chunk_ends(), at, chunk_width));
    object.Raw("token_chunk_kinds", List(shard.chunk_kinds(), at, chunk_width));
    object.Raw("token_chunk_dep_levels", List(shard.chunk_dep_levels(), at, chunk_width));
    const auto edges = [](std::span<const ChunkEdge> list) {
      std::vector<std::string> pairs;
      for (const ChunkEdge& edge : list) pairs.push_back(fmt::format("[{}, {}]", edge.from, edge.to));
      return JsonList(pairs);
    };
    object.Raw("token_call_edges", edges(shard.call_edges(row)));
    object.Raw("token_type_edges", edges(shard.type_edges(row)));
  }
  const auto platform_ids = shard.platform_ids(row);
  if (!platform_ids.empty()) object.Raw("platform_ids", fmt::format("[{}]", fmt::join(platform_ids, ", ")));
  return object.Done();
}

// A row for people: its documents, and the first tokens of each.
std::string RowText(const RowShard& shard, int64_t row) {
  constexpr size_t kShown = 8;
  const auto width = static_cast<size_t>(shard.row_tokens());
  const auto ids = shard.doc_ids().subspan(static_cast<size_t>(row) * width, width);
  const auto tokens = shard.input_ids().subspan(static_cast<size_t>(row) * width, width);
  std::string text = fmt::format("row {}: {} documents, {} of {} tokens\n", shard.first_pack_id() + row,
                                 shard.num_docs()[static_cast<size_t>(row)],
                                 shard.valid_token_count()[static_cast<size_t>(row)], width);
  for (size_t begin = 0; begin < width;) {
    size_t end = begin;
    while (end < width && ids[end] == ids[begin]) ++end;
    const size_t shown = std::min(end, begin + kShown);
    const std::string name = ids[begin] == kPaddingDocument ? "padding" : fmt::format("document {}", ids[begin]);
    text += fmt::format("  {:12} tokens {} to {}: {}{}\n", name, begin, end - 1,
                        fmt::join(tokens.subspan(begin, shown - begin), " "), shown < end ? " ..." : "");
    begin = end;
  }
  return text;
}

int Show(const Options& options) {
  auto found = FindRows(options);
  if (!found) return Report(found.error(), options.json);
  if (!options.out.empty()) {
    RowBatch batch;
    ReadRows(found->shard, found->range, 1, batch);
    const std::string text = ToJson(ToBatch(batch)) + "\n";
    if (Status ok = WriteFile(options.out, text); !ok) return Report(ok.error(), options.json);
  }
  std::vector<std::string> rows;
  for (int64_t row = found->range.first; row < found->range.last; ++row) {
    if (options.json) {
      rows.push_back(RowJson(found->shard, row));
    } else {
      Print(RowText(found->shard, row));
    }
  }
  if (options.json) Print(JsonObject().Raw("rows", JsonList(rows)).Done() + "\n");
  return kGood;
}

const char* OpenEnd(const Shards& shards) {
  return shards.IsComplete() ? "" : "; the packing has not ended: rows pack --resume goes on";
}

int Check(const Options& options) {
  auto shards = ShardsOf(options.path);
  if (!shards) return Report(shards.error(), options.json);
  int64_t rows = 0;
  Status good;
  if (shards->manifest) {
    rows = shards->manifest->rows;
    good = CheckFolder(shards->path, *shards->manifest);
  } else {
    auto shard = RowShard::Open(shards->path);
    if (!shard) return Report(shard.error(), options.json);
    rows = shard->rows();
    good = CheckRows(*shard, shards->path);
  }
  if (!good) {
    const int status = Report(good.error(), options.json);
    const ErrorCode code = good.error().code;
    return code == ErrorCode::kRowsInvalid || code == ErrorCode::kRowsMismatch ? kCheckFailed : status;
  }
  Say(options.json, fmt::format("{} rows in {} shards are good{}", Grouped(rows), shards->Count(), OpenEnd(*shards)));
  if (options.json) {
    JsonObject object;
    object.Int("rows", rows).Int("shards", static_cast<int64_t>(shards->Count())).Bool("good", true);
    Print(object.Bool("complete", shards->IsComplete()).Done() + "\n");
  }
  return kGood;
}

int Stats(const Options& options) {
  auto shards = ShardsOf(options.path);
  if (!shards) return Report(shards.error(), options.json);
  int64_t rows = 0;
  int64_t places = 0;
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t trained = 0;
  int64_t longest = 0;
  int64_t chunks = 0;
  std::vector<std::string> columns;
  for (size_t s = 0; s < shards->Count(); ++s) {
    auto shard = shards->Open(s);
    if (!shard) return Report(shard.error(), options.json);
    rows += shard->rows();
    places += shard->rows() * shard->row_tokens();
    for (const int32_t count : shard->valid_token_count()) tokens += count;
    for (const int32_t count : shard->num_docs()) documents += count;
    for (const int8_t mask : shard->loss_mask()) trained += mask;
    int64_t run = 0;
    for (size_t i = 0; i < shard->doc_ids().size(); ++i) {
      const int32_t id = shard->doc_ids()[i];
      const bool goes_on = i % static_cast<size_t>(shard->row_tokens()) != 0 && id == shard->doc_ids()[i - 1];
      run = id < 0 ? 0 : goes_on ? run + 1 : 1;
      longest = std::max(longest, run);
    }
    for (size_t i = 0; i < shard->chunk_ends().size(); ++i)
      chunks += shard->chunk_ends()[i] > shard->chunk_starts()[i] ? 1 : 0;
    for (size_t c = 0; c < kNumTokenColumns; ++c) {
      const std::string name(TokenColumns()[c].name);
      const bool is_new = std::find(columns.begin(), columns.end(), name) == columns.end();
      if (is_new && !shard->column(static_cast<TokenColumn>(c)).empty()) columns.push_back(name);
    }
  }
  const double filled = places == 0 ? 0.0 : 100.0 * static_cast<double>(tokens) / static_cast<double>(places);
  Say(options.json, fmt::format("rows          {} in {} shards{}", Grouped(rows), shards->Count(), OpenEnd(*shards)));
  Say(options.json, fmt::format("tokens        {} of {}, {:.2f} % filled", Grouped(tokens), Grouped(places), filled));
  Say(options.json, fmt::format("documents     {}, the longest of {} tokens", Grouped(documents), Grouped(longest)));
  Say(options.json, fmt::format("trained       {} tokens", Grouped(trained)));
  Say(options.json, fmt::format("chunks        {}", Grouped(chunks)));
  Say(options.json,
      fmt::format("columns       {}", columns.empty() ? "none" : fmt::format("{}", fmt::join(columns, ", "))));
  // What did not come into rows as it was is told of as long as they are there.
  if (const std::string text = shards->manifest ? CountsText(shards->manifest->counts) : ""; !text.empty())
    Say(options.json, "of what was read:\n" + text.substr(0, text.size() - 1));
  if (options.json) {
    JsonObject object;
    object.Int("rows", rows).Int("shards", static_cast<int64_t>(shards->Count())).Int("tokens", tokens);
    object.Int("places", places).Int("documents", documents).Int("longest_document", longest);
    std::vector<std::string> names;
    for (const std::string& name : columns) names.push_back(JsonString(name));
    object.Int("trained_tokens", trained).Int("chunks", chunks).Raw("columns", JsonList(names));
    object.Bool("complete", shards->IsComplete());
    if (shards->manifest) object.Raw("counts", CountsJson(shards->manifest->counts));
    Print(object.Done() + "\n");
  }
  return kGood;
}

void AddPack(Command& sub, const std::shared_ptr<Options>& options, Action& action) {
  Command* verb = sub.AddCommand("pack", "Pack documents into shards of rows");
  verb->AddOption("file", options->files, "JSONL, or a token shard (.safetensors); more files follow")
      ->Reads("FILE")
      ->Many()
      ->Required();
  verb->AddOption("--out", options->out, "A folder of its own for the shards; made if it is not there")
      ->WritesInto("DIR", "")
      ->Required();
  verb->AddNumber("--length", options->length, {2, 1 << 24}, "Tokens of a row")->TypeName("N");
  verb->AddOption("--packer", options->packer, "greedy keeps the order, best_fit fills rows better")
      ->TypeName("WORD")
      ->OneOf({"greedy", "best_fit"})
      ->ShowDefault();
  verb->AddOption("--long", options->long_documents, "Documents longer than a row: refuse, split, or skip and count")
      ->TypeName("WORD")
      ->OneOf({"refuse", "split", "skip"})
      ->ShowDefault();
  verb->AddNumber("--shard-rows", options->shard_rows, {1, 1 << 24}, "Rows of a shard")->TypeName("N")->ShowDefault();
  verb->AddOption("--require", options->require, "A token column that every document must have")
      ->TypeName("COLUMN")
      ->Repeated();
  verb->AddNumber("--vocab", options->vocab, {1, uint64_t{1} << 31}, "Refuse tokens that are not below it")
      ->TypeName("N");
  verb->AddOption("--tokenizer", options->tokenizer, "What made the tokens, for the record")->TypeName("TEXT");
  verb->AddFlag("--bytes", options->bytes, "The tokens of a text without any are its bytes");
  verb->AddNumber("--fim", options->fim_percent, {0, 100}, "Percent of documents whose middle comes last")
      ->TypeName("N");
  verb->AddNumber("--fim-seed", options->fim_seed, {}, "Chooses them and their cuts")->TypeName("N");
  verb->AddOption("--fim-tokens", options->fim_tokens, "The four sentinels, as A,B,C,D")->TypeName("TOKENS");
  verb->AddNumber("--threads", options->threads, {1, 1024}, "Threads; the rows are the same for any number")
      ->TypeName("N")
      ->ShowDefault();
  verb->AddFlag("--resume", options->resume, "Go on where an earlier packing ended");
  verb->AddFlag("--json", options->json, "Print one JSON document");
  verb->Footer(kFooter);
  verb->OnParsed([options, verb, &action] { action = [options, verb] { return Pack(*verb, *options); }; });
}

}  // namespace

void AddRows(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("rows", "Pack documents into rows of one length, show them, check them");
  sub->RequireCommand(1, 1);
  sub->Footer(kFooter);
  AddPack(*sub, options, action);
  const auto add = [&](const char* name, const char* about, int (*command)(const Options&)) {
    Command* verb = sub->AddCommand(name, about);
    verb->AddOption("file", options->path, "A shard, or a folder of them")->Reads("FILE")->Required();
    verb->AddFlag("--json", options->json, "Print one JSON document");
    verb->Footer(kFooter);
    verb->OnParsed([options, command, &action] { action = [options, command] { return command(*options); }; });
    return verb;
  };
  Command* show = add("show", "Print rows, or write them as a batch for run and plan", Show);
  show->AddNumber("--row", options->row, {0, INT64_MAX}, "The first row")->TypeName("N")->ShowDefault();
  show->AddNumber("--count", options->count, {1, 1 << 20}, "How many")->TypeName("N")->ShowDefault();
  show->AddOption("--out", options->out, "Write the rows' document ids and valid counts as a batch")
      ->Writes("FILE.json");
  add("check", "Read every row: its digest, and every rule that rows keep", Check);
  add("stats", "Sum up what the rows hold", Stats);
}

}  // namespace tessera::program
