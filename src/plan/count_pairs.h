// The work in a plan: how many query-key pairs its masks allow, over batch and query heads.
#pragma once

#include <cstdint>

#include "tessera/plan.h"

namespace tessera {

// Exact; takes about as long as spelling out every partial tile once.
int64_t CountPairs(const PlanView& plan);

}  // namespace tessera
