// Fits a batch to a contract whose mask has already been described, so that the planner pays for that only once.
#pragma once

#include <span>
#include <vector>

#include "tessera/batch.h"

namespace tessera {

Result<std::vector<BatchRow>> ResolveBatchWith(const Contract& contract, const MaskFacts& facts, const Batch& batch);

// The stretches of equal id in one row, in order. Neighbouring padding ids become one stretch with doc -1, whatever
// negative numbers they had; ranks are 0.
std::vector<Segment> FindSegments(std::span<const int32_t> ids);

}  // namespace tessera
