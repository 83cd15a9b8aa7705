// Tokamax's MaskInfo: one mask for all heads, as lists of active tiles (dynamic grid) or the flattened grid.
//
// For dkv the grid is transposed: rows are key tiles. Every shard's list is padded with -1 to the longest.
#include <algorithm>

#include "base/try.h"
#include "export/arrays.h"

namespace tessera::exports {
namespace {

constexpr int32_t kPadding = -1;

// A step of the grid, in (row, column) order; for dkv a row is a key tile.
struct Step {
  int64_t row = 0;
  int64_t column = 0;
  int32_t stored = GridTile::kFull;
  int32_t block_mask = 0;
  int32_t mask_next = kPadding;  // stored tile of the first partial step at or after this one
};

struct Shard {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<Step> steps;  // active tiles only
};

// Rows without tiles are visited once all the same, because the kernel writes only what it visits: dkv skips the tile
// (`block_mask` 0) and writes zero gradients, forward masks all of it (1).
void AddIdleRows(Shard& shard, int32_t block_mask) {
  std::vector<bool> seen(static_cast<size_t>(shard.rows), false);
  for (const Step& step : shard.steps) seen[step.row] = true;
  std::vector<Step> all;
  size_t next = 0;
  for (int64_t row = 0; row < shard.rows; ++row) {
    if (!seen[row]) all.push_back({row, 0, GridTile::kFull, block_mask, kPadding});
    while (next < shard.steps.size() && shard.steps[next].row == row) all.push_back(shard.steps[next++]);
  }
  shard.steps = std::move(all);
}

Shard MakeShard(const TileGrid& grid, int64_t q_begin, int64_t q_end, int64_t kv_begin, int64_t kv_end, bool is_dkv,
                std::optional<int32_t> idle_rows) {
  Shard shard{is_dkv ? kv_end - kv_begin : q_end - q_begin, is_dkv ? q_end - q_begin : kv_end - kv_begin, {}};
  for (uint64_t i = grid.row_begins[q_begin]; i < grid.row_begins[q_end]; ++i) {
    const GridTile& tile = grid.tiles[i];
    if (tile.kv < kv_begin || tile.kv >= kv_end) continue;
    const int64_t q = tile.q - q_begin;
    const int64_t kv = tile.kv - kv_begin;
    shard.steps.push_back({is_dkv ? kv : q, is_dkv ? q : kv, tile.stored, tile.BlockMask(), kPadding});
  }
  if (is_dkv) {
    std::stable_sort(shard.steps.begin(), shard.steps.end(),
                     [](const Step& a, const Step& b) { return a.row < b.row; });
  }
  if (idle_rows) AddIdleRows(shard, *idle_rows);
  LookAhead(shard.steps, kPadding);
  return shard;
}

struct Lists {
  IntArray mask_next, rows, columns, block_mask, num_active;
};

// Lists of at least `longest` steps per shard.
Lists ActiveLists(const std::vector<Shard>& shards, size_t longest) {
  for (const Shard& shard : shards) longest = std::max(longest, shard.steps.size());
  const auto length = static_cast<int64_t>(longest * shards.size());
  Lists lists;
  for (IntArray* list : {&lists.mask_next, &lists.rows, &lists.columns, &lists.block_mask}) {
    *list = IntArray::Filled({length}, kPadding);
  }
  lists.num_active = IntArray::Filled({static_cast<int64_t>(shards.size())}, 0);
  for (size_t s = 0; s < shards.size(); ++s) {
    lists.num_active.values[s] = static_cast<int32_t>(shards[s].steps.size());
    size_t at = s * longest;
    for (const Step& step : shards[s].steps) {
      lists.mask_next.values[at] = step.mask_next;
      lists.rows.values[at] = static_cast<int32_t>(step.row);
      lists.columns.values[at] = static_cast<int32_t>(step.column);
      lists.block_mask.values[at++] = step.block_mask;
    }
  }
  return lists;
}

Lists WholeGrid(const std::vector<Shard>& shards) {
  const int64_t cells = shards.front().rows * shards.front().columns;
  const int64_t length = cells * static_cast<int64_t>(shards.size());
  Lists lists;
  lists.mask_next = IntArray::Filled({length}, kPadding);
  lists.block_mask = IntArray::Filled({length}, 0);
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::vector<Step>& steps = shards[s].steps;
    size_t next = 0;
    for (int64_t cell = 0; cell < cells && !steps.empty(); ++cell) {
      const bool left = next < steps.size();
      const Step& step = steps[left ? next : 0];
      const bool here = left && step.row * shards[s].columns + step.column == cell;
      const int64_t at = static_cast<int64_t>(s) * cells + cell;
      lists.mask_next.values[at] = step.mask_next;
      lists.block_mask.values[at] = here ? step.block_mask : 0;
      next += here ? 1 : 0;
    }
  }
  return lists;
}

}  // namespace

