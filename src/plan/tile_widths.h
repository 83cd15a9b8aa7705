// How many tiles of a run set survive, row by row and column by column.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/row_set.h"
#include "tessera/contract.h"

namespace tessera::plan {

struct TileWidths {
  std::vector<int64_t> rows;  // surviving tiles of every row of tiles
  std::vector<int64_t> columns;
};
TileWidths WidthsOf(const RowSet& set, TileSize tile, int64_t q_len, int64_t kv_len);

}  // namespace tessera::plan
