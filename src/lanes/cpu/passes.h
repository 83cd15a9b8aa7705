// The two directions as functions, and the bytes each takes from the workspace, which a request then has not.
#pragma once

#include <cstdint>

#include "lanes/cpu/kernel.h"
#include "lanes/lane.h"

namespace tessera::lanes::cpu {

int64_t ForwardBytes(const Kernel& kernel, const LaneRequest& request);
int64_t BackwardBytes(const Kernel& kernel, const LaneRequest& request);

// Arguments are checked before; both give the tiles they walked.
int64_t RunForward(const Kernel& kernel, const LaneRequest& request, const ForwardArgs& args);
int64_t RunBackward(const Kernel& kernel, const LaneRequest& request, const BackwardArgs& args);

}  // namespace tessera::lanes::cpu
