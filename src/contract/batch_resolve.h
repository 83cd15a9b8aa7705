// Fits a batch to a contract whose mask has already been described, so that the planner pays for that only once.
#pragma once

#include <vector>

#include "tessera/batch.h"

namespace tessera {

Result<std::vector<BatchRow>> ResolveBatchWith(const Contract& contract, const MaskFacts& facts, const Batch& batch);

}  // namespace tessera
