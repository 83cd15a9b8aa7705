// A lane whose programs are made up, to see what is said of compiling without a plugin at hand.
#pragma once

#include <optional>
#include <vector>

#include "fixtures.h"

namespace tessera {

class TestCompiler final : public Compiler {
 public:
  Decision Decide(const Contract&, const Target&, const XlaOptions&) const override { return on_contract; }
  Decision DecidePlan(const Contract&, const PlanView&, const Target&, const XlaOptions&) const override {
    return on_plan;
  }
  Result<ProgramText> Lower(const Contract&, const PlanView& plan, const Target&, Pass pass) const override {
    return ProgramText{(pass == Pass::kForward ? "forward_" : "backward_") + ToHex(plan.class_key), "module {}"};
  }
  Result<RunStats> Compile(const CompileRequest& request, Pass pass) const override {
    if (pass == Pass::kBackward && backward_error) return tl::unexpected(*backward_error);
    compiled.push_back(pass);
    RunStats stats{"test_kernel", "wide", 0};
    stats.xla = {.plugin = "made_up.so",
                 .platform = "tpu",
                 .pjrt = "0.81",
                 .device_kind = "TPU v6e",
                 .topology = topology,
                 .guard = "not needed"};
    stats.program = {.name = Lower(*request.contract, *request.plan, *request.target, pass)->name,
                     .source = source,
                     .key = std::string(32, 'b'),
                     .compile_ns = 1,
                     .parts = 1,
                     .instructions = 7};
    return stats;
  }

  Decision on_contract = Decision::Yes();
  Decision on_plan = Decision::Yes();
  std::optional<Error> backward_error;
  std::string topology = "v6e:1x1";
  std::string source = "compiled";
  mutable std::vector<Pass> compiled;
};

class CompilingLane final : public TestLane {
 public:
  CompilingLane() : TestLane("xla_chunked") {}
  const Compiler* compiler() const override { return &made_up; }
  TestCompiler made_up;
};

// The real table with that lane in place of the one that goes through XLA.
class CompileTable {
 public:
  CompileTable() : rows_(LaneTable().begin(), LaneTable().end()) {
    for (LaneRow& row : rows_) {
      if (row.name == lane.name()) row.lane = &lane;
    }
  }
  RunOutcome Compile(const Contract& contract, const Target& target, const RunOptions& options = {},
                     const TensorMap& inputs = {}) const {
    const Batch batch;
    return RunOn({.table = rows_,
                  .contract = contract,
                  .batch = &batch,
                  .target = target,
                  .options = options,
                  .inputs = &inputs,
                  .asked = Asked::kCompile});
  }
  CompilingLane lane;

 private:
  std::vector<LaneRow> rows_;
};

}  // namespace tessera
