// What XLA makes of the lane's programs has no dynamic operation either: none whose result's size depends on data, none
// that sorts or compacts what is there, and none that leaves the device.
#include <set>

#include "lanes/xla/stablehlo/program.h"
#include "tessera/planner.h"
#include "xla/direct_program.h"
#include "xla/xla_fixture.h"

namespace tessera {
namespace {

using Static = XlaTest;

// By XLA's names. dynamic-slice and dynamic-update-slice are not among them: their sizes are fixed, and only where they
// read is data.
const std::set<std::string>& DynamicOpcodes() {
  static const std::set<std::string> opcodes = {
      "custom-call", "dynamic-reshape", "get-dimension-size", "infeed", "outfeed", "recv", "recv-done",
      "send",        "send-done",       "set-dimension-size", "sort",   "topk"};
  return opcodes;
}

void ExpectStatic(const DirectProgram& program) {
  const pjrt::OptimizedProgram optimized = program.Optimized();
  EXPECT_GT(optimized.instructions, 10);
  EXPECT_EQ(optimized.opcodes.count("while"), 1u) << "loops over worklists are there to be looked at";
  EXPECT_TRUE(optimized.custom_calls.empty()) << optimized.custom_calls.begin()->first;
  EXPECT_TRUE(optimized.collectives.empty()) << optimized.collectives.begin()->first;
  for (const auto& [opcode, count] : optimized.opcodes) {
    EXPECT_EQ(DynamicOpcodes().count(opcode), 0u) << count << " of " << opcode;
  }
}

TEST_F(Static, OptimisedPrograms_HaveNoDynamicOperation) {
  Proves("B12");
  std::mt19937_64 rng(PrintedSeed());
  for (const bool has_everything : {false, true}) {
    SCOPED_TRACE(has_everything);
    Contract contract = MakeContract("causal", 50);
    Batch batch;
    if (has_everything) {
      contract = MakeContract("causal and valid and documents and (blocks or sink(3, document))", 50, 16, DType::kBf16);
      contract.score.softcap = 3.0;
      contract.score.sink_logits = true;
      batch = RandomDocuments(rng, contract);
      batch.valid_tokens = std::vector<int64_t>{47};
      batch.picks = RandomPicks(rng, contract);
    }
    const Result<PlanResult> made = MakePlan(contract, batch, Cpu(), {});
    ASSERT_TRUE(made.has_value()) << ToText(made.error());
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(contract, made->plan.view(), TargetKind::kCpu);
    for (const Result<stablehlo::Program>& program : {LowerForward(spec), LowerBackward(spec)}) {
      ASSERT_TRUE(program.has_value()) << ToText(program.error());
      SCOPED_TRACE(program->name);
      ExpectStatic(DirectProgram(plugin_, *program, XlaOptions()));
      if (has_everything) ExpectStatic(DirectProgram(plugin_, *program));  // what the other tests run
    }
  }
}

}  // namespace
}  // namespace tessera
