// The interpreter's memory: every element is a word of 32 bits, a float or an int32, whatever its width on the chip.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "lanes/xla/mosaic/type.h"

namespace tessera::mosaic {

inline constexpr int64_t kWordBytes = 4;

// Words that came from operator new and so have whatever type they were written with.
using Words = std::shared_ptr<std::byte[]>;
inline float* Floats(std::byte* words) { return reinterpret_cast<float*>(words); }
inline const float* Floats(const std::byte* words) { return reinterpret_cast<const float*>(words); }
inline int32_t* Ints(std::byte* words) { return reinterpret_cast<int32_t*>(words); }
inline const int32_t* Ints(const std::byte* words) { return reinterpret_cast<const int32_t*>(words); }

// Hands out memory that was given back before it asks for more: kernels make the same few sizes again and again.
class WordPool {
 public:
  Words Take(int64_t count);

 private:
  using Free = std::map<int64_t, std::vector<std::unique_ptr<std::byte[]>>>;
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

inline float RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return value;
  return std::bit_cast<float>((bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U);
}

// What nobody wrote.
void Poison(std::byte* words, int64_t count, Element element);

std::vector<int64_t> RowMajor(std::span<const int64_t> dims);
// dst[row-major i] = src[i . strides], for every i below dims; and the other way round. Strides in words.
void Gather(const std::byte* src, std::span<const int64_t> strides, std::span<const int64_t> dims, std::byte* dst);
void Scatter(const std::byte* src, std::span<const int64_t> dims, std::byte* dst, std::span<const int64_t> strides);

// An array in its own width, and its words.
void ToWords(const std::byte* bytes, Element element, int64_t count, std::byte* words);
void FromWords(const std::byte* words, Element element, int64_t count, std::byte* bytes);
int64_t ArrayBytesOf(Element element);  // of one element outside: i1 is a byte

}  // namespace tessera::mosaic
