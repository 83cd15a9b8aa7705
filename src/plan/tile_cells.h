// A surviving tile spelled out as cells, row by row: what exports store and `ToDense` shows. It says the same as
// TileAllows, in stretches of keys instead of pairs.
#pragma once

#include <cstdint>

#include "tessera/plan.h"

namespace tessera::plan {

// Sets to 1 every cell of the tile (row-major, `row_stride` cells from row to row, tile-relative) that may attend;
// other cells are left alone. Pairs outside the lengths never attend.
void FillTileCells(const PlanView& plan, const Worklist& worklist, uint32_t cleanup, const TokenFacts& facts,
                   int64_t q_begin, int64_t kv_begin, uint8_t* cells, int64_t row_stride);

}  // namespace tessera::plan
