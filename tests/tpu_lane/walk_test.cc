// How a row's tiles are taken together: two by two in the forward, a tile's blocks in turn in the backward. Nothing
// here ran on a TPU.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

// Documents of random lengths, which fill the tokens.
Batch RandomDocuments(int64_t tokens, int64_t longest, std::mt19937_64& random) {
  IdRows ids{.rows = 1, .len = tokens, .values = {}};
  int32_t document = 0;
  while (static_cast<int64_t>(ids.values.size()) < tokens) {
    const auto length = static_cast<size_t>(std::uniform_int_distribution<int64_t>(1, longest)(random));
    ids.values.insert(ids.values.end(), length, document++);
  }
  ids.values.resize(static_cast<size_t>(tokens));
  Batch batch;
  batch.doc_ids = std::move(ids);
  return batch;
}

// With a scale of 1 few scores of dim 64 are in range, with the usual one all are.
void ExpectRight(int64_t tokens, int64_t longest, TileSize tile, double scale, double softcap) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  Contract contract;
  contract.shape = {1, tokens, tokens, 2, 1, 64, 64, DType::kBf16};
  contract.mask.heads = {ParseMaskExpr("causal and documents").value()};
  contract.score = {.scale = scale, .softcap = softcap};
  const Batch batch = RandomDocuments(tokens, longest, random);
  const TensorMap inputs = MakeInputs(contract, seed, true);
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.xla.interpret = true;
  options.plan.tile = tile;
  const Target target = FindTarget("v6e").value();
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, batch, inputs, target, options);
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  EXPECT_EQ(outcome.receipt.executed, "xla_pallas");
  CheckOptions check;
  check.arithmetic = Arithmetic::Single();
  const Result<CheckReport> report = CheckOutputs(contract, batch, inputs, outcome.outputs, check);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
}

TEST(Walk, FullAndMaskedTilesTakenByTwo_MatchTheOracle) {
  Proves("R36 R37 R40");
  ExpectRight(777, 700, {128, 128}, 1.0, 0);
  ExpectRight(640, 200, {128, 128}, 0.125, 0);
  ExpectRight(640, 500, {128, 128}, 0.125, 20);  // a softcap that bounds the scores
  ExpectRight(500, 300, {128, 128}, 0.125, 90);  // and one that does not
}

TEST(Walk, BlocksOfATileOf512Keys_MatchTheOracle) {
  Proves("R36 R37 R40");
  ExpectRight(700, 500, {128, 512}, 0.125, 0);
  ExpectRight(600, 300, {256, 512}, 0.5, 20);
}

}  // namespace
}  // namespace tessera
