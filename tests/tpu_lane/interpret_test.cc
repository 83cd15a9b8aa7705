// xla_pallas in the interpreter against the dense oracle: the text of our TPU kernels, operand for operand what a TPU
// would be given, computes the contract. Nothing here ran on a TPU.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/tessera.h"
#include "tpu_lane/cases.h"
#include "tpu_lane/held.h"

namespace tessera {
namespace {

RunOptions Options() {
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  options.row_max = true;
  options.xla.interpret = true;
  options.plan.tile = TileSize{128, 128};
  return options;
}

Target V6e() { return FindTarget("v6e").value(); }

class Interpreted : public testing::TestWithParam<LaneCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Interpreted, testing::ValuesIn(kLaneCases),
                         [](const auto& with) { return std::string(with.param.name); });

TEST_P(Interpreted, ForwardAndBackward_MatchTheOracle) {
  Proves("R16 R18 R36 R37 R38 R40 R41 B4");
  const uint64_t seed = PrintedSeed();
  const Contract contract = ContractOf(GetParam());
  const Batch batch = BatchOf(GetParam());
  // Picks have a part in the class, so they are always of the same inputs here.
  const Result<std::vector<ProgramText>> programs =
      LowerPrograms(TestEngine(), contract, batch, V6e(), Options(), MakeInputs(contract, 1, true));
  ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
  HoldPrograms(GetParam().name, *programs);
  if (AreTextsWanted()) GTEST_SKIP() << "its texts are all that is wanted";
  const TensorMap inputs = MakeInputs(contract, seed, true);
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, batch, inputs, V6e(), Options());
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  EXPECT_EQ(outcome.receipt.executed, "xla_pallas");
  EXPECT_EQ(outcome.receipt.runtime_mode, "interpreted");
  EXPECT_EQ(outcome.receipt.device.kind, "interpreter");
  for (const Violation& violation : CheckReceipt(outcome.receipt)) {
    ADD_FAILURE() << violation.field << ": " << violation.expected;
  }
  CheckOptions check;
  check.arithmetic = Arithmetic::Single();
  // The oracle knows picks only, whoever made them.
  Contract asked = contract;
  Batch given = batch;
  asked.routing.reset();
  if (GetParam().has_routing) given.picks = outcome.picks;
  const Result<CheckReport> report = CheckOutputs(asked, given, inputs, outcome.outputs, check);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
}

// What padding holds reaches nobody, in either pass.
TEST(InterpretedLane, PoisonedPadding_IsInert) {
  const LaneCase wish{"", "causal and documents and valid", {1, 200, 200, 2, 1, 64, 64, DType::kF32}};
  const Contract contract = ContractOf(wish);
  const Batch batch = BatchOf(wish);
  TensorMap inputs = MakeInputs(contract, 7, true);
  const RunOutcome clean = tessera::Run(TestEngine(), contract, batch, inputs, V6e(), Options());
  ASSERT_FALSE(clean.error.has_value()) << ToText(*clean.error);
  for (const char* name : {"q", "k", "v", "do"}) {
    Tensor& tensor = inputs.at(name);
    auto* values = reinterpret_cast<float*>(tensor.bytes.data());
    const int64_t heads = tensor.shape[1];
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 167 * 64; i < 200 * 64; ++i) values[h * 200 * 64 + i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  const RunOutcome poisoned = tessera::Run(TestEngine(), contract, batch, inputs, V6e(), Options());
  ASSERT_FALSE(poisoned.error.has_value()) << ToText(*poisoned.error);
  EXPECT_TRUE(poisoned.outputs == clean.outputs);
}

ReasonCode WhyNot(LaneCase wish, std::optional<TileSize> tile = TileSize{128, 128}) {
  RunOptions options = Options();
  options.lane = "auto";
  options.plan.tile = tile;
  const Contract contract = ContractOf(wish);
  const RunOutcome outcome =
      tessera::Run(TestEngine(), contract, BatchOf(wish), MakeInputs(contract, 1, true), V6e(), options);
  for (const LaneDecision& decision : outcome.receipt.decisions) {
    if (decision.lane == "xla_pallas" && !decision.decision.accepted) return decision.decision.reason;
  }
  return ReasonCode::kNone;
}

TEST(InterpretedLane, WhatKernelsHaveNoFormFor_IsRefusedByName) {
  const Shape good{1, 200, 200, 1, 1, 64, 64, DType::kF32};
  const auto with = [&](auto change) {
    LaneCase wish{"", "causal and window(50, 0)", good};
    change(wish.shape);
    return wish;
  };
  EXPECT_EQ(WhyNot(with([](Shape&) {})), ReasonCode::kNone);
  EXPECT_EQ(WhyNot(with([](Shape& s) { s.dtype = DType::kF16; })), ReasonCode::kTpuDtype);
  EXPECT_EQ(WhyNot(with([](Shape& s) { s.dim_qk = 80; })), ReasonCode::kTpuHeadDim);
  EXPECT_EQ(WhyNot(with([](Shape& s) { s.dim_v = 8; })), ReasonCode::kTpuHeadDim);
  EXPECT_EQ(WhyNot(with([](Shape&) {}), TileSize{64, 128}), ReasonCode::kTpuTile);
  EXPECT_EQ(WhyNot(with([](Shape&) {}), TileSize{128, 96}), ReasonCode::kTpuTile);
  EXPECT_EQ(WhyNot(with([](Shape& s) {
                     s.q_len = s.kv_len = 4096;
                     s.dim_qk = s.dim_v = 256;
                   }),
                   TileSize{4096, 4096}),
            ReasonCode::kTpuVectorMemory);
}

// What ran in an interpreter cannot be called what ran on a TPU, nor the other way round.
TEST(InterpretedLane, ReceiptOfAnotherMode_IsNotBelieved) {
  const LaneCase wish{"", "causal and window(50, 0)", {1, 130, 130, 1, 1, 64, 64, DType::kF32}};
  const Contract contract = ContractOf(wish);
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, {}, MakeInputs(contract, 1, true), V6e(), Options());
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  EXPECT_TRUE(CheckReceipt(outcome.receipt).empty());
  EXPECT_EQ(outcome.receipt.fallback_reason, "dispatch.off_machine");
  Receipt unasked = outcome.receipt;
  unasked.options["interpret"] = "false";
  EXPECT_FALSE(CheckReceipt(unasked).empty());
  Receipt payload = outcome.receipt;
  payload.runtime_mode = "payload";
  EXPECT_FALSE(CheckReceipt(payload).empty());
}

