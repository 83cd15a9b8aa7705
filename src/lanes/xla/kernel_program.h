// Whole StableHLO programs around our TPU kernels: what pads, spreads, narrows and cleans operands, the calls, and the
// rows of tiles that come back.
#pragma once

#include "lanes/lane.h"
#include "lanes/xla/stablehlo/program.h"

namespace tessera::lanes::xla {

// Inputs q, k, v, scale, part, [softcap], [sink_logits], [do, lse, delta], and the tables of each kernel's direction
// (kernel_tables.h). Outputs as those of the chunked programs.
Result<stablehlo::Program> LowerKernels(const stablehlo::ProgramSpec& spec, Pass pass);

}  // namespace tessera::lanes::xla
