// The rows of lanes.def, and the refusals that hold for a lane whether or not this version has it: a lane that is not
// built still says first what it could never do, so that a receipt read today stays true when the lane arrives.
#include "dispatch/lane_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "contract/band.h"
#include "lanes/cuda/cuda.h"
#include "lanes/reference/reference.h"
#if TESSERA_HAS_LANE_CPU
#include "lanes/cpu/cpu.h"
#endif
#if TESSERA_HAS_LANE_CALL_JAX
#include "lanes/bridge/bridge.h"
#endif

namespace tessera {
namespace {

constexpr TargetKinds kOnCpu = KindBit(TargetKind::kCpu);
constexpr TargetKinds kOnGpu = KindBit(TargetKind::kGpu);
constexpr TargetKinds kOnTpu = KindBit(TargetKind::kTpu);
constexpr TargetKinds kOnAny = kOnCpu | kOnGpu | kOnTpu;

// TPUs compute in bf16 and f32, and the kernels are written for these dims.
Decision PallasRefuses(const Contract& contract, const MaskFacts&) {
  const Shape& s = contract.shape;
  if (s.dtype == DType::kF16) return Decision::No(ReasonCode::kTpuDtype, "dtype = f16");
  for (const int64_t dim : {s.dim_qk, s.dim_v}) {
    if (dim == 64 || dim == 128 || dim == 192 || dim == 256) continue;
    return Decision::No(ReasonCode::kTpuHeadDim, fmt::format("{}, and known are 64, 128, 192 and 256", dim));
  }
  return Decision::Yes();
}

// What the stock kernel would compute otherwise than the contract says.
Decision SplashRefuses(const Contract& contract, const MaskFacts& facts) {
  if (contract.score.softcap > 0) {
    return Decision::No(ReasonCode::kSplashSoftcap, fmt::format("softcap = {}", contract.score.softcap));
  }
  if (facts.needs_documents) return Decision::No(ReasonCode::kSplashSegments, "the mask needs documents");
  if (facts.needs_valid) return Decision::No(ReasonCode::kSplashValid, "the mask needs valid lengths");
  const std::optional<Band> band = BandOf(contract, facts);
  if (!band) {
    return Decision::No(ReasonCode::kSplashMask, fmt::format("mask \"{}\"{}", ToText(contract.mask.heads[0]),
                                                             contract.mask.heads.size() > 1 ? ", ..." : ""));
  }
  const Shape& s = contract.shape;
  if (!HasKeyForEveryRow(*band, s.q_len, s.kv_len)) {
    return Decision::No(ReasonCode::kSplashEmptyRow,
                        fmt::format("offset {} with {} queries and {} keys", band->offset, s.q_len, s.kv_len));
  }
  if (contract.score.sink_logits) return Decision::No(ReasonCode::kSplashScore, "sink_logits = true");
  // The scale goes into q, which stays exact only then.
  if (int exponent = 0; std::frexp(contract.score.scale, &exponent) != 0.5) {
    return Decision::No(ReasonCode::kSplashScore, fmt::format("scale = {}", contract.score.scale));
  }
  if (s.dtype == DType::kF32) {
    return Decision::No(ReasonCode::kTpuDtype, "f32, whose products the stock kernel takes in one pass of bf16");
  }
  return PallasRefuses(contract, facts);
}

std::string KindsText(TargetKinds kinds) {
  std::vector<std::string_view> names;
  for (TargetKind kind : {TargetKind::kCpu, TargetKind::kGpu, TargetKind::kTpu}) {
    if ((kinds & KindBit(kind)) != 0) names.push_back(ToText(kind));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// What a row may be used for, as bits.
constexpr unsigned kFallback = 1;
constexpr unsigned kHost = 2;
constexpr unsigned kPrograms = 4;
constexpr unsigned kGpuMemory = 8;

// A lane that this build leaves out is made by nobody.
MakeLane CudaMaker() {
  if (!HasCudaKernels()) return {};
  return [](const LaneContext& context) { return MakeCudaLane(context.cuda_state, {.memory = context.memory}); };
}
#if TESSERA_HAS_LANE_CPU
std::shared_ptr<const Lane> MakeCpu(const LaneContext& context) {
  return MakeCpuLane({.isa = context.isa, .machine_isa = context.machine_isa, .threads = context.threads});
}
#else
constexpr std::nullptr_t MakeCpu = nullptr;
#endif
// A row of the XLA family.
MakeLane XlaMaker([[maybe_unused]] std::string_view name) {
#if TESSERA_HAS_LANE_XLA
  return [name](const LaneContext& context) {
    return MakeXlaLane(name, context.xla_state,
                       {.xla = context.xla,
                        .threads = context.threads,
                        .compile_only = context.compile_only,
                        .emit_only = context.emit_only});
  };
#else
  return {};
#endif
}
#if TESSERA_HAS_LANE_CALL_JAX
std::shared_ptr<const Lane> MakeBridge(const LaneContext& context) {
  return MakeBridgeLane({.python = context.python});
}
#else
constexpr std::nullptr_t MakeBridge = nullptr;
#endif
std::shared_ptr<const Lane> MakeReference(const LaneContext&) { return MakeReferenceLane(); }

}  // namespace

std::span<const LaneRow> LaneTable() {
  static const LaneRow kRows[] = {
#define TESSERA_LANE(name, mode, targets, uses, not_built, refuses, make, determinism, description) \
  {name,                                                                                            \
   mode,                                                                                            \
   targets,                                                                                         \
   ((uses)&kHost) != 0,                                                                             \
   ((uses)&kFallback) != 0,                                                                         \
   ((uses)&kPrograms) != 0,                                                                         \
   ((uses)&kGpuMemory) != 0 ? MemoryKind::kGpu : MemoryKind::kHost,                                 \
   not_built,                                                                                       \
   refuses,                                                                                         \
   make,                                                                                            \
   determinism,                                                                                     \
   description},
#include "dispatch/lanes.def"
#undef TESSERA_LANE
  };
  return kRows;
}

const LaneRow* FindLane(std::span<const LaneRow> table, std::string_view name) {
  auto it = std::find_if(table.begin(), table.end(), [&](const LaneRow& row) { return row.name == name; });
  return it == table.end() ? nullptr : &*it;
}

std::vector<MadeLane> MakeLanes(std::span<const LaneRow> table, const LaneContext& context) {
  std::vector<MadeLane> lanes;
  for (const LaneRow& row : table) lanes.push_back({&row, row.make ? row.make(context) : nullptr});
  return lanes;
}

std::vector<std::string_view> IsasOf(const MadeLane& made) {
  return made.lane == nullptr ? std::vector<std::string_view>() : made.lane->Isas();
}

std::vector<LaneInfo> InfosOf(std::span<const MadeLane> lanes) {
  std::vector<LaneInfo> infos;
  for (const MadeLane& made : lanes) {
    const std::vector<std::string_view> isas = IsasOf(made);
    infos.push_back({.name = std::string(made.row->name),
                     .description = std::string(made.row->description),
                     .runtime_mode = std::string(made.row->runtime_mode),
                     .isas = {isas.begin(), isas.end()}});
  }
  return infos;
}

Decision DecideContract(const MadeLane& made, const Contract& contract, const MaskFacts& facts, const Target& target,
                        bool compile_only) {
  const LaneRow& row = *made.row;
  if ((row.targets & KindBit(target.kind)) == 0 && !row.is_host) {
    return Decision::No(
        ReasonCode::kOtherTarget,
        fmt::format("runs on {}; the target {} is a {}", KindsText(row.targets), target.name, ToText(target.kind)));
  }
  if (row.refuses != nullptr) {
    if (Decision decision = row.refuses(contract, facts); !decision.accepted) return decision;
  }
  if (made.lane == nullptr) return Decision::No(row.not_built);
  if (compile_only && !row.has_programs) return Decision::No(ReasonCode::kNothingToCompile);
  return made.lane->Decide(contract, target);
}

}  // namespace tessera
