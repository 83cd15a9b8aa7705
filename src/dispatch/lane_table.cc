// The rows of lanes.def, and the refusals that hold for a lane whether or not this version has it: a lane that is not
// built still says first what it could never do, so that a receipt read today stays true when the lane arrives.
#include "dispatch/lane_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lanes/reference/reference.h"
#if TESSERA_HAS_LANE_CPU
#include "lanes/cpu/cpu.h"
#endif
#if TESSERA_HAS_LANE_XLA
#include "lanes/xla/xla.h"
#endif

namespace tessera {
namespace {

// In place of a lane that this build leaves out.
#if !TESSERA_HAS_LANE_CPU
constexpr std::nullptr_t CpuLane = nullptr;
#endif
#if !TESSERA_HAS_LANE_XLA
constexpr std::nullptr_t XlaLane = nullptr;
#endif

constexpr TargetKinds kOnCpu = KindBit(TargetKind::kCpu);
constexpr TargetKinds kOnGpu = KindBit(TargetKind::kGpu);
constexpr TargetKinds kOnTpu = KindBit(TargetKind::kTpu);
constexpr TargetKinds kOnAny = kOnCpu | kOnGpu | kOnTpu;

// A band around the diagonal: the only masks besides causal and full that the stock kernel has a form for. Judged by
// spelling, so an unusual way to write a band is refused rather than guessed.
bool IsLocal(const MaskExpr& expr) {
  switch (expr.op) {
    case MaskExpr::Op::kTerm:
      return expr.term.kind == TermKind::kFull || expr.term.kind == TermKind::kCausal ||
             expr.term.kind == TermKind::kWindow;
    case MaskExpr::Op::kAnd:
      return std::all_of(expr.children.begin(), expr.children.end(), IsLocal);
    case MaskExpr::Op::kOr:
      return false;
  }
  return false;
}

Decision SplashRefuses(const Contract& contract, const MaskFacts& facts) {
  if (contract.score.softcap > 0) {
    return Decision::No(ReasonCode::kSplashSoftcap, fmt::format("softcap = {}", contract.score.softcap));
  }
  if (facts.needs_documents) return Decision::No(ReasonCode::kSplashSegments, "the mask needs documents");
  if (facts.needs_valid) return Decision::No(ReasonCode::kSplashValid, "the mask needs valid lengths");
  if (facts.is_full || facts.is_causal) return Decision::Yes();
  for (const MaskExpr& head : contract.mask.heads) {
    if (!IsLocal(head)) return Decision::No(ReasonCode::kSplashMask, fmt::format("mask \"{}\"", ToText(head)));
  }
  return Decision::Yes();
}

std::string KindsText(TargetKinds kinds) {
  std::vector<std::string_view> names;
  for (TargetKind kind : {TargetKind::kCpu, TargetKind::kGpu, TargetKind::kTpu}) {
    if ((kinds & KindBit(kind)) != 0) names.push_back(ToText(kind));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

using LaneFunction = const Lane& (*)();
const Lane* Get(LaneFunction function) { return function == nullptr ? nullptr : &function(); }

}  // namespace

std::span<const LaneRow> LaneTable() {
  static const LaneRow kRows[] = {
#define TESSERA_LANE(name, mode, targets, fallback, not_built, refuses, lane, determinism, description) \
  {name, mode, targets, fallback, not_built, refuses, Get(lane), determinism, description},
#include "dispatch/lanes.def"
#undef TESSERA_LANE
  };
  return kRows;
}

const LaneRow* FindLane(std::span<const LaneRow> table, std::string_view name) {
  auto it = std::find_if(table.begin(), table.end(), [&](const LaneRow& row) { return row.name == name; });
  return it == table.end() ? nullptr : &*it;
}

std::vector<std::string_view> IsasOf(const LaneRow& row) {
  return row.lane == nullptr ? std::vector<std::string_view>() : row.lane->Isas();
}

std::vector<LaneInfo> Lanes() {
  std::vector<LaneInfo> infos;
  for (const LaneRow& row : LaneTable()) {
    const std::vector<std::string_view> isas = IsasOf(row);
    infos.push_back({.name = std::string(row.name),
                     .description = std::string(row.description),
                     .runtime_mode = std::string(row.runtime_mode),
                     .isas = {isas.begin(), isas.end()}});
  }
  return infos;
}

Decision DecideContract(const LaneRow& row, const Contract& contract, const MaskFacts& facts, const Target& target,
                        const XlaOptions& xla, Asked asked) {
  if ((row.targets & KindBit(target.kind)) == 0) {
    return Decision::No(
        ReasonCode::kOtherTarget,
        fmt::format("runs on {}; the target {} is a {}", KindsText(row.targets), target.name, ToText(target.kind)));
  }
  if (row.refuses != nullptr) {
    if (Decision decision = row.refuses(contract, facts); !decision.accepted) return decision;
  }
  if (row.lane == nullptr) return Decision::No(row.not_built);
  if (asked == Asked::kRun) return row.lane->Decide(contract, target, xla);
  const Compiler* compiler = row.lane->compiler();
  return compiler == nullptr ? Decision::No(ReasonCode::kNothingToCompile) : compiler->Decide(contract, target, xla);
}

}  // namespace tessera
