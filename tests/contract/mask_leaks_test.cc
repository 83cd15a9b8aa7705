// What a mask lets through although it names causal or documents: named cases, and every batch of short rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/test_files.h"
#include "oracle/oracle.h"
#include "support/proves.h"
#include "support/random_mask.h"
#include "support/seed.h"
#include "tessera/mask_leak.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = MaskLeak::Kind;

std::vector<MaskLeak> LeaksOf(const std::string& mask, int64_t q_len = 16, int64_t kv_len = 16) {
  const Result<Contract> contract =
      ParseContract("version = 1\n[shape]\nq_len = " + std::to_string(q_len) + "\nkv_len = " + std::to_string(kv_len) +
                    "\nnum_q_heads = 2\ndim_qk = 8\n[mask]\n" + mask + "\n");
  EXPECT_TRUE(contract) << ToText(contract.error());
  if (!contract) return {};
  const Result<std::vector<MaskLeak>> leaks = FindLeaks(*contract);
  EXPECT_TRUE(leaks) << ToText(leaks.error());
  return leaks.value_or(std::vector<MaskLeak>());
}

std::vector<MaskLeak> LeaksOfExpr(const std::string& expr, int64_t q_len = 16, int64_t kv_len = 16) {
  return LeaksOf("expr = \"" + expr + "\"", q_len, kv_len);
}

TEST(MaskLeaks, TheMaskThatLeaked_AndTheOneThatWasMeant) {
  const std::vector<MaskLeak> leaks = LeaksOfExpr("causal and window(9, 0) and documents or sink(4)");
  EXPECT_THAT(leaks, ElementsAre(MaskLeak{Kind::kLater, 0, 0, 1}, MaskLeak{Kind::kOtherDocument, 0, 0, 1}));
  EXPECT_EQ(ToText(leaks[0]), "head 0 lets query 0 see key 1, which is later, although the mask names causal");
  EXPECT_EQ(ToText(leaks[1]),
            "head 0 lets query 0 see key 1, which may be of another document, although the mask names documents");
  EXPECT_THAT(LeaksOfExpr("causal and documents and (window(9, 0) or sink(4, document))"), IsEmpty());
}

TEST(MaskLeaks, MeaningDecides_NotSpelling) {
  EXPECT_THAT(LeaksOfExpr("causal"), IsEmpty());
  EXPECT_THAT(LeaksOfExpr("full"), IsEmpty()) << "names nothing that it breaks";
  EXPECT_THAT(LeaksOfExpr("causal or window(3, 0)"), IsEmpty());
  EXPECT_THAT(LeaksOfExpr("causal or sink(1)"), IsEmpty()) << "key 0 is later than no query";
  EXPECT_THAT(LeaksOfExpr("causal or sink(2)"), ElementsAre(MaskLeak{Kind::kLater, 0, 0, 1}));
  EXPECT_THAT(LeaksOfExpr("causal and (window(3, 3) or prefix(8))"), IsEmpty());
  EXPECT_THAT(LeaksOfExpr("causal or prefix(8)"), ElementsAre(MaskLeak{Kind::kLater, 0, 0, 1}));
  EXPECT_THAT(LeaksOfExpr("full or documents"), ElementsAre(MaskLeak{Kind::kOtherDocument, 0, 0, 1}));
  EXPECT_THAT(LeaksOfExpr("documents or window(0, 0)"), IsEmpty()) << "a token is in its own document";
  EXPECT_THAT(LeaksOfExpr("documents or window(0, 0)", 8, 16), ElementsAre(MaskLeak{Kind::kOtherDocument, 0, 0, 8}));
  EXPECT_THAT(LeaksOfExpr("documents and valid or blocks and sink(0)"), IsEmpty());
  EXPECT_THAT(LeaksOfExpr("documents and causal or valid and causal"),
              ElementsAre(MaskLeak{Kind::kOtherDocument, 0, 1, 0}));
}

TEST(MaskLeaks, DocumentSinks_ReachOnlyWhereADocumentCanBegin) {
  EXPECT_THAT(LeaksOfExpr("causal or sink(1, document)"), IsEmpty()) << "a later key is never a document's first";
  EXPECT_THAT(LeaksOfExpr("causal or sink(2, document)"), ElementsAre(MaskLeak{Kind::kLater, 0, 0, 1}));
}

TEST(MaskLeaks, Heads_AreJudgedByTheirOwnMask) {
  EXPECT_THAT(LeaksOf("heads = [\"causal\", \"full\"]"), IsEmpty());
  EXPECT_THAT(LeaksOf("heads = [\"full\", \"causal or sink(5) and window(0, 2)\"]"),
              ElementsAre(MaskLeak{Kind::kLater, 1, 0, 1}));
}

bool Names(const MaskExpr& expr, TermKind kind) {
  if (expr.op == MaskExpr::Op::kTerm) return expr.term.kind == kind;
  return std::any_of(expr.children.begin(), expr.children.end(),
                     [&](const MaskExpr& child) { return Names(child, kind); });
}

