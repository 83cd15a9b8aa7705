// Whole programs of both TPU lanes on XLA's CPU plugin, with their kernels interpreted, against the dense oracle: what
// is around a kernel is run as it would be on a TPU. The interpreted lane makes a kernel's operands itself, so no test
// of it sees these texts. Nothing here ran on a TPU.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/dtype.h"
#include "tessera/tessera.h"
#include "tpu_lane/cases.h"
#include "tpu_lane/on_cpu.h"

namespace tessera {
namespace {

RunOptions Options(const char* lane) {
  RunOptions options;
  options.lane = lane;
  options.backward = true;
  options.row_max = std::string_view(lane) == "xla_pallas";
  options.xla.interpret = true;
  options.plan.tile = TileSize{128, 128};
  return options;
}

Target V6e() { return FindTarget("v6e").value(); }

// What both passes are of, and how.
struct Asked {
  Contract contract;
  Batch batch = {};
  TensorMap inputs = {};
  RunOptions options = Options("xla_pallas");
  Target target = V6e();
};

class KernelPrograms : public testing::Test {
 protected:
  void SetUp() override {
    if (CpuPlugin().empty()) {
      GTEST_SKIP() << "no CPU plugin in " << OptionsFromEnvironment().xla_folder << "; script/setup --xla installs it";
    }
  }

  using Programs = std::vector<std::unique_ptr<ProgramOnCpu>>;
  // Forward, then backward.
  static Programs CompilePrograms(const Asked& asked) {
    Result<std::vector<ProgramText>> texts =
        LowerPrograms(TestEngine(), asked.contract, asked.batch, asked.target, asked.options, asked.inputs);
    EXPECT_TRUE(texts.has_value()) << ToText(texts.error());
    Programs programs;
    if (!texts) return programs;
    for (ProgramText& text : *texts) programs.push_back(std::make_unique<ProgramOnCpu>(std::move(text)));
    return programs;
  }
  static OnCpu RunPrograms(const Asked& asked) {
    return RunOnCpu(asked.contract, CompilePrograms(asked), asked.inputs, asked.options);
  }

  static void ExpectRight(const Asked& asked, const TensorMap& outputs, const std::optional<Picks>& picks = {}) {
    Contract contract = asked.contract;
    Batch batch = asked.batch;
    contract.routing.reset();
    if (picks) batch.picks = picks;
    CheckOptions check;
    check.arithmetic = Arithmetic::Single();
    const Result<CheckReport> report = CheckOutputs(contract, batch, asked.inputs, outputs, check);
    ASSERT_TRUE(report.has_value()) << ToText(report.error());
    EXPECT_TRUE(report->pass) << report->text;
    EXPECT_EQ(report->outputs.size(), OutputSpecs(asked.contract, asked.options).size());
  }

  static RunOutcome Interpret(const Asked& asked) {
    RunOutcome outcome =
        tessera::Run(TestEngine(), asked.contract, asked.batch, asked.inputs, asked.target, asked.options);
    EXPECT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    return outcome;
  }

  // The same bits as in the interpreted lane, whose operands come from C++ and not from the program: the guard of
  // scores in range decides alike, and every number of a query is the same.
  static void ExpectSameAsInterpreted(const Asked& asked, const OnCpu& ran) {
    const RunOutcome outcome = Interpret(asked);
    for (const char* name : {"o", "lse", "max"}) {
      EXPECT_TRUE(ran.outputs.at(name) == outcome.outputs.at(name)) << name;
    }
    EXPECT_EQ(ran.tiles, outcome.receipt.tiles_executed);
  }
};

class LanePrograms : public KernelPrograms, public testing::WithParamInterface<LaneCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, LanePrograms, testing::ValuesIn(kLaneCases),
                         [](const auto& with) { return std::string(with.param.name); });

TEST_P(LanePrograms, ForwardAndBackward_MatchTheOracle) {
  Proves("R16 R18 R36 R37 R38 R40 R41");
  Asked asked{.contract = ContractOf(GetParam()), .batch = BatchOf(GetParam())};
  asked.inputs = MakeInputs(asked.contract, PrintedSeed(), true);
  const OnCpu ran = RunPrograms(asked);
  if (HasFailure()) return;
  if (!GetParam().has_routing) return ExpectRight(asked, ran.outputs);
  const RunOutcome outcome = Interpret(asked);
  ExpectRight(asked, ran.outputs, outcome.picks);
  EXPECT_EQ(ran.tiles_backward, outcome.receipt.tiles_executed_backward);
}

class SplashPrograms : public KernelPrograms, public testing::WithParamInterface<SplashCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, SplashPrograms, testing::ValuesIn(kSplashCases),
                         [](const auto& with) { return std::string(with.param.name); });

TEST_P(SplashPrograms, ForwardAndBackward_MatchTheOracle) {
  Proves("R54");
  Asked asked{.contract = SplashContract(GetParam()), .options = Options("splash")};
  asked.inputs = MakeInputs(asked.contract, PrintedSeed(), true);
  const OnCpu ran = RunPrograms(asked);
  if (!HasFailure()) ExpectRight(asked, ran.outputs);
}

// Multiplies tokens [begin, end) of every head.
void Multiply(Tensor& tensor, int64_t begin, int64_t end, double factor) {
  const int64_t heads = tensor.shape[0] * tensor.shape[1], tokens = tensor.shape[2], dim = tensor.shape[3];
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = (h * tokens + begin) * dim; i < (h * tokens + end) * dim; ++i)
      tensor.Set(i, tensor.At(i) * factor);
  }
}

