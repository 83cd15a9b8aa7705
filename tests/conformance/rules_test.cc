// The rules of the score and of empty rows, each against numbers worked out here by hand or by a second run.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/conformance.h"
#include "oracle/oracle.h"

namespace tessera::conformance {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class Rules : public EveryLane {};
INSTANTIATE_TEST_SUITE_P(Lanes, Rules, testing::ValuesIn(LanesUnderTest()), LaneTestName);

// One query, three keys, one dimension; the mask keeps the first two keys.
Setting TinySetting(const std::string& lane, double softcap, bool sink) {
  Contract contract = MakeContract({.mask = "sink(2)",
                                    .q_len = 1,
                                    .kv_len = 3,
                                    .num_q_heads = 1,
                                    .dim_qk = 1,
                                    .dim_v = 1,
                                    .softcap = softcap,
                                    .sink_logits = sink});
  contract.score.scale = 0.5;
  Setting setting = MakeSetting(lane, contract, {}, 1);
  const auto set = [&](const char* name, std::vector<double> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      setting.inputs.at(name).Set(static_cast<int64_t>(i), values[i]);
    }
  };
  set("q", {2.0});
  set("k", {1.0, 3.0, 100.0});
  set("v", {10.0, 20.0, 1e6});
  set("do", {1.0});
  if (sink) set("sink_logits", {1.5});
  return setting;
}

TEST_P(Rules, ScaleThenSoftcapThenMask_ByHand) {
  Proves("R37");
  if (!HasAnyShape(GetParam())) GTEST_SKIP() << "it has no dim of one, which this is worked out for";
  for (const double softcap : {0.0, 2.0}) {
    const Setting setting = TinySetting(GetParam(), softcap, false);
    const RunOutcome outcome = RunAndCheck(setting);
    ASSERT_FALSE(outcome.error.has_value());
    // Scores 2 * 1 * 0.5 and 2 * 3 * 0.5; the cap acts on the scaled score, and the third key does not exist.
    const double a = softcap == 0.0 ? 1.0 : 2.0 * std::tanh(0.5);
    const double b = softcap == 0.0 ? 3.0 : 2.0 * std::tanh(1.5);
    const double total = std::exp(a) + std::exp(b);
    EXPECT_NEAR(outcome.outputs.at("o").At(0), (10.0 * std::exp(a) + 20.0 * std::exp(b)) / total, 1e-5);
    EXPECT_NEAR(outcome.outputs.at("lse").At(0), std::log(total), 1e-6);
    EXPECT_NEAR(outcome.outputs.at("max").At(0), b, 1e-6);
  }
}

TEST_P(Rules, SinkLogit_OneMoreTermInTheDenominator) {
  if (!HasAnyShape(GetParam())) GTEST_SKIP() << "it has no dim of one, which this is worked out for";
  const RunOutcome outcome = RunAndCheck(TinySetting(GetParam(), 0.0, true));
  ASSERT_FALSE(outcome.error.has_value());
  const double total = std::exp(1.0) + std::exp(3.0) + std::exp(1.5);
  const double o = (10.0 * std::exp(1.0) + 20.0 * std::exp(3.0)) / total;
  EXPECT_NEAR(outcome.outputs.at("o").At(0), o, 1e-5);
  EXPECT_NEAR(outcome.outputs.at("lse").At(0), std::log(total), 1e-6);
  EXPECT_NEAR(outcome.outputs.at("max").At(0), 3.0, 1e-6) << "the sink is not a key";
  EXPECT_NEAR(outcome.outputs.at("dsink_logits").At(0), -std::exp(1.5) / total * o, 1e-5);
}

TEST_P(Rules, SoftcapOfEachCall_IsItsOwn) {
  Proves("R37 R42 B5");
  const uint64_t seed = PrintedSeed();
  std::vector<TensorMap> outputs;
  for (const double softcap : {0.0, 1.0, 0.0, 3.0, 1.0}) {
    const Contract contract = MakeContract({.softcap = softcap});
    outputs.push_back(RunAndCheck(MakeSetting(GetParam(), contract, {}, seed)).outputs);
  }
  EXPECT_TRUE(outputs[0] == outputs[2]) << "a capped call left something behind";
  EXPECT_TRUE(outputs[1] == outputs[4]);
  EXPECT_FALSE(outputs[0].at("o") == outputs[1].at("o"));
  EXPECT_FALSE(outputs[1].at("o") == outputs[3].at("o"));
  EXPECT_FALSE(outputs[0].at("dq") == outputs[1].at("dq")) << "the backward must use the cap too";
}

