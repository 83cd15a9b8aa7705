// Finds what is wrong with a kernel before libtpu sees it, which accepts some of it and compiles something else: types
// of every operation, bounds of every load and store that is at a known place, windows against memrefs and operands,
// segment sizes, layouts, and memory in all.
#pragma once

#include <cstdint>
#include <span>

#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/ir.h"
#include "tessera/error.h"

namespace tessera::mosaic {

// The module by itself. TSR-M002 with the operation.
Status VerifyModule(const Module& module);

// The module on these arrays: operands (dynamic bounds, scalars, then inputs) and results. TSR-M003 with every misfit.
Status VerifyOperands(const Module& module, std::span<const ArrayType> operands, std::span<const ArrayType> results);

// What a kernel takes of the chip, padded as it lies there: windows twice where they are double-buffered.
struct KernelMemory {
  int64_t vmem_bytes = 0;
  int64_t smem_bytes = 0;
};
Result<KernelMemory> MeasureMemory(const Module& module);
// TSR-M004 with both numbers.
Status VerifyMemory(const Module& module, const KernelMemory& limits);

}  // namespace tessera::mosaic
