// A plan on a GPU, ready to be called: kernels loaded, the plan in device memory, parameters that no tensor changes
// made.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "lanes/cuda/state.h"
#include "lanes/lane.h"

namespace tessera::lanes::cuda {

Result<std::unique_ptr<BoundLane>> MakeBound(const std::shared_ptr<State>& state, const BindRequest& request,
                                             const MemorySpace& space);

// A tensor as the kernels' copies see it; TSR-R001 where the driver refuses it.
Result<TensorMap> EncodeTensor(const Driver& driver, const TensorRef& ref, const std::array<int64_t, 4>& axes,
                               const Box& box);

}  // namespace tessera::lanes::cuda