Status WriteTokamax(const Source& source, Export& out) {
  const ExportOptions& options = *source.options;
  const Shape& shape = source.contract->shape;
  const bool is_dkv = options.direction == Direction::kDkv;
  if (Status ok = CheckOneMask(source); !ok) return ok;
  if (source.stores_no_tiles && !is_dkv && !options.dynamic_grid) {
    return Fail(ErrorCode::kBadArgument,
                "Tokamax's forward kernel skips tiles only by lists of active ones; ask for the dynamic grid",
                "dynamic-grid");
  }
  const uint32_t one_head[] = {0};
  const HeadForms forms = source.stores_no_tiles
                              ? OneForm(1, source.function)
                              : GroupHeads(*source.contract, one_head, options.store_tiles || source.is_baked);
  const bool stores_tiles = !forms.function && !source.stores_no_tiles;
  GridReader reader(*source.plan, stores_tiles);
  Result<TileGrid> grid = reader.Read(source.batch_row, 0);
  if (!grid) return tl::unexpected(std::move(grid.error()));

  // The library drops the arrays of a mask that is full everywhere; where a batch decides that, they stay.
  const bool follows_batch = source.stores_no_tiles || (source.class_shape && source.is_baked);
  const bool is_full = !follows_batch && !reader.HasPartial() &&
                       static_cast<int64_t>(grid->tiles.size()) == grid->q_tiles * grid->kv_tiles;
  const int64_t q_tiles = grid->q_tiles / options.q_shards;
  const int64_t kv_tiles = grid->kv_tiles / options.kv_shards;
  Lists lists;
  if (!is_full) {
    int64_t longest = 0;
    if (options.dynamic_grid && source.class_shape) {
      const int64_t width = TESSERA_TRY(FixedWidth(source, *grid, is_dkv));
      longest = is_dkv ? kv_tiles * std::min(width, q_tiles) : q_tiles * std::min(width, kv_tiles);
    }
    const int64_t listed =
        std::max(static_cast<int64_t>(grid->tiles.size()), longest * options.q_shards * options.kv_shards);
    const auto cells = static_cast<double>(options.dynamic_grid ? listed : grid->q_tiles * grid->kv_tiles);
    if (Status ok = CheckCells(cells, 4, "tokamax"); !ok) return ok;
    std::optional<int32_t> idle_rows;
    if (is_dkv && options.dynamic_grid) idle_rows = 0;
    if (!is_dkv && source.stores_no_tiles) idle_rows = 1;
    std::vector<Shard> shards;
    for (int64_t q = 0; q < options.q_shards; ++q) {
      for (int64_t kv = 0; kv < options.kv_shards; ++kv) {
        shards.push_back(
            MakeShard(*grid, q * q_tiles, (q + 1) * q_tiles, kv * kv_tiles, (kv + 1) * kv_tiles, is_dkv, idle_rows));
      }
    }
    lists = options.dynamic_grid ? ActiveLists(shards, static_cast<size_t>(longest)) : WholeGrid(shards);
  }
  const bool has_tiles = stores_tiles && (reader.HasPartial() || follows_batch);
  const int64_t num_stored = has_tiles ? TESSERA_TRY(StoredCount(source, reader.stored())) : 0;
  const bool has_lists = !is_full && options.dynamic_grid;
  // Of a mask that is full everywhere the library keeps the query positions but forgets the function.
  out.mask_function = is_full ? std::nullopt : forms.function;
  AddWhen(has_tiles, out, "mask_next", [&] { return lists.mask_next.Narrowed(source.Bound(num_stored - 1)); });
  AddWhen(has_lists, out, "active_rows",
          [&] { return lists.rows.Narrowed(source.Bound((is_dkv ? kv_tiles : q_tiles) - 1)); });
  AddWhen(has_lists, out, "active_cols",
          [&] { return lists.columns.Narrowed(source.Bound((is_dkv ? q_tiles : kv_tiles) - 1)); });
  AddWhen(!is_full, out, "block_mask", [&] { return lists.block_mask.Narrowed(source.Bound(2)); });
  AddWhen(has_lists, out, "num_active_blocks", [&] { return lists.num_active.AsInt32(); });
  AddWhen(has_tiles, out, "partial_mask_blocks",
          [&] { return reader.stored().ToTensor(ElementType::kI8, is_dkv, num_stored); });
  AddWhen(forms.function.has_value(), out, "q_sequence", [&] { return QSequence(shape.q_len); });
  return {};
}

}  // namespace tessera::exports
