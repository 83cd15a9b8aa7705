// One call of a TPU kernel from a StableHLO program, checked before there is a text of it: libtpu accepts an operand of
// another type or size, and compiles something else.
#pragma once

#include <vector>

#include "lanes/xla/mosaic/ir.h"
#include "lanes/xla/mosaic/verify.h"
#include "lanes/xla/stablehlo/builder.h"
#include "tessera/error.h"

namespace tessera::lanes::xla {

stablehlo::Element ToHlo(mosaic::Element element);

// TSR-M003 where operands or results do not fit the kernel's windows, TSR-M004 where it takes more memory than there
// is, 0 for no limit. What the lane refuses by reason has been refused before: either is a defect.
Result<stablehlo::Values> CallKernel(stablehlo::Builder& builder, const mosaic::Module& kernel,
                                     const stablehlo::Values& operands, const std::vector<stablehlo::Type>& results,
                                     const mosaic::KernelMemory& limits);

}  // namespace tessera::lanes::xla
