// Room for the cleanups of any batch: no layout of documents has more of them than was said before there was one.
#include <gtest/gtest.h>

#include "planner/prepared.h"
#include "plans.h"
#include "support/proves.h"
#include "support/random_batch.h"

namespace tessera {
namespace {

planner::CleanupRoom MostOf(const Contract& contract, const PlanOptions& options) {
  const PreparedContract prepared = PrepareContract(contract).value();
  return planner::MostCleanups(prepared, TestTarget(), options).value();
}

void ExpectRoom(const Contract& contract, const Batch& batch, const PlanOptions& options,
                const planner::CleanupRoom& most) {
  const Result<PlanResult> made = MakePlan(contract, batch, TestTarget(), options);
  ASSERT_TRUE(made) << ToText(made.error());
  EXPECT_LE(static_cast<int64_t>(made->plan.view().items.size()), most.items);
  EXPECT_LE(static_cast<int64_t>(made->plan.view().bit_words.size()), most.bit_words);
}

TEST(Room, AnyMaskAndBatch_FitsWhatWasSaidBefore) {
  Proves("R71 R91");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 400; ++round) {
    const MaskSample sample = RandomMaskSample(rng, 60, false);
    PlanOptions options;
    const int64_t tile_q = RandomInt(rng, 1, 20);
    options.tile = TileSize{tile_q, round % 3 == 0 ? tile_q : RandomInt(rng, 1, 20)};
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << "\n"
                                    << ToToml(sample.contract));
    ExpectRoom(sample.contract, sample.batch, options, MostOf(sample.contract, options));
    if (testing::Test::HasFailure()) return;
  }
}

// A static mask has one plan, and the room is exactly its own.
TEST(Room, WithoutConditions_IsThePlansOwn) {
  for (const char* expr : {"causal", "causal and window(9, 0)", "chunk(12) or sink(3)", "full"}) {
    const Contract contract = MakeContract(expr, 70, 70);
    PlanOptions options;
    options.tile = TileSize{16, 16};
    const planner::CleanupRoom most = MostOf(contract, options);
    const PlanResult made = MakePlan(contract, {}, TestTarget(), options).value();
    EXPECT_LE(most.items - static_cast<int64_t>(made.plan.view().items.size()), 4) << expr;  // of full tiles
    EXPECT_GE(most.items, static_cast<int64_t>(made.plan.view().items.size())) << expr;
  }
}

// Documents of one token, of one and many in turn, and boundaries at every place against tiles, in every row another.
std::vector<std::vector<int64_t>> HostileRows(int64_t tokens, int64_t tile, int64_t rows) {
  std::vector<std::vector<int64_t>> all;
  const auto fill = [&](const std::vector<int64_t>& pattern) {
    std::vector<int64_t> row;
    int64_t left = tokens;
    for (size_t i = 0; left > 0; ++i) {
      row.push_back(std::min(left, pattern[i % pattern.size()]));
      left -= row.back();
    }
    all.push_back(std::move(row));
  };
  fill({1});
  fill({1, tile - 1});
  fill({1, 2 * tile + 1});
  fill({tile / 2, 1, 1, tile});
  while (static_cast<int64_t>(all.size()) < rows) {
    const auto at = static_cast<int64_t>(all.size());
    fill({at, tile + 1});  // every place in a tile
  }
  return all;
}

TEST(Room, HostileLayouts_Fit) {
  Proves("R71 R91");
  constexpr int64_t kTokens = 512;
  constexpr int64_t kTile = 32;
  const std::vector<std::vector<int64_t>> rows = HostileRows(kTokens, kTile, 36);
  Batch batch = MakeDocuments(rows);
  for (const char* expr : {"causal and documents", "causal and documents and window(37, 0)",
                           "causal and documents and (window(37, 0) or sink(2, document))",
                           "causal and documents and valid and (window(5, 0) or sink(40, document) or sink(3))"}) {
    SCOPED_TRACE(expr);
    const Contract contract = MakeContract(expr, kTokens, kTokens, static_cast<int64_t>(rows.size()));
    PlanOptions options;
    options.tile = TileSize{kTile, kTile};
    const planner::CleanupRoom most = MostOf(contract, options);
    batch.valid_tokens.reset();
    if (std::string(expr).find("valid") != std::string::npos) {
      batch.valid_tokens.emplace();
      for (size_t i = 0; i < rows.size(); ++i) batch.valid_tokens->push_back(static_cast<int64_t>(14 * i));
    }
    ExpectRoom(contract, batch, options, most);
    EXPECT_LT(most.items, 4096) << "room that a program's tables have anyway";
  }
}

}  // namespace
}  // namespace tessera
