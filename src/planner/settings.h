// What surrounds the stages: the tile of each direction, and whether a batch fits its class.
#pragma once

#include <array>

#include "planner/stages.h"
#include "tessera/planner.h"

namespace tessera::planner {

std::array<TileSize, kNumDirections> PickTiles(const Contract& contract, const Target& target,
                                               const PlanOptions& options);

// The compact rows of each direction; directions with one tile size share one entry.
struct TiledRows {
  std::vector<CompactRows> built;
  std::array<size_t, kNumDirections> of{};
  CleanupTable cleanups;
  const CompactRows& Of(Direction direction) const { return built[of[static_cast<size_t>(direction)]]; }
};

// Holds the batch's real sizes against the class; widens the class when the caller chose that. `columns` is null for
// a forward-only plan.
Status FitClass(ClassShape& shape, const TiledRows& rows, const CompactColumns* columns, bool widen);

}  // namespace tessera::planner