// Lists that the scalar memory does not hold at once are walked by several calls, each a range of queries. No bit of
// what a query has changes; gradients of keys are sums of the calls', in another order.
TEST(InterpretedLane, WorklistsBeyondScalarMemory_AreSharedByCalls) {
  const LaneCase cases[] = {
      {"", "causal and window(200, 0)", {1, 700, 700, 2, 1, 64, 64, DType::kF32}, 2.0, true},
      {"", "causal and documents and valid", {2, 500, 500, 2, 1, 64, 64, DType::kBf16}},
      {.name = "", .mask = "full", .shape = {1, 300, 600, 1, 1, 64, 64, DType::kF32}, .has_bitmap = true},
  };
  for (const LaneCase& wish : cases) {
    SCOPED_TRACE(wish.mask);
    const Contract contract = ContractOf(wish);
    const Batch batch = BatchOf(wish);
    const TensorMap inputs = MakeInputs(contract, 3, true);
    const auto kernels = [&](const Target& target) {
      const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, batch, target, Options());
      size_t count = 0;
      if (programs) count = (*programs)[0].kernels.size() + (*programs)[1].kernels.size();
      return count;
    };
    Target small = V6e();
    const RunOutcome whole = tessera::Run(TestEngine(), contract, batch, inputs, small, Options());
    ASSERT_FALSE(whole.error.has_value()) << ToText(*whole.error);
    EXPECT_EQ(kernels(small), 2u);
    // The smallest memory that still has room for a row: below the one that holds all of them.
    int64_t too_small = 0;
    while (small.scalar_bytes - too_small > 1) {
      Target middle = small;
      middle.scalar_bytes = (too_small + small.scalar_bytes) / 2;
      if (kernels(middle) == 0) {
        too_small = middle.scalar_bytes;
      } else {
        small = middle;
      }
    }
    EXPECT_GT(kernels(small), 2u);
    const RunOutcome shared = tessera::Run(TestEngine(), contract, batch, inputs, small, Options());
    ASSERT_FALSE(shared.error.has_value()) << ToText(*shared.error);
    for (const auto& [name, tensor] : whole.outputs) {
      if (name == "dk" || name == "dv") continue;
      EXPECT_TRUE(shared.outputs.at(name) == tensor) << name;
    }
    CheckOptions check;
    check.arithmetic = Arithmetic::Single();
    const Result<CheckReport> report = CheckOutputs(contract, batch, inputs, shared.outputs, check);
    ASSERT_TRUE(report.has_value()) << ToText(report.error());
    EXPECT_TRUE(report->pass) << report->text;
    EXPECT_EQ(shared.receipt.tiles_executed, whole.receipt.tiles_executed);
  }
}

// 64K causal tokens in tiles of 128 have lists of over a megabyte.
TEST(InterpretedLane, LongSequences_AreWalkedByManyCalls) {
  const Contract contract = ContractOf({"", "causal", {1, 65536, 65536, 1, 1, 128, 128, DType::kBf16}});
  const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, {}, V6e(), Options());
  ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
  EXPECT_GT((*programs)[0].kernels.size(), 1u);
}

// One that has no room for a single row is found by counting, before any compiler.
TEST(InterpretedLane, ScalarMemoryForNoRow_IsRefused) {
  const Contract contract = ContractOf({"", "causal", {1, 1024, 1024, 1, 1, 128, 128, DType::kBf16}});
  Target tiny = V6e();
  tiny.scalar_bytes = 4096;
  const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, {}, tiny, Options());
  ASSERT_FALSE(programs.has_value());
  EXPECT_EQ(programs.error().code, ErrorCode::kLaneRefused);
  EXPECT_NE(ToText(programs.error()).find("bytes of scalar memory"), std::string::npos) << ToText(programs.error());
}

TEST(InterpretedLane, OtherLanesHaveNothingToInterpret) {
  RunOptions options = Options();
  options.lane = "xla_chunked";
  const LaneCase wish{"", "causal", {1, 130, 130, 1, 1, 64, 64, DType::kF32}};
  const Contract contract = ContractOf(wish);
  const RunOutcome outcome = tessera::Run(TestEngine(), contract, {}, MakeInputs(contract, 1, true), V6e(), options);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_NE(ToText(*outcome.error).find("dispatch.nothing_to_interpret"), std::string::npos) << ToText(*outcome.error);
}

}  // namespace
}  // namespace tessera
