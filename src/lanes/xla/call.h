// One pass of a program: operands go up once, its parts run at once on as many threads as the request has, and each
// part's tiles are put in place as they come. Rows do not know of each other, so who runs what changes no bit.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lanes/check_args.h"
#include "lanes/lane.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/programs.h"

namespace tessera::lanes::xla {

// An output of a program, and where its tiles go. Without data it is not wanted.
struct PassOutput {
  const char* name = nullptr;
  Direction direction = Direction::kForward;  // whose rows it has
  TensorRef into = {};
  TensorAxes axes = {};
  bool is_per_row = false;  // one number for each row of tiles and no tile: `into` is dense, and so long
};

class PassCall {
 public:
  PassCall(const Session& session, const CompiledPass& program, const stablehlo::ProgramSpec& spec)
      : session_(session), program_(program), spec_(spec) {}

  void Tensor(const char* name, const TensorRef& ref, const TensorAxes& axes) { tensors_[name] = {&ref, axes}; }
  void Floats(const char* name, std::span<const float> values) { bytes_[name] = std::as_bytes(values); }
  void Tables(const PlanTables& tables) {
    for (const auto& [name, table] : tables) bytes_[name] = std::as_bytes(std::span(table));
  }
  void Output(const PassOutput& output) { outputs_.push_back(output); }

  // Gives the number of tiles that the program says it ran. `parts` is the order to start them in; `workspace` has
  // StagingBytes.
  Result<int64_t> Run(std::span<const int64_t> parts, int64_t threads, std::span<std::byte> workspace) const;

 private:
  struct TensorArg {
    const TensorRef* ref = nullptr;
    TensorAxes axes{};
  };
  // A device, which runs one part after the other, and the operands that its parts share; an empty one for the part's
  // number. The buffers go first, all of them, and then the events wait until the plugin lets go of our memory.
  struct Stream {
    void Add(pjrt::LentBuffer lent) {
      released.push_back(std::move(lent.released));
      shared.push_back(std::move(lent.buffer));
    }
    int64_t device = 0;
    std::vector<pjrt::Event> released;
    std::vector<pjrt::Buffer> shared;
  };
  int64_t NumStreams(int64_t threads) const;
  Result<Stream> OpenFirst() const;
  Result<Stream> OpenBeside(const Stream& first, int64_t number) const;
  Result<pjrt::LentBuffer> Lend(const std::string& name, const pjrt::TensorType& type) const;
  Status Fetch(const pjrt::Buffer& buffer, int64_t part, const PassOutput& output, std::span<std::byte> staging) const;
  Result<int64_t> RunPart(int64_t part, const Stream& stream, std::span<std::byte> staging) const;

  const Session& session_;
  const CompiledPass& program_;
  const stablehlo::ProgramSpec& spec_;
  std::map<std::string, TensorArg, std::less<>> tensors_;
  std::map<std::string, std::span<const std::byte>, std::less<>> bytes_;
  std::vector<PassOutput> outputs_;
};

// Where outputs of parts wait to be put in place: of each thread, the largest.
int64_t StagingBytes(const stablehlo::ProgramSpec& spec, Pass pass, int64_t threads);

// Parts with the most tiles come first, so that no thread is left alone with one at the end.
std::vector<int64_t> HeaviestFirst(const stablehlo::ProgramSpec& spec, const PlanView& plan, Pass pass);

}  // namespace tessera::lanes::xla
