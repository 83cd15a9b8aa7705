// Packing: rows against their plain definition, for any documents, options, threads and interruptions.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>

#include "documents.h"
#include "support/proves.h"
#include "support/run_program.h"
#include "support/seed.h"
#include "tessera/io.h"
#include "tessera/rows.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PackedRows Packed(const DocumentSet& documents, int64_t row_tokens, Packer packer = Packer::kGreedy,
                  int64_t threads = 1) {
  PackedRows rows;
  rows.Clear(row_tokens);
  const RowPlan plan = PlanRows(documents, row_tokens, packer);
  FillRows(documents, plan, {0, plan.NumRows()}, threads, rows);
  return rows;
}

std::string AnyDocuments(std::mt19937_64& random, int count, int64_t most_tokens) {
  std::string text;
  for (int i = 0; i < count; ++i) text += RandomLine(random, most_tokens);
  return text;
}

TEST(Rows, Greedy_OfTheKnownExample) {
  Proves("B28 B36 B37");
  DocumentOptions options;
  options.row_tokens = 8;
  options.long_documents = LongDocuments::kSkip;
  std::string longest = "{\"tokens\": [0";
  for (int i = 1; i < 20; ++i) longest += ",9";
  const DocumentSet set = Parsed(
      "{\"tokens\": [11, 12, 13]}\n{\"tokens\": [21, 22]}\n{\"tokens\": [31, 32, 33, 34]}\n" + longest + "]}", options);
  const PackedRows rows = Packed(set, 8);
  ASSERT_EQ(rows.rows, 2);
  EXPECT_THAT(rows.valid_token_count, ElementsAre(5, 4));
  EXPECT_THAT(rows.num_docs, ElementsAre(2, 1));
  EXPECT_THAT(rows.input_ids, ElementsAre(11, 12, 13, 21, 22, 0, 0, 0, 31, 32, 33, 34, 0, 0, 0, 0));
  EXPECT_THAT(rows.target_ids, ElementsAre(12, 13, 0, 22, 0, 0, 0, 0, 32, 33, 34, 0, 0, 0, 0, 0));
  EXPECT_THAT(rows.loss_mask, ElementsAre(1, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(rows.doc_ids, ElementsAre(1, 1, 1, 2, 2, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1));
}

TEST(Rows, BestFit_PlacesWholeDocuments_InFewerRows) {
  Proves("B16");
  std::mt19937_64 random(PrintedSeed());
  DocumentOptions options;
  options.row_tokens = 64;
  int64_t greedy_rows = 0;
  int64_t best_rows = 0;
  for (int round = 0; round < 20; ++round) {
    const DocumentSet set = Parsed(AnyDocuments(random, 40, 64), options);
    greedy_rows += Packed(set, 64).rows;
    const RowPlan plan = PlanRows(set, 64, Packer::kBestFit);
    const PackedRows rows = Packed(set, 64, Packer::kBestFit);
    best_rows += rows.rows;
    std::set<int64_t> seen;
    for (int64_t row = 0; row < plan.NumRows(); ++row) {
      std::vector<int32_t> whole;
      for (int64_t i = plan.row_begins[static_cast<size_t>(row)]; i < plan.row_begins[static_cast<size_t>(row) + 1];
           ++i) {
        const int64_t document = plan.documents[static_cast<size_t>(i)];
        EXPECT_TRUE(seen.insert(document).second);
        const Document one = set.Get(document);
        whole.insert(whole.end(), one.tokens.begin(), one.tokens.end());
      }
      ASSERT_LE(whole.size(), 64u);
      whole.resize(64, 0);
      const auto* first = rows.input_ids.data() + row * 64;
      EXPECT_EQ(whole, std::vector<int32_t>(first, first + 64));
    }
    for (int64_t i = 0; i < set.Size(); ++i) EXPECT_EQ(seen.count(i) == 1, set.Length(i) > 0);
  }
  EXPECT_LT(best_rows, greedy_rows);
}

// Short documents of many chunks fill a row's table long before its tokens: they must not be left for rows of their
// own.
TEST(Rows, BestFit_OfManyChunks_TakesNoMoreRows) {
  Proves("B16");
  std::mt19937_64 random(PrintedSeed());
  DocumentSet set;
  for (int i = 0; i < 2000; ++i) {
    Document document;
    document.tokens.resize(1 + random() % (i % 4 == 0 ? 1000 : 60));
    const auto length = static_cast<int32_t>(document.tokens.size());
    const int32_t step = i % 4 == 0 ? 50 : 2;
    for (int32_t at = 0; at < length; at += step) document.chunks.push_back({at, std::min(length, at + step), 0, 0});
    set.Add(document);
  }
  EXPECT_LE(PlanRows(set, 1024, Packer::kBestFit).NumRows(), PlanRows(set, 1024, Packer::kGreedy).NumRows());
}

TEST(Rows, AnyNumberOfThreads_PacksTheSameBytes) {
  std::mt19937_64 random(PrintedSeed());
  DocumentOptions options;
  options.row_tokens = 1024;
  const DocumentSet set = Parsed(AnyDocuments(random, 700, 1024), options);
  PackOptions pack;
  for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
    const PackedRows rows = Packed(set, 1024, packer, 1);
    // A thread takes 128 rows of this length at a time: there must be enough for several.
    ASSERT_GT(rows.input_ids.size(), size_t{2 * 128 * 1024});
    const std::string one = ToShard(rows, pack);
    EXPECT_EQ(ToShard(Packed(set, 1024, packer, 3), pack), one);
  }
}

class Folder : public testing::Test {
 protected:
  std::string Put(const std::string& name, const std::string& bytes) const {
    WriteWhole(folder_.File(name), bytes);
    return folder_.File(name);
  }
  static std::map<std::string, std::string> FilesOf(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files[entry.path().filename().string()] = ReadWhole(entry.path().string());
    return files;
  }
  static PackOptions Options(int64_t row_tokens, int64_t shard_rows) {
    PackOptions options;
    options.documents.row_tokens = row_tokens;
    options.documents.long_documents = LongDocuments::kSplit;
    options.shard_rows = shard_rows;
    return options;
  }
  TemporaryFolder folder_;
};

TEST_F(Folder, Shards_KeepEveryRule_AndEveryToken) {
  Proves("R69 R70 R77");
  std::mt19937_64 random(PrintedSeed());
  const std::string text = AnyDocuments(random, 400, 90);
  const std::string file = Put("d.jsonl", text);
  for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
    PackOptions options = Options(64, 7);
    options.packer = packer;
    options.documents.vocab = 1000;
    options.documents.threads = 2;
    const std::string out = folder_.File(std::string(ToText(packer)));
    auto manifest = PackFiles({file}, out, options);
    ASSERT_TRUE(manifest) << ToText(manifest.error());
    EXPECT_TRUE(manifest->is_complete);
    EXPECT_EQ(manifest->counts.documents, 400);
    std::multiset<int32_t> tokens;
    int64_t rows = 0;
    for (const ShardRecord& record : manifest->shards) {
      auto shard = RowShard::Open(out + "/" + record.file);
      ASSERT_TRUE(shard) << ToText(shard.error());
      const Status good = CheckRows(*shard, record.file);
      EXPECT_TRUE(good) << ToText(good.error());
      EXPECT_EQ(shard->first_pack_id(), rows);
      rows += shard->rows();
      for (size_t i = 0; i < shard->input_ids().size(); ++i) {
        if (shard->doc_ids()[i] >= 0) tokens.insert(shard->input_ids()[i]);
      }
    }
    EXPECT_EQ(rows, manifest->rows);
    std::multiset<int32_t> expected;
    const DocumentSet all = Parsed(text, options.documents);
    expected.insert(all.tokens.begin(), all.tokens.end());
    EXPECT_EQ(tokens, expected);
    EXPECT_EQ(static_cast<int64_t>(tokens.size()), manifest->tokens_in_rows);
  }
}

