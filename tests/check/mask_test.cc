// The plan-free mask test against the dense oracle, which shares nothing with it, and plans against the mask test.
#include "check/mask_test.h"

#include <gtest/gtest.h>

#include "oracle/oracle.h"
#include "support/proves.h"
#include "support/random_batch.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/planner.h"

namespace tessera {
namespace {

TEST(MaskTest, AnyMaskAnyBatch_SaysWhatTheOracleSays) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 400; ++round) {
    const MaskSample sample = RandomMaskSample(rng);
    const Shape& shape = sample.contract.shape;
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << "\n"
                                    << ToToml(sample.contract));
    for (int64_t b = 0; b < shape.batch; ++b) {
      const Result<check::MaskTest> test = check::MaskTest::Make(sample.contract, sample.batch, b);
      ASSERT_TRUE(test.has_value()) << ToText(test.error());
      const OracleFacts facts = *MakeOracleFacts(sample.contract, sample.batch, b);
      std::vector<uint8_t> cells(static_cast<size_t>(shape.kv_len), 7);
      for (int64_t head = 0; head < shape.num_q_heads; ++head) {
        for (int64_t i = 0; i < shape.q_len; ++i) {
          test->Row(head, i, cells);
          for (int64_t j = 0; j < shape.kv_len; ++j) {
            ASSERT_EQ(cells[static_cast<size_t>(j)], Allowed(sample.contract, facts, head, i, j) ? 1 : 0)
                << "batch row " << b << ", head " << head << ", query " << i << ", key " << j;
          }
        }
      }
    }
  }
}

TEST(MaskTest, BatchThatDoesNotFit_IsRefused) {
  const Contract contract = *ParseContract(R"(
version = 1
[shape]
batch = 2
q_len = 16
kv_len = 16
num_q_heads = 2
num_kv_heads = 1
dim_qk = 4
dim_v = 4
dtype = "f32"
[mask]
expr = "documents and valid and blocks"
)");
  Batch good;
  good.doc_lengths = IntRows{{16}, {3, 5}};
  good.valid_tokens = std::vector<int64_t>{9};
  good.picks = Picks{.block_tokens = 4, .shape = {2, 16, 1, 1}, .blocks = std::vector<int32_t>(32, 0)};
  ASSERT_TRUE(check::MaskTest::Make(contract, good, 1).has_value());
  const auto refused = [&](auto change) {
    Batch bad = good;
    change(bad);
    const Result<check::MaskTest> test = check::MaskTest::Make(contract, bad, 0);
    return !test && test.error().code == ErrorCode::kBatchInvalid;
  };
  EXPECT_TRUE(refused([](Batch& b) { b.doc_lengths->pop_back(); }));
  EXPECT_TRUE(refused([](Batch& b) { b.doc_lengths->front() = {17}; }));
  EXPECT_TRUE(refused([](Batch& b) { b.doc_ids = IdRows{2, 15, std::vector<int32_t>(30)}; }));
  EXPECT_TRUE(refused([](Batch& b) { b.valid_tokens = std::vector<int64_t>{1, 2, 3}; }));
  EXPECT_TRUE(refused([](Batch& b) { b.picks->shape[1] = 15; }));
  EXPECT_TRUE(refused([](Batch& b) { b.picks->blocks.pop_back(); }));
  EXPECT_TRUE(refused([](Batch& b) { b.picks.reset(); }));
  EXPECT_FALSE(check::MaskTest::Make(contract, good, 2).has_value());
}

bool SameMask(const MaskSample& a, const MaskSample& b) {
  for (int64_t row = 0; row < a.contract.shape.batch; ++row) {
    for (int64_t head = 0; head < a.contract.shape.num_q_heads; ++head) {
      if (*DenseMask(a.contract, a.batch, row, head) != *DenseMask(b.contract, b.batch, row, head)) return false;
    }
  }
  return true;
}

