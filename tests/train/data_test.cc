// Run files, files that become rows, the order of rows, and the model of pairs to compare with.
#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <set>

#include "files.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/io.h"
#include "train/corpus.h"

namespace tessera::train {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto run = ParseRunFile(text, "");
  return run ? "" : ToText(run.error());
}

TEST(RunFileText, Example_IsGood) {
  const RunFile run = ParsedRun(ReadWhole(TESSERA_SOURCE_DIR "/examples/tiny_code.toml"), "examples");
  EXPECT_EQ(run.model.layers, 2);
  EXPECT_EQ(run.model.width, 96);
  EXPECT_EQ(run.data.folder, "examples/..");
  EXPECT_EQ(run.data.packer, Packer::kBestFit);
}

TEST(RunFileText, WhatIsWrong_IsListedWithItsField) {
  EXPECT_EQ(ErrorOf(RunText()), "");
  EXPECT_THAT(ErrorOf("version = \n"), HasSubstr("TSR-T101"));
  const std::string text =
      ErrorOf(RunText("keep = 0\nbeta1 = 1.0\nspeed = 3\nclip_norm = \"x\"\n", "packer = \"no\"\n"));
  for (const char* field : {"TSR-T101", "train.keep", "train.beta1", "train.speed", "train.clip_norm", "data.packer"})
    EXPECT_THAT(text, HasSubstr(field));
  EXPECT_THAT(ErrorOf("version = 1\n"), HasSubstr("train: missing"));
  EXPECT_THAT(ErrorOf("version = 2\n" + RunText().substr(12)), HasSubstr("version"));
  EXPECT_THAT(ErrorOf(RunText("", "rows = \"a\"\n")), HasSubstr("not both"));
  const std::string substitutes =
      ErrorOf(RunText() + "[substitutes]\nnorm = \"gpu\"\nlinear = \"cpu\"\nattention = 3\n");
  for (const char* field : {"substitutes.norm: one of auto, none, cpu", "substitutes.linear: a key of the layer spec",
                            "substitutes.attention"})
    EXPECT_THAT(substitutes, HasSubstr(field));
}

class Data : public testing::Test {
 protected:
  Data() { WriteTexts(folder_.File("texts")); }
  Result<Corpus> Prepare(const RunFile& run, bool keep = false) {
    return PrepareCorpus(run, folder_.File("run"), keep);
  }
  TemporaryFolder folder_;
};

TEST_F(Data, Files_AreFoundBelowTheFolder_AndDividedByName) {
  DataSpec data;
  data.folder = folder_.File("texts");
  data.files = {"*.cc", "deep/*.py"};
  data.exclude = {"*file1.*"};
  auto names = MatchFiles(data);
  ASSERT_TRUE(names) << ToText(names.error());
  EXPECT_TRUE(std::is_sorted(names->begin(), names->end()));
  EXPECT_THAT(*names, testing::Contains("deep/er/file0.py"));
  EXPECT_THAT(*names, testing::Not(testing::Contains("file1.cc")));
  EXPECT_THAT(*names, testing::Not(testing::Contains("file3.py")));
  data.files = {"*.rs"};
  names = MatchFiles(data);
  ASSERT_FALSE(names);
  EXPECT_EQ(names.error().code, ErrorCode::kRunData);
  int held_out = 0;
  for (int i = 0; i < 1600; ++i) held_out += IsHeldOut(std::to_string(i), 16) ? 1 : 0;
  EXPECT_GT(held_out, 60);  // of the same 1600 names every time
  EXPECT_LT(held_out, 140);
}

// Every byte of a file is in one row or the other, in its order, with the columns of the scanner.
TEST_F(Data, Rows_HoldEveryByteOnce) {
  Proves("B21 B17");
  const RunFile run = ParsedRun(RunText(), folder_.path());
  const auto corpus = Prepare(run);
  ASSERT_TRUE(corpus) << ToText(corpus.error());
  int64_t bytes = 0;
  const auto names = MatchFiles(run.data);
  ASSERT_TRUE(names);
  for (const std::string& name : *names) bytes += static_cast<int64_t>(ReadWhole(run.data.folder + "/" + name).size());
  EXPECT_EQ(corpus->train.manifest.tokens_in_rows + corpus->held_out.manifest.tokens_in_rows, bytes);
  auto rows = RowSource::Open(corpus->train, run.model);
  ASSERT_TRUE(rows) << ToText(rows.error());
  const RowBatch batch = rows->Read({0, -1});
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.input_ids.size(), 2U * 64U);
  EXPECT_EQ(batch.doc_ids[64], kPaddingDocument);
  EXPECT_EQ(batch.valid_token_count[1], 0);
  EXPECT_EQ(batch.structure[4].size(), 2U * 64U);
  EXPECT_NE(std::count(batch.structure[4].begin(), batch.structure[4].begin() + 64, 1), 0) << "words have a node type";
  // The same rows again, and also when they are kept though the files have changed.
  EXPECT_EQ(Prepare(run)->digest, corpus->digest);
  WriteWhole(run.data.folder + "/file1.cc", "int other;\n");
  EXPECT_EQ(Prepare(run, true)->digest, corpus->digest);
  EXPECT_NE(Prepare(run)->digest, corpus->digest);
}

