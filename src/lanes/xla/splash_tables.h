// The plan as operands of the stock Splash kernels. A batch's rows are more heads to them: what a (batch row, head)
// pair sees is the same for all, since the mask is a band.
#pragma once

#include <vector>

#include "lanes/xla/kernels/splash.h"
#include "lanes/xla/operands.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

// A kernel of one direction of a class with a band. Token numbers past the last key are kept from real queries by
// segment ids, where the band does not do it.
kernels::SplashSpec SplashSpecOf(const stablehlo::ProgramSpec& spec, Direction direction);
Result<mosaic::Module> SplashKernelOf(const stablehlo::ProgramSpec& spec, Direction direction);

// data_next, block_mask, and kv_live, which is 0 for keys that nobody sees.
std::vector<stablehlo::NamedType> SplashTableInputs(const stablehlo::ProgramSpec& spec, Direction direction);
void FillSplashTables(const stablehlo::ProgramSpec& spec, const PlanView& plan, Direction direction,
                      PlanTables& tables);

// Results that JAX keeps running values in, which come before a kernel's own.
std::vector<std::vector<int64_t>> SplashRunningDims(const kernels::SplashSpec& spec, Direction direction);

}  // namespace tessera::lanes::xla
