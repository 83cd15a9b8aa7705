// FlexAttention's BlockMask: for every row of tiles how many partial and full columns it has, and which, followed by
// the columns it does not have; and the same by column.
//
// FlexAttention pads lengths to whole tiles with pairs that may not attend, so a tile that hangs over an end is
// partial. Its index arrays are as wide as the grid, so every batch of a contract has the same shapes already.
#include <algorithm>

#include "export/arrays.h"

namespace tessera::exports {
namespace {

// One of the four pairs of arrays: counts [B, H, rows] and indices [B, H, rows, columns].
struct OrderedRows {
  IntArray counts, indices;
  int64_t columns = 0;

  OrderedRows(int64_t batch, int64_t heads, int64_t num_rows, int64_t num_columns)
      : counts(IntArray::Filled({batch, heads, num_rows}, 0)),
        indices(IntArray::Filled({batch, heads, num_rows, num_columns}, 0)),
        columns(num_columns) {}

  // `present` ascends. What is absent follows, ascending too.
  void Set(int64_t row, const std::vector<int32_t>& present) {
    counts.values[row] = static_cast<int32_t>(present.size());
    int32_t* to = std::copy(present.begin(), present.end(), indices.values.data() + row * columns);
    size_t next = 0;
    for (int32_t column = 0; column < columns; ++column) {
      if (next < present.size() && present[next] == column) {
        ++next;
      } else {
        *to++ = column;
      }
    }
  }
};

}  // namespace

Status WriteFlex(const Source& source, Export& out) {
  const PlanView& plan = *source.plan;
  const Shape& shape = source.contract->shape;
  // As many planes as the mask's own form asks for: FlexAttention broadcasts over an axis of one.
  const bool per_head = source.contract->mask.heads.size() > 1 ||
                        !std::all_of(plan.mask_of.begin(), plan.mask_of.begin() + plan.num_q_heads,
                                     [&](uint32_t mask) { return mask == plan.mask_of.front(); });
  const int64_t heads = per_head ? shape.num_q_heads : 1;
  const int64_t batch = source.per_row ? shape.batch : 1;

  GridReader reader(plan, false);
  const int64_t q_tiles = (shape.q_len + source.tile.q - 1) / source.tile.q;
  const int64_t kv_tiles = (shape.kv_len + source.tile.kv - 1) / source.tile.kv;
  const double cells =
      static_cast<double>(batch * heads) * static_cast<double>(q_tiles) * static_cast<double>(kv_tiles);
  if (Status ok = CheckCells(cells, 4, "flex"); !ok) return ok;
  OrderedRows partial_rows(batch, heads, q_tiles, kv_tiles);
  OrderedRows full_rows(batch, heads, q_tiles, kv_tiles);
  OrderedRows partial_columns(batch, heads, kv_tiles, q_tiles);
  OrderedRows full_columns(batch, heads, kv_tiles, q_tiles);
  for (int64_t plane = 0; plane < batch * heads; ++plane) {
    Result<TileGrid> grid = reader.Read(plane / heads, plane % heads);
    if (!grid) return tl::unexpected(std::move(grid.error()));
    std::vector<std::vector<int32_t>> partial_of_column(static_cast<size_t>(kv_tiles));
    std::vector<std::vector<int32_t>> full_of_column(static_cast<size_t>(kv_tiles));
    std::vector<int32_t> partial;
    std::vector<int32_t> full;
    for (int64_t row = 0; row < q_tiles; ++row) {
      partial.clear();
      full.clear();
      for (uint64_t i = grid->row_begins[row]; i < grid->row_begins[row + 1]; ++i) {
        const GridTile& tile = grid->tiles[i];
        (tile.IsPartial() ? partial : full).push_back(tile.kv);
        (tile.IsPartial() ? partial_of_column : full_of_column)[tile.kv].push_back(tile.q);
      }
      partial_rows.Set(plane * q_tiles + row, partial);
      full_rows.Set(plane * q_tiles + row, full);
    }
    for (int64_t column = 0; column < kv_tiles; ++column) {
      partial_columns.Set(plane * kv_tiles + column, partial_of_column[column]);
      full_columns.Set(plane * kv_tiles + column, full_of_column[column]);
    }
  }
  out.mask_function = source.function;
  Add(out, "kv_num_blocks", partial_rows.counts.AsInt32());
  Add(out, "kv_indices", partial_rows.indices.AsInt32());
  Add(out, "full_kv_num_blocks", full_rows.counts.AsInt32());
  Add(out, "full_kv_indices", full_rows.indices.AsInt32());
  Add(out, "q_num_blocks", partial_columns.counts.AsInt32());
  Add(out, "q_indices", partial_columns.indices.AsInt32());
  Add(out, "full_q_num_blocks", full_columns.counts.AsInt32());
  Add(out, "full_q_indices", full_columns.indices.AsInt32());
  return {};
}

}  // namespace tessera::exports
