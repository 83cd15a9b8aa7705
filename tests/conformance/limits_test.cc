// Contracts up to and at every limit of docs/limits.md: a lane that has any shape runs them right, or refuses by a
// catalogued reason; it never crashes, and never runs them wrong. Only one or two numbers of a contract are large at a
// time, so that the oracle's work stays small.
#include "contract/limits.h"

#include <gtest/gtest.h>

#include <bit>

#include "conformance/conformance.h"
#include "support/random_batch.h"

namespace tessera::conformance {
namespace {

class Limits : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Limits, testing::ValuesIn(HostLanes()), LaneTestName);

// The limit itself, its neighbours, powers of two and theirs, and anything between on a scale of magnitudes.
int64_t UpTo(std::mt19937_64& rng, int64_t most) {
  const int64_t bits = 64 - std::countl_zero(static_cast<uint64_t>(most));
  const int64_t power = int64_t{1} << RandomInt(rng, 0, bits - 1);
  switch (RandomInt(rng, 0, 4)) {
    case 0:
      return most;
    case 1:
      return std::clamp<int64_t>(most - RandomInt(rng, 0, 2), 1, most);
    case 2:
      return std::clamp<int64_t>(power + RandomInt(rng, -1, 1), 1, most);
    default:
      return std::clamp<int64_t>(power + RandomInt(rng, 0, power - 1), 1, most);
  }
}

// Numbers in masks: windows, chunks, prefixes, sinks, up to the largest and with the odd ones.
std::string LargeMask(std::mt19937_64& rng, int64_t kv_len) {
  const auto number = [&] { return std::to_string(UpTo(rng, kMaxLength)); };
  const auto window = [&] { return RandomInt(rng, 0, 2) == 0 ? std::to_string(RandomInt(rng, -1, kv_len)) : number(); };
  switch (RandomInt(rng, 0, 6)) {
    case 0:
      return "window(" + window() + ", " + window() + ")";
    case 1:
      return "causal and window(" + window() + ", 0) or sink(" + number() + ")";
    case 2:
      return "chunk(" + number() + ")";
    case 3:
      return "prefix(" + number() + ") or causal";
    case 4:
      return "sink(" + number() + ") and window(" + window() + ", " + window() + ")";
    case 5:
      return "full";
    default:
      return "causal";
  }
}

struct Drawn {
  Contract contract;
  TileSize tile;
};

// What is large in a draw; everything else is small.
enum class Large { kDimQk, kDimV, kBothDims, kHeads, kKvHeads, kGroup, kBatch, kQLen, kKvLen, kTiles, kMask };
constexpr int kNumLarge = 11;

Drawn Draw(std::mt19937_64& rng, Large large) {
  constexpr int64_t kMostElements = 1 << 15;  // of a tensor
  const auto flip = [&] { return RandomInt(rng, 0, 1) == 1; };
  Small small{.q_len = RandomInt(rng, 1, 4),
              .kv_len = RandomInt(rng, 1, 4),
              .batch = 1,
              .num_q_heads = 1,
              .num_kv_heads = 1,
              .dim_qk = RandomInt(rng, 1, 3),
              .dim_v = RandomInt(rng, 1, 3),
              .dtype = static_cast<DType>(RandomInt(rng, 0, 2)),
              .softcap = flip() ? 0.0 : 4.0,
              .sink_logits = flip()};
  int64_t offset = 0;
  switch (large) {
    case Large::kDimQk:
      small.dim_qk = UpTo(rng, kMaxDim);
      break;
    case Large::kDimV:
      small.dim_v = UpTo(rng, kMaxDim);
      break;
    case Large::kBothDims:
      small.dim_qk = UpTo(rng, kMaxDim);
      small.dim_v = flip() ? small.dim_qk : UpTo(rng, kMaxDim);
      break;
    case Large::kHeads:
      small.num_q_heads = small.num_kv_heads = UpTo(rng, kMaxHeads);
      break;
    case Large::kKvHeads:
      small.num_kv_heads = UpTo(rng, kMaxHeads / 4);
      small.num_q_heads = small.num_kv_heads * RandomInt(rng, 1, 4);
      break;
    case Large::kGroup:
      small.num_q_heads = UpTo(rng, kMaxHeads);
      break;
    case Large::kBatch:
      small.batch = UpTo(rng, kMaxBatch);
      break;
    case Large::kQLen:
      small.q_len = UpTo(rng, kMostElements);
      break;
    case Large::kKvLen:
      small.kv_len = UpTo(rng, kMostElements);
      break;
    case Large::kTiles:
    case Large::kMask:
      small.q_len = RandomInt(rng, 1, 200);
      small.kv_len = RandomInt(rng, 1, 200);
      break;
  }
  // Many heads or rows: little for each.
  if (small.batch * small.num_q_heads > 4096) {
    small.q_len = 1;
    small.kv_len = RandomInt(rng, 1, 2);
    small.dim_qk = small.dim_v = 1;
  }
  if (large == Large::kMask || flip()) {
    small.mask = LargeMask(rng, small.kv_len);
    offset = flip() ? 0 : RandomInt(rng, -1, 1) * UpTo(rng, kMaxLength);
  }
  Drawn drawn;
  drawn.contract = MakeContract(small);
  if (offset != 0) drawn.contract.mask.offset = offset;
  drawn.tile = {RandomInt(rng, 16, 64), RandomInt(rng, 16, 64)};
  // A tile of one direction may be as large as any; so may both.
  if (large == Large::kTiles || RandomInt(rng, 0, 3) == 0) {
    drawn.tile = {std::max<int64_t>(UpTo(rng, kMaxTile), 16), std::max<int64_t>(UpTo(rng, kMaxTile), 16)};
  }
  if (large == Large::kQLen) drawn.tile.q = std::max<int64_t>(drawn.tile.q, small.q_len / 1024);
  if (large == Large::kKvLen) drawn.tile.kv = std::max<int64_t>(drawn.tile.kv, small.kv_len / 1024);
  return drawn;
}

// `reference` and `cpu` run what a contract may say; another lane may also refuse, and says why.
void RunOrRefuse(const Setting& setting) {
  const RunOutcome outcome =
      tessera::Run(setting.contract, setting.batch, setting.inputs, CpuTarget(), OptionsOf(setting));
  if (!outcome.error) {
    EXPECT_EQ(outcome.receipt.executed, LaneOf(setting.lane));
    ExpectMatchesOracle(setting, outcome.outputs);
    return;
  }
  EXPECT_EQ(outcome.error->code, ErrorCode::kLaneRefused) << ToText(*outcome.error);
  EXPECT_TRUE(CompilesPerClass(setting.lane)) << ToText(*outcome.error);
  for (const LaneDecision& decision : outcome.receipt.decisions) {
    if (decision.lane != LaneOf(setting.lane)) continue;
    EXPECT_FALSE(decision.decision.accepted);
    EXPECT_EQ(decision.decision.reason, ReasonCode::kXlaTooLarge) << decision.decision.detail;
  }
}

TEST_P(Limits, RandomContractsUpToThem_RunRightOrAreRefused) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const int rounds = CompilesPerClass(GetParam()) ? 3 : 2 * kNumLarge;
  const int first = static_cast<int>(seed % kNumLarge);
  for (int round = 0; round < rounds; ++round) {
    const Drawn drawn = Draw(rng, static_cast<Large>((first + round) % kNumLarge));
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << ", tile " << drawn.tile.q << "x"
                                    << drawn.tile.kv << "\n"
                                    << ToToml(drawn.contract));
    ASSERT_TRUE(Validate(drawn.contract).empty());
    Setting setting = MakeSetting(GetParam(), drawn.contract, {}, seed + static_cast<uint64_t>(round));
    setting.options.plan.tile = drawn.tile;
    setting.options.threads = RandomInt(rng, 1, 3);
    RunOrRefuse(setting);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::conformance
