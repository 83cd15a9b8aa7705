// Which cells at the ends of a row's slots hold no pair (Idle, abi.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes/cuda/abi.h"
#include "tessera/plan.h"

namespace tessera::lanes::cuda {

class IdleCells {
 public:
  // `tokens`: TokenSpan of every row token of every batch row, empty where no item asks for documents. Takes time
  // linear in items and tokens.
  IdleCells(const PlanView& plan, Direction direction, std::span<const TokenSpan> tokens);

  // Of slots [begin, end) of row `row` of a mask, as batch row `batch` has it. A cell is called idle only where it is;
  // one that is need not be.
  Idle Of(int64_t batch, int64_t row, int64_t begin, int64_t end) const;

 private:
  struct Columns {
    int32_t begin = 0;
    int32_t end = 0;
  };
  bool IsIdle(int64_t batch, int64_t row, int64_t slot, int32_t row_cell, int32_t col_cell) const;
  uint8_t CellsWithPairs(std::span<const CleanupItem> items) const;

  const PlanView& plan_;
  const Worklist& list_;
  bool keys_are_rows_;
  int32_t row_cells_;  // of a tile
  int32_t col_cells_;
  int64_t rows_per_batch_;          // cells of all rows of a batch row
  std::vector<uint8_t> pairs_;      // by cleanup: bit row cell * col_cells + column cell
  std::vector<uint8_t> documents_;  // by cleanup: whether every item asks for documents
  std::vector<Columns> reach_;      // of the documents of each 64 rows; empty: no documents
};

}  // namespace tessera::lanes::cuda