TEST_F(Folder, TokenShards_PackLikeTheirLines) {
  const std::string lines = Put("d.jsonl",
                                "{\"tokens\": [1, 2, 3], \"token_def_use\": [4, 5, 6]}\n"
                                "{\"tokens\": [7, 8], \"token_def_use\": [1, 2], \"valid_token_count\": 1}\n");
  const auto tensor = [](ElementType type, const auto& values) {
    Tensor made = Tensor::Zeros(type, {static_cast<int64_t>(values.size())});
    std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
    return made;
  };
  const TensorMap shard = {{"tokens", tensor(ElementType::kI32, std::vector<int32_t>{1, 2, 3, 7, 8})},
                           {"offsets", tensor(ElementType::kI64, std::vector<int64_t>{0, 3, 5})},
                           {"token_def_use", tensor(ElementType::kI32, std::vector<int32_t>{4, 5, 6, 1, 2})},
                           {"valid_token_count", tensor(ElementType::kI32, std::vector<int32_t>{3, 1})}};
  ASSERT_TRUE(WriteSafetensors(folder_.File("d.safetensors"), shard));
  const PackOptions options = Options(8, 4);
  ASSERT_TRUE(PackFiles({lines}, folder_.File("a"), options));
  auto packed = PackFiles({folder_.File("d.safetensors")}, folder_.File("b"), options);
  ASSERT_TRUE(packed) << ToText(packed.error());
  EXPECT_EQ(FilesOf(folder_.File("a"))["rows-00000.safetensors"], FilesOf(folder_.File("b"))["rows-00000.safetensors"]);
  TensorMap wrong = shard;
  wrong["offsets"] = tensor(ElementType::kI64, std::vector<int64_t>{0, 4, 3});
  ASSERT_TRUE(WriteSafetensors(folder_.File("w.safetensors"), wrong));
  auto refused = PackFiles({folder_.File("w.safetensors")}, folder_.File("c"), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kDocumentValue);
  EXPECT_THAT(refused.error().where, HasSubstr("document 1"));
}