// Every way to give `len` tokens documents 0, 1, ...
std::vector<std::vector<int32_t>> AllIds(int64_t len, bool may_reappear) {
  std::vector<std::vector<int32_t>> all;
  std::vector<int32_t> ids(static_cast<size_t>(len), 0);
  for (;;) {
    bool reappears = false;
    for (size_t i = 2; i < ids.size(); ++i) {
      for (size_t j = 0; j + 1 < i; ++j) reappears |= ids[j] == ids[i] && ids[i - 1] != ids[i];
    }
    if (may_reappear || !reappears) all.push_back(ids);
    size_t at = 0;
    while (at < ids.size() && ++ids[at] == len) ids[at++] = 0;
    if (at == ids.size()) return all;
  }
}

// The oracle's facts of every batch of documents; all tokens valid and all blocks picked, since a mask only grows with
// either.
std::vector<OracleFacts> AllBatches(const Contract& contract, bool may_reappear) {
  const Shape& shape = contract.shape;
  Batch batch;
  batch.picks = Picks{1, {1, shape.q_len, shape.num_kv_heads, shape.kv_len}, {}};
  for (int64_t i = 0; i < shape.q_len * shape.num_kv_heads * shape.kv_len; ++i) {
    batch.picks->blocks.push_back(static_cast<int32_t>(i % shape.kv_len));
  }
  std::vector<OracleFacts> all;
  for (const std::vector<int32_t>& q : AllIds(shape.q_len, may_reappear)) {
    batch.q_doc_ids = IdRows{1, shape.q_len, q};
    const bool same = shape.q_len == shape.kv_len;
    const std::vector<std::vector<int32_t>> just_q(1, q);
    for (const std::vector<int32_t>& kv : same ? just_q : AllIds(shape.kv_len, may_reappear)) {
      batch.kv_doc_ids = IdRows{1, shape.kv_len, kv};
      all.push_back(MakeOracleFacts(contract, batch, 0).value());
    }
  }
  return all;
}

std::vector<MaskLeak> SlowLeaks(const Contract& contract) {
  const std::vector<OracleFacts> batches = AllBatches(contract, DescribeMask(contract)->documents_may_reappear);
  std::vector<MaskLeak> leaks;
  const auto find = [&](Kind kind, const std::function<bool(int64_t)>& names,
                        const std::function<bool(const OracleFacts&, int64_t, int64_t)>& is_wrong) {
    for (int64_t head = 0; head < contract.shape.num_q_heads; ++head) {
      if (!names(head)) continue;
      for (int64_t i = 0; i < contract.shape.q_len; ++i) {
        for (int64_t j = 0; j < contract.shape.kv_len; ++j) {
          const bool leaks_here = std::any_of(batches.begin(), batches.end(), [&](const OracleFacts& facts) {
            return is_wrong(facts, i, j) && Allowed(contract, facts, head, i, j);
          });
          if (!leaks_here) continue;
          leaks.push_back({kind, head, i, j});
          return;
        }
      }
    }
  };
  find(
      Kind::kLater, [&](int64_t head) { return Names(contract.mask.ForHead(head), TermKind::kCausal); },
      [&](const OracleFacts&, int64_t i, int64_t j) { return j > i + contract.mask.offset; });
  find(
      Kind::kOtherDocument,
      [&](int64_t head) {
        return Names(contract.mask.ForHead(head), TermKind::kDocuments) ||
               Names(contract.mask.ForHead(head), TermKind::kDocumentsEqual);
      },
      [](const OracleFacts& facts, int64_t i, int64_t j) {
        return facts.q_doc[static_cast<size_t>(i)] != facts.kv_doc[static_cast<size_t>(j)];
      });
  return leaks;
}

TEST(MaskLeaks, RandomMasks_AgreeWithEveryBatchOfShortRows) {
  const uint64_t seed = PrintedSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  size_t found = 0;
  for (int round = 0; round < 300; ++round) {
    Contract contract;
    const int64_t q_len = RandomInt(rng, 1, 3);
    const bool same = RandomInt(rng, 0, 1) == 0;
    contract.shape = {.q_len = same ? q_len + 1 : q_len,
                      .kv_len = same ? q_len + 1 : RandomInt(rng, 1, 3),
                      .num_q_heads = 2,
                      .dim_qk = 8,
                      .dim_v = 8};
    contract.score.scale = 1.0;
    contract.mask.offset =
        RandomInt(rng, 0, 2) == 0 ? RandomInt(rng, -3, 3) : contract.shape.kv_len - contract.shape.q_len;
    RandomMaskOptions options{.q_len = contract.shape.q_len, .kv_len = contract.shape.kv_len, .blocks = true};
    options.documents_equal = RandomInt(rng, 0, 1) == 0;
    options.documents = !options.documents_equal;
    do {
      contract.mask.heads.clear();
      const int64_t heads = RandomInt(rng, 1, 2);  // one for both, or one each
      for (int64_t head = 0; head < heads; ++head) contract.mask.heads.push_back(RandomMask(rng, options));
    } while (!Validate(contract).empty());
    const Result<std::vector<MaskLeak>> leaks = FindLeaks(contract);
    ASSERT_TRUE(leaks) << ToText(leaks.error());
    ASSERT_EQ(*leaks, SlowLeaks(contract)) << ToToml(contract);
    found += leaks->size();
  }
  EXPECT_GT(found, 20u) << "the masks are too tame to prove anything";
}

TEST(MaskLeaks, InvalidContract_IsAnError) { EXPECT_FALSE(FindLeaks(Contract())); }

}  // namespace
}  // namespace tessera
