// What a kernel's function says of its arguments: grid, scalars, windows and scratch, read out of its attributes once
// for the verifier and the interpreter.
#pragma once

#include <string>
#include <vector>

#include "lanes/xla/mosaic/ir.h"
#include "tessera/error.h"

namespace tessera::mosaic {

struct WindowInfo {
  Type memref;
  const Function* index_map = nullptr;  // none: the whole array
  bool is_synchronous = false;          // or double-buffered
};

struct Signature {
  std::vector<int64_t> grid;  // empty: one step, and every window is its whole array; kDynamicBound among them
  std::vector<Type> scalars;
  std::vector<WindowInfo> windows;  // inputs, then results
  std::vector<Type> scratch;

  size_t num_dynamic = 0;  // axes of the grid whose bound is an operand: i32 scalars, before all others

  size_t FirstScalar() const { return grid.size(); }
  size_t FirstWindow() const { return FirstScalar() + scalars.size(); }
  size_t FirstScratch() const { return FirstWindow() + windows.size(); }
};

// TSR-M002 when attributes are missing, of another kind, or do not agree with the arguments.
Result<Signature> ReadSignature(const Module& module);

}  // namespace tessera::mosaic
