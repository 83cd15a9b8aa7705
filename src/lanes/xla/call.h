// One pass of a program on one plan. What no call changes is there from the beginning: the program, the plan's tables
// and the scores' constants in the memory of every device that runs parts, and the order of the parts. A call sends its
// tensors once; its parts run at once on as many threads as it has, and each part's tiles are put in place as they
// come. Rows do not know of each other, so who runs what changes no bit.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lanes/check_args.h"
#include "lanes/lane.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/programs.h"

namespace tessera::lanes::xla {

// The tensors of a call by the names that programs give them. An output without data is not wanted.
struct PassTensor {
  TensorRef ref = {};
  TensorAxes axes = {};
};
using PassTensors = std::map<std::string, PassTensor, std::less<>>;

class BoundPass {
 public:
  struct Parts {
    Session session;
    const PassForm* form = nullptr;
    stablehlo::ProgramSpec spec;
    FoundProgram found;
    PlanTables tables;
    Score score;
    std::vector<int64_t> order;  // of the parts: HeaviestFirst
    int64_t threads = 1;
  };
  static Result<std::unique_ptr<BoundPass>> Make(Parts parts);

  const stablehlo::ProgramSpec& spec() const { return parts_.spec; }
  const ProgramUse& use() const { return parts_.found.use; }
  // Where outputs of parts wait to be put in place: of each thread, the largest.
  int64_t StagingBytes() const;

  // Gives the number of tiles that the program says it ran. `staging` has StagingBytes.
  // `tiles_done` may be null; parts count in it as they end.
  Result<int64_t> Run(const PassTensors& tensors, std::span<std::byte> staging, std::atomic<int64_t>* tiles_done) const;

 private:
  explicit BoundPass(Parts parts) : parts_(std::move(parts)) {}

  // A device, which runs one part after the other, and what its parts share: all operands but the part's number. Those
  // that the call sent go first, all of them, and then the events wait until the plugin lets go of the caller's memory.
  struct Stream {
    int64_t device = 0;
    std::vector<pjrt::Event> released;
    std::vector<pjrt::Buffer> sent;             // of the call
    std::vector<const pjrt::Buffer*> operands;  // in the program's order; null for the part's number
  };
  Status Hold();
  int64_t Device(int64_t stream) const;
  Result<Stream> OpenFirst(const PassTensors& tensors) const;
  Result<Stream> OpenBeside(const Stream& first, int64_t number) const;
  Status Fetch(const pjrt::Buffer& buffer, int64_t part, const OutputForm& form, const PassTensor& into,
               std::span<std::byte> staging) const;
  Result<int64_t> RunPart(int64_t part, const Stream& stream, const PassTensors& tensors,
                          std::span<std::byte> staging) const;

  Parts parts_;
  int64_t num_streams_ = 1;
  std::map<std::string, std::vector<std::byte>, std::less<>> constants_;  // lent to the plugin
  std::vector<std::vector<std::unique_ptr<pjrt::LentBuffer>>> held_;      // [stream][operand]; null: the call's
};

// Parts with the most tiles come first, so that no thread is left alone with one at the end.
std::vector<int64_t> HeaviestFirst(const stablehlo::ProgramSpec& spec, const PlanView& plan, Pass pass);

}  // namespace tessera::lanes::xla