Tensor I32(const std::vector<int32_t>& values) {
  Tensor made = Tensor::Zeros(ElementType::kI32, {static_cast<int64_t>(values.size())});
  std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
  return made;
}
Tensor I64(const std::vector<int64_t>& values) {
  Tensor made = Tensor::Zeros(ElementType::kI64, {static_cast<int64_t>(values.size())});
  std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
  return made;
}

// What a line may say a token shard either says too, or is refused for: nothing is lost on the way.
TEST_F(Folder, TokenShards_LoseNothing) {
  Proves("B27 B21 B36");
  const auto pack = [&](const TensorMap& tensors) {
    static int number = 0;
    const std::string file = folder_.File(fmt::format("t{}.safetensors", ++number));
    EXPECT_TRUE(WriteSafetensors(file, tensors));
    return PackFiles({file}, folder_.File(fmt::format("rows{}", number)), Options(8, 4));
  };
  const auto refusal = [&](const TensorMap& tensors) {
    const auto packed = pack(tensors);
    return packed ? std::string() : ToText(packed.error());
  };
  // The other names that lines have for tokens and their count: what is behind it is no part of the document.
  const auto packed = pack({{"input_ids", I32({1, 2, 3, 7, 8})},
                            {"offsets", I64({0, 3, 5})},
                            {"actual_token_count", I32({2, 2})},
                            {"note", I32({9})}});
  ASSERT_TRUE(packed) << ToText(packed.error());
  EXPECT_EQ(packed->tokens_in_rows, 4);
  EXPECT_EQ(packed->counts.tokens, 5);
  const TensorMap good = {{"tokens", I32({1, 2, 3, 4, 5, 6, 7})}, {"offsets", I64({0, 3, 7})}};
  EXPECT_EQ(refusal(good), "");
  TensorMap other = good;
  other["offsets"] = I64({0, 3, 5});
  EXPECT_THAT(refusal(other), HasSubstr("offsets ends with 5, and there are 7 tokens"));
  other["offsets"] = I64({0});
  EXPECT_THAT(refusal(other), HasSubstr("TSR-D003"));
  for (const char* name : {"input_ids", "platform_ids", "token_chunk_starts", "token_chunk_ends", "token_chunk_kinds",
                           "token_chunk_dep_levels", "char_ast_depth", "hunk_id_per_char", "token_spans", "call_edges",
                           "token_type_edges", "loss_mask", "target_ids", "doc_ids", "num_docs", "pack_id"}) {
    other = good;
    other[name] = I32({1, 2, 3, 4, 5, 6, 7});
    EXPECT_THAT(refusal(other), testing::AllOf(HasSubstr("TSR-D002"), HasSubstr(name))) << name;
  }
  other = good;
  other["valid_token_count"] = other["actual_token_count"] = I32({3, 4});
  EXPECT_THAT(refusal(other), HasSubstr("actual_token_count and valid_token_count say the same thing"));
}

