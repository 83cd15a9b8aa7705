// Reads a kernel's text: what print.h writes, and what JAX's own kernels are as MLIR's generic text. Types are checked
// against the values they are written beside; everything else is verify.h's. Linear in the text, and bounded: hostile
// text is an error, never a crash (the fuzz target `mosaic`).
#pragma once

#include <string_view>

#include "lanes/xla/mosaic/ir.h"
#include "tessera/error.h"

namespace tessera::mosaic {

inline constexpr size_t kMostKernelText = size_t{64} << 20;

// TSR-M001 with line and column.
Result<Module> Parse(std::string_view text);

}  // namespace tessera::mosaic
