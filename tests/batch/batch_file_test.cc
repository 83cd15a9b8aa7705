// Batch files: both forms say the same thing, absent stays absent, and nothing malformed gets through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/test_files.h"
#include "contract/batch_fields.h"
#include "support/proves.h"
#include "tessera/batch.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Batch Parsed(const std::string& json) {
  const Result<Batch> batch = ParseBatch(json);
  EXPECT_TRUE(batch) << json << "\n" << ToText(batch.error());
  return batch.value_or(Batch{});
}

void ExpectRefused(const std::string& json, const std::string& reason) {
  const Result<Batch> batch = ParseBatch(json);
  ASSERT_FALSE(batch) << json;
  EXPECT_EQ(batch.error().code, ErrorCode::kBatchSyntax) << json;
  EXPECT_THAT(ToText(batch.error()), HasSubstr(reason)) << json;
}

Tensor Ints(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  Tensor tensor = Tensor::Zeros(ElementType::kI32, std::move(shape));
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

Tensor LongInts(std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  Tensor tensor = Tensor::Zeros(ElementType::kI64, std::move(shape));
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// Everything a batch can hold; no one contract would accept it.
Batch Everything() {
  Batch batch;
  batch.doc_ids = IdRows{2, 3, {0, 0, 1, 5, -1, -2}};
  batch.q_doc_ids = IdRows{1, 2, {3, 3}};
  batch.kv_doc_ids = IdRows{1, 1, {-2147483648}};
  batch.doc_lengths = {{{2, 1}, {3}}};
  batch.q_doc_lengths = {{{}, {0, 4, 0}}};
  batch.kv_doc_lengths = {{{2147483647}}};
  batch.cu_seqlens = {{{0, 2, 3}, {0, 3}}};
  batch.q_cu_seqlens = {{{0, 0, 5}}};
  batch.kv_cu_seqlens = {{{-7}, {}}};
  batch.valid_tokens = {{3, 0}};
  batch.valid_slots = {{1}};
  batch.base_block_tokens = 128;
  batch.q_valid_tokens = {{2, 2}};
  batch.kv_valid_tokens = {{9007199254740993}};
  batch.picks = Picks{16, {1, 2, 1, 2}, {0, 1, 7, -1}};
  return batch;
}

TEST(BatchJson, EveryField_IsRead) {
  const Batch batch = Parsed(R"({"doc_ids": [[0, 0, 1], [5, -1, -2]], "q_doc_ids": [[3, 3]],
    "kv_doc_ids": [[-2147483648]], "doc_lengths": [[2, 1], [3]], "q_doc_lengths": [[], [0, 4, 0]],
    "kv_doc_lengths": [2147483647], "cu_seqlens": [[0, 2, 3], [0, 3]], "q_cu_seqlens": [0, 0, 5],
    "kv_cu_seqlens": [[-7], []], "valid_tokens": [3, 0], "valid_slots": [1], "base_block_tokens": 128,
    "q_valid_tokens": [2, 2], "kv_valid_tokens": [9007199254740993],
    "picks": {"block_tokens": 16, "blocks": [[[[0, 1]], [[7, -1]]]]}})");
  EXPECT_EQ(batch, Everything());
}

TEST(BatchJson, Text_RoundTripsExactly) {
  EXPECT_EQ(Parsed(ToJson(Everything())), Everything());
  EXPECT_EQ(Parsed(ToJson(Batch{})), Batch{});
  EXPECT_EQ(ToJson(Parsed(ToJson(Everything()))), ToJson(Everything()));
}

TEST(BatchJson, AbsentZeroAndPresent_StayThreeStates) {
  Proves("R61 R62 B1");
  EXPECT_FALSE(Parsed("{}").valid_tokens.has_value());
  EXPECT_FALSE(Parsed("{}").base_block_tokens.has_value());
  const Batch zero = Parsed(R"({"valid_tokens": [0, 0]})");
  ASSERT_TRUE(zero.valid_tokens.has_value());
  EXPECT_THAT(*zero.valid_tokens, ElementsAre(0, 0));
  EXPECT_FALSE(zero.valid_slots.has_value());
  // Through text and back, each state comes out as it went in.
  for (const std::string& json : {std::string("{}"), std::string(R"({"valid_tokens":[0]})"),
                                  std::string(R"({"valid_tokens":[7]})"), std::string(R"({"valid_slots":[0]})")}) {
    EXPECT_EQ(ToJson(Parsed(json)), json + "\n");
  }
  ExpectRefused(R"({"valid_tokens": null})", "null");
}

TEST(BatchJson, ScalarCount_StandsForEveryRow) {
  Proves("R61");
  EXPECT_THAT(*Parsed(R"({"valid_tokens": 5})").valid_tokens, ElementsAre(5));
  EXPECT_EQ(Parsed(R"({"valid_slots": 2})"), Parsed(R"({"valid_slots": [2]})"));
}

TEST(BatchJson, WrongRank_IsRefused) {
  Proves("R61");
  ExpectRefused(R"({"doc_ids": [1, 2]})", "doc_ids: must be [batch][length], it has 1 dimensions");
  ExpectRefused(R"({"doc_ids": 3})", "it has 0 dimensions");
  ExpectRefused(R"({"doc_ids": []})", "it has 1 dimensions");
  ExpectRefused(R"({"doc_ids": [[[1]]]})", "it has 3 dimensions");
  ExpectRefused(R"({"valid_tokens": [[1]]})", "valid_tokens: must be [batch] or one number");
  ExpectRefused(R"({"base_block_tokens": [[1]]})", "must be one number");
  ExpectRefused(R"({"base_block_tokens": [1, 2]})", "must be one number");
  ExpectRefused(R"({"picks": {"block_tokens": 1, "blocks": [[[1]]]}})", "it has 3 dimensions");
  ExpectRefused(R"({"picks": {"block_tokens": 1, "blocks": [[[[[1]]]]]}})", "more than 4 dimensions");
}

TEST(BatchJson, RaggedArrays_AreRefused) {
  for (const char* rows : {"[[1, 2], [3]]", "[[1], [2, 3]]", "[[], [1]]", "[[1], []]", "[1, [2]]", "[[1], 2]",
                           "[[], [[1]]]", "[[[1]], []]", "[[[1]], [[]]]", "[[], 1]"}) {
    ExpectRefused(std::string(R"({"doc_ids": )") + rows + "}", "ragged");
  }
  ExpectRefused(R"({"picks": {"block_tokens": 1, "blocks": [[[[1, 2]], [[3]]]]}})", "picks.blocks is ragged");
}

TEST(BatchJson, DocumentLengthsAndEnds_MayDifferInCountButNotInDepth) {
  for (const std::string name : {"doc_lengths", "kv_doc_lengths", "q_cu_seqlens", "cu_seqlens"}) {
    const auto field = [&](const std::string& value) { return "{\"" + name + "\": " + value + "}"; };
    EXPECT_EQ(Parsed(field("[4, 5]")), Parsed(field("[[4, 5]]"))) << "a flat list is the row of a batch of 1";
    EXPECT_EQ(ToJson(Parsed(field("[[1, 2], [], [3]]"))), "{\"" + name + "\":[[1,2],[],[3]]}\n");
    ExpectRefused(field("[]"), name + ": must have one list per batch row, it is empty");
    ExpectRefused(field("3"), "must be [batch][documents], it has 0 dimensions");
    ExpectRefused(field("[[[1]]]"), "it has 3 dimensions");
    ExpectRefused(field("[[], [[1]]]"), "it has 3 dimensions");
    for (const char* mixed : {"[1, [2]]", "[[1], 2]", "[[], 1]", "[[[1]], [2]]"}) ExpectRefused(field(mixed), "ragged");
    ExpectRefused(field("[[1, 2147483648]]"), "every value must fit in int32; element 1 is 2147483648");
  }
}

TEST(BatchJson, UnknownAndRepeatedFields_AreRefused) {
  ExpectRefused(R"({"docids": [[1]]})", "unknown field \"docids\"; a batch may have");
  ExpectRefused(R"({"picks": {"tokens": 1}})", "unknown field \"picks.tokens\"");
  ExpectRefused(R"({"picks.blocks": [[[[1]]]]})", "unknown field");
  ExpectRefused(R"({"doc_ids": [[1]], "doc_ids": [[1]]})", "\"doc_ids\" appears twice");
  ExpectRefused(R"({"picks": {}})", "picks must have block_tokens and blocks");
  ExpectRefused(R"({"picks": {"block_tokens": 4}})", "picks.blocks: must be given");
  ExpectRefused(R"({"picks": {"blocks": [[[[1]]]]}})", "picks.block_tokens: must be given");
  ExpectRefused(R"({"picks": [1]})", "picks must be an object");
  ExpectRefused(R"({"picks": {"blocks": {}}})", "must not be an object");
  ExpectRefused(R"({"doc_ids": {"a": 1}})", "must not be an object");
}

TEST(BatchJson, NumbersThatAreNotIntegersInRange_AreRefused) {
  ExpectRefused(R"({"doc_ids": [[1.0]]})", "a fraction");
  ExpectRefused(R"({"doc_ids": [[1e2]]})", "a fraction");
  ExpectRefused(R"({"doc_ids": [["1"]]})", "a text");
  ExpectRefused(R"({"doc_ids": [[true]]})", "a boolean");
  ExpectRefused(R"({"doc_ids": [[0, 2147483648]]})", "must fit in int32; element 1 is 2147483648");
  ExpectRefused(R"({"doc_ids": [[-2147483649]]})", "must fit in int32");
  ExpectRefused(R"({"picks": {"block_tokens": 1, "blocks": [[[[4294967296]]]]}})", "must fit in int32");
  ExpectRefused(R"({"valid_tokens": [9223372036854775808]})", "above int64");
  ExpectRefused(R"({"valid_tokens": [1e999]})", "the batch is not well-formed");
  EXPECT_THAT(*Parsed(R"({"valid_tokens": [9223372036854775807]})").valid_tokens, ElementsAre(INT64_MAX));
}

TEST(BatchJson, MalformedText_IsRefusedWithItsPlace) {
  for (const char* text : {"", " ", "{", "[]", "3", "null", "\"doc_ids\"", "{}{}", "{} x", "{\"doc_ids\": [[1,]]}",
                           "{\"doc_ids\" [[1]]}", "{doc_ids: [[1]]}", "\xff\xfe", "{\"\xff\": 1}"}) {
    ExpectRefused(text, "TSR-C006");
  }
  ExpectRefused("{\n\"doc_ids\": [[1]]\n,}", "line 3");
  ExpectRefused(std::string(1'000'000, '['), "must be an object");
  ExpectRefused("{\"doc_ids\":" + std::string(1'000'000, '['), "more than 4 dimensions");
}

TEST(BatchJson, EveryProblemOfType_IsReportedAtOnce) {
  const Result<Batch> batch = ParseBatch(R"({"doc_ids": [1], "valid_tokens": [[1]], "base_block_tokens": [1, 2]})");
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().violations.size(), 3u);
}

