// The plan as operands of our TPU kernels: padded views of fixed shape, all i32 here; programs narrow them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/lane.h"
#include "lanes/xla/kernels/attention.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

// A kernel of one direction of the class.
kernels::AttentionSpec KernelSpecOf(const stablehlo::ProgramSpec& spec, Direction direction);
// Of the first of the calls that share the direction's rows, which is the largest.
Result<mosaic::Module> KernelOf(const stablehlo::ProgramSpec& spec, Direction direction);

// The kernels of a pass, each by a direction whose tables it has. Our backward is one, of dQ; or two, of which that of
// dK and dV walks the same rows of queries.
std::span<const Direction> DirectionsOf(const stablehlo::ProgramSpec& spec, Pass pass);
Direction WalkOf(const stablehlo::ProgramSpec& spec, Direction direction);

// Which backward our kernels are, and why: set by FitTarget. One kernel computes P and dS once, and costs less wherever
// it can be had (docs/tpu.md has the bundles). It gives dQ for each chunk of keys, though, to be added up. So there are
// two kernels where those parts take more than kMostPartBytes, or are more than the tiles that any row visits; and
// where the one does not fit the vector memory and the two do.
inline constexpr int64_t kMostPartBytes = int64_t{1} << 30;
struct BackwardChoice {
  bool is_apart = false;
  std::string why = {};
};
BackwardChoice ChooseBackward(const stablehlo::ProgramSpec& spec, std::string_view asked);
// The choice in words, for receipts; empty for a pass or kernels that had none.
std::string ChoiceNote(const stablehlo::ProgramSpec& spec, Pass pass, std::string_view asked);

// Rows of tiles [begin, end) of one call, and the kernel on them alone: over a range of queries. Rows know nothing of
// each other, so a split changes no bit of o, lse and dq; dk and dv are added up over the calls.
struct CallRows {
  int64_t begin = 0;
  int64_t end = 0;
};
std::vector<CallRows> CallsOf(const stablehlo::ProgramSpec& spec, Direction direction);
kernels::AttentionSpec CallSpecOf(const stablehlo::ProgramSpec& spec, Direction direction, const CallRows& rows);
Result<mosaic::Module> KernelOf(const kernels::AttentionSpec& kernel, Direction direction);
// What a call takes of an operand: all of it; rows of a list, or of numbers that each row has several of; tokens along
// an axis, the call's rows of them; the rows themselves along an axis; or valid tokens, counted from the call's first.
enum class Share : uint8_t { kWhole, kRows, kRowNumbers, kTokens, kTiles, kValid };
struct OperandShare {
  Share share = Share::kWhole;
  size_t axis = 0;
};
OperandShare ShareOf(std::string_view operand);
// The names of a kernel's operands, in order.
std::vector<std::string> OperandOrder(const kernels::AttentionSpec& kernel, Direction direction);
// Holds the kernels to the target's memory. Sets `calls` to the fewest, in powers of two, whose lists fit, but for the
// stock kernels, which are never split; a row too wide for any is CheckKernelPlan's to refuse.
// `backward` is XlaOptions::tpu_backward.
void FitTarget(stablehlo::ProgramSpec& spec, const Target& target, std::string_view backward = "auto");

// The name of an operand of one direction: "columns_dq".
std::string TableName(Direction direction, std::string_view what);
// The tables of a direction, in the order of the kernel's scalars and then of its mask windows, without the axes that
// only spread them. `kv_live_<direction>` is 0 for keys that nobody sees, whatever is in them.
std::vector<stablehlo::NamedType> TableInputs(const stablehlo::ProgramSpec& spec, Direction direction);

// Slots past a row's count are of kind 0 and repeat the row's last column, so that nothing is fetched for them.
PlanTables KernelTables(const stablehlo::ProgramSpec& spec, const PlanView& plan,
                        const std::vector<stablehlo::NamedType>& inputs);

// Stored tiles that the plan's cleanups need at most in one direction, and whether a cell's bits suffice.
struct StoredNeed {
  int64_t tiles = 0;
  int64_t planes = 0;
};
inline constexpr int64_t kMaxPlanes = 7;
StoredNeed StoredNeedOf(const PlanView& plan);
// Of a class: a power of two, so that batches share it.
int64_t StoredCapacity(const PlanView& plan);

}  // namespace tessera::lanes::xla
