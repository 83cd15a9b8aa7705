// JAX Splash's MaskInfo, forward and dkv.
//
// Its grid is walked in one order, forward (head, q, kv) and dkv (kv, head, q), and every step names the data and the
// stored tile of the first step at or after it that needs one, wrapping at the end, so that fetches run ahead. Arrays
// keep the (head, q, kv) axes in both directions.
//
// Where no tile is stored, Splash computes its mask function and compares segment ids in every tile it visits, so a
// worklist of the tiles that documents leave is all it needs.
#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "export/arrays.h"

namespace tessera::exports {
namespace {

struct Cell {
  int64_t head = 0;  // within the slice
  int64_t q = 0;     // within the q shard
  int64_t kv = 0;
  int32_t stored = 0;
  int32_t block_mask = 0;
  int32_t mask_next = 0;  // stored tile of the first partial cell at or after this one
};

// The part of the grid that one device walks: one head shard and one q shard. `cells` are in visit order.
struct Slice {
  int64_t heads = 0;
  int64_t q_tiles = 0;
  int64_t kv_tiles = 0;
  std::vector<Cell> cells;
};

struct Arrays {
  IntArray data_next, mask_next, block_mask;
  static Arrays Zeros(const std::vector<int64_t>& shape) {
    return {IntArray::Filled(shape, 0), IntArray::Filled(shape, 0), IntArray::Filled(shape, 0)};
  }
  void Set(int64_t at, int32_t data, int32_t mask, int32_t block) {
    data_next.values[at] = data;
    mask_next.values[at] = mask;
    block_mask.values[at] = block;
  }
};

Slice MakeSlice(const std::vector<const TileGrid*>& heads, int64_t q_begin, int64_t q_end, bool is_dkv) {
  Slice slice{static_cast<int64_t>(heads.size()), q_end - q_begin, heads.front()->kv_tiles, {}};
  for (int64_t head = 0; head < slice.heads; ++head) {
    const TileGrid& grid = *heads[head];
    for (uint64_t i = grid.row_begins[q_begin]; i < grid.row_begins[q_end]; ++i) {
      const GridTile& tile = grid.tiles[i];
      slice.cells.push_back({head, tile.q - q_begin, tile.kv, tile.stored, tile.BlockMask(), 0});
    }
  }
  if (is_dkv) {
    std::stable_sort(slice.cells.begin(), slice.cells.end(), [](const Cell& a, const Cell& b) { return a.kv < b.kv; });
  }
  LookAhead(slice.cells, 0);
  return slice;
}

// Writes a slice into the whole grid, empty tiles included. `at(head, q, kv)` is a position's place in the arrays.
template <class At>
void WriteWhole(const Slice& slice, bool is_dkv, const At& at, Arrays& out) {
  if (slice.cells.empty()) return;
  size_t next = 0;
  const auto visit = [&](int64_t head, int64_t q, int64_t kv) {
    const bool left = next < slice.cells.size();
    const Cell& cell = slice.cells[left ? next : 0];
    const bool here = left && cell.head == head && cell.q == q && cell.kv == kv;
    const int64_t data = is_dkv ? cell.q : cell.kv;
    out.Set(at(head, q, kv), static_cast<int32_t>(data), cell.mask_next, here ? cell.block_mask : 0);
    next += here ? 1 : 0;
  };
  if (is_dkv) {
    for (int64_t kv = 0; kv < slice.kv_tiles; ++kv) {
      for (int64_t head = 0; head < slice.heads; ++head) {
        for (int64_t q = 0; q < slice.q_tiles; ++q) visit(head, q, kv);
      }
    }
    return;
  }
  for (int64_t head = 0; head < slice.heads; ++head) {
    for (int64_t q = 0; q < slice.q_tiles; ++q) {
      for (int64_t kv = 0; kv < slice.kv_tiles; ++kv) visit(head, q, kv);
    }
  }
}

// How many tiles the fullest row (forward) or column (dkv) of a slice has.
int64_t WidthOf(const Slice& slice, bool is_dkv) {
  std::vector<int64_t> counts(static_cast<size_t>(is_dkv ? slice.kv_tiles : slice.q_tiles), 0);
  for (const Cell& cell : slice.cells) ++counts[is_dkv ? cell.kv : cell.q];
  return *std::max_element(counts.begin(), counts.end());
}

// Forward: each row's tiles, packed to the left. Shards narrower than the widest repeat their last column.
void WriteShrunkRows(const Slice& slice, int64_t own_width, int64_t width, int64_t first_row, Arrays& out) {
  std::vector<int64_t> filled(static_cast<size_t>(slice.q_tiles), 0);
  for (const Cell& cell : slice.cells) {
    const int64_t at = (first_row + cell.q) * width + filled[cell.q]++;
    out.Set(at, static_cast<int32_t>(cell.kv), cell.mask_next, cell.block_mask);
  }
  for (int64_t row = first_row; row < first_row + slice.q_tiles; ++row) {
    const int64_t last = row * width + own_width - 1;
    for (int64_t at = last + 1; at < (row + 1) * width; ++at) {
      out.Set(at, out.data_next.values[last], out.mask_next.values[last], 0);
    }
  }
}

// dkv: each column's tiles, packed to the bottom. Shards lower than the highest repeat their last row.
void WriteShrunkColumns(const Slice& slice, int64_t own_height, int64_t height, int64_t first_row, Arrays& out) {
  std::vector<int64_t> left(static_cast<size_t>(slice.kv_tiles), 0);
  for (const Cell& cell : slice.cells) ++left[cell.kv];
  for (const Cell& cell : slice.cells) {
    const int64_t row = first_row + own_height - left[cell.kv]--;
    out.Set(row * slice.kv_tiles + cell.kv, static_cast<int32_t>(cell.q), cell.mask_next, cell.block_mask);
  }
  for (int64_t row = first_row + own_height; row < first_row + height; ++row) {
    for (int64_t kv = 0; kv < slice.kv_tiles; ++kv) {
      const int64_t last = (first_row + own_height - 1) * slice.kv_tiles + kv;
      out.Set(row * slice.kv_tiles + kv, out.data_next.values[last], out.mask_next.values[last], 0);
    }
  }
}

// Gives the padding slots of a shard what the next slot in visit order fetches: a kernel then has nothing to fetch for
// them, and begins the next row's data early. `at(i)` is the place of the i-th slot visited.
template <class At>
void FetchAhead(int64_t num_slots, const At& at, Arrays& out) {
  int32_t data = 0;
  int32_t mask = 0;
  for (int64_t i = 2 * num_slots; i-- > 0;) {  // twice round, so that the last slots learn of the first
    const int64_t slot = at(i % num_slots);
    if (out.block_mask.values[slot] == 0) {
      out.Set(slot, data, mask, 0);
    } else {
      data = out.data_next.values[slot];
      mask = out.mask_next.values[slot];
    }
  }
}

Arrays OverHeadShards(Arrays one, int64_t head_shards) {
  for (IntArray* array : {&one.data_next, &one.mask_next, &one.block_mask}) {
    const std::vector<int32_t> head = array->values;
    for (int64_t shard = 1; shard < head_shards; ++shard) {
      array->values.insert(array->values.end(), head.begin(), head.end());
    }
    array->shape[0] = head_shards;
  }
  return one;
}

// As Shrunk, but as wide as the class, whatever the batch: the same shapes for every one, and empty shards are no
// fault.
Result<Arrays> ShrunkToClass(const Source& source, const TileGrid& grid) {
  const ExportOptions& options = *source.options;
  const bool is_dkv = options.direction == Direction::kDkv;
  const int64_t rows = grid.q_tiles / options.q_shards;
  const int64_t class_width = TESSERA_TRY(FixedWidth(source, grid, is_dkv));
  const int64_t width = is_dkv ? std::min(class_width, rows) : class_width;
  const int64_t columns = is_dkv ? grid.kv_tiles : width;
  if (Status ok = CheckCells(static_cast<double>(is_dkv ? options.q_shards * width : grid.q_tiles) *
                                 static_cast<double>(columns) * static_cast<double>(options.head_shards),
                             3, "splash");
      !ok) {
    return tl::unexpected(std::move(ok.error()));
  }
  Arrays one = Arrays::Zeros({1, is_dkv ? options.q_shards * width : grid.q_tiles, columns});
  for (int64_t shard = 0; shard < options.q_shards; ++shard) {
    const Slice slice = MakeSlice({&grid}, shard * rows, (shard + 1) * rows, is_dkv);
    const int64_t first_row = shard * (is_dkv ? width : rows);
    if (is_dkv) {
      WriteShrunkColumns(slice, width, width, first_row, one);
      const auto by_column = [&](int64_t i) { return (first_row + i % width) * columns + i / width; };
      FetchAhead(width * columns, by_column, one);
    } else {
      WriteShrunkRows(slice, width, width, first_row, one);
      FetchAhead(
          rows * width, [&](int64_t i) { return first_row * width + i; }, one);
    }
  }
  return OverHeadShards(std::move(one), options.head_shards);
}

// One mask for every head: empty tiles leave the grid, separately in each q shard, and all head shards look alike.
Result<Arrays> Shrunk(const TileGrid& grid, const ExportOptions& options, bool is_dkv, bool has_partial) {
  const int64_t rows = grid.q_tiles / options.q_shards;
  std::vector<Slice> slices;
  std::vector<int64_t> widths;
  for (int64_t shard = 0; shard < options.q_shards; ++shard) {
    slices.push_back(MakeSlice({&grid}, shard * rows, (shard + 1) * rows, is_dkv));
    if (slices.back().cells.empty()) {
      return Fail(ErrorCode::kExportFault,
                  fmt::format("Splash cannot shrink a grid without any tile, and q shard {} of {} has none; "
                              "export without shrinking",
                              shard, options.q_shards),
                  "splash");
    }
    widths.push_back(WidthOf(slices.back(), is_dkv));
  }
  if (options.q_shards > 1 && !has_partial) {
    return Fail(ErrorCode::kExportFault,
                "Splash fails to shrink q shards of a mask without any partial tile; export without shrinking or with "
                "one q shard",
                "splash");
  }
  const int64_t width = *std::max_element(widths.begin(), widths.end());
  const int64_t out_rows = is_dkv ? options.q_shards * width : grid.q_tiles;
  const int64_t out_columns = is_dkv ? grid.kv_tiles : width;
  Arrays one = Arrays::Zeros({1, out_rows, out_columns});
  for (int64_t shard = 0; shard < options.q_shards; ++shard) {
    if (is_dkv) {
      WriteShrunkColumns(slices[shard], widths[shard], width, shard * width, one);
    } else {
      WriteShrunkRows(slices[shard], widths[shard], width, shard * rows, one);
    }
  }
  return OverHeadShards(std::move(one), options.head_shards);
}

}  // namespace

Status WriteSplash(const Source& source, Export& out) {
  const ExportOptions& options = *source.options;
  const Shape& shape = source.contract->shape;
  const bool is_dkv = options.direction == Direction::kDkv;
  Result<std::vector<uint32_t>> content = ContentOfHeads(source);
  if (!content) return tl::unexpected(std::move(content.error()));
  const HeadForms forms = source.stores_no_tiles
                              ? OneForm(shape.num_q_heads, source.function)
                              : GroupHeads(*source.contract, *content, options.store_tiles || source.is_baked);

  const bool stores_tiles = !forms.function && !source.stores_no_tiles;
  GridReader reader(*source.plan, stores_tiles);
  std::vector<TileGrid> grids;
  for (const int64_t head : forms.head_of_form) {
    Result<TileGrid> grid = reader.Read(source.batch_row, head);
    if (!grid) return tl::unexpected(std::move(grid.error()));
    // Splash divides by a sum that a row without tiles leaves at zero.
    if (source.stores_no_tiles && !is_dkv) VisitEveryRow(*grid);
    grids.push_back(std::move(*grid));
  }

  // One line of arrays per head shard, unless some shard mixes masks: then one per head.
  const int64_t heads_per_shard = shape.num_q_heads / options.head_shards;
  bool mixes = false;
  for (int64_t head = 0; head < shape.num_q_heads; ++head) {
    mixes |= forms.form_of_head[head] != forms.form_of_head[head / heads_per_shard * heads_per_shard];
  }
  const int64_t lines_per_shard = mixes ? heads_per_shard : 1;
  const int64_t lines = lines_per_shard * options.head_shards;
  const TileGrid& first = grids.front();

  Arrays arrays;
  if (options.shrink && lines == options.head_shards && forms.NumForms() == 1) {
    Result<Arrays> shrunk =
        source.class_shape ? ShrunkToClass(source, first) : Shrunk(first, options, is_dkv, reader.HasPartial());
    if (!shrunk) return tl::unexpected(std::move(shrunk.error()));
    arrays = std::move(*shrunk);
  } else {
    const double cells = static_cast<double>(lines) * static_cast<double>(first.q_tiles * first.kv_tiles);
    if (Status ok = CheckCells(cells, 3, "splash"); !ok) return ok;
    arrays = Arrays::Zeros({lines, first.q_tiles, first.kv_tiles});
    const int64_t rows = first.q_tiles / options.q_shards;
    for (int64_t head_shard = 0; head_shard < options.head_shards; ++head_shard) {
      std::vector<const TileGrid*> members;
      for (int64_t line = 0; line < lines_per_shard; ++line) {
        members.push_back(&grids[forms.form_of_head[head_shard * heads_per_shard + line]]);
      }
      for (int64_t shard = 0; shard < options.q_shards; ++shard) {
        const Slice slice = MakeSlice(members, shard * rows, (shard + 1) * rows, is_dkv);
        const auto at = [&](int64_t head, int64_t q, int64_t kv) {
          return ((head_shard * lines_per_shard + head) * first.q_tiles + shard * rows + q) * first.kv_tiles + kv;
        };
        WriteWhole(slice, is_dkv, at, arrays);
      }
    }
  }

  // A batch that happens to have no partial tile still has the arrays that the next one needs.
  const bool has_tiles = stores_tiles && (reader.HasPartial() || (source.class_shape && source.is_baked));
  const int64_t num_stored = has_tiles ? TESSERA_TRY(StoredCount(source, reader.stored())) : 0;
  const int64_t last_tile = (is_dkv ? first.q_tiles / options.q_shards : first.kv_tiles) - 1;
  out.mask_function = forms.function;
  Add(out, "data_next", arrays.data_next.Narrowed(source.Bound(last_tile)));
  AddWhen(has_tiles, out, "mask_next", [&] { return arrays.mask_next.Narrowed(source.Bound(num_stored - 1)); });
  Add(out, "block_mask", arrays.block_mask.Narrowed(source.Bound(2)));
  AddWhen(has_tiles, out, "partial_mask_blocks",
          [&] { return reader.stored().ToTensor(ElementType::kBool, is_dkv, num_stored); });
  AddWhen(forms.function.has_value(), out, "q_sequence", [&] { return QSequence(shape.q_len); });
  return {};
}

}  // namespace tessera::exports
