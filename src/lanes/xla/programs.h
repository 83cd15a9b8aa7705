// Compiled programs of an engine: found in memory, else on disk, else compiled, and kept. Bounded; safe from any
// thread, and a program that two threads ask for at once is compiled once.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/hash.h"
#include "lanes/lane.h"
#include "lanes/xla/lowerings.h"
#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/plugins.h"
#include "lanes/xla/recent.h"
#include "lanes/xla/stablehlo/program.h"
#include "lanes/xla/xla.h"

namespace tessera::lanes::xla {

// In memory, over all plugins: the least recently used goes first.
inline constexpr size_t kMaxPrograms = 256;

struct CompiledPass {
  pjrt::Executable executable;
  std::vector<stablehlo::NamedType> inputs;
  std::vector<stablehlo::NamedType> outputs;
  ProgramUse facts;  // as it was made; a later use says "memory"
};

struct FoundProgram {
  std::shared_ptr<const CompiledPass> program;
  ProgramUse use;
};

// A pass of a class, to be found or made with these options.
struct ProgramQuestion {
  const Lowering& lowering;
  const stablehlo::ProgramSpec& spec;
  Pass pass = Pass::kForward;
  const XlaOptions& options;
};

// A program that was written already: `pass` is what it is for, in a receipt's words. Its keys begin with `prefix`:
// one of several devices has that of its layout there (ShardKey).
struct WrittenProgram {
  stablehlo::Program program;
  std::string pass;
  const XlaOptions& options;
  std::string prefix = {};
};

pjrt::TensorType ToTensorType(const stablehlo::Type& type);

// What a plugin is asked to compile a program with.
pjrt::CompileOptions CompileOptionsFor(const stablehlo::Program& program, const XlaOptions& options);

class Programs {
 public:
  explicit Programs(XlaSettings settings) : settings_(std::move(settings)) {}
  Result<FoundProgram> Find(const Session& session, const ProgramQuestion& question);
  // Compiled whatever is kept, and kept on disk for the next run.
  Result<ProgramUse> CompileAnew(const Session& session, const ProgramQuestion& question) const;
  // For devices that are not here, so that it can be neither kept nor run.
  Result<ProgramUse> CompileFor(const pjrt::Topology& topology, const ProgramQuestion& question) const;
  // Programs of others than lanes, which keep them themselves: from disk, else compiled.
  Result<FoundProgram> Make(const Session& session, WrittenProgram written) const;
  // `inside`, where it is not null, gets what the compiler made of it, for an audit.
  Result<ProgramUse> CompileFor(const pjrt::Topology& topology, const WrittenProgram& written,
                                pjrt::OptimizedProgram* inside = nullptr) const;

 private:
  // What is looked for and made while it is locked, so that threads that ask for one program at once wait for one
  // compilation.
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const CompiledPass> program;
  };
  const XlaSettings settings_;
  Recent<Hash128, Entry> entries_{kMaxPrograms};
};

}  // namespace tessera::lanes::xla