TEST_P(Rules, Softcap_AddsNoPassAndNoScoreSizedMemory) {
  Proves("R36");
  const auto receipt_of = [&](int64_t len, double softcap) {
    Contract contract = MakeContract({.q_len = len, .kv_len = len, .num_q_heads = 1, .softcap = softcap});
    // Rows of a few heads are cut for a GPU, and parts have memory of their own: as many as it has multiprocessors,
    // whatever the length. With many heads there are none.
    if (LaneOf(GetParam()) == "cuda") contract.shape.num_q_heads = contract.shape.num_kv_heads = 64;
    Setting setting = MakeSetting(GetParam(), contract, {}, 3);
    setting.options.threads = 1;
    return RunSetting(setting).receipt;
  };
  const Receipt plain = receipt_of(500, 0.0);
  const Receipt capped = receipt_of(500, 5.0);
  EXPECT_EQ(plain.tiles_executed, capped.tiles_executed);
  EXPECT_EQ(plain.tiles_executed_backward, capped.tiles_executed_backward);
  EXPECT_EQ(plain.workspace_bytes, capped.workspace_bytes);
  if (IsInterpreted(GetParam())) return;  // its workspace is a number for each row, and 2000 tokens take it long
  const Receipt longer = receipt_of(2000, 5.0);
  EXPECT_LE(longer.workspace_bytes, 4 * capped.workspace_bytes) << "scores of four times the length would be sixteen";
}

TEST_P(Rules, LowPrecisionInputs_RoundedOnceAtTheEnd) {
  Proves("R38");
  const uint64_t seed = PrintedSeed();
  for (const DType dtype : SomeOf<DType>(GetParam(), seed, {DType::kBf16, DType::kF16})) {
    const Contract contract = MakeContract({.q_len = 200, .kv_len = 200, .dtype = dtype});
    const Setting setting = MakeSetting(GetParam(), contract, {}, seed);
    const RunOutcome outcome = RunAndCheck(setting);
    ASSERT_FALSE(outcome.error.has_value());
    EXPECT_EQ(outcome.outputs.at("o").type, ToElementType(setting.contract.shape.dtype));
    EXPECT_EQ(outcome.outputs.at("lse").type, ElementType::kF32) << "statistics are never cast down";
    if (!IsBitwise(GetParam())) continue;
    // Double arithmetic and one cast: the output is the oracle's value, rounded, but for ties broken by 1e-16.
    const Result<OracleForwardResult> want = OracleForward(setting.contract, {}, setting.inputs);
    ASSERT_TRUE(want.has_value());
    Tensor rounded = outcome.outputs.at("o");
    for (int64_t i = 0; i < rounded.NumElements(); ++i) rounded.Set(i, want->o.value[static_cast<size_t>(i)]);
    EXPECT_TRUE(rounded == outcome.outputs.at("o"));
  }
}

TEST_P(Rules, WindowBoundary_IsInclusive) {
  Proves("R39 B18");
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kRow = 40;
  for (const int64_t width : SomeOf<int64_t>(GetParam(), seed, {0, 5, 16})) {
    const Contract contract =
        MakeContract({.mask = "causal and window(" + std::to_string(width) + ", 0)", .q_len = 60, .kv_len = 60});
    const Setting setting = MakeSetting(GetParam(), contract, {}, seed);
    const RunOutcome before = RunAndCheck(setting);
    const auto row_after_changing = [&](int64_t key) {
      Setting changed = setting;
      FillToken(changed.inputs.at("v"), {0, key}, 50.0);
      return TokenBytes(RunSetting(changed).outputs.at("o"), {0, kRow});
    };
    const std::vector<std::byte> row = TokenBytes(before.outputs.at("o"), {0, kRow});
    EXPECT_NE(row_after_changing(kRow - width), row) << "row - column == " << width << " is inside";
    EXPECT_EQ(row_after_changing(kRow - width - 1), row) << "one more is outside";
    EXPECT_EQ(row_after_changing(kRow + 1), row);
  }
}