TEST(BatchFile, BothForms_GiveTheSameBatch) {
  const TestFolder folder;
  Batch expected = Everything();
  // A tensor is rectangular: shorter rows end in empty documents.
  expected.doc_lengths = {{{2, 1}, {3, 0}}};
  expected.q_doc_lengths = {{{0, 4, 0}}};
  expected.cu_seqlens = {{{0, 2, 3}, {0, 3, 3}}};
  expected.kv_cu_seqlens = IntRows(2);
  Put(folder / "b.json", ToJson(expected));
  ASSERT_TRUE(WriteSafetensors(folder / "b.bin", {{"doc_ids", Ints({2, 3}, {0, 0, 1, 5, -1, -2})},
                                                  {"q_doc_ids", Ints({1, 2}, {3, 3})},
                                                  {"kv_doc_ids", LongInts({1, 1}, {-2147483648})},
                                                  {"doc_lengths", Ints({2, 2}, {2, 1, 3, 0})},
                                                  {"q_doc_lengths", Ints({3}, {0, 4, 0})},
                                                  {"kv_doc_lengths", LongInts({1, 1}, {2147483647})},
                                                  {"cu_seqlens", LongInts({2, 3}, {0, 2, 3, 0, 3, 3})},
                                                  {"q_cu_seqlens", Ints({1, 3}, {0, 0, 5})},
                                                  {"kv_cu_seqlens", Ints({2, 0}, {})},
                                                  {"valid_tokens", Ints({2}, {3, 0})},
                                                  {"valid_slots", Ints({}, {1})},
                                                  {"base_block_tokens", Ints({1}, {128})},
                                                  {"q_valid_tokens", Ints({2}, {2, 2})},
                                                  {"kv_valid_tokens", LongInts({1}, {9007199254740993})},
                                                  {"picks.block_tokens", Ints({}, {16})},
                                                  {"picks.blocks", Ints({1, 2, 1, 2}, {0, 1, 7, -1})}}));
  for (const char* name : {"b.json", "b.bin"}) {
    const Result<Batch> batch = ReadBatch(folder / name);
    ASSERT_TRUE(batch) << ToText(batch.error());
    EXPECT_EQ(*batch, expected) << name;
  }
}

