// Where a kernel keeps each element of its packed operands, written down a second time: index by index, as the tests'
// reference for packers and units.
#pragma once

#include <cstdint>
#include <new>
#include <random>
#include <vector>

#include "lanes/cpu/isa.h"
#include "lanes/cpu/kernels.h"

namespace tessera::lanes::cpu {

inline bool IsAvailable(std::string_view name) {
  for (const Isa& isa : Isas()) {
    if (isa.name == name) return isa.available;
  }
  return false;
}

// Zeroed or patterned memory at a cache line, as the lane's workspace is.
template <class T>
class Aligned {
 public:
  explicit Aligned(int64_t count, T value = {}) : values_(static_cast<size_t>(count) + 64 / sizeof(T), value) {
    const auto at = reinterpret_cast<uintptr_t>(values_.data());
    first_ = (64 - at % 64) % 64 / sizeof(T);
    count_ = static_cast<size_t>(count);
  }
  T* data() { return values_.data() + first_; }
  const T* data() const { return values_.data() + first_; }
  T& operator[](int64_t i) { return values_.at(first_ + static_cast<size_t>(i)); }
  const T& operator[](int64_t i) const { return values_.at(first_ + static_cast<size_t>(i)); }
  int64_t size() const { return static_cast<int64_t>(count_); }

 private:
  std::vector<T> values_;
  size_t first_ = 0;
  size_t count_ = 0;
};

inline float FromBits(uint16_t bits, ElementType type) {
  return type == ElementType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

// Elements of packed operands, in elements of A and B from their first.
struct OperandIndex {
  explicit OperandIndex(const Kernel& kernel)
      : panel(kernel.panel), b_rows(kernel.operand_bytes == 4 ? 1 : kernel.a_group * 2), a_group(kernel.a_group) {}
  int64_t panel;
  int64_t b_rows;  // of B that lie interleaved
  int64_t a_group;

  // (a, k) of an A stored [a][k].
  int64_t A(int64_t a, int64_t k, int64_t stride) const {
    if (a_group == 1) return a * stride + k;
    return a / 2 * 2 * stride + k / 4 * 8 + a % 2 * 4 + k % 4;
  }
  // (k, j) of a B whose rows are `width` words, or f32 values, apart.
  int64_t B(int64_t k, int64_t j, int64_t width) const { return (k / b_rows * width + j) * b_rows + k % b_rows; }
};

// A packed operand of any width as f32.
struct Operand {
  Operand(const Kernel& kernel, int64_t count)
      : is_f32(kernel.operand_bytes == 4), wide(is_f32 ? count : 0, -77.0F), narrow(is_f32 ? 0 : count, 0xC29A) {}
  void* data() { return is_f32 ? static_cast<void*>(wide.data()) : narrow.data(); }
  float At(int64_t i) const { return is_f32 ? wide[i] : Bf16ToF32(narrow[i]); }
  bool is_f32;
  Aligned<float> wide;
  Aligned<uint16_t> narrow;
};

// Rows of an input tensor of the kernel's type: values, and the bytes a packer reads.
struct InputRows {
  InputRows(const Kernel& kernel, int64_t num_rows, int64_t dim, int64_t stride, std::mt19937_64& rng)
      : type(ToElementType(kernel.dtype)), rows(num_rows), dims(dim), row_stride(stride), bytes(num_rows * stride * 4) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < num_rows * stride; ++i) Set(i, normal(rng));
  }
  void Set(int64_t i, float value) {
    if (type == ElementType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = type == ElementType::kBf16 ? F32ToBf16(value) : F32ToF16(value);
    }
  }
  float At(int64_t row, int64_t d) const {
    const int64_t i = row * row_stride + d;
    if (type == ElementType::kF32) return reinterpret_cast<const float*>(bytes.data())[i];
    return FromBits(reinterpret_cast<const uint16_t*>(bytes.data())[i], type);
  }
  PackRows Pack(int64_t padded_dim, int64_t padded_rows, void* to, int64_t to_stride) const {
    return {.type = type,
            .from = reinterpret_cast<const std::byte*>(bytes.data()),
            .from_stride = row_stride,
            .num_rows = rows,
            .dim = dims,
            .padded_dim = padded_dim,
            .padded_rows = padded_rows,
            .to = to,
            .to_stride = to_stride};
  }

  ElementType type;
  int64_t rows;
  int64_t dims;
  int64_t row_stride;
  Aligned<uint8_t> bytes;
};

}  // namespace tessera::lanes::cpu
