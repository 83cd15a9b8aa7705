// What the tests of the bridge share: small contracts, an engine with an interpreter of the test's choice, and programs
// that answer as an interpreter would.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/peers.h"
#include "support/run_program.h"
#include "tessera/tessera.h"

namespace tessera {

inline Contract BridgeContract(const std::string& mask, const std::string& more = {},
                               const std::string& dtype = "f32") {
  return ParseContract(
             "version = 1\n[shape]\nbatch = 2\nq_len = 37\nnum_q_heads = 4\nnum_kv_heads = 2\ndim_qk = 8\n"
             "dim_v = 12\ndtype = \"" +
             dtype + "\"\n[mask]\nexpr = \"" + mask + "\"\n" + more)
      .value();
}

inline Engine EngineWith(const std::string& python) {
  EngineOptions options;
  options.python = python;
  return Engine(options);
}

inline RunOutcome RunBridge(const Engine& engine, const Contract& contract, const Batch& batch, const TensorMap& inputs,
                            const std::string& target = "cpu") {
  RunOptions options;
  options.lane = "call_jax";
  options.backward = true;
  options.row_max = true;
  options.digests = true;
  options.input_source = "seed 1";
  return Run(engine, contract, batch, inputs, FindTarget(target).value(), options);
}

// A program that prints this and ends with a status.
inline std::string FakePython(const TemporaryFolder& folder, const std::string& says, int status = 0) {
  const std::string file = folder.File("python");
  WriteWhole(file, "#!/bin/sh\ncat <<'END'\n" + says + "\nEND\nexit " + std::to_string(status) + "\n");
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  return file;
}

}  // namespace tessera
