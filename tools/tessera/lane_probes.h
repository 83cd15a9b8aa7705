// What `tessera lanes` finds out about lanes beyond their decisions: which one is there at all, and which features of a
// routed mask each takes.
#pragma once

#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::program {

// Each lane as something that is here or not, in order of preference: built or installed, and with a device to run on.
std::vector<BackendProbe> ProbeLanes(const Selection& selection);

// For a contract with routing or picks: what each lane that accepts it supports beside. A feature is tried, not
// believed: the mask with it must be one that the planner routes by, and that the lane accepts.
struct LaneSupport {
  std::string lane;
  ClusteredSupport support;
};
Result<std::vector<LaneSupport>> SupportOfLanes(const Contract& contract, const Target& target);

}  // namespace tessera::program
