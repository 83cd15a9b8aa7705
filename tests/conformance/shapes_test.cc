// Shapes that kernels are built for and shapes that none is: every head dim at every dtype, odd tiles, random masks
// with random everything, against the oracle; and every single cell of a mask, exactly.
#include <gtest/gtest.h>

#include <tuple>

#include "conformance/conformance.h"
#include "oracle/oracle.h"
#include "support/random_batch.h"

namespace tessera::conformance {
namespace {

struct Dims {
  int64_t qk = 0;
  int64_t v = 0;
};
constexpr Dims kDims[] = {{1, 1},   {3, 3},     {7, 5},     {16, 16},   {33, 31},   {64, 64},   {80, 80},   {96, 96},
                          {100, 9}, {128, 128}, {127, 129}, {192, 128}, {256, 256}, {257, 255}, {511, 512}, {512, 511}};
constexpr TileSize kTiles[] = {{16, 16}, {100, 36},  {16, 512}, {512, 16}, {64, 64},
                               {17, 33}, {128, 128}, {256, 64}, {36, 100}, {512, 512}};

class Shapes : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Shapes, testing::ValuesIn(LanesUnderTest()), LaneTestName);

TEST_P(Shapes, EveryDimAndDtype_MatchesOracle) {
  Proves("R38 R10");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  size_t turn = static_cast<size_t>(seed % std::size(kTiles));
  for (const Dims& dims : kDims) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      const TileSize tile = kTiles[turn++ % std::size(kTiles)];
      if (CompilesPerClass(GetParam()) && turn % 21 != 0) continue;
      if (IsInterpreted(GetParam()) && turn % 4 != 0) continue;
      SCOPED_TRACE(testing::Message() << "dims " << dims.qk << "/" << dims.v << " " << ToText(dtype) << " tile "
                                      << tile.q << "x" << tile.kv << " TESSERA_SEED=" << seed);
      const bool is_square = RandomInt(rng, 0, 1) == 0;
      const int64_t q_len = RandomInt(rng, 20, 70);
      const Contract contract =
          MakeContract({.mask = is_square ? "causal and window(30, 0) and documents or sink(2)" : "causal",
                        .q_len = q_len,
                        .kv_len = is_square ? q_len : RandomInt(rng, 20, 90),
                        .num_q_heads = 2,
                        .num_kv_heads = RandomInt(rng, 1, 2),
                        .dim_qk = dims.qk,
                        .dim_v = dims.v,
                        .dtype = dtype,
                        .softcap = turn % 3 == 0 ? 3.0 : 0.0,
                        .sink_logits = turn % 2 == 0});
      const Batch batch = is_square ? DocumentBatch(contract, {11, q_len - 16}) : Batch{};
      Setting setting = MakeSetting(GetParam(), contract, batch, seed + turn);
      setting.options.plan.tile = tile;
      setting.options.threads = RandomInt(rng, 1, 3);
      setting.options.layout = Layout::kBhtd;
      RunAndCheck(setting);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_P(Shapes, GroupsOfHeads_MatchOracle) {
  Proves("R43");
  const uint64_t seed = PrintedSeed();
  using Heads = std::pair<int64_t, int64_t>;
  for (const auto& [q_heads, kv_heads] :
       SomeOf<Heads>(GetParam(), seed, {{8, 1}, {8, 2}, {6, 2}, {5, 5}, {7, 1}, {1, 1}})) {
    for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kF32, DType::kBf16})) {
      SCOPED_TRACE(testing::Message() << q_heads << "/" << kv_heads << " " << ToText(dtype));
      Setting setting = MakeSetting(GetParam(),
                                    MakeContract({.mask = "causal and window(25, 3)",
                                                  .q_len = 45,
                                                  .kv_len = 60,
                                                  .batch = 2,
                                                  .num_q_heads = q_heads,
                                                  .num_kv_heads = kv_heads,
                                                  .dim_qk = 64,
                                                  .dim_v = 64,
                                                  .dtype = dtype}),
                                    {}, seed);
      setting.options.threads = 2;
      RunAndCheck(setting);
    }
  }
}

