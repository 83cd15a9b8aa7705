// Rounding a double to the 16-bit float types: beside tessera/dtype.h, which has the conversions of f32.
#pragma once

#include "tessera/dtype.h"

namespace tessera {

// A double is rounded once. Going through f32 first would round twice and can be one unit off.
uint16_t F64ToBf16(double value);
uint16_t F64ToF16(double value);

}  // namespace tessera
