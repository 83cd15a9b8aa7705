// The tile map of one head as a picture that a document can hold.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/plan.h"

namespace tessera::program {

// Full, partial and skipped tiles, at most 256 cells each way: a cell of a larger map stands for several tiles.
std::string TileSvg(const PlanView& plan, int64_t batch_row, int64_t head);

}  // namespace tessera::program
