// Integer arrays on their way out: filled as int32, then narrowed as the libraries narrow them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "export/limits.h"
#include "export/mask_form.h"
#include "export/tile_grid.h"
#include "tessera/export.h"

namespace tessera::exports {

struct IntArray {
  std::vector<int64_t> shape;
  std::vector<int32_t> values;  // row-major

  static IntArray Filled(std::vector<int64_t> shape, int32_t value);
  // At the narrowest of 8, 16 and 32 bits that holds the largest value; an array of no elements stays at 32.
  Tensor Narrowed() const;
  Tensor AsInt32() const;
};

// 0, 1, ... q_len - 1: the query positions a kernel's mask function is given.
Tensor QSequence(int64_t q_len);

// Refuses arrays beyond kMaxArrayBytes before they are made.
Status CheckCells(double cells, int64_t arrays, const char* where);

// Everything a library's writer needs. One batch row, except for flex.
struct Source {
  const Contract* contract = nullptr;
  const ExportOptions* options = nullptr;
  const PlanView* plan = nullptr;
  TileSize tile;
  int64_t batch_row = 0;
  bool is_baked = false;  // run-time facts of the batch are in the plan
  bool per_row = false;   // flex: the mask names run-time facts that were to be baked, so it has a batch axis
};

// Numbers the heads of the row by what their masks allow: a plan may keep two masks apart that this batch makes equal.
Result<std::vector<uint32_t>> ContentOfHeads(const Source& source);
// An error where heads have different masks and the library has one for all.
Status CheckOneMask(const Source& source);

Status WriteSplash(const Source& source, Export& out);
Status WriteTokamax(const Source& source, Export& out);
Status WriteFlex(const Source& source, Export& out);
Status WritePallas(const Source& source, Export& out);

}  // namespace tessera::exports
