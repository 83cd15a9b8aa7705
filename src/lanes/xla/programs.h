// Compiled programs of this process: found in memory, else on disk, else compiled, and kept. Bounded; safe from any
// thread, and a program that two threads ask for at once is compiled once.
#pragma once

#include <memory>
#include <vector>

#include "lanes/lane.h"
#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/plugins.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

// In memory, over all plugins: the least recently used goes first.
inline constexpr size_t kMaxPrograms = 256;

struct CompiledPass {
  pjrt::Executable executable;
  std::vector<stablehlo::NamedType> inputs;
  std::vector<stablehlo::NamedType> outputs;
  XlaProgramUse facts;  // as it was made; a later use says "memory"
};

struct FoundProgram {
  std::shared_ptr<const CompiledPass> program;
  XlaProgramUse use;
};
Result<FoundProgram> FindProgram(const Session& session, const stablehlo::ProgramSpec& spec, Pass pass,
                                 const XlaOptions& options);

// Compiled whatever is kept, and kept on disk for the next run.
Status CompileAnew(const Session& session, const stablehlo::Program& program, const XlaOptions& options,
                   XlaProgramUse* use);

// The kernel's name in receipts.
std::string_view KernelName(DType dtype);
// "No" to a program whose operands are too large to index.
Decision CheckSize(const stablehlo::ProgramSpec& spec);
Result<stablehlo::Program> Lower(const stablehlo::ProgramSpec& spec, Pass pass);

// What a plugin of this process was asked to compile with.
pjrt::CompileOptions CompileOptionsFor(const stablehlo::Program& program, const XlaOptions& options);
// The part of XlaProgramUse that the compiled program itself tells.
Status Describe(const pjrt::CompiledProgram& program, XlaProgramUse* use);

}  // namespace tessera::lanes::xla