// What a user keeps where a run's rows would go stays, and the run says so; rows of an earlier run are made anew.
TEST_F(Data, WhatNoRunMade_IsLeftWhereItIs) {
  const RunFile run = ParsedRun(RunText(), folder_.path());
  const std::string rows = folder_.File("run/rows");
  std::filesystem::create_directories(rows);
  const auto refused = [&](const std::string& file) {
    WriteWhole(rows + "/" + file, "mine");
    const auto corpus = Prepare(run);
    ASSERT_FALSE(corpus) << file;
    EXPECT_EQ(corpus.error().code, ErrorCode::kRunData);
    EXPECT_THAT(corpus.error().message, HasSubstr(file + " is there, which no run has made"));
    EXPECT_EQ(ReadWhole(rows + "/" + file), "mine");
    std::filesystem::remove(rows + "/" + file);
  };
  refused("notes.txt");
  refused("rows-00000.safetensors");
  ASSERT_TRUE(Prepare(run));
  std::filesystem::create_directory(rows + "/train/sub");
  EXPECT_FALSE(Prepare(run));
  std::filesystem::remove(rows + "/train/sub");
  refused("train/notes.txt");
  const std::string shard = ReadWhole(rows + "/train/rows-00000.safetensors");
  ASSERT_FALSE(shard.empty()) << "a refusal removes nothing";
  // Rows that the user has packed, in the very place.
  std::filesystem::remove_all(rows + "/train");
  WriteWhole(folder_.File("d.jsonl"), "{\"tokens\": [1, 2, 3]}\n");
  PackOptions options;
  options.documents.row_tokens = 64;
  ASSERT_TRUE(PackFiles({folder_.File("d.jsonl")}, rows + "/train", options));
  const std::string theirs = ReadWhole(rows + "/train/rows-00000.safetensors");
  EXPECT_FALSE(Prepare(run));
  EXPECT_EQ(ReadWhole(rows + "/train/rows-00000.safetensors"), theirs);
  std::filesystem::remove_all(rows + "/train");
  // A run that was killed while it packed: a shard without rows.json, and the documents beside it.
  std::filesystem::create_directory(rows + "/train");
  WriteWhole(rows + "/train/rows-00000.safetensors", shard);
  EXPECT_FALSE(Prepare(run)) << "whose it is nobody knows";
  WriteWhole(rows + "/train.documents.safetensors", "half");
  WriteWhole(rows + "/train/.tessera-1-1.tmp", "half");
  ASSERT_TRUE(Prepare(run));
  EXPECT_EQ(ReadWhole(rows + "/train/rows-00000.safetensors"), shard);
  EXPECT_FALSE(std::filesystem::exists(rows + "/train/.tessera-1-1.tmp"));
  std::filesystem::remove_all(rows);
  WriteWhole(rows, "a file");
  EXPECT_FALSE(Prepare(run));
  EXPECT_EQ(ReadWhole(rows), "a file");
}

// Shards hold some tens of megabytes, however short their rows are.
TEST_F(Data, Shards_AreChosenByTheirBytes) {
  for (int i = 0; i < 12; ++i) WriteWhole(folder_.File(fmt::format("texts/long{}.cc", i)), std::string(20000, 'x'));
  const RunFile run = ParsedRun(RunText(), folder_.path());
  const auto corpus = Prepare(run);
  ASSERT_TRUE(corpus) << ToText(corpus.error());
  EXPECT_GT(corpus->train.manifest.rows, 1000);
  EXPECT_EQ(corpus->train.manifest.shards.size(), 1u);
}

// Rows that are there already say themselves how they were made.
TEST_F(Data, PackedRows_TellTokenizerAndPacker) {
  Proves("R78");
  WriteWhole(folder_.File("d.jsonl"), "{\"tokens\": [1, 2, 3]}\n");
  PackOptions options;
  options.documents.row_tokens = 64;
  options.tokenizer = "bpe of somebody";
  options.packer = Packer::kBestFit;
  ASSERT_TRUE(PackFiles({folder_.File("d.jsonl")}, folder_.File("a"), options));
  options.tokenizer.clear();
  ASSERT_TRUE(PackFiles({folder_.File("d.jsonl")}, folder_.File("b"), options));
  RunFile run = ParsedRun(RunText(), folder_.path());
  run.data.files.clear();
  run.data.rows = run.data.held_out_rows = folder_.File("a");
  auto corpus = Prepare(run);
  ASSERT_TRUE(corpus) << ToText(corpus.error());
  EXPECT_EQ(corpus->tokenizer, "bpe of somebody");
  EXPECT_EQ(corpus->packer, "best_fit");
  run.data.held_out_rows = folder_.File("b");
  corpus = Prepare(run);
  ASSERT_TRUE(corpus) << ToText(corpus.error());
  EXPECT_EQ(corpus->tokenizer, "bpe of somebody, held out: not said");
}

