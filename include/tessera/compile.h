// Compiling a contract without running it, also for a machine that is not here: what `tessera compile` does.
// docs/compile.md says what is compiled where.
#pragma once

#include <vector>

#include "tessera/run.h"

#pragma GCC visibility push(default)
namespace tessera {

// Plans, lowers and compiles the passes that the options ask for, anew and whatever is kept, and runs nothing: the
// receipt's runtime mode is "compile-only", and there are no outputs. Inputs are the q and k of a contract that routes;
// no other needs any.
RunOutcome Compile(const Engine& engine, const Contract& contract, const Batch& batch, const Target& target,
                   const RunOptions& options = {}, const TensorMap& inputs = {});

// The texts alone, forward then backward, of the lane that Compile would use: needs no plugin.
Result<std::vector<ProgramText>> LowerPrograms(const Engine& engine, const Contract& contract, const Batch& batch,
                                               const Target& target, const RunOptions& options = {},
                                               const TensorMap& inputs = {});

// The same with a receipt, whose runtime mode is "emitted": every lane's decision, the class, the plan and what each
// kernel takes. No file is written, and none is in the receipt.
struct EmitOutcome {
  RunOutcome run;  // without outputs
  std::vector<ProgramText> programs;
};
EmitOutcome Emit(const Engine& engine, const Contract& contract, const Batch& batch, const Target& target,
                 const RunOptions& options = {}, const TensorMap& inputs = {});

}  // namespace tessera
#pragma GCC visibility pop
