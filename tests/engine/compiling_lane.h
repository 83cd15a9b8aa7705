// A lane whose programs are made up, to see what is said of compiling without a plugin at hand.
#pragma once

#include <optional>
#include <vector>

#include "engine/fixtures.h"

namespace tessera {

class CompilingLane final : public TestLane {
 public:
  CompilingLane() : TestLane("xla_chunked") {}

  Decision Decide(const Contract& contract, const Target& target) const override {
    return compile_only ? on_compile : TestLane::Decide(contract, target);
  }
  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const override {
    if (!compile_only) return TestLane::Bind(request);
    for (const Pass pass : request.passes) {
      if (pass == Pass::kBackward && compile_error) return tl::unexpected(*compile_error);
      compiled.push_back(pass);
    }
    return TestLane::Bind(request);
  }
  Result<ProgramText> Lower(const BindRequest& request, Pass pass) const override {
    return ProgramText{(pass == Pass::kForward ? "forward_" : "backward_") + ToHex(request.plan.class_key),
                       "module {}"};
  }
  BoundLane::Facts FactsOf(const BindRequest& request) const override {
    BoundLane::Facts facts = TestLane::FactsOf(request);
    if (!compile_only) return facts;
    facts.device.platform = "tpu";
    facts.device.kind = "tpu";
    facts.device.topology = topology;
    for (ProgramUse& program : facts.programs) {
      program.source = source;
      program.instructions = 7;
      program.name = program.pass + "_" + ToHex(request.plan.class_key);
    }
    return facts;
  }

  Decision on_compile = Decision::Yes();
  std::optional<Error> compile_error;
  std::string topology = "v6e:1x1";
  std::string source = "compiled";
  mutable std::vector<Pass> compiled;
};

// The real table with that lane in place of the one that goes through XLA.
class CompileTable : public TestTable {
 public:
  CompilingLane& lane = Put(std::make_shared<CompilingLane>());
};

}  // namespace tessera