TEST_P(Rules, WindowUnderNewDocuments_SameContractAndClass) {
  Proves("R39 R40 B18");
  const uint64_t seed = PrintedSeed();
  const Contract contract = MakeContract({.mask = "causal and window(9, 0) and documents", .q_len = 64, .kv_len = 64});
  const RunOutcome first = RunAndCheck(MakeSetting(GetParam(), contract, DocumentBatch(contract, {30, 34}), seed));
  const RunOutcome second = RunAndCheck(MakeSetting(GetParam(), contract, DocumentBatch(contract, {7, 57}), seed));
  EXPECT_EQ(first.receipt.contract_key, second.receipt.contract_key);
  EXPECT_EQ(first.receipt.class_key, second.receipt.class_key);
  EXPECT_FALSE(first.outputs == second.outputs) << "the ids must matter";
}

TEST_P(Rules, LongDocuments_PlanFarSmallerThanTheMask) {
  Proves("R40");
  const Contract contract =
      MakeContract({.mask = "causal and documents", .q_len = 1000, .kv_len = 1000, .dim_qk = 2, .dim_v = 2});
  Setting setting = MakeSetting(GetParam(), contract, DocumentBatch(contract, {301, 400, 299}), 5);
  setting.options.plan.tile = TileSize{128, 128};
  const RunOutcome outcome = RunAndCheck(setting);
  EXPECT_LT(outcome.receipt.plan_bytes, 1000 * 1000 / 8) << "a bit per pair would be a dense mask";
}

TEST_P(Rules, DocumentBoundaryAtEveryOffset_MatchesOracle) {
  Proves("R5");
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kLen = 37;
  std::vector<int64_t> boundaries(kLen - 1);
  std::iota(boundaries.begin(), boundaries.end(), 1);
  if (IsInterpreted(GetParam())) boundaries = SomeOf(GetParam(), seed, boundaries, 5);
  for (const int64_t boundary : boundaries) {
    SCOPED_TRACE(boundary);
    const Contract contract = MakeContract({.mask = "causal and documents", .q_len = kLen, .kv_len = kLen});
    RunAndCheck(MakeSetting(GetParam(), contract, DocumentBatch(contract, {boundary, kLen - boundary}), seed));
  }
}

TEST_P(Rules, EveryShortLength_MatchesOracle) {
  Proves("R10");
  const uint64_t seed = PrintedSeed();
  std::vector<int64_t> lengths(50);
  std::iota(lengths.begin(), lengths.end(), 1);
  for (const int64_t len : SomeOf(GetParam(), seed, lengths, IsInterpreted(GetParam()) ? 5 : 1)) {
    SCOPED_TRACE(len);
    const Small small{.mask = "causal and window(20, 0)", .q_len = len, .kv_len = len};
    RunAndCheck(MakeSetting(GetParam(), MakeContract(small), {}, seed));
  }
}

// Lengths that divide no tile: what is left over is padded in and discarded out, and its last token counts as any does.
TEST_P(Rules, LengthsThatDivideNoTile_AreNeverTruncated) {
  Proves("R7");
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kQ = 37;
  constexpr int64_t kKv = 53;
  const Contract contract = MakeContract({.mask = "full", .q_len = kQ, .kv_len = kKv});
  for (const TileSize tile : SomeOf<TileSize>(GetParam(), seed, {{16, 16}, {32, 64}, {64, 32}})) {
    SCOPED_TRACE(testing::Message() << tile.q << "x" << tile.kv);
    Setting setting = MakeSetting(GetParam(), contract, {}, seed);
    setting.options.plan.tile = tile;
    const RunOutcome before = RunAndCheck(setting);
    ASSERT_FALSE(before.error.has_value());
    EXPECT_EQ(before.outputs.at("o").shape[2], kQ);
    EXPECT_EQ(before.outputs.at("dk").shape[2], kKv);
    FillToken(setting.inputs.at("v"), {0, kKv - 1}, 8.0);
    const RunOutcome after = RunAndCheck(setting);
    ASSERT_FALSE(after.error.has_value());
    for (int64_t row = 0; row < kQ; ++row) {
      EXPECT_NE(TokenBytes(before.outputs.at("o"), {0, row}), TokenBytes(after.outputs.at("o"), {0, row}))
          << "row " << row << " does not see the last key";
    }
    EXPECT_FALSE(IsZero(after.outputs.at("dq"), {0, kQ - 1}));
    EXPECT_FALSE(IsZero(after.outputs.at("dv"), {0, kKv - 1}));
  }
}