// Few rows of tiles on one side and long ones: what a lane that cuts rows into parts must put together again.
TEST_P(Shapes, FewAgainstMany_MatchOracle) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  struct Lengths {
    int64_t q, kv, heads, kv_heads;
  };
  for (const Lengths& at :
       SomeOf<Lengths>(GetParam(), seed, {{1, 2000, 4, 1}, {37, 1500, 2, 2}, {1400, 50, 4, 1}, {700, 600, 8, 1}})) {
    for (const char* mask : {"causal", "causal and window(1100, 5) or sink(3)"}) {
      SCOPED_TRACE(testing::Message() << at.q << "x" << at.kv << " " << mask << " TESSERA_SEED=" << seed);
      if (LaneOf(GetParam()) != "cuda" && at.q > 1) continue;  // it alone cuts these; the oracle takes seconds
      const bool is_wide = rng() % 2 == 0;
      Setting setting = MakeSetting(GetParam(),
                                    MakeContract({.mask = mask,
                                                  .q_len = at.q,
                                                  .kv_len = at.kv,
                                                  .num_q_heads = at.heads,
                                                  .num_kv_heads = at.kv_heads,
                                                  .dim_qk = is_wide ? 256 : 64,
                                                  .dim_v = is_wide ? 256 : 64,
                                                  .dtype = rng() % 2 == 0 ? DType::kBf16 : DType::kF16,
                                                  .softcap = rng() % 3 == 0 ? 5.0 : 0.0,
                                                  .sink_logits = rng() % 2 == 0}),
                                    {}, seed);
      setting.options.threads = 2;
      RunAndCheck(setting);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Any mask of any nesting, with everything else at random too.
TEST_P(Shapes, RandomContracts_MatchOracle) {
  Proves("R9");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const auto flip = [&] { return RandomInt(rng, 0, 1) == 1; };
  for (int round = 0; round < RoundsOf(GetParam(), IsSlow(GetParam()) ? 60 : 200); ++round) {
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round);
    MaskSample sample = RandomMaskSample(rng, 150);
    Contract& contract = sample.contract;
    const Dims& dims = kDims[rng() % std::size(kDims)];
    contract.shape.dim_qk = dims.qk > 256 ? 65 : dims.qk;
    contract.shape.dim_v = flip() ? contract.shape.dim_qk : RandomInt(rng, 1, 130);
    contract.shape.dtype = static_cast<DType>(RandomInt(rng, 0, 2));
    contract.score.scale = 1.0 / std::sqrt(static_cast<double>(contract.shape.dim_qk));
    contract.score.softcap = flip() ? 0.0 : 2.5;
    contract.score.sink_logits = flip();
    contract = ForLane(GetParam(), std::move(contract));
    SCOPED_TRACE(ToToml(contract));
    Setting setting = MakeSetting(GetParam(), contract, sample.batch, seed + static_cast<uint64_t>(round));
    const TileSize& tile = kTiles[rng() % std::size(kTiles)];
    setting.options.plan.tile = flip() ? tile : TileSize{RandomInt(rng, 16, 128), RandomInt(rng, 16, 128)};
    setting.options.threads = RandomInt(rng, 1, 4);
    if (flip()) {
      setting.options.layout = Layout::kBthd;
      setting.inputs = MakeInputs(contract, seed, true, Layout::kBthd);
    }
    RunAndCheck(setting);
    if (testing::Test::HasFailure()) return;
  }
}

// Keys and values are unit vectors, so that each column of an output stands for one cell of the mask: zero if and only
// if the cell is forbidden. No tolerance can hide a wrong cell here, forward or backward.
TEST_P(Shapes, EveryCell_IsTheMasks) {
  Proves("R9");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < RoundsOf(GetParam(), IsSlow(GetParam()) ? 40 : 150); ++round) {
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round);
    MaskSample sample = RandomMaskSample(rng, round % 5 == 0 ? 110 : 48);
    Contract& contract = sample.contract;
    const Shape& s = contract.shape;
    contract.shape.num_kv_heads = s.num_q_heads;
    if (sample.batch.picks) sample.batch.picks = RandomPicks(rng, contract);
    contract.shape.dim_qk = contract.shape.dim_v = std::max(s.q_len, s.kv_len);
    contract.shape.dtype = static_cast<DType>(RandomInt(rng, 0, 2));
    contract = ForLane(GetParam(), std::move(contract));
    contract.score.scale = 1.0;
    SCOPED_TRACE(ToToml(contract));
    Setting setting = MakeSetting(GetParam(), contract, sample.batch, seed + 1);
    setting.options.plan.tile = kTiles[rng() % std::size(kTiles)];
    setting.options.threads = RandomInt(rng, 1, 3);
    const auto set_unit_rows = [&](const char* name) {
      Tensor& tensor = setting.inputs.at(name);
      const int64_t len = tensor.shape[2];
      const int64_t dim = tensor.shape[3];
      for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, i % dim == i / dim % len ? 1.0 : 0.0);
    };
    // First o and dv: o[i][j] = p[i][j], and dv[j][i] = p[i][j]. Then dq and dk, which hold dS: zero where a dP happens
    // to be the row's mean, so that an allowed cell must show in one of two draws and a forbidden one in none.
    for (const char* name : {"q", "k", "v", "do"}) set_unit_rows(name);
    const RunOutcome first = RunSetting(setting);
    std::vector<RunOutcome> draws;
    for (const uint64_t draw : {1, 2}) {
      const TensorMap random = MakeInputs(contract, seed + draw, true);
      for (const char* name : {"v", "do"}) setting.inputs.at(name) = random.at(name);
      draws.push_back(RunSetting(setting));
    }
    if (IsRefused(first)) continue;
    ASSERT_FALSE(first.error || draws[0].error || draws[1].error);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.num_q_heads; ++h) {
        const Result<std::vector<uint8_t>> mask = DenseMask(contract, sample.batch, b, h);
        ASSERT_TRUE(mask.has_value()) << ToText(mask.error());
        for (int64_t i = 0; i < s.q_len; ++i) {
          const auto row = mask->begin() + i * s.kv_len;
          const int64_t seen = std::count(row, row + s.kv_len, uint8_t{1});
          for (int64_t j = 0; j < s.kv_len; ++j) {
            const int64_t at_q = ((b * s.num_q_heads + h) * s.q_len + i) * s.dim_qk + j;
            const int64_t at_k = ((b * s.num_q_heads + h) * s.kv_len + j) * s.dim_qk + i;
            const bool may_see = row[j] != 0;
            const auto shows = [&](const RunOutcome& outcome, const char* name, int64_t at) {
              return outcome.outputs.at(name).At(at) != 0.0;
            };
            const auto place = [&](const char* name) {
              return testing::Message() << name << ": batch row " << b << ", head " << h << ", query " << i << ", key "
                                        << j << " is " << (may_see ? "allowed" : "forbidden");
            };
            ASSERT_EQ(shows(first, "o", at_q), may_see) << place("o");
            ASSERT_EQ(shows(first, "dv", at_k), may_see) << place("dv");
            if (may_see && seen == 1) continue;  // dS of a row's only key is zero
            ASSERT_EQ(shows(draws[0], "dq", at_q) || shows(draws[1], "dq", at_q), may_see) << place("dq");
            ASSERT_EQ(shows(draws[0], "dk", at_k) || shows(draws[1], "dk", at_k), may_see) << place("dk");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::conformance
