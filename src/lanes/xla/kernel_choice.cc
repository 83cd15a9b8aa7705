// Which of our kernels a program has, and in how many calls: what fits the target. See kernel_tables.h.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/math.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/kernels/worklist.h"
#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/verify.h"

namespace tessera::lanes::xla {

using kernels::AttentionSpec;
using stablehlo::ProgramSpec;

namespace {
// As MeasureMemory counts them, or a little less: enough to see that there is nothing to split.
int64_t ListBytes(const AttentionSpec& kernel) {
  int64_t bytes = 0;
  for (const mosaic::Memory& scalar : kernels::ScalarsOf(kernel)) {
    bytes += mosaic::BytesOf(mosaic::ArrayType{scalar.type.element, scalar.type.dims});
  }
  return bytes;
}

// As large as the kernels of the backward may be, or less than what is measured by a quarter at most: enough to see
// that there is nothing to measure.
bool IsBackwardLarge(const AttentionSpec& kernel, int64_t limit) {
  if (kernel.chunk_kv > kernel.list.tile_kv) return false;  // chunks are cut so that they fit
  const int64_t of_element = kernel.element == mosaic::Element::kF32 ? 4 : 2;
  const int64_t dims = RoundUp(kernel.dim_qk, kernels::kLanes) + RoundUp(kernel.dim_v, kernels::kLanes);
  const int64_t rows = kernel.list.tile_q * (2 * of_element + 4);
  return 2 * dims * (rows + kernel.list.tile_kv * (of_element + 4)) > limit / 2;
}

// Of the backward's largest kernel; nothing where there is no such kernel.
std::optional<int64_t> BackwardBytes(ProgramSpec spec, bool is_apart) {
  spec.is_backward_apart = is_apart;
  int64_t most = 0;
  for (const Direction direction : DirectionsOf(spec, Pass::kBackward)) {
    const Result<mosaic::Module> kernel = KernelOf(spec, direction);
    const Result<mosaic::KernelMemory> memory =
        kernel ? mosaic::MeasureMemory(*kernel) : tl::unexpected(kernel.error());
    if (!memory) return std::nullopt;
    most = std::max(most, memory->vmem_bytes);
  }
  return most;
}
}  // namespace

BackwardChoice ChooseBackward(const ProgramSpec& spec, std::string_view asked) {
  if (asked != "auto") return {asked == "apart", "asked for"};
  ProgramSpec fused = spec;
  fused.is_backward_apart = false;
  const AttentionSpec kernel = KernelSpecOf(fused, Direction::kDq);
  const int64_t chunks = kernel.chunks();
  const int64_t part_bytes = chunks * kernel.batch * kernel.num_q_heads * kernel.q_tokens() * kernel.dim_qk * 4;
  if (chunks > 1 && part_bytes > kMostPartBytes) {
    return {true, fmt::format("dq would come in {} parts of {} bytes in all, more than {}", chunks, part_bytes,
                              kMostPartBytes)};
  }
  if (chunks > kernel.list.width) {
    return {true,
            fmt::format("dq would come in {} parts, and no row visits more than {} tiles", chunks, kernel.list.width)};
  }
  if (spec.vector_bytes > 0 && IsBackwardLarge(kernel, spec.vector_bytes)) {
    const std::optional<int64_t> of_one = BackwardBytes(fused, false);
    if (of_one && *of_one > spec.vector_bytes && BackwardBytes(fused, true).value_or(*of_one) <= spec.vector_bytes) {
      return {true, fmt::format("one kernel would take {} bytes of vector memory, of {}", *of_one, spec.vector_bytes)};
    }
  }
  return {false, "it costs least"};
}

std::string ChoiceNote(const ProgramSpec& spec, Pass pass, std::string_view asked) {
  if (pass == Pass::kForward || spec.band) return {};
  const BackwardChoice choice = ChooseBackward(spec, asked);
  return fmt::format(
      "{}: {}", choice.is_apart ? "a kernel for dq and one for dk and dv" : "one kernel for dq, dk and dv", choice.why);
}

void FitTarget(ProgramSpec& spec, const Target& target, std::string_view backward) {
  spec.scalar_bytes = target.scalar_bytes;
  spec.vector_bytes = target.vector_bytes;
  if (spec.band) return;
  spec.is_backward_apart = ChooseBackward(spec, backward).is_apart;
  const int64_t scalar_bytes = target.scalar_bytes;
  if (scalar_bytes <= 0) return;
  std::vector<Direction> directions = {Direction::kForward};
  for (const Direction direction : DirectionsOf(spec, Pass::kBackward)) directions.push_back(direction);
  for (const Direction direction : directions) {
    int64_t& calls = spec.calls[static_cast<size_t>(direction)];
    while (CallsOf(spec, direction).size() < static_cast<size_t>(spec.Of(WalkOf(spec, direction)).rows)) {
      if (ListBytes(CallSpecOf(spec, direction, CallsOf(spec, direction)[0])) <= scalar_bytes / 4) break;
      const Result<mosaic::Module> kernel = KernelOf(spec, direction);
      const Result<mosaic::KernelMemory> memory =
          kernel ? mosaic::MeasureMemory(*kernel) : tl::unexpected(kernel.error());
      if (!memory || memory->smem_bytes <= scalar_bytes) break;
      calls *= 2;
    }
  }
}

}  // namespace tessera::lanes::xla
