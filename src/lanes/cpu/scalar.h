// Single elements of tensors: tails of rows, and repairs that are too rare for vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/tensor.h"

namespace tessera::lanes::cpu {

inline float ScalarAt(const std::byte* row, ElementType type, int64_t at) {
  if (type == ElementType::kF32) return reinterpret_cast<const float*>(row)[at];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[at];
  return type == ElementType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

}  // namespace tessera::lanes::cpu
