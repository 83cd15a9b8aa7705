// Fitting a batch to a contract: every rule of presence, shape and range, and the three states of validity.
#include "contract/batch_resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/proves.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr MaskFacts kNeedsNothing{};
constexpr MaskFacts kDocuments{.needs_documents = true};
constexpr MaskFacts kDocumentsEqual{.needs_documents = true, .documents_may_reappear = true};
constexpr MaskFacts kValid{.needs_valid = true};
constexpr MaskFacts kBlocks{.needs_blocks = true};

Contract Lengths(int64_t batch, int64_t q_len, int64_t kv_len) {
  Contract contract;
  contract.shape = {.batch = batch, .q_len = q_len, .kv_len = kv_len, .dim_qk = 8, .dim_v = 8};
  contract.mask.heads.resize(1);
  contract.mask.offset = kv_len - q_len;
  return contract;
}

std::vector<BatchRow> Resolved(const Contract& contract, const MaskFacts& facts, const Batch& batch) {
  const Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, facts, batch);
  EXPECT_TRUE(rows) << ToText(rows.error());
  return rows.value_or(std::vector<BatchRow>(static_cast<size_t>(contract.shape.batch)));
}

std::vector<std::string> Fields(const Contract& contract, const MaskFacts& facts, const Batch& batch) {
  const Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, facts, batch);
  std::vector<std::string> fields;
  if (rows) return fields;
  EXPECT_EQ(rows.error().code, ErrorCode::kBatchInvalid);
  for (const Violation& violation : rows.error().violations) {
    EXPECT_FALSE(violation.expected.empty());
    fields.push_back(violation.field);
  }
  return fields;
}

TEST(ResolveBatch, NothingNeededNothingGiven_IsOneEmptyRowEach) {
  Proves("R62");
  const auto rows = Resolved(Lengths(3, 8, 8), kNeedsNothing, {});
  EXPECT_EQ(rows, std::vector<BatchRow>(3));
  EXPECT_FALSE(rows[0].q_valid.has_value());
}

TEST(ResolveBatch, FieldsTheMaskDoesNotNeed_AreEachAViolation) {
  Proves("R32 B32");
  Batch batch;
  batch.doc_ids = IdRows{1, 4, {0, 0, 0, 0}};
  batch.q_doc_ids = batch.doc_ids;
  batch.kv_doc_ids = batch.doc_ids;
  batch.valid_tokens = {{4}};
  batch.valid_slots = {{1}};
  batch.base_block_tokens = 4;
  batch.q_valid_tokens = {{4}};
  batch.kv_valid_tokens = {{4}};
  batch.picks = Picks{4, {1, 4, 1, 1}, {0, 0, 0, 0}};
  EXPECT_THAT(Fields(Lengths(1, 4, 4), kNeedsNothing, batch),
              UnorderedElementsAre("doc_ids", "q_doc_ids", "kv_doc_ids", "valid_tokens", "valid_slots",
                                   "base_block_tokens", "q_valid_tokens", "kv_valid_tokens", "picks"));
}

TEST(ResolveBatch, FieldsTheMaskNeeds_AreEachMissed) {
  Proves("R32 B32");
  const MaskFacts all{.needs_documents = true, .needs_valid = true, .needs_blocks = true};
  EXPECT_THAT(Fields(Lengths(1, 4, 4), all, {}), UnorderedElementsAre("doc_ids", "valid_tokens", "picks"));
  EXPECT_THAT(Fields(Lengths(1, 4, 6), all, {}),
              UnorderedElementsAre("q_doc_ids", "kv_doc_ids", "q_valid_tokens", "kv_valid_tokens", "picks"));
}

