// A compiled program as far as it can be looked at: what it gives, costs and contains. Running it needs an Executable.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/api_executable.h"
#include "lanes/xla/pjrt/handle.h"
#include "lanes/xla/pjrt/read_program.h"
#include "lanes/xla/pjrt/tensor_type.h"

namespace tessera::pjrt {

// -1 where the plugin does not tell.
struct ProgramFigures {
  int64_t generated_code_bytes = -1;
  int64_t argument_bytes = -1;
  int64_t output_bytes = -1;
  int64_t alias_bytes = -1;  // of outputs that take an argument's memory
  int64_t temp_bytes = -1;
  int64_t peak_bytes = -1;  // may be below temp_bytes: not every plugin counts the same things
  double flops = -1;        // a loop's body is counted once, however often it runs
  double bytes_accessed = -1;
};

class CompiledProgram {
 public:
  // Takes the raw program over, also when it fails.
  static Result<CompiledProgram> Adopt(const api::Table& table, api::Executable* raw);

  CompiledProgram() = default;

  std::span<const TensorType> outputs() const { return outputs_; }
  Result<ProgramFigures> Figures() const;
  Result<OptimizedProgram> Optimized() const;
  // What Optimized reads: a protobuf message, HloModuleProtoWithConfig.
  Result<std::vector<std::byte>> OptimizedBytes() const;
  // For Client::Deserialize of the same plugin on the same kind of machine.
  Result<std::vector<std::byte>> Serialize() const;
  // The plugin's own; it need not cover the machine the program was compiled for.
  Result<std::string> Fingerprint() const;

 private:
  Status ReadOutputs();

  Handle<api::Executable, api::ExecutableDestroyArgs, &api::ExecutableDestroyArgs::executable> handle_;
  std::vector<TensorType> outputs_;
};

}  // namespace tessera::pjrt
