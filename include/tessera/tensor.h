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

// Where memory is: this machine's own, or that of a device, by its number among those of its kind. Row statistics and
// workspace lie in the memory of the tensors they belong to, and nothing is copied from one memory to another.
enum class MemoryKind : uint8_t { kHost, kGpu, kTpu };
struct MemorySpace {
  MemoryKind kind = MemoryKind::kHost;
  int64_t ordinal = 0;  // 0 for the host
  bool operator==(const MemorySpace&) const = default;
};
std::string ToText(const MemorySpace& space);  // "host", "gpu:0"

// A strided [batch, head, token, dim] tensor in somebody else's memory; strides count elements, the last axis is
// contiguous. No data means "not given" or "not wanted".
struct TensorRef {
  ElementType type = ElementType::kF32;
  std::byte* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  MemorySpace space = {};
};

// A dense tensor as a view: sizes [B,H,T,D] of memory laid out so, or, of kBthd, laid out [B,T,H,D].
enum class Layout : uint8_t { kBhtd, kBthd };
struct Sizes4 {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t tokens = 0;
  int64_t dim = 0;
};
TensorRef DenseView(float* data, const Sizes4& sizes, Layout layout = Layout::kBhtd);
// Of any element type. Inputs are only read; the view has no const form, so the constness goes at this one place.
TensorRef DenseView(const void* data, ElementType type, const Sizes4& sizes, Layout layout = Layout::kBhtd);
// Of a Tensor of rank 4, whose shape is in the layout's order.
TensorRef DenseView(const Tensor& tensor, Layout layout = Layout::kBhtd);

}  // namespace tessera
#pragma GCC visibility pop
