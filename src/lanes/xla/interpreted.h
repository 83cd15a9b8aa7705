// Kernels that the host's interpreter runs: what a TPU would be given, operand for operand, and what it would give. The
// kernel that runs is read back from its text, so that the text is what is proven. Receipts call it "interpreted".
#pragma once

#include <memory>
#include <string>

#include "lanes/lane.h"
#include "lanes/xla/lowerings.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

Result<std::unique_ptr<BoundLane>> BindInterpreted(const Lowering& lowering, const BindRequest& request,
                                                   const stablehlo::ProgramSpec& spec, int64_t threads);

}  // namespace tessera::lanes::xla
