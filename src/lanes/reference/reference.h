// The reference lane: walks the plan one pair at a time in double precision. It is the lane that every other lane is
// compared with, so it is never optimised: keys are taken in ascending order, with no per-tile partial results, which
// makes a document's bits the same packed or alone and at every tile size. Only allowed pairs are ever read.
#pragma once

#include <memory>

#include "lanes/lane.h"

namespace tessera {

std::unique_ptr<Lane> MakeReferenceLane();

}  // namespace tessera