TEST(ResolveBatch, Presence_NeededIsRequiredNamedIsAllowedTheRestRefused) {
  Proves("R32");
  const auto with_mask = [](const std::string& text) {
    const Result<Contract> contract = ParseContract(
        "version = 1\n[shape]\nbatch = 1\nq_len = 4\nkv_len = 4\nnum_q_heads = 1\nnum_kv_heads = 1\ndim_qk = 8\n"
        "dim_v = 8\ndtype = \"f32\"\n[mask]\nexpr = \"" +
        text + "\"\n");
    EXPECT_TRUE(contract) << ToText(contract.error());
    return contract.value_or(Contract{});
  };
  Batch ids;
  ids.doc_ids = IdRows{1, 4, {0, 0, 1, 1}};
  EXPECT_TRUE(ResolveBatch(with_mask("causal and documents"), ids));
  EXPECT_FALSE(ResolveBatch(with_mask("causal and documents"), {}));
  EXPECT_TRUE(ResolveBatch(with_mask("full or documents"), {}));
  EXPECT_TRUE(ResolveBatch(with_mask("full or documents"), ids)) << "named, though it has no effect";
  EXPECT_FALSE(ResolveBatch(with_mask("causal"), ids));
  Batch valid;
  valid.valid_tokens = {{2}};
  EXPECT_TRUE(ResolveBatch(with_mask("causal and valid"), valid));
  EXPECT_FALSE(ResolveBatch(with_mask("causal"), valid));
  Batch again;
  again.doc_ids = IdRows{1, 4, {0, 1, 0, 1}};
  EXPECT_TRUE(ResolveBatch(with_mask("documents(equal)"), again));
  EXPECT_FALSE(ResolveBatch(with_mask("documents"), again));
  EXPECT_FALSE(ResolveBatch(with_mask("documents(equal) and sink(1, document) or documents and causal"), again));
}

TEST(ResolveBatch, EqualLengths_TakeOneFieldOrBothSides) {
  const Contract contract = Lengths(2, 3, 3);
  Batch one;
  one.doc_ids = IdRows{2, 3, {0, 0, 1, 4, 4, -1}};
  Batch sides;
  sides.q_doc_ids = one.doc_ids;
  sides.kv_doc_ids = one.doc_ids;
  EXPECT_EQ(Resolved(contract, kDocuments, one), Resolved(contract, kDocuments, sides));
  Batch half = sides;
  half.kv_doc_ids.reset();
  EXPECT_THAT(Fields(contract, kDocuments, half), UnorderedElementsAre("kv_doc_ids"));
  Batch both = sides;
  both.doc_ids = one.doc_ids;
  EXPECT_THAT(Fields(contract, kDocuments, both), UnorderedElementsAre("doc_ids"));
}

TEST(ResolveBatch, DifferentLengths_TakeEachSideOnly) {
  const Contract contract = Lengths(1, 2, 3);
  Batch batch;
  batch.q_doc_ids = IdRows{1, 2, {1, 2}};
  batch.kv_doc_ids = IdRows{1, 3, {0, 1, 2}};
  const auto rows = Resolved(contract, kDocuments, batch);
  EXPECT_EQ(rows[0].q_segments, (std::vector<Segment>{{0, 1, 1, 0}, {1, 2, 2, 0}}));
  EXPECT_EQ(rows[0].kv_segments, (std::vector<Segment>{{0, 1, 0, 0}, {1, 2, 1, 0}, {2, 3, 2, 0}}));
  Batch wrong;
  wrong.doc_ids = IdRows{1, 3, {0, 1, 2}};
  EXPECT_THAT(Fields(contract, kDocuments, wrong), testing::Contains("doc_ids"));
  batch.doc_ids = wrong.doc_ids;
  EXPECT_THAT(Fields(contract, kDocuments, batch), testing::Contains("doc_ids"));
}

TEST(ResolveBatch, IdsOfAnotherShape_AreRefused) {
  const Contract contract = Lengths(2, 3, 3);
  for (const IdRows& ids : {IdRows{1, 3, {0, 0, 0}}, IdRows{2, 2, {0, 0, 0, 0}}, IdRows{3, 2, {0, 0, 0, 0, 0, 0}},
                            IdRows{2, 3, {0, 0, 0, 0, 0}}, IdRows{0, 0, {}}, IdRows{-2, -3, {0, 0, 0, 0, 0, 0}}}) {
    Batch batch;
    batch.doc_ids = ids;
    EXPECT_THAT(Fields(contract, kDocuments, batch), UnorderedElementsAre("doc_ids"));
  }
}

