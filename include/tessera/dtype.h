// Types of numbers, as contracts name them and as tensor files do, and the 16-bit floats among them.
#pragma once

#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace tessera {

// What q, k, v and o may be made of.
enum class DType : uint8_t { kF32, kBf16, kF16 };
std::string_view ToText(DType dtype);  // "f32"
int64_t BytesOf(DType dtype);

// What any tensor may be made of.
enum class ElementType : uint8_t { kF32, kBf16, kF16, kI8, kI16, kI32, kI64, kBool };
std::string_view ToText(ElementType type);  // safetensors spelling: "F32", "BF16", ...
int64_t BytesOf(ElementType type);
ElementType ToElementType(DType dtype);

// Nearest even, NaN kept NaN, overflow to infinity.
uint16_t F32ToBf16(float value);
float Bf16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);
float F16ToF32(uint16_t bits);

}  // namespace tessera
#pragma GCC visibility pop
