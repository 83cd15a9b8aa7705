// A plan as the page reads it (src/view/page/plan.js).
#pragma once

#include <string>

#include "tessera/view.h"

namespace tessera::view {

// One JSON object. Arrays are base64 of little-endian 32-bit integers; a row's slots are runs of neighbours that share
// a cleanup, so that a row costs what changes along it and not what it holds.
std::string PlanData(const ShownPlan& shown);

}  // namespace tessera::view
