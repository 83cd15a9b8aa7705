// What XLA made of a program, read from the bytes of its optimized form (HloModuleProtoWithConfig). A skimmer: it
// counts what a receipt or a test wants to know, and understands nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/collectives.h"
#include "lanes/xla/pjrt/sharding.h"
#include "lanes/xla/pjrt/tensor_type.h"
#include "tessera/error.h"

namespace tessera::pjrt {

struct OptimizedProgram {
  std::string module_name;
  // What it takes, on each device; nothing where that is not told or not in our types.
  std::optional<std::vector<TensorType>> parameters;
  std::optional<std::vector<TensorType>> results;  // the same of what it gives
  int64_t instructions = 0;                        // of all computations, nested ones included
  std::map<std::string, int64_t> opcodes;          // "dot" -> 2
  std::map<std::string, int64_t> custom_calls;     // by target
  // The opcodes that speak to other devices, asynchronous forms counted once and under the plain name.
  std::map<std::string, int64_t> collectives;
  std::vector<Collective> collective_calls;  // each of them, with what it sends to whom
  // Those that the program says its parameters and its result have; empty for a program of one device.
  std::vector<Sharding> parameter_shardings;
  std::optional<Sharding> result_sharding;
  // Those of the program's parameters, then of its result, then of instructions that still carry one, in XLA's words:
  // "{devices=[2,1]<=[2]}", "{replicated}".
  std::vector<std::string> shardings;
  // Of vector memory, of the TPU kernel that takes most, where the compiler wrote it down; else -1.
  int64_t vector_bytes = -1;
};

// Any bytes may be given; what is no such program is an error (TSR-L009) that says where.
Result<OptimizedProgram> ReadProgram(std::span<const std::byte> bytes);

}  // namespace tessera::pjrt