TEST(ResolveBatch, PaddingIds_BelongToNoDocument) {
  Proves("B28");
  const Contract contract = Lengths(1, 8, 8);
  Batch batch;
  batch.doc_ids = IdRows{1, 8, {-1, 0, 0, -1, -5, 7, -1, -1}};
  // Padding may come back as often as it likes, with any negative id; id 0 is a document like any other.
  EXPECT_EQ(Resolved(contract, kDocuments, batch)[0].q_segments,
            (std::vector<Segment>{{0, 1, -1, 0}, {1, 3, 0, 0}, {3, 5, -1, 0}, {5, 6, 7, 0}, {6, 8, -1, 0}}));
}

TEST(ResolveBatch, ReappearingId_IsRefusedUnlessAskedFor) {
  Proves("R68 B30");
  const Contract contract = Lengths(2, 7, 7);
  Batch batch;
  batch.doc_ids = IdRows{2, 7, {0, 0, 1, 1, 2, 3, 3, 5, 5, 7, 7, 5, -1, -1}};
  const Result<std::vector<BatchRow>> refused = ResolveBatchWith(contract, kDocuments, batch);
  ASSERT_FALSE(refused);
  ASSERT_EQ(refused.error().violations.size(), 1u);
  EXPECT_EQ(refused.error().violations[0].field, "doc_ids[1]");
  EXPECT_THAT(refused.error().violations[0].expected, HasSubstr("id 5 reappears at token 4"));
  // Joined, the second stretch continues the document's count.
  EXPECT_EQ(Resolved(contract, kDocumentsEqual, batch)[1].kv_segments,
            (std::vector<Segment>{{0, 2, 5, 0}, {2, 4, 7, 0}, {4, 5, 5, 2}, {5, 7, -1, 0}}));
}

TEST(ResolveBatch, ReappearingIds_AreReportedForEveryRowAndSide) {
  Proves("R68");
  const Contract contract = Lengths(2, 3, 4);
  Batch batch;
  batch.q_doc_ids = IdRows{2, 3, {1, 2, 1, 1, 2, 3}};
  batch.kv_doc_ids = IdRows{2, 4, {1, 1, 1, 2, 9, 2, 9, 2}};
  EXPECT_THAT(Fields(contract, kDocuments, batch), UnorderedElementsAre("q_doc_ids[0]", "kv_doc_ids[1]"));
}

TEST(ResolveBatch, DescendingIds_AreFineWhenDistinct) {
  Batch batch;
  batch.doc_ids = IdRows{1, 6, {9, 9, 4, 4, 4, 0}};
  EXPECT_EQ(Resolved(Lengths(1, 6, 6), kDocuments, batch)[0].q_segments,
            (std::vector<Segment>{{0, 2, 9, 0}, {2, 5, 4, 0}, {5, 6, 0, 0}}));
}

TEST(ResolveBatch, ValidCounts_KeepZeroAndPresentApartFromAbsent) {
  Proves("R61 R62 B1");
  const Contract contract = Lengths(3, 10, 10);
  Batch batch;
  batch.valid_tokens = {{0, 7, 10}};
  const auto rows = Resolved(contract, kValid, batch);
  EXPECT_EQ(rows[0].q_valid, std::optional<int64_t>(0));
  EXPECT_EQ(rows[0].kv_valid, std::optional<int64_t>(0));
  EXPECT_EQ(rows[1].q_valid, std::optional<int64_t>(7));
  EXPECT_EQ(rows[2].kv_valid, std::optional<int64_t>(10));
  EXPECT_EQ(Resolved(contract, kNeedsNothing, {})[0].q_valid, std::nullopt);
  // Absent where it is needed is an error: neither zero nor the whole row is made up.
  EXPECT_THAT(Fields(contract, kValid, {}), UnorderedElementsAre("valid_tokens"));
}

TEST(ResolveBatch, OneCount_IsWidenedToEveryRow) {
  Proves("R61");
  const Contract contract = Lengths(3, 10, 10);
  Batch one;
  one.valid_tokens = {{4}};
  Batch three;
  three.valid_tokens = {{4, 4, 4}};
  EXPECT_EQ(Resolved(contract, kValid, one), Resolved(contract, kValid, three));
  Batch two;
  two.valid_tokens = {{4, 4}};
  EXPECT_THAT(Fields(contract, kValid, two), UnorderedElementsAre("valid_tokens"));
  Batch none;
  none.valid_tokens = std::vector<int64_t>{};
  EXPECT_THAT(Fields(contract, kValid, none), UnorderedElementsAre("valid_tokens"));
}

