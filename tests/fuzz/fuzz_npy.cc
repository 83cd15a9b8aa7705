// Bitmap files: any bytes give an error or an array whose cells match its shape.
#include "fuzz.h"
#include "io/npy.h"

namespace tessera {

bool FuzzNpy(const uint8_t* data, size_t size) {
  const auto array = ParseNpy(AsText(data, size));
  if (!array) return false;
  int64_t num_cells = 1;
  for (const int64_t length : array->shape) num_cells *= length;
  Require(num_cells == static_cast<int64_t>(array->cells.size()), "cells match the shape");
  for (const uint8_t cell : array->cells) Require(cell <= 1, "a cell is 0 or 1");
  return true;
}

}  // namespace tessera
