// A one-shot run of any form, as compiling and runs at a class share it.
#pragma once

#include <memory>

#include "engine/state.h"
#include "tessera/run.h"

namespace tessera {

struct OneShot {
  const Contract& contract;
  const Batch& batch;
  const Target& target;
  const RunOptions& options;
  // One of the two: tensors by name, whose outputs go into the outcome, or memory of the caller's.
  const TensorMap* inputs = nullptr;
  const RunTensors* tensors = nullptr;
  // Nothing is run, `inputs` are what routing reads, and there are no outputs.
  bool compile_only = false;
  // With compile_only: nothing is compiled either, and the programs of the passes come here.
  std::vector<ProgramText>* texts = nullptr;
};
RunOutcome RunOnce(const std::shared_ptr<EngineState>& engine, const OneShot& shot);

}  // namespace tessera
