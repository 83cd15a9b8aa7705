// XLA's optimized programs: any bytes give an error or counts that agree with each other.
#include "fuzz.h"
#include "lanes/xla/pjrt/read_program.h"

namespace tessera {
namespace {

int64_t Sum(const std::map<std::string, int64_t>& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

}  // namespace

bool FuzzOptimizedProgram(const uint8_t* data, size_t size) {
  const auto program = pjrt::ReadProgram({reinterpret_cast<const std::byte*>(data), size});
  if (!program) {
    Require(!program.error().message.empty(), "a refusal says why");
    return false;
  }
  Require(program->instructions > 0, "a program has instructions");
  Require(Sum(program->opcodes) == program->instructions, "every instruction has an opcode");
  Require(Sum(program->custom_calls) <= program->instructions, "custom calls are instructions");
  Require(Sum(program->collectives) <= program->instructions, "collectives are instructions");
  return true;
}

}  // namespace tessera
