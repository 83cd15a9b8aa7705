// Tensor: a shape and the bytes behind it, read and written one element at a time. For tests, tools and the reference
// lane; fast lanes work on the bytes.
#include "tessera/tensor.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include "base/dtype.h"
#include "base/hash.h"

namespace tessera {
namespace {

template <class T>
T Load(const std::vector<std::byte>& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void Store(std::vector<std::byte>& bytes, int64_t i, T value) {
  std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

Tensor Tensor::Zeros(ElementType type, std::vector<int64_t> shape) {
  Tensor tensor{type, std::move(shape), {}};
  tensor.bytes.resize(static_cast<size_t>(tensor.NumElements() * BytesOf(type)));
  return tensor;
}

int64_t Tensor::NumElements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

double Tensor::At(int64_t i) const {
  switch (type) {
    case ElementType::kF32:
      return static_cast<double>(Load<float>(bytes, i));
    case ElementType::kBf16:
      return static_cast<double>(Bf16ToF32(Load<uint16_t>(bytes, i)));
    case ElementType::kF16:
      return static_cast<double>(F16ToF32(Load<uint16_t>(bytes, i)));
    case ElementType::kI8:
    case ElementType::kI16:
    case ElementType::kI32:
    case ElementType::kI64:
    case ElementType::kBool:
      break;
  }
  assert(false && "Tensor::At reads float types only");
  return std::numeric_limits<double>::quiet_NaN();
}

void Tensor::Set(int64_t i, double value) {
  switch (type) {
    case ElementType::kF32:
      return Store(bytes, i, static_cast<float>(value));
    case ElementType::kBf16:
      return Store(bytes, i, F64ToBf16(value));
    case ElementType::kF16:
      return Store(bytes, i, F64ToF16(value));
    case ElementType::kI8:
    case ElementType::kI16:
    case ElementType::kI32:
    case ElementType::kI64:
    case ElementType::kBool:
      break;
  }
  assert(false && "Tensor::Set writes float types only");
}

std::string ToText(const MemorySpace& space) {
  if (space.kind == MemoryKind::kHost) return "host";
  return fmt::format("{}:{}", space.kind == MemoryKind::kGpu ? "gpu" : "tpu", space.ordinal);
}

TensorRef DenseView(const void* data, ElementType type, const Sizes4& sizes, Layout layout) {
  const int64_t row = sizes.dim;
  TensorRef ref{.type = type, .data = static_cast<std::byte*>(const_cast<void*>(data))};
  ref.batch_stride = sizes.heads * sizes.tokens * row;
  ref.head_stride = layout == Layout::kBhtd ? sizes.tokens * row : row;
  ref.token_stride = layout == Layout::kBhtd ? row : sizes.heads * row;
  return ref;
}

TensorRef DenseView(float* data, const Sizes4& sizes, Layout layout) {
  return DenseView(data, ElementType::kF32, sizes, layout);
}

TensorRef DenseView(const Tensor& tensor, Layout layout) {
  const std::vector<int64_t>& d = tensor.shape;
  const bool tokens_first = layout == Layout::kBthd;
  return DenseView(tensor.bytes.data(), tensor.type,
                   {d[0], tokens_first ? d[2] : d[1], tokens_first ? d[1] : d[2], d[3]}, layout);
}

std::string Digest(const TensorMap& tensors) {
  Hasher hasher;
  hasher.Int(static_cast<int64_t>(tensors.size()));
  for (const auto& [name, tensor] : tensors) {
    hasher.Text(name);
    hasher.Text(ToText(tensor.type));
    hasher.Int(static_cast<int64_t>(tensor.shape.size()));
    for (const int64_t dim : tensor.shape) hasher.Int(dim);
    hasher.Int(static_cast<int64_t>(tensor.bytes.size()));
    hasher.Bytes(tensor.bytes.data(), tensor.bytes.size());
  }
  return Hex(hasher.Finish());
}

}  // namespace tessera
