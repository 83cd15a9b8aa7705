// Documents as people have them: ids, lengths or ends say the same thing, and everything wrong with them is named by
// field, row and index.
#include "contract/batch_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/test_files.h"
#include "contract/batch_resolve.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "support/seed.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

constexpr MaskFacts kDocuments{.needs_documents = true};

Contract Lengths(int64_t batch, int64_t q_len, int64_t kv_len) {
  Contract contract;
  contract.shape = {.batch = batch, .q_len = q_len, .kv_len = kv_len, .dim_qk = 8, .dim_v = 8};
  contract.mask.heads.resize(1);
  return contract;
}

std::vector<BatchRow> Resolved(const Contract& contract, const Batch& batch) {
  const Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, kDocuments, batch);
  EXPECT_TRUE(rows) << ToText(rows.error());
  return rows.value_or(std::vector<BatchRow>(static_cast<size_t>(contract.shape.batch)));
}

// "field: expected" of every violation.
std::vector<std::string> Violations(const Contract& contract, const Batch& batch, const MaskFacts& facts = kDocuments) {
  const Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, facts, batch);
  std::vector<std::string> texts;
  if (rows) return texts;
  EXPECT_EQ(rows.error().code, ErrorCode::kBatchInvalid);
  for (const Violation& violation : rows.error().violations)
    texts.push_back(violation.field + ": " + violation.expected);
  return texts;
}

TEST(BatchDocuments, ThreeForms_GiveTheSameSegments) {
  Proves("R65 B28");
  const Contract contract = Lengths(2, 6, 6);
  Batch ids;
  ids.doc_ids = IdRows{2, 6, {0, 0, 1, 1, 1, -1, 0, 0, 0, 0, 0, 0}};
  Batch lengths;
  lengths.doc_lengths = {{{2, 3}, {6}}};
  Batch ends;
  ends.cu_seqlens = {{{0, 2, 5}, {0, 6}}};
  const std::vector<BatchRow> expected = Resolved(contract, ids);
  EXPECT_THAT(expected[0].q_segments, ElementsAre(Segment{0, 2, 0, 0}, Segment{2, 5, 1, 0}, Segment{5, 6, -1, 0}));
  EXPECT_EQ(Resolved(contract, lengths), expected);
  EXPECT_EQ(Resolved(contract, ends), expected);
}

TEST(BatchDocuments, EmptyDocuments_TakeANumberAndNoToken) {
  const Contract contract = Lengths(1, 3, 5);
  Batch batch;
  batch.q_doc_lengths = {{{1, 0, 2, 0, 0}}};
  batch.kv_cu_seqlens = {{{0, 2, 3, 3, 4}}};
  const std::vector<BatchRow> rows = Resolved(contract, batch);
  EXPECT_THAT(rows[0].q_segments, ElementsAre(Segment{0, 1, 0, 0}, Segment{1, 3, 2, 0}));
  EXPECT_THAT(rows[0].kv_segments,
              ElementsAre(Segment{0, 2, 0, 0}, Segment{2, 3, 1, 0}, Segment{3, 4, 3, 0}, Segment{4, 5, -1, 0}));
  // No document at all is a row of padding.
  Batch none;
  none.q_doc_lengths = IntRows(1);
  none.kv_cu_seqlens = {{{0}}};
  EXPECT_THAT(Resolved(contract, none)[0].q_segments, ElementsAre(Segment{0, 3, -1, 0}));
  EXPECT_THAT(Resolved(contract, none)[0].kv_segments, ElementsAre(Segment{0, 5, -1, 0}));
}

TEST(BatchDocuments, TwoForms_AreRefusedNamingBoth) {
  const Contract contract = Lengths(1, 4, 4);
  Batch batch;
  batch.doc_ids = IdRows{1, 4, {0, 0, 1, 1}};
  batch.doc_lengths = {{{2, 2}}};
  batch.cu_seqlens = {{{0, 2, 4}}};
  EXPECT_THAT(Violations(contract, batch),
              UnorderedElementsAre("doc_lengths: must not be given together with doc_ids: documents come in one form",
                                   "cu_seqlens: must not be given together with doc_ids: documents come in one form"));
  Batch sides;
  sides.q_doc_lengths = batch.doc_lengths;
  sides.q_cu_seqlens = batch.cu_seqlens;
  sides.kv_doc_ids = batch.doc_ids;
  EXPECT_THAT(Violations(contract, sides),
              ElementsAre("q_cu_seqlens: must not be given together with q_doc_lengths: documents come in one form"));
  sides.q_cu_seqlens.reset();
  EXPECT_THAT(Violations(contract, sides), ElementsAre()) << "each side has a form of its own";
  sides.cu_seqlens = batch.cu_seqlens;
  EXPECT_THAT(Violations(contract, sides),
              ElementsAre("cu_seqlens: must not be given together with q_doc_lengths or kv_doc_ids"));
}