// The bounds that the program makes of q, k and v choose a tile's body: in range, far beyond it, values that no sum
// could hold, and NaN in keys that nobody sees.
TEST_F(KernelPrograms, BoundsOfScores_ChooseAsTheInterpretedLaneDoes) {
  Proves("R36 R38");
  Asked asked{.contract = ContractOf({"", "causal and valid", {1, 300, 300, 2, 1, 64, 64, DType::kBf16}})};
  asked.batch.valid_tokens = {290};
  const TensorMap inputs = MakeInputs(asked.contract, PrintedSeed(), true);
  struct Change {
    const char* name;
    int64_t begin;
    int64_t end;
    double factor;
  };
  const std::vector<Change> changes[] = {
      {},
      {{"q", 257, 258, 300.0}, {"k", 128, 256, 300.0}},
      {{"q", 0, 300, -40.0}},
      {{"k", 5, 6, -2000.0}},
      {{"v", 5, 9, 0x1p30}},
      {{"v", 140, 141, -0x1p-50}},
      {{"v", 5, 9, 0.0}},
      {{"k", 290, 300, std::numeric_limits<double>::quiet_NaN()},
       {"v", 290, 300, std::numeric_limits<double>::infinity()}},
  };
  const Programs programs = CompilePrograms(asked);
  for (const std::vector<Change>& each : changes) {
    SCOPED_TRACE(each.empty() ? "as drawn" : each[0].name);
    asked.inputs = inputs;
    for (const Change& change : each) Multiply(asked.inputs.at(change.name), change.begin, change.end, change.factor);
    const OnCpu ran = RunOnCpu(asked.contract, programs, asked.inputs, asked.options);
    if (HasFailure()) return;
    ExpectSameAsInterpreted(asked, ran);
    ExpectRight(asked, ran.outputs);
  }
}

// Lists beyond the scalar memory: several calls in one program, each with its part of every operand.
TEST_F(KernelPrograms, WorklistsSharedByCalls_MatchTheOracle) {
  const LaneCase cases[] = {
      {"", "causal and window(200, 0)", {1, 450, 450, 2, 1, 64, 64, DType::kF32}, 2.0, true},
      {"", "causal and documents and valid", {2, 400, 400, 2, 1, 64, 64, DType::kBf16}},
      {.name = "", .mask = "full", .shape = {1, 300, 300, 2, 1, 64, 64, DType::kF32}, .has_bitmap = true},
  };
  for (const LaneCase& wish : cases) {
    SCOPED_TRACE(wish.mask);
    Asked asked{.contract = ContractOf(wish), .batch = BatchOf(wish)};
    asked.inputs = MakeInputs(asked.contract, PrintedSeed(), true);
    // The least memory that still has room for a row.
    const auto has_room = [&](int64_t bytes) {
      Target target = asked.target;
      target.scalar_bytes = bytes;
      return LowerPrograms(TestEngine(), asked.contract, asked.batch, target, asked.options).has_value();
    };
    for (int64_t too_small = 0; asked.target.scalar_bytes - too_small > 1;) {
      const int64_t middle = (too_small + asked.target.scalar_bytes) / 2;
      (has_room(middle) ? asked.target.scalar_bytes : too_small) = middle;
    }
    const Programs programs = CompilePrograms(asked);
    for (const auto& program : programs) EXPECT_GT(program->text().kernels.size(), 1u);
    const OnCpu ran = RunOnCpu(asked.contract, programs, asked.inputs, asked.options);
    if (HasFailure()) return;
    ExpectSameAsInterpreted(asked, ran);
    ExpectRight(asked, ran.outputs);
  }
}

// The region that each chip runs on its share, and the axes that operands.json names.
TEST_F(KernelPrograms, OverSeveralChips_MatchTheOracle) {
  struct Kind {
    const char* name;
    int64_t chips;
    Shape shape;
  };
  const Kind kinds[] = {{"heads", 2, {2, 200, 200, 4, 2, 64, 64, DType::kBf16}},
                        {"rows", 4, {4, 150, 150, 2, 1, 64, 64, DType::kBf16}}};
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const LaneCase wish{.name = "",
                        .mask = "causal and documents and valid and (window(60, 0) or sink(4, document))",
                        .shape = kind.shape,
                        .sink_logits = true};
    Asked asked{.contract = ContractOf(wish), .batch = BatchOf(wish)};
    asked.inputs = MakeInputs(asked.contract, PrintedSeed(), true);
    asked.options.chips = kind.chips;
    const OnCpu ran = RunPrograms(asked);
    if (HasFailure()) return;
    ExpectRight(asked, ran.outputs);
    asked.options.chips = 1;
    const OnCpu alone = RunPrograms(asked);
    for (const auto& [name, tensor] : alone.outputs) EXPECT_TRUE(ran.outputs.at(name) == tensor) << name;
    EXPECT_EQ(ran.tiles, alone.tiles);
    EXPECT_EQ(ran.tiles_backward, alone.tiles_backward);
  }
}

TEST_F(KernelPrograms, SplashOverSeveralChips_MatchesTheOracle) {
  Asked asked{.contract = SplashContract({"", "causal", {1, 300, 300, 4, 2, 64, 64, DType::kBf16}}),
              .options = Options("splash")};
  asked.inputs = MakeInputs(asked.contract, PrintedSeed(), true);
  asked.options.chips = 2;
  const OnCpu ran = RunPrograms(asked);
  if (!HasFailure()) ExpectRight(asked, ran.outputs);
}

}  // namespace
}  // namespace tessera