TEST(BatchFile, WrongFiles_AreRefusedNamingTheFile) {
  const TestFolder folder;
  const auto refused = [&](const std::string& bytes, const std::string& reason) {
    Put(folder / "b", bytes);
    const Result<Batch> batch = ReadBatch(folder / "b");
    ASSERT_FALSE(batch) << reason;
    EXPECT_EQ(batch.error().code, ErrorCode::kBatchSyntax);
    EXPECT_EQ(batch.error().where, folder / "b");
    EXPECT_THAT(ToText(batch.error()), HasSubstr(reason));
  };
  refused("", "not well-formed");
  refused("{\"docs\": 1}", "unknown field");
  refused("{\"doc_ids\": [1]}", "must be [batch][length]");
  refused(ToSafetensors({{"docs", Ints({1}, {1})}}), "docs: unknown field");
  refused(ToSafetensors({{"doc_ids", Tensor::Zeros(ElementType::kF32, {1, 1})}}), "doc_ids: must be I32 or I64");
  refused(ToSafetensors({{"doc_ids", Ints({3}, {1, 2, 3})}}), "must be [batch][length]");
  refused(ToSafetensors({{"doc_ids", LongInts({1, 1}, {int64_t{1} << 40})}}), "must fit in int32");
  refused(ToSafetensors({{"cu_seqlens", LongInts({2}, {0, int64_t{1} << 31})}}), "must fit in int32; element 1 is");
  refused(ToSafetensors({{"doc_lengths", Ints({1, 1, 1}, {1})}}), "doc_lengths: must be [batch][documents]");
  refused(ToSafetensors({{"doc_ids", Ints({1, 1}, {1})}}).substr(0, 20), "not a usable safetensors file");
  const Result<Batch> missing = ReadBatch(folder / "missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kFileRead);
}

// What was accepted must be consistent in itself, whatever was done to the bytes.
bool Consistent(const Batch& batch) {
  for (const auto& ids : {batch.doc_ids, batch.q_doc_ids, batch.kv_doc_ids}) {
    if (ids && ids->rows * ids->len != static_cast<int64_t>(ids->values.size())) return false;
  }
  return true;
}

TEST(BatchJson, DamagedText_NeverCrashes) {
  std::string text = ToJson(Everything());
  text.pop_back();  // without its last newline every proper prefix is incomplete
  Torture(text, 10'000, false, [](std::string_view json) {
    const Result<Batch> batch = ParseBatch(json);
    if (batch) {
      EXPECT_TRUE(Consistent(*batch));
      EXPECT_EQ(ParseBatch(ToJson(*batch)).value(), *batch);
    }
    return batch.has_value();
  });
}

TEST(BatchFile, DamagedTensors_NeverCrash) {
  const std::string good = ToSafetensors(
      {{"doc_ids", Ints({1, 4}, {0, 0, 1, -1})}, {"valid_tokens", Ints({1}, {3})}, {"valid_slots", Ints({}, {1})}});
  Torture(good, 10'000, false, [](std::string_view bytes) {
    const Result<Batch> batch = ParseBatchBytes(bytes, "b");
    EXPECT_TRUE(!batch || Consistent(*batch));
    return batch.has_value();
  });
}

}  // namespace
}  // namespace tessera
