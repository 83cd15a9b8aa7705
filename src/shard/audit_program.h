// The audit after compiling: what XLA made of a program, read back and held against the specs. An argument without a
// sharding is cut by propagation and a dimension that does not divide is laid out anew, both without a word: so local
// shapes are compared, not intentions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/read_program.h"
#include "tessera/shard.h"

namespace tessera::shard {

// The tensors of the table that a program takes and gives, in its order.
struct ProgramTensors {
  std::vector<std::string> arguments;
  std::vector<std::string> results;
};

struct ProgramLimits {
  std::optional<int64_t> device_bytes = {};  // of arguments, results and what the program needs beside them
  int64_t temp_bytes = 0;                    // the last of these, as the compiled program tells; under 0: it does not
};

struct ProgramReport {
  std::vector<std::string> collectives;  // each in one line, with the bytes it carries between devices
  int64_t carried_bytes = 0;             // of one trip of each, over all devices
  int64_t device_bytes = 0;              // of arguments and results
  int64_t total_bytes = 0;               // the same on one device alone
  int64_t replicated_bytes = 0;          // of arguments that are whole on every device
};

// Every difference in one refusal (TSR-S006): the number of arguments and results, local types, shardings, an
// all-gather of a parameter that ZeRO-3 did not cut along those devices, bytes above the ceiling. The table has passed
// AuditShards.
Result<ProgramReport> AuditProgram(const ShardTable& table, const ProgramTensors& tensors,
                                   const pjrt::OptimizedProgram& program, const ProgramLimits& limits = {});

// The sharding of a row as Shardy's text has it: `#sdy.sharding<@mesh, [{"model"}, {}]>`.
std::string ShardyText(const ShardRow& row);
// `sdy.mesh @mesh = <["data"=2, "model"=2]>`.
std::string ShardyText(const Mesh& mesh);

// What a program takes of a row on each device.
Result<pjrt::TensorType> LocalType(const ShardRow& row, const Mesh& mesh);

}  // namespace tessera::shard