void ExpectEmpty(const RunOutcome& outcome, const Token& at) {
  for (const char* name : {"o", "dq"}) EXPECT_TRUE(IsZero(outcome.outputs.at(name), at)) << name << " " << at.token;
  for (const char* name : {"lse", "max"}) {
    const Tensor& tensor = outcome.outputs.at(name);
    const int64_t heads = tensor.shape[1];
    for (int64_t h = 0; h < heads; ++h) {
      EXPECT_EQ(tensor.At((at.batch_row * heads + h) * tensor.shape[2] + at.token), -kInf) << name << " " << at.token;
    }
  }
}

TEST_P(Rules, RowWithoutKeys_ZeroAndNoGradient) {
  Proves("R18");
  const uint64_t seed = PrintedSeed();
  for (const bool sink : {false, true}) {
    // Forty queries on ten keys, aligned at the end: the first thirty see nothing.
    const Contract contract = MakeContract({.q_len = 40, .kv_len = 10, .sink_logits = sink});
    const RunOutcome outcome = RunAndCheck(MakeSetting(GetParam(), contract, {}, seed));
    ASSERT_FALSE(outcome.error.has_value());
    for (int64_t i = 0; i < 30; ++i) ExpectEmpty(outcome, {0, i});
    EXPECT_FALSE(IsZero(outcome.outputs.at("o"), {0, 30}));
  }
}

TEST_P(Rules, PresentZero_EmptyRow_AbsentIsAnError) {
  Proves("R64");
  const uint64_t seed = PrintedSeed();
  const Contract contract =
      MakeContract({.mask = "causal and valid", .q_len = 40, .kv_len = 40, .batch = 2, .sink_logits = true});
  Batch batch;
  batch.valid_tokens = std::vector<int64_t>{0, 40};
  const RunOutcome outcome = RunAndCheck(MakeSetting(GetParam(), contract, batch, seed));
  ASSERT_FALSE(outcome.error.has_value());
  for (int64_t i = 0; i < 40; ++i) {
    ExpectEmpty(outcome, {0, i});
    for (const char* name : {"dk", "dv"}) EXPECT_TRUE(IsZero(outcome.outputs.at(name), {0, i})) << name;
    EXPECT_FALSE(IsZero(outcome.outputs.at("o"), {1, i}));
  }
  const Setting absent = MakeSetting(GetParam(), contract, {}, seed);
  const RunOutcome refused = tessera::Run(absent.contract, {}, absent.inputs, TargetOf(GetParam()), OptionsOf(absent));
  ASSERT_TRUE(refused.error.has_value()) << "absent counts are not zero counts";
  EXPECT_EQ(refused.error->code, ErrorCode::kBatchInvalid);
}

TEST_P(Rules, GroupedHeads_EqualRepeatedKeys) {
  Proves("R43 B6");
  const uint64_t seed = PrintedSeed();
  const Small small{.mask = "causal and documents", .q_len = 70, .kv_len = 70, .num_q_heads = 4, .num_kv_heads = 2};
  const Contract grouped = MakeContract(small);
  Small wide = small;
  wide.num_kv_heads = 4;
  const Contract repeated = MakeContract(wide);
  const Batch batch = DocumentBatch(grouped, {33, 37});
  const Setting setting = MakeSetting(GetParam(), grouped, batch, seed);
  Setting other = MakeSetting(GetParam(), repeated, batch, seed);
  for (const char* name : {"k", "v"}) {
    const Tensor& from = setting.inputs.at(name);
    Tensor& to = other.inputs.at(name);
    const int64_t head = 70 * setting.contract.shape.dim_qk;
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t i = 0; i < head; ++i) to.Set(h * head + i, from.At(h / 2 * head + i));
    }
  }
  const RunOutcome got = RunAndCheck(setting);
  const RunOutcome want = RunAndCheck(other);
  ASSERT_FALSE(got.error.has_value() || want.error.has_value());
  for (const char* name : {"o", "lse", "max", "dq"}) {
    if (!IsBitwise(GetParam())) continue;  // within tolerance of the oracle, both of them
    EXPECT_TRUE(got.outputs.at(name).bytes == want.outputs.at(name).bytes) << name;
  }
  EXPECT_EQ(got.outputs.at("dk").shape, (std::vector<int64_t>{1, 2, 70, setting.contract.shape.dim_qk}))
      << "nothing is expanded";

  Small uneven = small;
  uneven.num_q_heads = 3;
  const Contract bad = MakeContract(uneven);
  EXPECT_FALSE(Validate(bad).empty());
}

}  // namespace
}  // namespace tessera::conformance
