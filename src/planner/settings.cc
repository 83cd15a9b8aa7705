#include "planner/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace tessera {

const std::vector<StageInfo>& Stages() {
  static const std::vector<StageInfo> kStages = {
      {"score", "routing: which blocks, or meta-blocks, of keys matter to each query, by the means of their keys",
       false},
      {"expand", "routing: the kept meta-blocks become blocks, scored one by one", false},
      {"unite", "picks: what each tile of queries needs, and each pick's place in it", false},
      {"legalise", "picks: those without a legal key disappear, each for a counted reason", false},
      {"resolve", "static masks and run-time facts become one exact run set per distinct mask", false},
      {"classify", "every surviving tile is partial or full; a partial tile names what it must still test", false},
      {"shrink", "compact rows of slots; equal cleanups become one (disabled: every partial run keeps its own)", true},
      {"transpose", "the same pairs by key column, for dK and dV (disabled: a forward-only plan)", true},
      {"balance", "longest rows first, long rows in parts (disabled: one part per row, in row order)", true},
      {"pack", "one versioned buffer with offsets and a fingerprint", false},
  };
  return kStages;
}

}  // namespace tessera

namespace tessera::planner {

Status CheckOptions(const PlanOptions& options) {
  for (const std::string& name : options.disable) {
    const auto stage =
        std::find_if(Stages().begin(), Stages().end(), [&](const StageInfo& info) { return info.name == name; });
    if (stage == Stages().end()) {
      std::string known;
      for (const StageInfo& info : Stages()) known += (known.empty() ? "" : ", ") + info.name;
      return Fail(ErrorCode::kStageUnknown, fmt::format("no stage is named '{}'; stages: {}", name, known), "disable");
    }
    if (!stage->can_disable) {
      return Fail(ErrorCode::kStageUnknown,
                  fmt::format("stage '{}' cannot be disabled: without it there is no exact plan", name), "disable");
    }
  }
  return {};
}

std::array<TileSize, kNumDirections> PickTiles(const Contract& contract, const Target& target,
                                               const PlanOptions& options) {
  const auto pick = [&](TileSize preferred) {
    if (options.tile) return *options.tile;
    return TileSize{preferred.q > 0 ? preferred.q : contract.tiles.q,
                    preferred.kv > 0 ? preferred.kv : contract.tiles.kv};
  };
  return {pick(target.forward), pick(target.dq), pick(target.dkv)};
}

Status FitClass(ClassShape& shape, const TiledRows& rows, const CompactColumns* columns, bool widen) {
  const auto fit = [&](int64_t& capacity, int64_t needed, std::string_view what) -> Status {
    if (needed <= capacity) return {};
    if (!widen) {
      return Fail(ErrorCode::kCapacityExceeded,
                  fmt::format("this batch needs {} {}, the class holds {}; raise capacity, or ask for a wider class",
                              needed, what, capacity),
                  "class");
    }
    capacity = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(needed)));
    return {};
  };
  Status ok = fit(shape.width[0], rows.Of(Direction::kForward).Widest(), "slots per row (capacity.width)");
  if (ok) ok = fit(shape.width[1], rows.Of(Direction::kDq).Widest(), "slots per row (capacity.width)");
  if (ok && columns != nullptr) {
    ok = fit(shape.width[2], columns->Widest(), "slots per column (capacity.width_transposed)");
  }
  if (ok) ok = fit(shape.cleanups, rows.cleanups.Size(), "cleanups (capacity.cleanups)");
  return ok;
}

}  // namespace tessera::planner