TEST(BatchDocuments, MissingSides_AreAskedForInTheFormOfTheOther) {
  Batch half;
  half.kv_cu_seqlens = {{{0, 4}}};
  EXPECT_THAT(Violations(Lengths(1, 4, 4), half),
              ElementsAre("q_cu_seqlens: is missing: the mask needs the documents of both sides"));
  EXPECT_THAT(Violations(Lengths(1, 4, 4), {}),
              ElementsAre("doc_ids: is missing: the mask needs it, or doc_lengths, or cu_seqlens"));
  Batch both;
  both.doc_lengths = {{{4}}};
  EXPECT_THAT(
      Violations(Lengths(1, 4, 5), both),
      ElementsAre("doc_lengths: must be absent: q_len and kv_len differ, so give q_doc_lengths and kv_doc_lengths"));
  EXPECT_THAT(Violations(Lengths(1, 4, 4), both, {}),
              ElementsAre("doc_lengths: must be absent: the mask names no documents"));
  EXPECT_THAT(Violations(Lengths(1, 4, 4), half, {.names_documents = true}),
              ElementsAre("q_cu_seqlens: is missing: the mask needs the documents of both sides"));
}

TEST(BatchDocuments, WrongNumbers_AreNamedByRowAndIndex) {
  const Contract contract = Lengths(3, 10, 10);
  Batch lengths;
  lengths.doc_lengths = {{{4, -1, 3}, {4, 6, 0}, {4, 6, 1, 2}}};
  EXPECT_THAT(Violations(contract, lengths),
              ElementsAre("doc_lengths[0][1]: must not be negative, it is -1",
                          "doc_lengths[2][2]: the lengths up to here add up to 11, the row has 10 tokens"));
  lengths.doc_lengths = {{{2147483647, 2147483647, 2147483647}, {10}, {}}};
  EXPECT_THAT(Violations(contract, lengths),
              ElementsAre("doc_lengths[0][0]: the lengths up to here add up to 2147483647, the row has 10 tokens"));
  lengths.doc_lengths = {{{10}}};
  EXPECT_THAT(Violations(contract, lengths),
              ElementsAre("doc_lengths: must have 3 lists, one per batch row; it has 1"));
  Batch ends;
  ends.cu_seqlens = {{{1, 4}, {}, {0, 4, 3}}};
  EXPECT_THAT(Violations(contract, ends),
              ElementsAre("cu_seqlens[0][0]: must be 0, where the row begins; it is 1",
                          "cu_seqlens[1]: must begin with 0, it is empty",
                          "cu_seqlens[2][2]: must not be below the one before it, 4; it is 3"));
  ends.cu_seqlens = {{{0, 10, 10}, {0, 4, 11}, {0, -1}}};
  EXPECT_THAT(Violations(contract, ends),
              ElementsAre("cu_seqlens[1][2]: must be at most 10, the row's tokens; it is 11",
                          "cu_seqlens[2][1]: must not be below the one before it, 0; it is -1"));
}

TEST(BatchDocuments, RandomRows_AgreeInEveryFormAndAsTokens) {
  Proves("R65");
  const uint64_t seed = PrintedSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 300; ++round) {
    const Contract contract = Lengths(RandomInt(rng, 1, 3), RandomInt(rng, 1, 60), RandomInt(rng, 61, 90));
    Batch lengths;
    lengths.q_doc_lengths = IntRows();
    lengths.kv_doc_lengths = IntRows();
    Batch ends;
    ends.q_cu_seqlens = IntRows();
    ends.kv_cu_seqlens = IntRows();
    for (int64_t row = 0; row < contract.shape.batch; ++row) {
      lengths.q_doc_lengths->push_back(RandomDocLengths(rng, contract.shape.q_len));
      lengths.kv_doc_lengths->push_back(RandomDocLengths(rng, contract.shape.kv_len));
      ends.q_cu_seqlens->push_back(EndsOf(lengths.q_doc_lengths->back()));
      ends.kv_cu_seqlens->push_back(EndsOf(lengths.kv_doc_lengths->back()));
    }
    Batch ids;
    ids.q_doc_ids = IdRows{contract.shape.batch, contract.shape.q_len, {}};
    ids.kv_doc_ids = IdRows{contract.shape.batch, contract.shape.kv_len, {}};
    for (const Side side : {Side::kQ, Side::kKv}) {
      IdRows& out = side == Side::kQ ? *ids.q_doc_ids : *ids.kv_doc_ids;
      out.values.resize(static_cast<size_t>(out.rows * out.len));
      for (int64_t row = 0; row < out.rows; ++row) {
        CopyDocumentIds(contract.shape, lengths, side, static_cast<size_t>(row), out.values.data() + row * out.len);
      }
    }
    const std::vector<BatchRow> expected = Resolved(contract, ids);
    ASSERT_EQ(Resolved(contract, lengths), expected);
    ASSERT_EQ(Resolved(contract, ends), expected);
    std::vector<int32_t> again(ids.q_doc_ids->values.size());
    CopyDocumentIds(contract.shape, ids, Side::kQ, 0, again.data());
    ASSERT_TRUE(std::equal(again.begin(), again.begin() + contract.shape.q_len, ids.q_doc_ids->values.begin()));
  }
}

}  // namespace
}  // namespace tessera
