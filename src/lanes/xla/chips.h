// Attention of several chips at once: each has its share of the heads, or of the batch's rows, with the keys they need,
// so that no chip waits for another. Worklists and masks are the same for all.
#pragma once

#include <string_view>

#include "lanes/xla/stablehlo/program.h"
#include "tessera/error.h"

namespace tessera::lanes::xla {

// What one of them has: heads where the key heads can be shared out, else rows of the batch; TSR-L002 where neither
// can.
Result<stablehlo::ProgramSpec> SpecOfChip(const stablehlo::ProgramSpec& whole, int64_t chips);

// The axis of an input of TPU kernels' programs that chips share, -1 where each has all of it.
int64_t ChipAxis(const stablehlo::ProgramSpec& of_chip, std::string_view input);

}  // namespace tessera::lanes::xla
