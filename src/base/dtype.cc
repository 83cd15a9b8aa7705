// Names and sizes of types; conversions to and from the 16-bit floats in integer arithmetic, so that every machine and
// every compiler rounds alike.
#include "base/dtype.h"

#include <bit>

namespace tessera {
namespace {

constexpr int kDoubleMantissa = 52;
constexpr int kDoubleBias = 1023;

// Nearest-even narrowing of a double to 1 sign bit, `exponent_bits` and `mantissa_bits`. The double keeps every bit
// of its source, so this is the only rounding.
uint16_t Narrow(double value, int exponent_bits, int mantissa_bits) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 63) << 15);
  const int exponent = static_cast<int>(bits >> kDoubleMantissa & 0x7ff);
  const uint64_t fraction = bits & ((uint64_t{1} << kDoubleMantissa) - 1);
  const uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  if (exponent == 0x7ff) {
    if (fraction == 0) return static_cast<uint16_t>(sign | infinity);
    // The quiet bit keeps a NaN a NaN even when its payload lies wholly in the dropped bits.
    const uint64_t payload = fraction >> (kDoubleMantissa - mantissa_bits);
    return static_cast<uint16_t>(sign | infinity | uint64_t{1} << (mantissa_bits - 1) | payload);
  }
  // A subnormal double is far below half of the smallest number either narrow type has.
  if (exponent == 0) return sign;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int narrow_exponent = exponent - kDoubleBias + bias;
  const uint64_t significand = fraction | uint64_t{1} << kDoubleMantissa;
  // Below the normal range the exponent stays and the significand moves down instead.
  const int shift = kDoubleMantissa - mantissa_bits + (narrow_exponent < 1 ? 1 - narrow_exponent : 0);
  if (shift > kDoubleMantissa + 1) return sign;
  const uint64_t kept = significand >> shift;
  const uint64_t dropped = significand & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  const uint64_t up = dropped > half || (dropped == half && (kept & 1) != 0) ? 1 : 0;
  // `kept` holds the hidden bit of a normal number, which is worth one exponent step: adding it to the exponent less
  // one gives the encoding, and a carry out of the mantissa moves on to the next exponent by itself.
  const uint64_t base = narrow_exponent < 1 ? 0 : static_cast<uint64_t>(narrow_exponent - 1) << mantissa_bits;
  const uint64_t encoded = base + kept + up;
  return static_cast<uint16_t>(sign | (encoded < infinity ? encoded : infinity));
}

}  // namespace

std::string_view ToText(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "unknown";
}

int64_t BytesOf(DType dtype) { return BytesOf(ToElementType(dtype)); }

std::string_view ToText(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "F32";
    case ElementType::kBf16:
      return "BF16";
    case ElementType::kF16:
      return "F16";
    case ElementType::kI8:
      return "I8";
    case ElementType::kI16:
      return "I16";
    case ElementType::kI32:
      return "I32";
    case ElementType::kI64:
      return "I64";
    case ElementType::kBool:
      return "BOOL";
  }
  return "UNKNOWN";
}

int64_t BytesOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
    case ElementType::kI32:
      return 4;
    case ElementType::kBf16:
    case ElementType::kF16:
    case ElementType::kI16:
      return 2;
    case ElementType::kI64:
      return 8;
    case ElementType::kI8:
    case ElementType::kBool:
      return 1;
  }
  return 0;
}

ElementType ToElementType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ElementType::kF32;
    case DType::kBf16:
      return ElementType::kBf16;
    case DType::kF16:
      return ElementType::kF16;
  }
  return ElementType::kF32;
}

uint16_t F64ToBf16(double value) { return Narrow(value, 8, 7); }
uint16_t F64ToF16(double value) { return Narrow(value, 5, 10); }

uint16_t F32ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  // Just under half, plus the kept low bit: ties move to the even neighbour, and overflow lands on infinity.
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t F32ToF16(float value) { return Narrow(static_cast<double>(value), 5, 10); }

float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  // Subnormal: fraction * 2^-24, exact in f32.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

}  // namespace tessera
