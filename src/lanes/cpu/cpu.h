// The lane that runs plans on this machine's processor at its own speed: vectors, threads, forward and backward.
// docs/cpu_lane.md says what bounds it and how it is built.
#pragma once

#include "lanes/lane.h"

namespace tessera {

const Lane& CpuLane();

}  // namespace tessera