TEST_F(Folder, AShardWithoutARequiredColumn_IsRefusedWithItsName) {
  Proves("R69");
  const std::string file = Put("d.jsonl", "{\"tokens\": [1, 2, 3]}\n");
  ASSERT_TRUE(PackFiles({file}, folder_.File("out"), Options(8, 4)));
  const std::string good = ReadWhole(folder_.File("out/rows-00000.safetensors"));
  for (const std::string name :
       {"input_ids", "target_ids", "loss_mask", "doc_ids", "valid_token_count", "num_docs", "pack_id"}) {
    std::string bytes = good;
    const size_t at = bytes.find("\"" + name + "\"");
    ASSERT_NE(at, std::string::npos) << name;
    bytes[at + 1] = 'X';
    const auto shard = RowShard::Open(Put("x.safetensors", bytes));
    ASSERT_FALSE(shard) << name;
    EXPECT_EQ(shard.error().code, ErrorCode::kRowsInvalid);
    EXPECT_THAT(shard.error().message, HasSubstr("column " + name + " is missing"));
  }
}

TEST_F(Folder, PackOptions_OutOfRange_AreRefusedByName) {
  Proves("R69 R74 R78");
  const std::string file = Put("d.jsonl", "{\"tokens\": [1, 2, 30]}\n");
  const auto refusal = [&](const std::function<void(PackOptions&)>& change) {
    PackOptions options = Options(8, 4);
    options.documents.fim_sentinels = {4, 5, 6, 7};
    change(options);
    std::filesystem::remove_all(folder_.File("out"));
    const auto packed = PackFiles({file}, folder_.File("out"), options);
    return packed ? std::string() : ToText(packed.error());
  };
  EXPECT_EQ(refusal([](PackOptions& options) { options.documents.fim_percent = 100; }), "");
  EXPECT_THAT(refusal([](PackOptions& options) { options.documents.fim_percent = 101; }), HasSubstr("fim_percent"));
  EXPECT_THAT(refusal([](PackOptions& options) {
                options.documents.fim_percent = 1;
                options.documents.fim_sentinels = {7, 7, 7, 7};
              }),
              HasSubstr("four different tokens, found 7,7,7,7"));
  EXPECT_THAT(refusal([](PackOptions& options) {
                options.documents.fim_percent = 1;
                options.documents.vocab = 7;
              }),
              HasSubstr("fim_sentinels"));
  EXPECT_THAT(refusal([](PackOptions& options) { options.documents.vocab = 30; }), HasSubstr("TSR-D003"));
  EXPECT_THAT(refusal([](PackOptions& options) { options.documents.required = {TokenColumn::kDefUse}; }),
              HasSubstr("token_def_use is required, and missing"));
  for (const auto& change :
       std::vector<std::function<void(PackOptions&)>>{[](PackOptions& options) { options.documents.row_tokens = 1; },
                                                      [](PackOptions& options) { options.shard_rows = 0; },
                                                      [](PackOptions& options) { options.documents.threads = 0; },
                                                      [](PackOptions& options) { options.documents.vocab = 0; }})
    EXPECT_THAT(refusal(change), HasSubstr("TSR-"));
}

