// Operands for a scalar-prefetch kernel of one's own: compact rows and columns, padded to a fixed width, int32.
//
// `data_next` names the key tile of a slot, `block_mask` says 0 skip, 1 partial, 2 full, `mask_next` names a partial
// slot's stored tile. Padding slots are 0 in every array, so a kernel must gate on `block_mask`. The `_t` arrays are
// the same tiles by key column, for dK and dV. Lengths need not divide by tiles.
#include <algorithm>

#include "export/arrays.h"

namespace tessera::exports {
namespace {

struct PaddedRows {
  IntArray data_next, block_mask, mask_next;
};

// A row without tiles still has one slot: the kernel visits it to write zeros.
PaddedRows Pad(const TileGrid& grid, bool transposed) {
  const int64_t rows = transposed ? grid.kv_tiles : grid.q_tiles;
  std::vector<int64_t> filled(static_cast<size_t>(rows), 0);
  for (const GridTile& tile : grid.tiles) ++filled[transposed ? tile.kv : tile.q];
  const int64_t width = std::max<int64_t>(1, *std::max_element(filled.begin(), filled.end()));
  std::fill(filled.begin(), filled.end(), 0);
  PaddedRows out{IntArray::Filled({rows, width}, 0), IntArray::Filled({rows, width}, 0),
                 IntArray::Filled({rows, width}, 0)};
  for (const GridTile& tile : grid.tiles) {
    const int64_t row = transposed ? tile.kv : tile.q;
    const int64_t at = row * width + filled[row]++;
    out.data_next.values[at] = transposed ? tile.q : tile.kv;
    out.block_mask.values[at] = tile.BlockMask();
    out.mask_next.values[at] = std::max(tile.stored, 0);
  }
  return out;
}

Tensor Widened(const Tensor& cells) {
  IntArray out = IntArray::Filled(cells.shape, 0);
  std::transform(cells.bytes.begin(), cells.bytes.end(), out.values.begin(),
                 [](std::byte cell) { return static_cast<int32_t>(cell); });
  return out.AsInt32();
}

}  // namespace

Status WritePallas(const Source& source, Export& out) {
  if (Status ok = CheckOneMask(source); !ok) return ok;
  GridReader reader(*source.plan, true);
  Result<TileGrid> grid = reader.Read(source.batch_row, 0);
  if (!grid) return tl::unexpected(std::move(grid.error()));
  const double cells = static_cast<double>(grid->q_tiles) * static_cast<double>(grid->kv_tiles);
  if (Status ok = CheckCells(cells, 6, "pallas"); !ok) return ok;
  const PaddedRows rows = Pad(*grid, false);
  const PaddedRows columns = Pad(*grid, true);
  out.arrays = {
      {"data_next", rows.data_next.AsInt32()},
      {"block_mask", rows.block_mask.AsInt32()},
      {"mask_next", rows.mask_next.AsInt32()},
      {"partial_mask_blocks", Widened(reader.stored().ToTensor(ElementType::kBool, false))},
      {"data_next_t", columns.data_next.AsInt32()},
      {"block_mask_t", columns.block_mask.AsInt32()},
      {"mask_next_t", columns.mask_next.AsInt32()},
  };
  out.operands = {"data_next", "block_mask", "q", "k", "v"};
  if (out.needs_segment_ids) {
    // As the kernel takes them: a column per query, a row per key.
    out.operands.insert(out.operands.end(), {"q_segment_ids", "kv_segment_ids"});
    if (out.segment_ids) {
      out.segment_ids->q.shape.push_back(1);
      out.segment_ids->kv.shape.insert(out.segment_ids->kv.shape.begin() + 1, 1);
    }
  }
  out.operands.emplace_back("partial_mask_blocks");
  return {};
}

}  // namespace tessera::exports
