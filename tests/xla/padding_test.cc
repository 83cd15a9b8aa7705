// What a plan does not fill of a class's tables is padding: whatever it holds, the results are the same bits.
#include <limits>

#include "lanes/xla/operands.h"
#include "lanes/xla/stablehlo/program.h"
#include "tessera/planner.h"
#include "xla/direct_program.h"
#include "xla/xla_fixture.h"

namespace tessera {
namespace {

class Padding : public XlaTest {
 protected:
  struct Problem {
    Contract contract;
    Batch batch;
    std::vector<std::string> padded;  // tables that must have padding
  };

  // Cleanups of every kind: bands, documents, valid counts and stored bits.
  static Problem Everything(std::mt19937_64& rng) {
    Problem problem;
    Contract& contract = problem.contract = MakeContract("causal", 50);
    contract.mask.heads = {
        ParseMaskExpr("causal and valid and documents and (window(9, 0) or sink(2, document))").value(),
        ParseMaskExpr("causal and blocks and valid").value()};
    contract.score.softcap = 3.0;
    contract.score.sink_logits = true;
    problem.batch = RandomDocuments(rng, contract);
    problem.batch.valid_tokens = std::vector<int64_t>{43};
    problem.batch.picks = RandomPicks(rng, contract);
    problem.padded = {"slots_forward", "slots_dq", "slots_dkv", "items", "words"};
    return problem;
  }

  // Two batch rows that turn out to have one mask: the class has room for another with all its rows.
  static Problem SharedMask() {
    Problem problem;
    Contract& contract = problem.contract = MakeContract("causal and documents", 50);
    contract.shape.batch = 2;
    problem.batch.doc_ids = IdRows{2, 50, std::vector<int32_t>(100, 0)};
    problem.padded = {"counts_forward", "slots_forward", "counts_dq", "slots_dq",
                      "counts_dkv",     "slots_dkv",     "items",     "words"};
    return problem;
  }

  // Every part's outputs.
  static std::vector<TensorMap> RunParts(const DirectProgram& program, Operands operands,
                                         const lanes::xla::PlanTables& tables) {
    for (const auto& [name, table] : tables) operands[name] = ToBytes(table);
    std::vector<TensorMap> parts;
    for (int32_t part = 0; part < program.parts(); ++part) {
      operands["part"] = ToBytes(std::vector<int32_t>{part});
      parts.push_back(program.Run(operands));
    }
    return parts;
  }

  static Operands TensorsOf(const Contract& contract, uint64_t seed) {
    Operands tensors = {{"scale", ToBytes(std::vector<float>{static_cast<float>(contract.score.scale)})},
                        {"softcap", ToBytes(std::vector<float>{static_cast<float>(contract.score.softcap)})}};
    for (const auto& [name, tensor] : MakeInputs(contract, seed, true)) tensors[name] = tensor.bytes;
    // Not what a forward gave; any will do, since every run gets the same.
    const Shape& s = contract.shape;
    const std::vector<float> rows(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len), 0.75F);
    tensors["lse"] = tensors["delta"] = ToBytes(rows);
    return tensors;
  }

  void ExpectInert(const Problem& problem, uint64_t seed) {
    const Result<PlanResult> made = MakePlan(problem.contract, problem.batch, Cpu(), {});
    ASSERT_TRUE(made.has_value()) << ToText(made.error());
    const PlanView& plan = made->plan.view();
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(problem.contract, plan, TargetKind::kCpu);
    const Operands tensors = TensorsOf(problem.contract, seed);
    std::map<std::string, int64_t> num_changed;
    for (const Result<stablehlo::Program>& lowered : {LowerForward(spec), LowerBackward(spec)}) {
      ASSERT_TRUE(lowered.has_value()) << ToText(lowered.error());
      SCOPED_TRACE(lowered->name);
      const DirectProgram program(plugin_, *lowered);
      const lanes::xla::PlanTables clean = lanes::xla::MakeTables(spec, plan, lowered->inputs);
      const std::vector<TensorMap> want = RunParts(program, tensors, clean);
      ASSERT_FALSE(want.empty());
      ASSERT_EQ(want.front().size(), lowered->outputs.size());
      using Limits = std::numeric_limits<int32_t>;
      for (const int32_t garbage : {1, -1, 0x55555555, Limits::max(), Limits::min()}) {
        const lanes::xla::PlanTables dirty = lanes::xla::MakeTables(spec, plan, lowered->inputs, garbage);
        for (const auto& [name, table] : dirty) num_changed[name] += table != clean.at(name) ? 1 : 0;
        EXPECT_TRUE(RunParts(program, tensors, dirty) == want) << "with " << garbage;
      }
    }
    for (const std::string& name : problem.padded) EXPECT_GT(num_changed[name], 0) << name << " has no padding";
  }
};

TEST_F(Padding, WhateverItHolds_SameBits) {
  Proves("R12");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  ExpectInert(Everything(rng), seed);
  ExpectInert(SharedMask(), seed);
}

}  // namespace
}  // namespace tessera
