// How far gradients of several devices may lie from one device's: the same tiles' products are added in another order,
// which moves a sum by a few roundings of what the absolute values of its terms add up to.
#pragma once

#include <span>
#include <vector>

#include "shard/one_device.h"

namespace tessera::shard {

// One for each element, in the order of the outputs.
struct GradientBounds {
  std::vector<double> dq;  // around a ring; any other exchange has one device's bits
  std::vector<double> dk;
  std::vector<double> dv;
  std::vector<double> dsink_logits;
};
// The sums over keys' rows are made by the backward of one device, which is run twice more with other gradients of the
// output: dv is then the sum of weights times their absolute values.
Result<GradientBounds> BoundGradients(const BackwardOfOne& one, const ContextPlan& plan, const WholeTensors& whole,
                                      std::span<const float> sink_logits);

}  // namespace tessera::shard
