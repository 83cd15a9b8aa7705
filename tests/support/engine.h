// The engine that tests run on where they have no need of one of their own, with the peers' JAX where that is there,
// and one-shot calls on it with digests taken.
#pragma once

#include <string>
#include <vector>

#include "support/peers.h"
#include "tessera/tessera.h"

namespace tessera {

// Never destroyed: a plugin's threads may outlive main.
inline const Engine& TestEngine() {
  static const Engine& engine = *new Engine([] {
    EngineOptions options = OptionsFromEnvironment();
    if (const std::string python = PeersPython(); !python.empty()) options.python = python;
    return options;
  }());
  return engine;
}

inline RunOptions WithDigests(RunOptions options) {
  options.digests = true;
  return options;
}

inline RunOutcome Run(const Contract& contract, const Batch& batch, const TensorMap& inputs, const Target& target,
                      const RunOptions& options = {}) {
  return Run(TestEngine(), contract, batch, inputs, target, WithDigests(options));
}
inline RunOutcome RunStrided(const Contract& contract, const Batch& batch, const RunTensors& tensors,
                             const Target& target, const RunOptions& options = {}) {
  return RunStrided(TestEngine(), contract, batch, tensors, target, WithDigests(options));
}
inline RunOutcome RunAtClass(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                             const Target& target, const RunOptions& options = {}) {
  return RunAtClass(TestEngine(), contract, batch, inputs, target, WithDigests(options));
}
inline Result<Selection> SelectLane(const Contract& contract, const Target& target) {
  return TestEngine().Select(contract, target);
}
inline std::vector<LaneInfo> Lanes() { return TestEngine().Lanes(); }
// Why the CUDA lane does not run a small contract of f32.
inline const char* WhyNoCuda() {
  for (const LaneInfo& lane : Lanes()) {
    if (lane.name == "cuda" && !lane.isas.empty()) return "cuda.dtype";
  }
  return "cuda.not_built";
}
inline Receipt ReceiptOf(const EarlyFailure& failure, const RunOptions& options, const Error& error) {
  return ReceiptOf(TestEngine(), failure, WithDigests(options), error);
}

}  // namespace tessera