Result<PlanResult> PlanOf(const MaskSample& sample) {
  PlanOptions options;
  options.tile = TileSize{8, 8};
  return MakePlan(sample.contract, sample.batch, *FindTarget("cpu"), options);
}

// A plan of another mask passes exactly when that mask happens to be the same, pair by pair.
TEST(CheckMask, PlanOfAnotherMask_IsFound) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  int wrong = 0;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round);
    const MaskSample right = RandomMaskSample(rng, 40);
    MaskSample planted = right;
    // One pair more or less, of one head; then, of any mask at all.
    Bitmap bitmap;
    bitmap.q_len = right.contract.shape.q_len;
    bitmap.kv_len = right.contract.shape.kv_len;
    bitmap.cells.assign(static_cast<size_t>(bitmap.q_len * bitmap.kv_len), round % 2 == 0 ? 1 : 0);
    bitmap.cells[rng() % bitmap.cells.size()] ^= 1;
    bitmap.digest = "0123456789abcdef0123456789abcdef";
    MaskTerm term;
    term.kind = TermKind::kBitmap;
    term.path = "planted.npy";
    term.bitmap = std::make_shared<const Bitmap>(bitmap);
    MaskExpr& expr = planted.contract.mask.heads[rng() % planted.contract.mask.heads.size()];
    expr = JoinMasks(round % 2 == 0 ? MaskExpr::Op::kAnd : MaskExpr::Op::kOr,
                     {expr, MaskExpr{.op = MaskExpr::Op::kTerm, .term = term, .children = {}}});
    const Result<PlanResult> plan = PlanOf(planted);
    if (!plan) continue;  // the joined mask may have too many run-time terms
    const bool is_same = SameMask(right, planted);
    wrong += is_same ? 0 : 1;
    const Result<MaskCheck> check = CheckMask(right.contract, right.batch, plan->plan.view());
    ASSERT_TRUE(check.has_value()) << ToText(check.error());
    EXPECT_EQ(check->pass, is_same) << check->text;
    EXPECT_FALSE(check->sampled);
    const Result<PlanResult> good = PlanOf(right);
    ASSERT_TRUE(good.has_value()) << ToText(good.error());
    const Result<MaskCheck> good_check = CheckMask(right.contract, right.batch, good->plan.view());
    ASSERT_TRUE(good_check.has_value()) << ToText(good_check.error());
    EXPECT_TRUE(good_check->pass) << good_check->text;
  }
  EXPECT_GT(wrong, 40) << "too few of the planted pairs made a difference";
}

TEST(CheckMask, TooManyPairs_ComparesSpreadRowsInEveryDirection) {
  const auto contract_of = [](const std::string& mask) {
    return *ParseContract(
        "version = 1\n[shape]\nbatch = 1\nq_len = 300\nkv_len = 300\nnum_q_heads = 2\n"
        "num_kv_heads = 1\ndim_qk = 4\ndim_v = 4\ndtype = \"f32\"\n[mask]\nexpr = \"" +
        mask + "\"\n");
  };
  const MaskSample right{contract_of("causal and window(99, 0)"), {}};
  const MaskSample wrong{contract_of("causal and window(98, 0)"), {}};
  const auto check = [&](const MaskSample& planned) {
    return *CheckMask(right.contract, {}, PlanOf(planned)->plan.view(), /*max_pairs=*/1);
  };
  EXPECT_TRUE(check(right).pass);
  EXPECT_TRUE(check(right).sampled);
  EXPECT_NE(check(right).text.find("forward, dq and dkv"), std::string::npos) << check(right).text;
  EXPECT_FALSE(check(wrong).pass);
  EXPECT_NE(check(wrong).text.find("the plan forbids the pair and the mask allows it"), std::string::npos);
  EXPECT_FALSE(CheckMask(contract_of("full"), {}, PlanOf(right)->plan.view()).value().pass);
  Contract other = right.contract;
  other.shape.q_len = 299;
  EXPECT_FALSE(CheckMask(other, {}, PlanOf(right)->plan.view()).has_value());
}

}  // namespace
}  // namespace tessera
