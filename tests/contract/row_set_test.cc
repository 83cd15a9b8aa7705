// The run algebra against plain sets of pairs: exactness, canonical form, and terms against their definitions.
#include "contract/row_set.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "contract/mask_sets.h"
#include "support/proves.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

using Cells = std::vector<uint8_t>;

Cells ToCells(const RowSet& set, int64_t q_len, int64_t kv_len) {
  Cells cells;
  for (int64_t q = 0; q < q_len; ++q) {
    for (int64_t k = 0; k < kv_len; ++k) cells.push_back(set.Contains(q, k) ? 1 : 0);
  }
  return cells;
}

// The same set, given to the builder one row at a time: whatever the algebra did, this must be its canonical form.
RowSet FromCells(const Cells& cells, int64_t q_len, int64_t kv_len) {
  RowSetBuilder builder;
  for (int64_t q = 0; q < q_len; ++q) {
    std::vector<Interval> intervals;
    for (int64_t k = 0; k < kv_len; ++k) {
      if (cells[q * kv_len + k] == 0) continue;
      if (!intervals.empty() && intervals.back().hi.offset == k) {
        ++intervals.back().hi.offset;
      } else {
        intervals.push_back({{static_cast<int32_t>(k), 0}, {static_cast<int32_t>(k + 1), 0}});
      }
    }
    builder.Append(q, q + 1, intervals);
  }
  return builder.Finish();
}

RowSet RandomRuns(std::mt19937_64& rng, int64_t q_len, int64_t kv_len) {
  RowSet set;
  for (int64_t i = RandomInt(rng, 1, 3); i > 0; --i) {
    MaskRun run;
    run.q_begin = RandomInt(rng, 0, q_len - 1);
    run.q_end = RandomInt(rng, run.q_begin, q_len);
    run.kv_begin = RandomInt(rng, 0, kv_len - 1);
    run.kv_end = RandomInt(rng, run.kv_begin, kv_len);
    if (RandomInt(rng, 0, 2) != 0) run.diag_begin = RandomInt(rng, -q_len, kv_len);
    if (RandomInt(rng, 0, 2) != 0) run.diag_end = RandomInt(rng, -q_len, kv_len);
    set = Combine(set, RowSet::FromRun(run), SetOp::kOr);
  }
  return set;
}

TEST(RowSet, RandomAlgebra_EqualsElementwiseLogicAndIsCanonical) {
  Proves("R48");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int i = 0; i < 20000; ++i) {
    const int64_t q_len = RandomInt(rng, 1, 14);
    const int64_t kv_len = RandomInt(rng, 1, 14);
    const RowSet a = RandomRuns(rng, q_len, kv_len);
    const RowSet b = RandomRuns(rng, q_len, kv_len);
    const Cells cells_a = ToCells(a, q_len, kv_len);
    const Cells cells_b = ToCells(b, q_len, kv_len);
    for (const SetOp op : {SetOp::kAnd, SetOp::kOr, SetOp::kMinus}) {
      const RowSet got = Combine(a, b, op);
      Cells want(cells_a.size());
      for (size_t c = 0; c < want.size(); ++c) {
        const bool x = cells_a[c] != 0;
        const bool y = cells_b[c] != 0;
        want[c] = (op == SetOp::kAnd ? x && y : op == SetOp::kOr ? x || y : x && !y) ? 1 : 0;
      }
      ASSERT_EQ(ToCells(got, q_len, kv_len), want) << "seed " << seed << " trial " << i;
      ASSERT_EQ(got, FromCells(want, q_len, kv_len)) << "not canonical: seed " << seed << " trial " << i;
    }
  }
}

TEST(RowSet, ChunkOfOne_IsTheDiagonal) {
  Contract contract;
  contract.shape = {.batch = 1, .q_len = 100, .kv_len = 100, .dim_qk = 4, .dim_v = 4};
  MaskTerm chunk;
  chunk.kind = TermKind::kChunk;
  chunk.first = 1;
  MaskTerm self;
  self.kind = TermKind::kWindow;
  EXPECT_EQ(TermSet(contract, chunk, 0), TermSet(contract, self, 0));
  EXPECT_EQ(TermSet(contract, chunk, 0).slabs().size(), 1U);
}

TEST(RowSet, WindowZero_IsSelfOnlyNotUnlimited) {
  Proves("B29");
  Contract contract;
  contract.shape = {.batch = 1, .q_len = 9, .kv_len = 9, .dim_qk = 4, .dim_v = 4};
  MaskTerm window;
  window.kind = TermKind::kWindow;
  const RowSet set = TermSet(contract, window, 0);
  for (int64_t q = 0; q < 9; ++q) {
    for (int64_t k = 0; k < 9; ++k) EXPECT_EQ(set.Contains(q, k), q == k);
  }
}

TEST(RowSet, MillionTokens_StaysAFewSlabs) {
  Contract contract;
  contract.shape = {.batch = 1, .q_len = 1 << 20, .kv_len = 1 << 20, .dim_qk = 4, .dim_v = 4};
  contract.mask.heads.push_back(*ParseMaskExpr("causal and window(4095, 0) or sink(4)"));
  contract.score.scale = 1;
  const MaskSets sets = *BuildMaskSets(contract);
  EXPECT_LE(sets.classes[0].holding[0].slabs().size(), 4U);
}

}  // namespace
}  // namespace tessera
