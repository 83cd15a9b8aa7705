// The lane `splash` in the interpreter against the dense oracle, and what it refuses: the stock kernels' text with our
// operands around it computes the contract. Nothing here ran on a TPU.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "support/engine.h"
#include "support/proves.h"
#include "support/random_mask.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/tessera.h"
#include "tpu_lane/cases.h"
#include "tpu_lane/held.h"

namespace tessera {
namespace {

RunOptions Options(const char* lane = "splash") {
  RunOptions options;
  options.lane = lane;
  options.backward = true;
  options.xla.interpret = true;
  options.plan.tile = TileSize{128, 128};
  return options;
}

Target V6e() { return FindTarget("v6e").value(); }

RunOutcome RunCase(const Contract& contract, const TensorMap& inputs, const RunOptions& options) {
  return tessera::Run(TestEngine(), contract, {}, inputs, V6e(), options);
}

void ExpectRight(const Contract& contract, uint64_t seed) {
  const TensorMap inputs = MakeInputs(contract, seed, true);
  const RunOutcome outcome = RunCase(contract, inputs, Options());
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  EXPECT_EQ(outcome.receipt.executed, "splash");
  EXPECT_EQ(outcome.receipt.runtime_mode, "interpreted");
  for (const Violation& violation : CheckReceipt(outcome.receipt)) {
    ADD_FAILURE() << violation.field << ": " << violation.expected;
  }
  CheckOptions check;
  check.arithmetic = Arithmetic::Single();
  const Result<CheckReport> report = CheckOutputs(contract, {}, inputs, outcome.outputs, check);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
  EXPECT_EQ(report->outputs.size(), 5u);
}

class Splash : public testing::TestWithParam<SplashCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Splash, testing::ValuesIn(kSplashCases),
                         [](const auto& with) { return std::string(with.param.name); });

TEST_P(Splash, ForwardAndBackward_MatchTheOracle) {
  Proves("R54");
  const uint64_t seed = PrintedSeed();
  const Contract contract = SplashContract(GetParam());
  const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, {}, V6e(), Options());
  ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
  EXPECT_EQ((*programs)[0].kernels.size(), 1u);
  EXPECT_EQ((*programs)[1].kernels.size(), 2u);
  HoldPrograms(GetParam().name, *programs);
  if (AreTextsWanted()) GTEST_SKIP() << "its texts are all that is wanted";
  ExpectRight(contract, seed);
}

TEST(SplashLane, RandomBands_MatchTheOracle) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 8; ++round) {
    SplashCase wish{"", "", {1, RandomInt(rng, 1, 200), RandomInt(rng, 1, 200), 2, RandomInt(rng, 1, 2), 64, 64}};
    wish.shape.dtype = DType::kBf16;
    const std::string window =
        "window(" + std::to_string(RandomInt(rng, -1, 60)) + ", " + std::to_string(RandomInt(rng, -1, 60)) + ")";
    const std::string masks[] = {"causal", "full", window, "causal and " + window};
    const std::string mask = masks[rng() % 4];
    wish.mask = mask.c_str();
    wish.more_offset = RandomInt(rng, -3, 3);
    const Contract contract = SplashContract(wish);
    SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed) + "\n" + ToToml(contract));
    const Result<Selection> selection = SelectLane(contract, V6e());
    ASSERT_TRUE(selection.has_value());
    bool has_empty_row = false;
    for (const LaneDecision& decision : selection->decisions) {
      has_empty_row |= decision.lane == "splash" && decision.decision.reason == ReasonCode::kSplashEmptyRow;
    }
    if (!has_empty_row) ExpectRight(contract, seed);
    if (testing::Test::HasFailure()) return;
  }
}

ReasonCode WhyNot(const Contract& contract) {
  const RunOutcome outcome = RunCase(contract, MakeInputs(contract, 1, true), Options("auto"));
  for (const LaneDecision& decision : outcome.receipt.decisions) {
    if (decision.lane == "splash" && !decision.decision.accepted) return decision.decision.reason;
  }
  return ReasonCode::kNone;
}

TEST(SplashLane, WhatTheStockKernelWouldComputeOtherwise_IsRefusedByName) {
  const SplashCase good{"", "causal", {1, 200, 200, 1, 1, 64, 64, DType::kBf16}};
  const auto with = [&](auto change) {
    Contract contract = SplashContract(good);
    change(contract);
    return contract;
  };
  EXPECT_EQ(WhyNot(with([](Contract&) {})), ReasonCode::kNone);
  EXPECT_EQ(WhyNot(with([](Contract& c) { c.score.scale = 0.1; })), ReasonCode::kSplashScore);
  EXPECT_EQ(WhyNot(with([](Contract& c) { c.score.sink_logits = true; })), ReasonCode::kSplashScore);
  EXPECT_EQ(WhyNot(with([](Contract& c) { c.mask.offset = -1; })), ReasonCode::kSplashEmptyRow);
  EXPECT_EQ(WhyNot(with([](Contract& c) { c.shape.dtype = DType::kF32; })), ReasonCode::kTpuDtype);
  EXPECT_EQ(WhyNot(with([](Contract& c) { c.shape.dtype = DType::kF16; })), ReasonCode::kTpuDtype);
  EXPECT_EQ(WhyNot(with([](Contract& c) { c.shape.dim_v = 80; })), ReasonCode::kTpuHeadDim);
}

// Selected by the target's table for plain masks, and run where they are.
TEST(SplashLane, PlainMasks_AreItsOwn) {
  for (const char* mask : {"causal", "full"}) {
    const Contract contract = SplashContract({"", mask, {1, 130, 130, 1, 1, 64, 64, DType::kBf16}});
    const RunOutcome outcome = RunCase(contract, MakeInputs(contract, 1, true), Options("auto"));
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    EXPECT_EQ(outcome.receipt.selected, "splash");
    EXPECT_EQ(outcome.receipt.executed, "splash");
  }
  const Contract local = SplashContract({"", "causal and window(9, 0)", {1, 130, 130, 1, 1, 64, 64, DType::kBf16}});
  const RunOutcome outcome = RunCase(local, MakeInputs(local, 1, true), Options("auto"));
  EXPECT_EQ(outcome.receipt.executed, "xla_pallas");
}

TEST(SplashLane, RowMaxima_AreRefused) {
  const Contract contract = SplashContract({"", "causal", {1, 130, 130, 1, 1, 64, 64, DType::kBf16}});
  RunOptions options = Options();
  options.row_max = true;
  const RunOutcome outcome = RunCase(contract, MakeInputs(contract, 1, true), options);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_NE(ToText(*outcome.error).find("do not give the rows' maxima"), std::string::npos) << ToText(*outcome.error);
}

// Two bands of one class are two programs: the mask is part of a stock kernel's text.
TEST(SplashLane, OtherWindow_IsAnotherText) {
  const Shape shape{1, 290, 290, 1, 1, 64, 64, DType::kBf16};
  const auto text = [&](const char* mask) {
    return LowerPrograms(TestEngine(), SplashContract({"", mask, shape}), {}, V6e(), Options()).value()[0].text;
  };
  EXPECT_NE(text("causal and window(70, 0)"), text("causal and window(71, 0)"));
}

}  // namespace
}  // namespace tessera