TEST_F(Data, RowsThatTheModelCannotTake_AreRefused) {
  const RunFile run = ParsedRun(RunText(), folder_.path());
  const auto corpus = Prepare(run);
  ASSERT_TRUE(corpus);
  const auto refusal = [&](const RowFolder& folder, const ModelSpec& model) {
    const auto rows = RowSource::Open(folder, model);
    return rows ? std::string() : ToText(rows.error());
  };
  ModelSpec model = run.model;
  model.vocab = 200;
  EXPECT_THAT(refusal(corpus->train, model), HasSubstr("TSR-T102"));
  EXPECT_THAT(refusal(corpus->train, model), HasSubstr("vocabulary"));
  model = run.model;
  model.row_tokens = 32;
  EXPECT_THAT(refusal(corpus->train, model), HasSubstr("rows have 64 tokens, and model.row_tokens is 32"));
  // Rows that say nothing of their vocabulary: each token is looked at.
  WriteWhole(folder_.File("d.jsonl"), "{\"tokens\": [1, 2, 300, 4]}\n");
  PackOptions options;
  options.documents.row_tokens = 64;
  auto manifest = PackFiles({folder_.File("d.jsonl")}, folder_.File("own"), options);
  ASSERT_TRUE(manifest) << ToText(manifest.error());
  EXPECT_THAT(refusal({folder_.File("own"), *manifest}, run.model), HasSubstr("row 0 has the token 300"));
  // A shard cut short, and one with other bytes than its digest says.
  const std::string path = corpus->train.path + "/" + corpus->train.manifest.shards[0].file;
  const std::string good = ReadWhole(path);
  WriteWhole(path, good.substr(0, good.size() / 2));
  EXPECT_THAT(refusal(corpus->train, run.model), HasSubstr("TSR-"));
  std::string other = good;
  other[other.size() - 100] = static_cast<char>(other[other.size() - 100] ^ 1);
  WriteWhole(path, other);
  EXPECT_THAT(refusal(corpus->train, run.model), HasSubstr("TSR-D00"));
  WriteWhole(path, good);
  EXPECT_EQ(refusal(corpus->train, run.model), "");
}

TEST(RowsInOrder, EachEpoch_IsAPermutationOfItsOwn) {
  std::mt19937_64 random(PrintedSeed());
  const auto rows = static_cast<int64_t>(1 + random() % 50);
  const uint64_t seed = random();
  RowOrder order(rows, seed);
  std::vector<int64_t> sequence;
  for (int64_t place = 0; place < 3 * rows; ++place) sequence.push_back(order.At(place));
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto begin = sequence.begin() + epoch * rows;
    EXPECT_EQ(std::set<int64_t>(begin, begin + rows).size(), static_cast<size_t>(rows));
  }
  RowOrder again(rows, seed);  // asked from behind: a function of the place alone
  for (int64_t place = 3 * rows - 1; place >= 0; --place)
    EXPECT_EQ(again.At(place), sequence[static_cast<size_t>(place)]);
}

TEST_F(Data, BigramLoss_IsThatOfItsDefinition) {
  WriteWhole(folder_.File("d.jsonl"), "{\"tokens\": [1, 2, 1, 2, 1]}\n");
  PackOptions options;
  options.documents.row_tokens = 8;
  ASSERT_TRUE(PackFiles({folder_.File("d.jsonl")}, folder_.File("own"), options));
  std::vector<RowShard> shards;
  shards.push_back(*RowShard::Open(folder_.File("own/rows-00000.safetensors")));
  // Pairs 1-2 twice and 2-1 twice, each of two: (2 + 0.1) / (2 + 0.4).
  EXPECT_NEAR(BigramLoss(shards, shards, 4, 1), -std::log(2.1 / 2.4), 1e-12);
  // On the first rows alone: of the second row's pairs, 2-2, none was counted.
  WriteWhole(folder_.File("e.jsonl"),
             "{\"tokens\": [1, 2, 1, 2, 1, 2, 1, 2]}\n{\"tokens\": [2, 2, 2, 2, 2, 2, 2, 2]}\n");
  ASSERT_TRUE(PackFiles({folder_.File("e.jsonl")}, folder_.File("two"), options));
  std::vector<RowShard> held_out;
  held_out.push_back(*RowShard::Open(folder_.File("two/rows-00000.safetensors")));
  ASSERT_EQ(held_out[0].rows(), 2);
  EXPECT_NEAR(BigramLoss(shards, held_out, 4, 1), -std::log(2.1 / 2.4), 1e-12);
  EXPECT_NEAR(BigramLoss(shards, held_out, 4, 2), -(std::log(2.1 / 2.4) + std::log(0.1 / 2.4)) / 2, 1e-12);
}

}  // namespace
}  // namespace tessera::train
