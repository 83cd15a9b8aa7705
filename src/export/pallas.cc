// Operands for a scalar-prefetch kernel of one's own: compact rows and columns, padded to a fixed width, int32.
//
// `data_next` names the key tile of a slot, `block_mask` says 0 skip, 1 partial, 2 full, `mask_next` names the stored
// tile that is needed next: of the first partial slot at or after this one, wrapping at the end. Padding slots are 0 in
// `data_next` and `block_mask`, so a kernel must gate on `block_mask`; in `mask_next` they look ahead like any other
// slot. The `_t` arrays are the same tiles by key column, for dK and dV. Lengths need not divide by tiles.
#include <algorithm>

#include "base/try.h"
#include "export/arrays.h"

namespace tessera::exports {
namespace {

struct PaddedRows {
  IntArray data_next, block_mask, mask_next;
};

struct PaddedSlot {
  int32_t stored = GridTile::kFull;
  int32_t mask_next = 0;
};

// A row without tiles still has one slot: the kernel visits it to write zeros.
int64_t WidthOf(const TileGrid& grid, bool transposed) {
  std::vector<int64_t> counts(static_cast<size_t>(transposed ? grid.kv_tiles : grid.q_tiles), 0);
  for (const GridTile& tile : grid.tiles) ++counts[transposed ? tile.kv : tile.q];
  return std::max<int64_t>(1, *std::max_element(counts.begin(), counts.end()));
}

PaddedRows Pad(const TileGrid& grid, int64_t width, bool transposed) {
  const int64_t rows = transposed ? grid.kv_tiles : grid.q_tiles;
  std::vector<int64_t> filled(static_cast<size_t>(rows), 0);
  std::vector<PaddedSlot> slots(static_cast<size_t>(rows * width));
  PaddedRows out{IntArray::Filled({rows, width}, 0), IntArray::Filled({rows, width}, 0),
                 IntArray::Filled({rows, width}, 0)};
  for (const GridTile& tile : grid.tiles) {
    const int64_t row = transposed ? tile.kv : tile.q;
    const int64_t at = row * width + filled[row]++;
    out.data_next.values[at] = transposed ? tile.q : tile.kv;
    out.block_mask.values[at] = tile.BlockMask();
    slots[at].stored = tile.stored;
  }
  LookAhead(slots, 0);
  std::transform(slots.begin(), slots.end(), out.mask_next.values.begin(),
                 [](const PaddedSlot& slot) { return slot.mask_next; });
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
  GridReader reader(*source.plan, !source.stores_no_tiles);
  Result<TileGrid> grid = reader.Read(source.batch_row, 0);
  if (!grid) return tl::unexpected(std::move(grid.error()));
  int64_t width = WidthOf(*grid, false);
  int64_t width_transposed = WidthOf(*grid, true);
  if (source.class_shape) {
    width = TESSERA_TRY(FixedWidth(source, *grid, false));
    width_transposed = TESSERA_TRY(FixedWidth(source, *grid, true));
  }
  const double cells = static_cast<double>(grid->q_tiles) * static_cast<double>(width) +
                       static_cast<double>(grid->kv_tiles) * static_cast<double>(width_transposed);
  if (Status ok = CheckCells(cells, 3, "pallas"); !ok) return ok;
  const PaddedRows rows = Pad(*grid, width, false);
  const PaddedRows columns = Pad(*grid, width_transposed, true);
  const bool has_tiles = !source.stores_no_tiles;
  const int64_t num_stored = has_tiles ? TESSERA_TRY(StoredCount(source, reader.stored())) : 0;
  Add(out, "data_next", rows.data_next.AsInt32());
  Add(out, "block_mask", rows.block_mask.AsInt32());
  AddWhen(has_tiles, out, "mask_next", [&] { return rows.mask_next.AsInt32(); });
  AddWhen(has_tiles, out, "partial_mask_blocks",
          [&] { return Widened(reader.stored().ToTensor(ElementType::kBool, false, num_stored)); });
  Add(out, "data_next_t", columns.data_next.AsInt32());
  Add(out, "block_mask_t", columns.block_mask.AsInt32());
  AddWhen(has_tiles, out, "mask_next_t", [&] { return columns.mask_next.AsInt32(); });
  out.mask_function = source.function;
  out.operands = {"data_next", "block_mask"};
  if (has_tiles) out.operands.emplace_back("mask_next");
  out.operands.insert(out.operands.end(), {"q", "k", "v"});
  if (out.needs_segment_ids) {
    // As the kernel takes them: a column per query, a row per key.
    out.operands.insert(out.operands.end(), {"q_segment_ids", "kv_segment_ids"});
    if (out.segment_ids) {
      out.segment_ids->q.shape.push_back(1);
      out.segment_ids->kv.shape.insert(out.segment_ids->kv.shape.begin() + 1, 1);
    }
  }
  if (has_tiles) out.operands.emplace_back("partial_mask_blocks");
  return {};
}

}  // namespace tessera::exports
