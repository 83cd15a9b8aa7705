// The lane xla_chunked: attention as a StableHLO program, compiled by whatever PJRT plugin there is and run through it.
// The plan is data, so one compiled program serves every batch of its class. docs/xla.md.
#pragma once

#include "lanes/lane.h"

namespace tessera {

const Lane& XlaLane();

}  // namespace tessera
