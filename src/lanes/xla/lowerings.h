// The XLA family: lanes that run compiled programs, one row each. A row says what its programs take and give and how
// they are written; client, store, operands and receipts are the same for all.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lanes/lane.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

// An output of a program, by its name among the tensors of a pass.
struct OutputForm {
  std::string_view name;
  Direction direction = Direction::kForward;  // whose rows it has
  bool is_per_row = false;                    // one number for each row of tiles and no tile
};

// What a pass takes beside the plan's tables, and gives.
struct PassForm {
  std::span<const std::string_view> operands;
  std::span<const OutputForm> outputs;
};

struct Lowering {
  std::string_view name;  // the lane's, and how its kernels' names begin
  PassForm forward;
  PassForm backward;
  Result<stablehlo::Program> (*lower)(const stablehlo::ProgramSpec& spec, Pass pass) = nullptr;
  PlanTables (*tables)(const stablehlo::ProgramSpec& spec, const PlanView& plan,
                       const std::vector<stablehlo::NamedType>& inputs) = nullptr;
  bool has_kernels = false;  // for a TPU's core, which may also be interpreted
  bool has_band = false;     // its kernels compute the mask
  // Their texts, in the order of the program's calls; null where there are none.
  Result<std::vector<KernelText>> (*kernels)(const stablehlo::ProgramSpec& spec, Pass pass) = nullptr;
  const PassForm& Of(Pass pass) const { return pass == Pass::kForward ? forward : backward; }
  bool GivesRowMax() const { return forward.outputs.size() == 3; }
};

std::span<const Lowering> Lowerings();
const Lowering* FindLowering(std::string_view name);

// Only some programs give the rows' maxima, and those for inference no statistics at all; asking them is an error,
// TSR-L002.
Status CheckStatistics(const Lowering& lowering, bool has_stats, const ForwardArgs& args);

// "No" to a program whose operands are too large to index.
Decision CheckSize(const stablehlo::ProgramSpec& spec);

// "No" to what the TPU kernels have no form for by the plan; by the contract, the lane table says it.
Decision CheckKernelPlan(const stablehlo::ProgramSpec& spec, const PlanView& plan, const Target& target);

}  // namespace tessera::lanes::xla