// Somebody who wants it to stop is asked before every shard, and what is written is gone on with.
TEST_F(Folder, Stopped_IsResumedToTheSameBytes) {
  std::mt19937_64 random(PrintedSeed());
  std::string text = AnyDocuments(random, 200, 60);
  std::string tokens = "1";
  for (int i = 0; i < 60; ++i) tokens += ",3";
  for (int i = 0; i < 30; ++i) text += "{\"tokens\": [" + tokens + "]}\n";
  const std::string file = Put("d.jsonl", text);
  PackOptions options = Options(64, 5);
  const auto whole = PackFiles({file}, folder_.File("whole"), options);
  ASSERT_TRUE(whole && whole->is_complete);
  // Documents with nothing but tokens, which take shards of their own: these have none of the others' columns.
  const auto plain = RowShard::Open(folder_.File("whole/") + whole->shards.back().file);
  ASSERT_TRUE(plain);
  for (size_t c = 0; c < kNumTokenColumns; ++c) EXPECT_TRUE(plain->column(static_cast<TokenColumn>(c)).empty());
  EXPECT_TRUE(plain->chunk_starts().empty());
  options.resume = true;
  size_t times = 0;
  for (bool is_complete = false; !is_complete; ++times) {
    ASSERT_LT(times, 100u);
    int left = 4;
    options.should_stop = [&] { return --left < 0; };
    const auto part = PackFiles({file}, folder_.File("parts"), options);
    ASSERT_TRUE(part) << ToText(part.error());
    is_complete = part->is_complete;
  }
  EXPECT_GT(times, 2u);
  EXPECT_EQ(FilesOf(folder_.File("parts")), FilesOf(folder_.File("whole")));
}

// However far an earlier packing got, going on gives the bytes that one without interruption does.
TEST_F(Folder, Resume_FromEveryShard_GivesTheSameBytes) {
  std::mt19937_64 random(PrintedSeed());
  const std::string one = Put("1.jsonl", AnyDocuments(random, 70, 150));
  const std::string two = Put("2.jsonl", AnyDocuments(random, 60, 20));
  for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
    PackOptions options = Options(64, 12);
    options.packer = packer;
    options.documents.fim_percent = 50;
    options.documents.fim_sentinels = {1001, 1002, 1003, 1004};
    const std::string whole = folder_.File("whole_" + std::string(ToText(packer)));
    auto manifest = PackFiles({one, two}, whole, options);
    ASSERT_TRUE(manifest) << ToText(manifest.error());
    ASSERT_GT(manifest->shards.size(), 4u);
    const auto expected = FilesOf(whole);
    // A folder in which writing fails after so many shards: the next one's name is a folder's.
    for (size_t stop = 0; stop < manifest->shards.size(); stop += 2) {
      const std::string out = folder_.File(fmt::format("{}_{}", ToText(packer), stop));
      std::filesystem::create_directories(out + "/" + manifest->shards[stop].file);
      options.resume = true;
      auto stopped = PackFiles({one, two}, out, options);
      ASSERT_FALSE(stopped);
      EXPECT_EQ(stopped.error().code, ErrorCode::kFileWrite);
      std::filesystem::remove(out + "/" + manifest->shards[stop].file);
      WriteWhole(out + "/.tessera-1-1.tmp", "half of a shard");
      auto resumed = PackFiles({one, two}, out, options);
      ASSERT_TRUE(resumed) << ToText(resumed.error());
      EXPECT_EQ(resumed->counts, manifest->counts) << stop;
      EXPECT_EQ(FilesOf(out), expected) << "after " << stop << " shards";
      auto again = PackFiles({one, two}, out, options);
      EXPECT_TRUE(again && again->is_complete);
    }
    options.resume = false;
    EXPECT_EQ(PackFiles({one, two}, whole, options).error().code, ErrorCode::kRowsMismatch);
    options.resume = true;
    EXPECT_EQ(PackFiles({two, one}, whole, options).error().code, ErrorCode::kRowsMismatch);
    options.shard_rows = 6;
    EXPECT_EQ(PackFiles({one, two}, whole, options).error().code, ErrorCode::kRowsMismatch);
  }
}

