// Counting tiles over some of a batch's rows; CountTiles in tessera/plan.h counts over all.
#pragma once

#include <cstdint>

#include "tessera/plan.h"

namespace tessera::plan {

// Over every head of batch rows [first_row, first_row + num_rows).
TileCounts CountTilesOfRows(const PlanView& plan, Direction direction, int64_t first_row, int64_t num_rows);

}  // namespace tessera::plan
