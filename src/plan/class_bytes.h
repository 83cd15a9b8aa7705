// How large a plan may be, from the capacities that its class gives it.
#pragma once

#include <cstdint>

#include "tessera/plan.h"

namespace tessera::plan {

// About what the largest plan of this one's class takes; one whose cleanups have many items may take more.
int64_t ClassBytes(const PlanView& plan);

}  // namespace tessera::plan
