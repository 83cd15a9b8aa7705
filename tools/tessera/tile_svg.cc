// See tile_svg.h.
#include "tile_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace tessera::program {
namespace {

constexpr int64_t kMostCells = 256;
constexpr int64_t kSide = 640;   // of the longer side, in the picture's units
constexpr int64_t kMargin = 64;  // for labels, left and above
constexpr int64_t kLabels = 8;   // along an axis, about
constexpr int64_t kLegend = 40;  // below

struct Cell {
  int64_t full = 0;
  int64_t partial = 0;
};

struct Grid {
  int64_t tiles_y = 0;
  int64_t tiles_x = 0;
  int64_t step = 1;  // tiles of a cell, each way
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<Cell> cells;

  int64_t TilesIn(int64_t row, int64_t column) const {
    return (std::min((row + 1) * step, tiles_y) - row * step) *
           (std::min((column + 1) * step, tiles_x) - column * step);
  }
};

Grid MakeGrid(const PlanView& plan, uint64_t mask) {
  const Worklist& worklist = plan.Of(Direction::kForward);
  Grid grid;
  grid.tiles_y = worklist.rows_per_mask;
  grid.tiles_x = (plan.kv_len + worklist.tile_kv - 1) / worklist.tile_kv;
  grid.step = (std::max(grid.tiles_y, grid.tiles_x) + kMostCells - 1) / kMostCells;
  grid.rows = (grid.tiles_y + grid.step - 1) / grid.step;
  grid.columns = (grid.tiles_x + grid.step - 1) / grid.step;
  grid.cells.resize(static_cast<size_t>(grid.rows * grid.columns));
  for (int64_t row = 0; row < grid.tiles_y; ++row) {
    for (const Slot& slot : worklist.Row(mask * static_cast<uint64_t>(grid.tiles_y) + static_cast<uint64_t>(row))) {
      const int64_t column = int64_t{slot.index} / grid.step;
      Cell& cell = grid.cells[static_cast<size_t>(row / grid.step * grid.columns + column)];
      ++(slot.cleanup == 0 ? cell.full : cell.partial);
    }
  }
  return grid;
}

// The classes of the style, darkest first; nothing for a cell without a tile.
std::string_view ClassOf(const Cell& cell, int64_t tiles) {
  const int64_t kept = cell.full + cell.partial;
  if (kept == 0) return {};
  if (cell.full == tiles) return "f";
  if (kept == tiles) return "p";
  return kept * 2 >= tiles ? "h" : "l";
}

// Every run of equal cells of a row is one rectangle.
std::string Rectangles(const Grid& grid) {
  std::string text;
  for (int64_t row = 0; row < grid.rows; ++row) {
    const auto class_at = [&](int64_t column) {
      return ClassOf(grid.cells[static_cast<size_t>(row * grid.columns + column)], grid.TilesIn(row, column));
    };
    for (int64_t begin = 0; begin < grid.columns;) {
      int64_t end = begin + 1;
      while (end < grid.columns && class_at(end) == class_at(begin)) ++end;
      if (!class_at(begin).empty()) {
        text += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"1\"/>\n", class_at(begin),
                            begin, row, end - begin);
      }
      begin = end;
    }
  }
  return text;
}

// Tokens at a round number of cells.
std::string Labels(int64_t cells, int64_t tokens_per_cell, double scale, bool is_key) {
  int64_t every = 1;
  while (cells / every > kLabels) every *= 2;
  std::string text;
  for (int64_t cell = 0; cell < cells; cell += every) {
    const double at = static_cast<double>(kMargin) + static_cast<double>(cell) * scale;
    const int64_t near = kMargin - 6;
    text += is_key ? fmt::format("<text x=\"{:.1f}\" y=\"{}\">{}</text>\n", at, near, cell * tokens_per_cell)
                   : fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", near, at + 11,
                                 cell * tokens_per_cell);
  }
  return text;
}

}  // namespace

std::string TileSvg(const PlanView& plan, int64_t batch_row, int64_t head) {
  const Worklist& worklist = plan.Of(Direction::kForward);
  const Grid grid = MakeGrid(plan, plan.mask_of[static_cast<size_t>(batch_row * plan.num_q_heads + head)]);
  Cell total;
  for (const Cell& cell : grid.cells) {
    total.full += cell.full;
    total.partial += cell.partial;
  }
  const double scale = static_cast<double>(kSide) / static_cast<double>(std::max(grid.rows, grid.columns));
  const double width = static_cast<double>(grid.columns) * scale;
  const double height = static_cast<double>(grid.rows) * scale;
  const std::string about =
      fmt::format("batch row {}, head {}: {} x {} tiles of {} queries x {} keys; {} full, {} partial, {} skipped",
                  batch_row, head, grid.tiles_y, grid.tiles_x, worklist.tile_q, worklist.tile_kv, total.full,
                  total.partial, grid.tiles_y * grid.tiles_x - total.full - total.partial);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\">\n<title>{}</title>\n"
      "<style>svg{{background:#fff;font:11px sans-serif}}text{{fill:#333}}.g{{fill:#f3f4f6}}.f{{fill:#1d4ed8}}"
      ".p{{fill:#93b4f5}}.h{{fill:#bcd0fa}}.l{{fill:#dde8fd}}"
      "@media(prefers-color-scheme:dark){{svg{{background:#111}}text{{fill:#ddd}}.g{{fill:#1f2937}}.f{{fill:#60a5fa}}"
      ".p{{fill:#2f5fb3}}.h{{fill:#274b8a}}.l{{fill:#22355a}}}}</style>\n",
      width + kMargin + 16, height + kMargin + kLegend, about);
  text += Labels(grid.columns, grid.step * worklist.tile_kv, scale, true);
  text += Labels(grid.rows, grid.step * worklist.tile_q, scale, false);
  text += fmt::format("<rect class=\"g\" x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n", kMargin, kMargin,
                      width, height);
  text += fmt::format("<g shape-rendering=\"crispEdges\" transform=\"translate({} {}) scale({:.6f})\">\n{}</g>\n",
                      kMargin, kMargin, scale, Rectangles(grid));
  return text + fmt::format("<text x=\"{}\" y=\"{:.0f}\">{}</text>\n</svg>\n", kMargin, height + kMargin + 24, about);
}

}  // namespace tessera::program
