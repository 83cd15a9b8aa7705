// The 16-bit float types. What tessera/tensor.h also declares is declared here again, because base knows no tensors.
#pragma once

#include <cstdint>

namespace tessera {

#pragma GCC visibility push(default)  // public, as in tessera/tensor.h
// Nearest even, NaN kept NaN, overflow to infinity.
uint16_t F32ToBf16(float value);
float Bf16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);
float F16ToF32(uint16_t bits);
#pragma GCC visibility pop

// A double is rounded once. Going through f32 first would round twice and can be one unit off.
uint16_t F64ToBf16(double value);
uint16_t F64ToF16(double value);

}  // namespace tessera