TEST(ResolveBatch, SlotsAndTokens_GiveTheSmaller) {
  Proves("R61");
  const Contract contract = Lengths(4, 10, 10);
  Batch batch;
  batch.valid_slots = {{0, 1, 2, 3}};
  batch.base_block_tokens = 4;
  const auto slots_only = Resolved(contract, kValid, batch);
  for (const auto& [row, expected] : {std::pair{0, 0}, {1, 4}, {2, 8}, {3, 10}})
    EXPECT_EQ(slots_only[static_cast<size_t>(row)].q_valid, std::optional<int64_t>(expected));
  batch.valid_tokens = {{5, 5, 5, 5}};
  const auto both = Resolved(contract, kValid, batch);
  EXPECT_EQ(both[0].kv_valid, std::optional<int64_t>(0));
  EXPECT_EQ(both[1].kv_valid, std::optional<int64_t>(4));
  EXPECT_EQ(both[2].kv_valid, std::optional<int64_t>(5));
  batch.valid_tokens.reset();
  batch.q_valid_tokens = {{3}};
  batch.kv_valid_tokens = {{9}};
  const auto sides = Resolved(contract, kValid, batch);
  EXPECT_EQ(sides[2].q_valid, std::optional<int64_t>(3));
  EXPECT_EQ(sides[2].kv_valid, std::optional<int64_t>(8));
}

// Slots count base blocks, never tiles: whatever the tile, the valid length is the same and is never dropped.
TEST(ResolveBatch, SlotsWithAnotherTile_StillCount) {
  Proves("R63 B2 B34");
  for (const int64_t tile : {3, 4, 256}) {
    Contract contract = Lengths(1, 10, 10);
    contract.tiles = {tile, tile};
    Batch batch;
    batch.valid_slots = {{2}};
    batch.base_block_tokens = 3;
    EXPECT_EQ(Resolved(contract, kValid, batch)[0].q_valid, std::optional<int64_t>(6));
    // Tokens beside the slots trim the last one; they do not replace them.
    for (const int64_t tokens : {0, 5, 6, 9}) {
      batch.valid_tokens = {{tokens}};
      const BatchRow row = Resolved(contract, kValid, batch)[0];
      EXPECT_EQ(row.q_valid, std::optional<int64_t>(std::min<int64_t>(tokens, 6))) << tokens;
      EXPECT_EQ(row.kv_valid, row.q_valid) << tokens;
    }
  }
}

// The last slot may reach past the row; one that begins past it is refused, as tokens past it are.
TEST(ResolveBatch, SlotsBeyondTheRow_AreAViolation) {
  for (const int64_t len : {1, 9, 10, 12}) {
    for (const int64_t base : {int64_t{1}, int64_t{4}, int64_t{10}, int64_t{1000}, INT64_MAX}) {
      const int64_t most = (len - 1) / base + 1;
      const Contract contract = Lengths(1, len, len);
      Batch batch;
      batch.base_block_tokens = base;
      batch.valid_slots = {{most}};
      EXPECT_EQ(Resolved(contract, kValid, batch)[0].q_valid, std::optional<int64_t>(len)) << len << " " << base;
      for (const int64_t slots : {most + 1, INT64_MAX}) {
        batch.valid_slots = {{slots}};
        EXPECT_THAT(Fields(contract, kValid, batch), UnorderedElementsAre("valid_slots[0]")) << len << " " << base;
      }
    }
  }
}

TEST(ResolveBatch, SlotsAndBase_NeedEachOther) {
  Proves("R61");
  const Contract contract = Lengths(1, 10, 10);
  Batch slots;
  slots.valid_slots = {{1}};
  EXPECT_THAT(Fields(contract, kValid, slots), UnorderedElementsAre("base_block_tokens"));
  Batch base;
  base.valid_tokens = {{1}};
  base.base_block_tokens = 4;
  EXPECT_THAT(Fields(contract, kValid, base), UnorderedElementsAre("base_block_tokens"));
  slots.base_block_tokens = 0;
  EXPECT_THAT(Fields(contract, kValid, slots), UnorderedElementsAre("base_block_tokens"));
  slots.base_block_tokens = -4;
  EXPECT_THAT(Fields(contract, kValid, slots), UnorderedElementsAre("base_block_tokens"));
}

