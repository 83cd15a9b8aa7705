// Arithmetic on sizes that come from outside: a product that overflows is an answer, never a wrapped number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tessera {

inline std::optional<int64_t> CheckedMul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The element count of a shape; nothing for a negative dimension or a product above int64.
inline std::optional<int64_t> CheckedProduct(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

}  // namespace tessera
