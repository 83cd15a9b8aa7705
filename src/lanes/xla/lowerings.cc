#include "lanes/xla/lowerings.h"

#include <fmt/format.h>

#include <limits>

#include "base/try.h"
#include "lanes/xla/kernel_program.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/mosaic/print.h"
#include "lanes/xla/mosaic/verify.h"
#include "lanes/xla/store/limits.h"
#include "lanes/xla/xla.h"

namespace tessera::lanes::xla {
namespace {

Result<stablehlo::Program> LowerChunked(const stablehlo::ProgramSpec& spec, Pass pass) {
  return pass == Pass::kForward ? stablehlo::LowerForward(spec) : stablehlo::LowerBackward(spec);
}

PlanTables ChunkedTables(const stablehlo::ProgramSpec& spec, const PlanView& plan,
                         const std::vector<stablehlo::NamedType>& inputs) {
  return MakeTables(spec, plan, inputs);
}

Result<KernelText> TextOf(const mosaic::Module& module, std::string name) {
  const mosaic::KernelMemory memory = TESSERA_TRY(mosaic::MeasureMemory(module));
  return KernelText{.name = std::move(name),
                    .text = mosaic::Print(module),
                    .vector_bytes = memory.vmem_bytes,
                    .scalar_bytes = memory.smem_bytes};
}

Result<std::vector<KernelText>> KernelTexts(const stablehlo::ProgramSpec& spec, Pass pass) {
  std::vector<KernelText> texts;
  for (const Direction direction : DirectionsOf(spec, pass)) {
    if (spec.band) {
      const mosaic::Module module = TESSERA_TRY(KernelOf(spec, direction));
      texts.push_back(TESSERA_TRY(TextOf(module, std::string(module.functions[0].Name()))));
      continue;
    }
    const std::vector<CallRows> calls = CallsOf(spec, direction);
    for (size_t i = 0; i < calls.size(); ++i) {
      const mosaic::Module module = TESSERA_TRY(KernelOf(CallSpecOf(spec, direction, calls[i]), direction));
      const std::string name(module.functions[0].Name());
      texts.push_back(TESSERA_TRY(TextOf(module, calls.size() == 1 ? name : fmt::format("{}_{}", name, i))));
    }
  }
  return texts;
}

constexpr std::string_view kForwardOperands[] = {"q", "k", "v", "scale", "softcap", "sink_logits"};
constexpr std::string_view kBackwardOperands[] = {"q",           "k",  "v",   "scale", "softcap",
                                                  "sink_logits", "do", "lse", "delta"};
constexpr OutputForm kForwardOutputs[] = {{"o"}, {"lse"}, {"max"}};
constexpr OutputForm kBackwardOutputs[] = {
    {"dq", Direction::kDq}, {"dk", Direction::kDkv}, {"dv", Direction::kDkv}, {"dsink_logits", Direction::kDq, true}};

constexpr Lowering kLowerings[] = {
    {.name = kXlaChunked,
     .forward = {kForwardOperands, kForwardOutputs},
     .backward = {kBackwardOperands, kBackwardOutputs},
     .lower = LowerChunked,
     .tables = ChunkedTables},
    {.name = kXlaPallas,
     .forward = {kForwardOperands, kForwardOutputs},
     .backward = {kBackwardOperands, kBackwardOutputs},
     .lower = LowerKernels,
     .tables = KernelTables,
     .has_kernels = true,
     .kernels = KernelTexts},
    {.name = kXlaSplash,
     .forward = {kForwardOperands, std::span(kForwardOutputs).first<2>()},
     .backward = {kBackwardOperands, std::span(kBackwardOutputs).first<3>()},
     .lower = LowerKernels,
     .tables = KernelTables,
     .has_kernels = true,
     .has_band = true,
     .kernels = KernelTexts},
};

}  // namespace

std::span<const Lowering> Lowerings() { return kLowerings; }

const Lowering* FindLowering(std::string_view name) {
  for (const Lowering& lowering : kLowerings) {
    if (lowering.name == name) return &lowering;
  }
  return nullptr;
}

Status CheckStatistics(const Lowering& lowering, bool has_stats, const ForwardArgs& args) {
  if (!has_stats && !(args.lse.empty() && args.row_max.empty())) {
    return Fail(ErrorCode::kLaneRefused,
                fmt::format("{} was bound without statistics: it gives neither log-sum-exp nor maxima", lowering.name));
  }
  if (args.row_max.empty() || lowering.GivesRowMax()) return {};
  return Fail(ErrorCode::kLaneRefused, fmt::format("the kernels of {} do not give the rows' maxima", lowering.name));
}

Decision CheckSize(const stablehlo::ProgramSpec& spec) {
  for (const stablehlo::ListShape& list : spec.lists) {
    // A program has several matrices of a tile's scores at a time.
    if (list.tile_q * list.tile_kv > kMaxTileScores) {
      return Decision::No(ReasonCode::kXlaTooLarge,
                          fmt::format("a tile of {} x {} has more than {} scores; smaller tiles make it fit",
                                      list.tile_q, list.tile_kv, kMaxTileScores));
    }
    const double rows = static_cast<double>(spec.shape.batch * spec.shape.num_q_heads) * static_cast<double>(list.rows);
    if (rows > std::numeric_limits<int32_t>::max()) {
      return Decision::No(
          ReasonCode::kXlaTooLarge,
          fmt::format("all heads together have {:.0f} rows of tiles, more than 2^31; larger tiles make fewer", rows));
    }
    const double slots = static_cast<double>(spec.masks) * static_cast<double>(list.rows) *
                         static_cast<double>(list.width) * stablehlo::kSlotColumns;
    if (slots > std::numeric_limits<int32_t>::max()) {
      return Decision::No(ReasonCode::kXlaTooLarge,
                          fmt::format("its padded worklist has {:.0f} numbers, more than 2^31; a tighter "
                                      "capacity.width or larger tiles make it smaller",
                                      slots));
    }
  }
  return Decision::Yes();
}

namespace {

Decision CheckMemory(const mosaic::KernelMemory& memory, Direction direction, const Target& target) {
  if (target.scalar_bytes > 0 && memory.smem_bytes > target.scalar_bytes) {
    return Decision::No(ReasonCode::kScalarMemory,
                        fmt::format("the {} kernel's worklists take {} bytes of scalar memory, and {} has {}; larger "
                                    "tiles or a tighter capacity.width make them smaller",
                                    ToText(direction), memory.smem_bytes, target.name, target.scalar_bytes));
  }
  if (target.vector_bytes > 0 && memory.vmem_bytes > target.vector_bytes) {
    return Decision::No(ReasonCode::kTpuVectorMemory,
                        fmt::format("the {} kernel takes {} bytes, and {} gives it {}", ToText(direction),
                                    memory.vmem_bytes, target.name, target.vector_bytes));
  }
  return Decision::Yes();
}

}  // namespace

Decision CheckKernelPlan(const stablehlo::ProgramSpec& spec, const PlanView& plan, const Target& target) {
  for (const stablehlo::ListShape& list : spec.lists) {
    // One tile over all tokens is padded to a multiple.
    const auto fits = [](int64_t tile, int64_t len) { return tile % 128 == 0 || tile >= len; };
    if (fits(list.tile_q, spec.shape.q_len) && fits(list.tile_kv, spec.shape.kv_len)) continue;
    return Decision::No(ReasonCode::kTpuTile, fmt::format("{}x{}", list.tile_q, list.tile_kv));
  }
  const StoredNeed stored = spec.band ? StoredNeed{} : StoredNeedOf(plan);
  if (stored.planes > kMaxPlanes) {
    return Decision::No(ReasonCode::kTpuStoredBits, fmt::format("{}, and there are {}", stored.planes, kMaxPlanes));
  }
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const Direction direction : DirectionsOf(spec, pass)) {
      const Result<mosaic::Module> kernel = KernelOf(spec, direction);
      const Result<mosaic::KernelMemory> memory =
          kernel ? mosaic::MeasureMemory(*kernel) : tl::unexpected(kernel.error());
      if (!memory) return Decision::No(ReasonCode::kXlaTooLarge, memory.error().message);
      if (Decision fits = CheckMemory(*memory, direction, target); !fits.accepted) return fits;
    }
  }
  return Decision::Yes();
}

}  // namespace tessera::lanes::xla
