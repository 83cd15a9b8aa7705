// Bitmap files: any bytes give an error or an array whose cells match its shape.
#include "base/npy.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto array = tessera::ParseNpy(tessera::AsText(data, size));
  if (!array) return 0;
  int64_t num_cells = 1;
  for (const int64_t length : array->shape) num_cells *= length;
  tessera::Require(num_cells == static_cast<int64_t>(array->cells.size()), "cells match the shape");
  return 0;
}
