#include "plan/tile_widths.h"

#include <algorithm>

#include "base/math.h"
#include "plan/tile_rows.h"

namespace tessera::plan {

TileWidths WidthsOf(const RowSet& set, TileSize tile, int64_t q_len, int64_t kv_len) {
  TileWidths widths;
  widths.rows.resize(static_cast<size_t>(CeilDiv(q_len, tile.q)), 0);
  const auto kv_tiles = static_cast<size_t>(CeilDiv(kv_len, tile.kv));
  std::vector<int64_t> starts(kv_tiles + 1, 0);  // +1 where a range begins, -1 where it ends
  TileRows rows(set, tile, q_len, kv_len);
  for (int64_t& in_row : widths.rows) {
    uint32_t column = 0;
    for (const ColumnRange& range : rows.Next()) {
      const uint32_t begin = std::max(column, range.begin);
      if (begin >= range.end) continue;
      in_row += range.end - begin;
      ++starts[begin];
      --starts[range.end];
      column = range.end;
    }
  }
  widths.columns.reserve(kv_tiles);
  int64_t in_column = 0;
  for (size_t column = 0; column < kv_tiles; ++column) widths.columns.push_back(in_column += starts[column]);
  return widths;
}

}  // namespace tessera::plan
