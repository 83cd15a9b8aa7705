// Contracts up to and at every limit of docs/limits.md: a lane runs them right, or refuses by a catalogued reason that
// is true of them; it never crashes, and never runs them wrong. Only one or two numbers of a contract are large at a
// time, so that the oracle's work stays small. A lane of some dims and types meets contracts as drawn, of which it
// refuses most, and brought to what it has.
#include "contract/limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "conformance/conformance.h"
#include "support/random_batch.h"

namespace tessera::conformance {
namespace {

class Limits : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Limits, testing::ValuesIn(LanesUnderTest()), LaneTestName);
INSTANTIATE_TEST_SUITE_P(Splash, Limits, testing::Values("splash:pjrt"), LaneTestName);

// Which the stock Splash lane has; of a random mask it refuses nearly all.
constexpr const char* kPlainMasks[] = {"causal", "full", "causal and window(100, 0)"};
bool IsPlain(const Contract& contract) {
  if (contract.mask.heads.size() != 1) return false;
  return std::any_of(std::begin(kPlainMasks), std::end(kPlainMasks), [&](const char* text) {
    return ToText(contract.mask.heads[0]) == ToText(ParseMaskExpr(text).value());
  });
}

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

// Whether what a lane gave as its reason is so.
bool IsTrue(ReasonCode reason, const Contract& contract, const RunOptions& options) {
  const Shape& s = contract.shape;
  const TileSize tile = options.plan.tile.value_or(TileSize{});
  const auto is_any = [](int64_t x, std::initializer_list<int64_t> of) {
    return std::find(of.begin(), of.end(), x) != of.end();
  };
  // A tile counts as no longer than what there is.
  const int64_t tile_q = std::min(tile.q, s.q_len);
  const int64_t tile_kv = std::min(tile.kv, s.kv_len);
  switch (reason) {
    case ReasonCode::kXlaTooLarge:
      return options.lane == "xla_chunked";
    case ReasonCode::kTpuDtype:
      return s.dtype == DType::kF16 || (s.dtype == DType::kF32 && options.lane == "splash");
    case ReasonCode::kTpuHeadDim:
      return !is_any(s.dim_qk, {64, 128, 192, 256}) || !is_any(s.dim_v, {64, 128, 192, 256});
    case ReasonCode::kTpuTile:
      return (tile.q % 128 != 0 && tile.q < s.q_len) || (tile.kv % 128 != 0 && tile.kv < s.kv_len);
    case ReasonCode::kTpuVectorMemory:  // several matrices of f32 scores, and rows of every tensor
      return 4 * (8 * tile_q * tile_kv + 8 * (tile_q + tile_kv) * (s.dim_qk + s.dim_v)) > int64_t{32} << 20;
    case ReasonCode::kScalarMemory:  // a mask of its own for each pair, or a long worklist
      return s.batch * s.num_q_heads + s.q_len / 128 * (s.kv_len / 128) > 1024;
    case ReasonCode::kCudaDtype:
      return s.dtype == DType::kF32;
    case ReasonCode::kCudaHeadDim:
      return !(s.dim_qk == s.dim_v && is_any(s.dim_qk, {64, 128, 256})) && !(s.dim_qk == 192 && s.dim_v == 128);
    case ReasonCode::kCudaTooLong:
      return s.batch * s.num_q_heads * (s.q_len + 127) / 128 * 128 > std::numeric_limits<int32_t>::max();
    case ReasonCode::kSplashMask:
    case ReasonCode::kSplashSegments:
      return !IsPlain(contract);
    case ReasonCode::kSplashEmptyRow:  // the mask does not reach them: too few keys, or an offset
      return s.q_len > s.kv_len || contract.mask.offset != s.kv_len - s.q_len;
    case ReasonCode::kSplashSoftcap:
      return contract.score.softcap > 0.0;
    case ReasonCode::kSplashScore:
      return contract.score.sink_logits ||
             std::exp2(std::round(std::log2(contract.score.scale))) != contract.score.scale;
    default:
      return false;
  }
}

// `reference` and `cpu` run what a contract may say; another lane may also refuse, and says why. Whether it ran.
bool RunOrRefuse(const Setting& setting, const RunOptions& options) {
  const RunOutcome outcome =
      tessera::Run(setting.contract, setting.batch, setting.inputs, TargetOf(setting.lane), options);
  if (!outcome.error) {
    EXPECT_EQ(outcome.receipt.executed, LaneOf(setting.lane));
    ExpectMatchesOracle(setting, outcome.outputs);
    return true;
  }
  EXPECT_EQ(outcome.error->code, ErrorCode::kLaneRefused) << ToText(*outcome.error);
  bool is_explained = false;
  for (const LaneDecision& decision : outcome.receipt.decisions) {
    if (decision.lane != LaneOf(setting.lane) || decision.decision.accepted) continue;
    is_explained = true;
    EXPECT_TRUE(IsTrue(decision.decision.reason, setting.contract, options))
        << ReasonText(decision.decision.reason) << ": " << decision.decision.detail;
  }
  EXPECT_TRUE(is_explained) << ToText(*outcome.error);
  return false;
}

// What would take an interpreter too long: the programs are written, with every table's size in them, and not run.
void LowerOrRefuse(const Setting& setting, const RunOptions& options) {
  const auto programs = LowerPrograms(TestEngine(), setting.contract, setting.batch, TargetOf(setting.lane), options);
  if (programs) {
    EXPECT_EQ(programs->size(), 2U) << "forward and backward";
    return;
  }
  EXPECT_EQ(programs.error().code, ErrorCode::kLaneRefused) << ToText(programs.error());
  const std::string text = ToText(programs.error());
  constexpr ReasonCode kReasons[] = {ReasonCode::kTpuTile, ReasonCode::kTpuVectorMemory, ReasonCode::kScalarMemory,
                                     ReasonCode::kSplashEmptyRow};
  EXPECT_TRUE(std::any_of(std::begin(kReasons), std::end(kReasons), [&](ReasonCode reason) {
    return text.find(ReasonText(reason)) != std::string::npos && IsTrue(reason, setting.contract, options);
  })) << text;
}

bool IsLong(const Shape& s) {
  return s.batch * s.num_q_heads * ((s.q_len + 127) / 128) * ((s.kv_len + 127) / 128) > 24;
}

TEST_P(Limits, RandomContractsUpToThem_RunRightOrAreRefused) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const std::string& lane = GetParam();
  const int rounds = CompilesPerClass(lane) ? 3 : 2 * kNumLarge;
  const int first = static_cast<int>(seed % kNumLarge);
  int num_ran = 0;
  for (int round = 0; round < rounds; ++round) {
    const Drawn drawn = Draw(rng, static_cast<Large>((first + round) % kNumLarge));
    const bool is_as_drawn = HasAnyShape(lane) || RandomInt(rng, 0, 3) == 0;
    Setting setting;
    setting.lane = lane;
    setting.contract = is_as_drawn ? drawn.contract : ForLane(lane, drawn.contract);
    if (lane == "splash:pjrt" && !is_as_drawn) {
      setting.contract.mask.heads = {ParseMaskExpr(kPlainMasks[rng() % std::size(kPlainMasks)]).value()};
      setting.contract.mask.offset = setting.contract.shape.kv_len - setting.contract.shape.q_len;
      setting.contract.score.softcap = 0.0;
      setting.contract.score.sink_logits = false;
    }
    setting.options.backward = true;
    setting.options.row_max = lane != "splash:pjrt";
    setting.options.threads = RandomInt(rng, 1, 3);
    setting.options.plan.tile = drawn.tile;
    RunOptions options = OptionsOf(setting);
    // Tiles of TPU kernels are multiples of 128, or all there is; others are refused.
    if (IsInterpreted(lane)) {
      const int64_t unit = RandomInt(rng, 0, 2) == 0 ? 1 : 128;
      const auto side = [&](int64_t n) { return std::min((n + unit - 1) / unit * unit, kMaxTile); };
      options.plan.tile = TileSize{side(drawn.tile.q), side(drawn.tile.kv)};
    }
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round << ", tile " << drawn.tile.q << "x"
                                    << drawn.tile.kv << "\n"
                                    << ToToml(setting.contract));
    ASSERT_TRUE(Validate(setting.contract).empty());
    if (IsInterpreted(lane) && !is_as_drawn && IsLong(setting.contract.shape)) {
      LowerOrRefuse(setting, options);
    } else {
      setting.inputs = MakeInputs(setting.contract, seed + static_cast<uint64_t>(round), true);
      num_ran += RunOrRefuse(setting, options) ? 1 : 0;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(num_ran > 0 || CompilesPerClass(lane)) << "TESSERA_SEED=" << seed;
}

}  // namespace
}  // namespace tessera::conformance