// A change in the middle of a large file, which keeps its size, makes other documents of it.
TEST_F(Folder, AChangedFile_IsNotResumed) {
  std::string text;
  while (text.size() < (size_t{1} << 18)) text += "{\"tokens\": [1, 2, 3, 4, 5, 6, 7]}\n";
  const std::string file = Put("d.jsonl", text);
  PackOptions options = Options(64, 4);
  const std::string out = folder_.File("out");
  std::filesystem::create_directories(out + "/rows-00001.safetensors");
  ASSERT_FALSE(PackFiles({file}, out, options));
  std::filesystem::remove(out + "/rows-00001.safetensors");
  options.resume = true;
  text[text.find("3,", text.size() / 2)] = '8';
  Put("d.jsonl", text);
  EXPECT_EQ(PackFiles({file}, out, options).error().code, ErrorCode::kRowsMismatch);
  text[text.find("8,", text.size() / 2)] = '3';
  Put("d.jsonl", text);
  EXPECT_TRUE(PackFiles({file}, out, options));
}

// More documents than the packer reads at once.
TEST_F(Folder, SeveralWindows_PackLikeOne_AndResume) {
  std::mt19937_64 random(PrintedSeed());
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets = {0};
  DocumentSet all;
  Document document;
  while (tokens.size() < (size_t{9} << 20)) {
    document.tokens.assign(1 + random() % 60000, static_cast<int32_t>(offsets.size()));
    tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
    offsets.push_back(static_cast<int64_t>(tokens.size()));
    all.Add(document);
  }
  const auto tensor = [](ElementType type, const auto& values) {
    Tensor made = Tensor::Zeros(type, {static_cast<int64_t>(values.size())});
    std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
    return made;
  };
  const std::string file = folder_.File("d.safetensors");
  ASSERT_TRUE(WriteSafetensors(
      file, {{"tokens", tensor(ElementType::kI32, tokens)}, {"offsets", tensor(ElementType::kI64, offsets)}}));
  PackOptions options = Options(65536, 48);
  options.documents.threads = 2;
  for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
    options.packer = packer;
    options.resume = true;
    const std::string out = folder_.File(std::string(ToText(packer)));
    // Interrupted in the second window.
    std::filesystem::create_directories(out + "/rows-00002.safetensors");
    ASSERT_FALSE(PackFiles({file}, out, options));
    std::filesystem::remove(out + "/rows-00002.safetensors");
    auto manifest = PackFiles({file}, out, options);
    ASSERT_TRUE(manifest) << ToText(manifest.error());
    EXPECT_EQ(manifest->tokens_in_rows, static_cast<int64_t>(tokens.size()));
    EXPECT_EQ(manifest->counts.documents, all.Size());
    if (packer == Packer::kGreedy) {
      PackedRows rows = Packed(all, 65536);
      ASSERT_EQ(manifest->rows, rows.rows);
      for (int64_t row = 0; row < rows.rows; ++row) {
        auto shard = RowShard::Open(out + "/" + manifest->shards[static_cast<size_t>(row / 48)].file);
        ASSERT_TRUE(shard);
        ASSERT_EQ(shard->input_ids()[static_cast<size_t>(row % 48 * 65536)],
                  rows.input_ids[static_cast<size_t>(row * 65536)]);
        ASSERT_EQ(shard->valid_token_count()[static_cast<size_t>(row % 48)],
                  rows.valid_token_count[static_cast<size_t>(row)]);
      }
    } else {
      const std::string whole = folder_.File("whole");
      ASSERT_TRUE(PackFiles({file}, whole, options));
      EXPECT_EQ(FilesOf(out), FilesOf(whole));
    }
  }
}

