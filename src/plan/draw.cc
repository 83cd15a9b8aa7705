// The tile map of one (batch row, head) as text. A tile, or a square of tiles when there are too many, is one cell;
// a cell is two characters wide because a terminal's characters are about twice as high as wide.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/plan.h"

namespace tessera {
namespace {

struct Cell {
  int64_t full = 0;
  int64_t partial = 0;
};

struct Grid {
  int64_t columns = 0;  // cells
  int64_t rows = 0;
  int64_t tiles_x = 0;
  int64_t tiles_y = 0;
  int64_t step_x = 1;  // tiles per cell
  int64_t step_y = 1;
  std::vector<Cell> cells;

  bool IsDownSampled() const { return step_x > 1 || step_y > 1; }
  int64_t TilesIn(int64_t row, int64_t column) const {
    return (std::min((row + 1) * step_y, tiles_y) - row * step_y) *
           (std::min((column + 1) * step_x, tiles_x) - column * step_x);
  }
};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

Grid MakeGrid(const Worklist& worklist, int64_t kv_len, uint64_t mask, TileSize most) {
  Grid grid;
  grid.tiles_x = CeilDiv(kv_len, worklist.tile_kv);
  grid.tiles_y = worklist.rows_per_mask;
  grid.step_x = std::max<int64_t>(1, CeilDiv(grid.tiles_x, most.kv));
  grid.step_y = std::max<int64_t>(1, CeilDiv(grid.tiles_y, most.q));
  // A square map stays square.
  if (grid.tiles_x == grid.tiles_y) grid.step_x = grid.step_y = std::max(grid.step_x, grid.step_y);
  grid.columns = CeilDiv(grid.tiles_x, grid.step_x);
  grid.rows = CeilDiv(grid.tiles_y, grid.step_y);
  grid.cells.resize(static_cast<size_t>(grid.columns * grid.rows));
  for (int64_t row = 0; row < grid.tiles_y; ++row) {
    for (const Slot& slot : worklist.Row(mask * worklist.rows_per_mask + static_cast<uint64_t>(row))) {
      Cell& cell = grid.cells[static_cast<size_t>(row / grid.step_y * grid.columns + slot.index / grid.step_x)];
      ++(slot.cleanup == 0 ? cell.full : cell.partial);
    }
  }
  return grid;
}

std::string_view Glyph(const Cell& cell, int64_t tiles, bool down_sampled) {
  const int64_t kept = cell.full + cell.partial;
  if (kept == 0) return " ·";
  if (cell.full == tiles) return "██";
  if (!down_sampled) return "▒▒";
  if (kept == tiles) return "▓▓";
  return kept * 2 >= tiles ? "▒▒" : "░░";
}

void DrawKeyAxis(std::string& text, const Grid& grid, int64_t tokens_per_cell, size_t margin) {
  constexpr int64_t kEvery = 8;  // cells between two labels
  std::string line(margin, ' ');
  for (int64_t column = 0; column < grid.columns; column += kEvery) {
    // The last label is dropped where it would stick out far beyond the map.
    if (column > 0 && grid.columns - column < 3) break;
    line += fmt::format("{:<16}", column * tokens_per_cell);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + "\n";
}

}  // namespace

std::string DrawTiles(const PlanView& plan, int64_t batch_row, int64_t head, int64_t max_columns, int64_t max_rows) {
  if (batch_row < 0 || batch_row >= plan.batch || head < 0 || head >= plan.num_q_heads) return {};
  const Worklist& worklist = plan.Of(Direction::kForward);
  const uint64_t mask = plan.mask_of[static_cast<size_t>(batch_row * plan.num_q_heads + head)];
  const Grid grid = MakeGrid(worklist, plan.kv_len, mask,
                             TileSize{.q = std::max<int64_t>(1, max_rows), .kv = std::max<int64_t>(1, max_columns)});

  std::string text = fmt::format("batch row {}, head {}: {} x {} tiles of {} queries x {} keys", batch_row, head,
                                 grid.tiles_y, grid.tiles_x, worklist.tile_q, worklist.tile_kv);
  if (grid.IsDownSampled()) text += fmt::format("; one cell is {} x {} tiles", grid.step_y, grid.step_x);
  text += "\n";

  const int64_t tokens_y = grid.step_y * worklist.tile_q;
  const size_t label_width = std::max<size_t>(7, std::to_string((grid.rows - 1) * tokens_y).size());
  DrawKeyAxis(text, grid, grid.step_x * worklist.tile_kv, label_width + 3);
  const int64_t label_every = grid.rows <= 16 ? 1 : 4;
  Cell total;
  for (int64_t row = 0; row < grid.rows; ++row) {
    const std::string label = row % label_every == 0 ? std::to_string(row * tokens_y) : "";
    text += fmt::format("{:>{}} │", label, label_width);
    for (int64_t column = 0; column < grid.columns; ++column) {
      const Cell& cell = grid.cells[static_cast<size_t>(row * grid.columns + column)];
      text += Glyph(cell, grid.TilesIn(row, column), grid.IsDownSampled());
      total.full += cell.full;
      total.partial += cell.partial;
    }
    text += "\n";
  }
  const std::string margin(label_width + 2, ' ');
  if (grid.IsDownSampled()) {
    text += margin + "cells: ██ all tiles full  ▓▓ all kept  ▒▒ half or more kept  ░░ fewer kept   · none\n";
    text += margin + fmt::format("tiles: {} full, {} partial, {} empty\n", total.full, total.partial,
                                 grid.tiles_x * grid.tiles_y - total.full - total.partial);
  } else {
    text += margin + fmt::format("██ {} full  ▒▒ {} partial   · {} empty\n", total.full, total.partial,
                                 grid.tiles_x * grid.tiles_y - total.full - total.partial);
  }
  return text;
}

}  // namespace tessera
