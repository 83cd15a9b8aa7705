// Which of our kernels a program has: a backward in one kernel or in two, a forward with statistics or without. Each in
// the interpreter, as a whole program on XLA's CPU plugin, and as a text that is held against what the compiler made of
// it; and the rule that chooses. Nothing here ran on a TPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/tessera.h"
#include "tpu_lane/cases.h"
#include "tpu_lane/held.h"
#include "tpu_lane/on_cpu.h"

namespace tessera {
namespace {

class KernelKinds : public testing::Test {
 protected:
  static RunOptions OptionsOf(const char* backward) {
    RunOptions options;
    options.lane = "xla_pallas";
    options.backward = true;
    options.xla.interpret = true;
    options.xla.tpu_backward = backward;
    options.plan.tile = TileSize{128, 128};
    return options;
  }
  static RunOptions Inference() {
    RunOptions options = OptionsOf("auto");
    options.backward = false;
    options.xla.statistics = false;
    return options;
  }
  static const LaneCase& CaseOf(std::string_view name) {
    const auto* found = std::begin(kLaneCases);
    while (found->name != name) ++found;
    return *found;
  }
  struct Problem {
    Contract contract;
    Batch batch;
    TensorMap inputs;
  };
  static Problem ProblemOf(const LaneCase& wish, uint64_t seed, bool has_backward) {
    Problem problem{.contract = ContractOf(wish), .batch = BatchOf(wish), .inputs = {}};
    problem.inputs = MakeInputs(problem.contract, seed, has_backward);
    return problem;
  }
  static RunOutcome Interpret(const Problem& p, const RunOptions& options) {
    RunOutcome outcome = tessera::Run(TestEngine(), p.contract, p.batch, p.inputs, FindTarget("v6e").value(), options);
    EXPECT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    EXPECT_EQ(outcome.receipt.executed, "xla_pallas");
    for (const Violation& violation : CheckReceipt(outcome.receipt)) {
      ADD_FAILURE() << violation.field << ": " << violation.expected;
    }
    return outcome;
  }
  static void ExpectRight(const Problem& p, const TensorMap& outputs) {
    CheckOptions check;
    check.arithmetic = Arithmetic::Single();
    const Result<CheckReport> report = CheckOutputs(p.contract, p.batch, p.inputs, outputs, check);
    ASSERT_TRUE(report.has_value()) << ToText(report.error());
    EXPECT_TRUE(report->pass) << report->text;
  }
  static std::vector<ProgramText> Lower(const Contract& contract, const Batch& batch, const RunOptions& options,
                                        const char* target = "v6e") {
    Result<std::vector<ProgramText>> programs =
        LowerPrograms(TestEngine(), contract, batch, FindTarget(target).value(), options);
    EXPECT_TRUE(programs.has_value()) << ToText(programs.error());
    return programs ? std::move(*programs) : std::vector<ProgramText>{};
  }
  static std::vector<std::string> KernelsOf(const ProgramText& program) {
    std::vector<std::string> names;
    for (const KernelText& kernel : program.kernels) names.push_back(kernel.name);
    return names;
  }
};

// Every kind of cleanup, both dtypes, every dim, grouped heads, softcaps, sinks, several chunks of keys, rows without
// keys and padding. Two kernels add up what one does in the same order: the same bits, but for dq of several chunks.
TEST_F(KernelKinds, BackwardApart_IsTheFusedOne) {
  Proves("R18 R40 R41 B4");
  for (const char* name :
       {"window_softcap_grouped", "documents_valid_sinks", "several_chunks", "rows_without_keys_bf16", "dims_192_128",
        "bitmap_bf16", "documents_reappear", "dim_256_f32"}) {
    SCOPED_TRACE(name);
    const Problem p = ProblemOf(CaseOf(name), PrintedSeed(), true);
    const std::vector<ProgramText> programs = Lower(p.contract, p.batch, OptionsOf("apart"));
    ASSERT_EQ(programs.size(), 2u);
    EXPECT_EQ(KernelsOf(programs[1]), (std::vector<std::string>{"tessera_dq", "tessera_dkv"}));
    EXPECT_NE(programs[1].note.find("asked for"), std::string::npos) << programs[1].note;
    HoldPrograms(std::string("apart_") + name, {programs[1]});
    if (AreTextsWanted()) continue;
    const RunOutcome apart = Interpret(p, OptionsOf("apart"));
    const RunOutcome fused = Interpret(p, OptionsOf("fused"));
    ExpectRight(p, apart.outputs);
    for (const auto& [output, tensor] : fused.outputs) {
      if (std::string_view(name) == "several_chunks" && output == "dq") continue;
      EXPECT_TRUE(apart.outputs.at(output) == tensor) << output;
    }
    EXPECT_EQ(apart.receipt.tiles_executed_backward, fused.receipt.tiles_executed_backward);
  }
}

// Without a softcap nothing but the statistics is left out; with one the maximum too, by which sums were measured.
TEST_F(KernelKinds, ForwardWithoutStatistics_GivesO) {
  Proves("R18 R36 R37");
  for (const char* name : {"causal_bf16", "window_softcap_grouped", "documents_valid_sinks", "rows_without_keys_bf16",
                           "sink_logits", "bitmap_bf16", "several_chunks"}) {
    SCOPED_TRACE(name);
    const Problem p = ProblemOf(CaseOf(name), PrintedSeed(), false);
    const std::vector<ProgramText> programs = Lower(p.contract, p.batch, Inference());
    ASSERT_EQ(programs.size(), 1u);
    ASSERT_EQ(programs[0].results.size(), 2u);
    EXPECT_EQ(programs[0].results[0].name, "o");
    EXPECT_EQ(programs[0].results[1].name, "tiles");
    HoldPrograms(std::string("inference_") + name, programs);
    if (AreTextsWanted()) continue;
    const RunOutcome alone = Interpret(p, Inference());
    EXPECT_EQ(alone.outputs.size(), 1u);
    ExpectRight(p, alone.outputs);
    RunOptions all = OptionsOf("auto");
    all.backward = false;
    if (CaseOf(name).softcap > 0) continue;
    EXPECT_TRUE(Interpret(p, all).outputs.at("o") == alone.outputs.at("o"));
  }
}

// A softcap that bounds no score, and scores near the bound of one that does, with sinks far above and below.
TEST_F(KernelKinds, ForwardWithoutStatistics_OfAnySoftcap) {
  for (const double softcap : {59.0, 90.0}) {
    LaneCase wish = CaseOf("documents_valid_sinks");
    wish.softcap = softcap;
    Problem p = ProblemOf(wish, PrintedSeed(), false);
    p.contract.score.scale = 40;
    for (const float sink : {-80.0F, 0.0F, 100.0F}) {
      SCOPED_TRACE(testing::Message() << softcap << " " << sink);
      Tensor& sinks = p.inputs.at("sink_logits");
      for (int64_t h = 0; h < sinks.NumElements(); ++h) sinks.Set(h, static_cast<double>(sink));
      ExpectRight(p, Interpret(p, Inference()).outputs);
    }
  }
}

TEST_F(KernelKinds, WhatCannotBe_IsRefused) {
  const auto error = [](const RunOptions& options) {
    const Problem p = ProblemOf(CaseOf("causal_bf16"), 1, options.backward);
    const RunOutcome outcome =
        tessera::Run(TestEngine(), p.contract, p.batch, p.inputs, FindTarget("v6e").value(), options);
    return outcome.error ? ToText(*outcome.error) : "";
  };
  RunOptions options = Inference();
  options.backward = true;
  EXPECT_NE(error(options).find("a backward needs the log-sum-exp"), std::string::npos) << error(options);
  options = OptionsOf("both");
  EXPECT_NE(error(options).find("auto, fused or apart, found both"), std::string::npos) << error(options);
  options = Inference();
  options.row_max = true;
  EXPECT_NE(error(options).find("neither log-sum-exp nor maxima"), std::string::npos) << error(options);
}

TEST_F(KernelKinds, AsWholePrograms_MatchTheOracle) {
  if (CpuPlugin().empty()) GTEST_SKIP() << "no CPU plugin; script/setup --xla installs it";
  const auto run = [](const Problem& p, const RunOptions& options) {
    std::vector<std::unique_ptr<ProgramOnCpu>> programs;
    for (ProgramText& text : Lower(p.contract, p.batch, options)) {
      programs.push_back(std::make_unique<ProgramOnCpu>(std::move(text)));
    }
    return RunOnCpu(p.contract, programs, p.inputs, options).outputs;
  };
  for (const char* name : {"window_softcap_grouped", "documents_valid_sinks", "several_chunks"}) {
    SCOPED_TRACE(name);
    const Problem p = ProblemOf(CaseOf(name), PrintedSeed(), true);
    const TensorMap apart = run(p, OptionsOf("apart"));
    ASSERT_EQ(apart.size(), OutputSpecs(p.contract, OptionsOf("apart")).size());
    ExpectRight(p, apart);
    const TensorMap alone = run(p, Inference());
    ASSERT_EQ(alone.size(), 1u);
    ExpectRight(p, alone);
  }
}

// One kernel wherever it can be had: its dq comes in a part for each chunk of keys, and these must be few and small.
TEST_F(KernelKinds, OneKernelOrTwo_IsChosenByThePlan) {
  Contract contract;
  contract.score.scale = 0.125;
  const auto note_of = [&](const char* mask, Shape shape, TileSize tile, const char* target, size_t kernels) {
    contract.shape = shape;
    contract.mask.heads = {ParseMaskExpr(mask).value()};
    RunOptions options = OptionsOf("auto");
    options.plan.tile = tile;
    const std::vector<ProgramText> programs = Lower(contract, {}, options, target);
    if (programs.size() != 2) return std::string();
    EXPECT_EQ(programs[0].note, "");
    const std::vector<std::string> names = KernelsOf(programs[1]);
    EXPECT_EQ(names[0].substr(0, 16), kernels == 1 ? "tessera_backward" : names[0].substr(0, 16));
    EXPECT_EQ(names[0].starts_with("tessera_dq"), kernels == 2) << names[0];
    return programs[1].note;
  };
  const Shape causal{1, 2048, 2048, 2, 1, 128, 128, DType::kBf16};
  EXPECT_EQ(note_of("causal", causal, {256, 256}, "v6e", 1), "one kernel for dq, dk and dv: it costs least");
  // 64K tokens: of eight chunks of keys every row sees less than two.
  const Shape window{1, 65536, 65536, 1, 1, 128, 128, DType::kBf16};
  EXPECT_EQ(note_of("causal and window(1023, 0)", window, {512, 512}, "v6e", 2),
            "a kernel for dq and one for dk and dv: dq would come in 8 parts, and no row visits more than 3 tiles");
  const Shape heads{1, 65536, 65536, 8, 1, 128, 128, DType::kBf16};
  EXPECT_EQ(note_of("causal", heads, {1024, 1024}, "v6e", 2),
            "a kernel for dq and one for dk and dv: dq would come in 8 parts of 2147483648 bytes in all, more than "
            "1073741824");
  const Shape wide{1, 2560, 2560, 2, 1, 256, 256, DType::kF32};
  const std::string note = note_of("causal", wide, {1280, 512}, "v5e", 2);
  EXPECT_NE(note.find("one kernel would take "), std::string::npos) << note;
  EXPECT_NE(note.find(" bytes of vector memory, of 16777216"), std::string::npos) << note;
}

}  // namespace
}  // namespace tessera
