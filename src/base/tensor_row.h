// Where a row of a strided tensor lies, and single elements of it: for digests, tails, repairs and whatever else is no
// kernel's work. A tensor that was checked begins at a multiple of its element's size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/tensor.h"

namespace tessera {

inline std::byte* RowAt(const TensorRef& tensor, int64_t batch, int64_t head, int64_t token) {
  const int64_t at = batch * tensor.batch_stride + head * tensor.head_stride + token * tensor.token_stride;
  return tensor.data + at * BytesOf(tensor.type);
}

inline float ScalarAt(const std::byte* row, ElementType type, int64_t at) {
  if (type == ElementType::kF32) return reinterpret_cast<const float*>(row)[at];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[at];
  return type == ElementType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

}  // namespace tessera
