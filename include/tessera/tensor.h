// Tensors in memory: those that own their bytes and those that somebody else does. tessera/io.h has their files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/dtype.h"

#pragma GCC visibility push(default)
namespace tessera {

// A dense row-major tensor that owns its bytes.
struct Tensor {
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  static Tensor Zeros(ElementType type, std::vector<int64_t> shape);
  int64_t NumElements() const;
  // Element `i` in row-major order, converted; float types only.
  double At(int64_t i) const;
  // Rounds once to the element type (nearest even).
  void Set(int64_t i, double value);
  bool operator==(const Tensor&) const = default;
};

using TensorMap = std::map<std::string, Tensor>;

// XXH3-128 over names, types, shapes and bytes, as 32 hex digits.
std::string Digest(const TensorMap& tensors);

// A strided [batch, head, token, dim] tensor in somebody else's memory; strides count elements, the last axis is
// contiguous. No data means "not given" or "not wanted".
struct TensorRef {
  ElementType type = ElementType::kF32;
  std::byte* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};

}  // namespace tessera
#pragma GCC visibility pop
