// A program that is compiled and loaded: it runs on buffers. Every buffer is checked against the declared inputs first,
// since plugins take one of the wrong type and equal size without a word. Safe to run from several threads.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lanes/xla/pjrt/buffer.h"
#include "lanes/xla/pjrt/compile_options.h"
#include "lanes/xla/pjrt/event.h"
#include "lanes/xla/pjrt/program.h"

namespace tessera::pjrt {

class Client;

struct ExecuteOptions {
  // Index into Client::devices(). Any for a portable program; a program bound to a device runs there only, and one of
  // several devices runs on all of its own.
  int64_t device = 0;
  // Inputs that the program may take over (tf.aliasing_output) and must not this time.
  std::vector<int64_t> do_not_donate = {};
};

// What a run gave. The work may still be under way: done says when it is finished.
struct Launched {
  std::vector<Buffer> outputs;
  Event done;
};

class Executable {
 public:
  // Takes the raw program over, also when it fails.
  static Result<Executable> Adopt(Client& client, api::LoadedExecutable* raw, const CompileOptions& options);

  std::span<const TensorType> inputs() const { return options_.inputs; }
  std::span<const TensorType> outputs() const { return program_.outputs(); }
  const CompiledProgram& program() const { return program_; }

  // Returns before the work is done; Download of an output waits for it.
  Result<std::vector<Buffer>> Execute(std::span<const Buffer* const> args, const ExecuteOptions& options = {}) const;
  Result<Launched> ExecuteWithEvent(std::span<const Buffer* const> args, const ExecuteOptions& options = {}) const;
  // A program of several devices: the arguments of each, in the order of the program's devices; ExecuteOptions::device
  // is not looked at.
  Result<std::vector<Launched>> ExecuteOnAll(std::span<const std::vector<const Buffer*>> args,
                                             const ExecuteOptions& options = {}) const;

  Result<ProgramFigures> Figures() const { return program_.Figures(); }
  Result<OptimizedProgram> Optimized() const { return program_.Optimized(); }
  Result<std::vector<std::byte>> Serialize() const { return program_.Serialize(); }
  Result<std::string> Fingerprint() const { return program_.Fingerprint(); }

 private:
  Status CheckDeclaration() const;
  Status CheckArgs(std::span<const Buffer* const> args, int64_t device, const ExecuteOptions& options) const;
  Result<std::vector<Launched>> Launch(std::span<const std::span<const Buffer* const>> args,
                                       std::span<const int64_t> devices, const ExecuteOptions& options,
                                       bool with_events) const;
  Result<std::vector<Launched>> ExecuteOnOne(std::span<const Buffer* const> args, const ExecuteOptions& options,
                                             bool with_events) const;

  Client* client_ = nullptr;
  Handle<api::LoadedExecutable, api::LoadedDestroyArgs, &api::LoadedDestroyArgs::executable> handle_;
  CompiledProgram program_;
  CompileOptions options_;
  std::vector<int64_t> devices_;  // indices of its own devices; empty for a portable program
};

}  // namespace tessera::pjrt