// One document of more pieces than the packer reads at once, stopped among those it reads second and third.
// Lines are read in blocks of some megabytes: documents lie across their ends, one is longer than a block, and a
// mistake behind them is named by its line.
TEST_F(Folder, LinesAcrossBlocks_AreReadWhole_AndCounted) {
  Proves("R69");
  std::mt19937_64 random(PrintedSeed());
  std::string text;
  std::vector<int32_t> wanted;
  int64_t lines = 0;
  for (const int64_t long_line = 20 + static_cast<int64_t>(random() % 50); text.size() < (size_t{14} << 20); ++lines) {
    const size_t length = lines == long_line ? 1300000 : 1 + random() % 40000;
    text += "{\"tokens\":[";
    for (size_t i = 0; i < length; ++i) {
      wanted.push_back(static_cast<int32_t>(100000 + (i * 7919 + static_cast<size_t>(lines)) % 800000));
      text += (i == 0 ? "" : ",") + std::to_string(wanted.back());
    }
    text += "]}\n";
  }
  PackOptions options = Options(65536, 1000);
  const auto packed = PackFiles({Put("d.jsonl", text)}, folder_.File("out"), options);
  ASSERT_TRUE(packed) << ToText(packed.error());
  const auto shard = RowShard::Open(folder_.File("out/rows-00000.safetensors"));
  ASSERT_TRUE(shard) << ToText(shard.error());
  std::vector<int32_t> found;
  for (const int32_t token : shard->input_ids()) {
    if (token != 0) found.push_back(token);
  }
  std::sort(wanted.begin(), wanted.end());
  std::sort(found.begin(), found.end());
  EXPECT_TRUE(found == wanted) << found.size() << " tokens for " << wanted.size();

  const auto bad = PackFiles({Put("bad.jsonl", text + "{\"tokens\": [1,\n")}, folder_.File("none"), options);
  ASSERT_FALSE(bad);
  EXPECT_THAT(ToText(bad.error()), HasSubstr("line " + std::to_string(lines + 1)));
}

TEST_F(Folder, ADocumentOfSeveralWindows_IsResumed) {
  constexpr int64_t kTokens = (int64_t{9} << 20) + 5;
  Tensor tokens = Tensor::Zeros(ElementType::kI32, {kTokens});
  for (int64_t i = 0; i < kTokens; ++i) {
    const auto token = static_cast<int32_t>(i);
    std::memcpy(tokens.bytes.data() + i * int64_t{sizeof(token)}, &token, sizeof(token));
  }
  Tensor offsets = Tensor::Zeros(ElementType::kI64, {2});
  std::memcpy(offsets.bytes.data() + sizeof(int64_t), &kTokens, sizeof(kTokens));
  const std::string file = folder_.File("d.safetensors");
  ASSERT_TRUE(WriteSafetensors(file, {{"tokens", tokens}, {"offsets", offsets}}));
  constexpr int64_t kLength = int64_t{1} << 18;
  PackOptions options = Options(kLength, 5);
  options.resume = true;
  for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
    options.packer = packer;
    const std::string out = folder_.File(std::string(ToText(packer)));
    for (const char* stop : {"/rows-00004.safetensors", "/rows-00006.safetensors"}) {
      std::filesystem::create_directories(out + stop);
      ASSERT_FALSE(PackFiles({file}, out, options));
      std::filesystem::remove(out + stop);
    }
    auto manifest = PackFiles({file}, out, options);
    ASSERT_TRUE(manifest) << ToText(manifest.error());
    EXPECT_EQ(manifest->rows, 37);
    EXPECT_EQ(manifest->tokens_in_rows, kTokens);
    EXPECT_EQ(manifest->counts.documents, 1);
    EXPECT_EQ(manifest->counts.split, 1);
    int64_t row = 0;
    for (const ShardRecord& record : manifest->shards) {
      auto shard = RowShard::Open(out + "/" + record.file);
      ASSERT_TRUE(shard);
      for (int64_t i = 0; i < shard->rows(); ++i, ++row)
        EXPECT_EQ(shard->input_ids()[static_cast<size_t>(i * kLength)], row * kLength) << ToText(packer);
    }
  }
}

