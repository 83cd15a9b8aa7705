// A language model as small as one can be, trained for a few steps: two layers of projections around an attention that
// the caller brings. For `tessera bridge`, which asks whether gradients that go through the bridge train a model.
#pragma once

#include <functional>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::program {

// q, k, v, do -> o, dq, dk, dv.
using AttentionCall = std::function<Result<TensorMap>(const Contract& contract, const TensorMap& inputs)>;

// The losses before each step of plain gradient descent, and after the last.
Result<std::vector<double>> TrainSmallGpt(const AttentionCall& attention, int steps);

}  // namespace tessera::program