TEST(ResolveBatch, CountsOutOfRange_AreEachAViolation) {
  const Contract contract = Lengths(3, 10, 12);
  Batch batch;
  batch.q_valid_tokens = {{-1, 11, 10}};
  batch.kv_valid_tokens = {{0, 13, 12}};
  EXPECT_THAT(Fields(contract, kValid, batch),
              UnorderedElementsAre("q_valid_tokens[0]", "q_valid_tokens[1]", "kv_valid_tokens[1]"));
  Batch slots;
  slots.valid_slots = {{-1}};
  slots.base_block_tokens = 2;
  EXPECT_THAT(Fields(Lengths(1, 4, 4), kValid, slots), UnorderedElementsAre("valid_slots[0]"));
}

TEST(ResolveBatch, ValidForms_FollowTheLengths) {
  Batch batch;
  batch.valid_tokens = {{1}};
  EXPECT_THAT(Fields(Lengths(1, 4, 6), kValid, batch), UnorderedElementsAre("valid_tokens"));
  Batch slots;
  slots.valid_slots = {{1}};
  slots.base_block_tokens = 2;
  EXPECT_THAT(Fields(Lengths(1, 4, 6), kValid, slots), testing::Contains("valid_slots"));
  batch.q_valid_tokens = {{1}};
  EXPECT_THAT(Fields(Lengths(1, 4, 4), kValid, batch), UnorderedElementsAre("valid_tokens"));
  batch.valid_tokens.reset();
  EXPECT_THAT(Fields(Lengths(1, 4, 4), kValid, batch), UnorderedElementsAre("kv_valid_tokens"));
  batch.kv_valid_tokens = {{5}};
  EXPECT_EQ(Resolved(Lengths(1, 4, 6), kValid, batch)[0].kv_valid, std::optional<int64_t>(5));
}

TEST(ResolveBatch, Picks_MustFitShapeAndRange) {
  Contract contract = Lengths(1, 8, 20);
  contract.shape.num_q_heads = 4;
  contract.shape.num_kv_heads = 2;
  contract.tiles = {4, 4};
  const auto fields = [&](Picks picks) {
    Batch batch;
    batch.picks = std::move(picks);
    return Fields(contract, kBlocks, batch);
  };
  const auto picks = [](std::vector<int64_t> shape, int32_t value) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return Picks{8, std::move(shape), std::vector<int32_t>(static_cast<size_t>(count), value)};
  };
  EXPECT_TRUE(fields(picks({1, 8, 2, 3}, 2)).empty());
  EXPECT_TRUE(fields(picks({1, 2, 2, 3}, -9)).empty());
  EXPECT_THAT(fields(picks({1, 8, 2, 3}, 3)), UnorderedElementsAre("picks.blocks"));
  EXPECT_THAT(fields(picks({2, 8, 2, 3}, 0)), UnorderedElementsAre("picks.blocks"));
  EXPECT_THAT(fields(picks({1, 3, 2, 3}, 0)), UnorderedElementsAre("picks.blocks"));
  EXPECT_THAT(fields(picks({1, 8, 4, 3}, 0)), UnorderedElementsAre("picks.blocks"));
  EXPECT_THAT(fields(picks({1, 8, 2}, 0)), UnorderedElementsAre("picks.blocks"));
  EXPECT_THAT(fields({8, {1, 8, 2, 3}, {0}}), UnorderedElementsAre("picks.blocks"));
  EXPECT_THAT(fields({0, {1, 8, 2, 1}, std::vector<int32_t>(16)}), UnorderedElementsAre("picks.block_tokens"));
  contract.routing.emplace();
  EXPECT_THAT(fields(picks({1, 8, 2, 3}, 0)), UnorderedElementsAre("picks"));
  EXPECT_TRUE(Fields(contract, kBlocks, {}).empty());
}

}  // namespace
}  // namespace tessera