TEST_F(Folder, BadShards_AreRefusedOrFound) {
  const std::string file = Put("d.jsonl", "{\"tokens\": [1, 2, 3], \"token_chunk_starts\": [0, 1]}\n");
  ASSERT_TRUE(PackFiles({file}, folder_.File("out"), Options(8, 4)));
  const std::string good = ReadWhole(folder_.File("out/rows-00000.safetensors"));
  const auto open = [&](const std::string& bytes) { return RowShard::Open(Put("x.safetensors", bytes)); };
  ASSERT_TRUE(open(good));
  for (size_t size = 0; size < good.size(); size += 1 + good.size() / 40)
    EXPECT_FALSE(open(good.substr(0, size))) << size;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, from.size(), to);
  };
  const auto code_of = [&](const std::string& bytes) { return open(bytes).error().code; };
  EXPECT_EQ(code_of(with("\"input_ids\"", "\"Input_ids\"")), ErrorCode::kRowsInvalid);
  EXPECT_EQ(code_of(with("\"schema_version\":\"1\"", "\"schema_version\":\"2\"")), ErrorCode::kRowsInvalid);
  EXPECT_EQ(code_of(with("tessera rows", "tessera rowz")), ErrorCode::kRowsInvalid);
  // Every byte of the data counts.
  std::string changed = good;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  auto shard = open(changed);
  ASSERT_TRUE(shard);
  const Status found = CheckRows(*shard, "x");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kRowsInvalid);
  EXPECT_EQ(found.error().violations.size(), 2u) << "the digest, and a rule";
}

TEST(Vocabulary, IsPaddedTo64_AndPlatformIdsAreCut) {
  EXPECT_EQ(PaddedVocab(65536), 65536);
  EXPECT_EQ(PaddedVocab(65537), 65600);
  EXPECT_EQ(PaddedVocab(1), 64);
  EXPECT_EQ(ChunkWidth(1024), 128);
  EXPECT_EQ(ChunkWidth(8192), 256);
  std::vector<int> many(30);
  for (int i = 0; i < 30; ++i) many[static_cast<size_t>(i)] = 1 + i;
  DocumentOptions options;
  options.row_tokens = 8;
  const DocumentSet set = Parsed(fmt::format("{{\"tokens\": [1], \"platform_ids\": [5, 0, 5, 7]}}\n"
                                             "{{\"tokens\": [1], \"platform_ids\": {}}}\n",
                                             Join(many)),
                                 options);
  EXPECT_EQ(set.sources[1].counts.dropped_platform_ids, 10);
  const PackedRows rows = Packed(set, 8);
  std::vector<int32_t> expected = {5, 7};
  for (int32_t id = 1; expected.size() < 20; ++id) {
    if (id != 5 && id != 7) expected.push_back(id);
  }
  EXPECT_EQ(std::vector<int32_t>(rows.platform_ids.begin(), rows.platform_ids.begin() + 20), expected);
}

}  // namespace
}  // namespace tessera
