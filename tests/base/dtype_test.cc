// Conversions against a slow exact method: the nearest of all 65,536 values, ties to the even one, found by search in
// double arithmetic (every bf16, f16 and f32 is exact in a double).
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/test_files.h"
#include "support/seed.h"
#include "tessera/tensor.h"

namespace tessera {
namespace {

// A 16-bit float type, described without using the code under test.
struct NarrowType {
  int mantissa_bits;
  int bias;
  uint16_t infinity;

  double Decode(uint16_t magnitude) const {
    const int exponent = magnitude >> mantissa_bits;
    const int fraction = magnitude & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - mantissa_bits);
    return std::ldexp(fraction + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }

  // Infinity takes part as the value one step above the largest finite number, as IEEE 754 rounds.
  uint16_t Nearest(double value) const {
    const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const double magnitude = std::fabs(value);
    if (magnitude >= Decode(infinity)) return sign | infinity;
    uint16_t low = 0;
    uint16_t high = infinity;
    while (high - low > 1) {
      const auto middle = static_cast<uint16_t>((low + high) / 2);
      (Decode(middle) <= magnitude ? low : high) = middle;
    }
    // Compared with the exact midpoint: a difference of doubles could round.
    const double midpoint = Decode(low) / 2 + Decode(high) / 2;
    if (magnitude == midpoint) return sign | ((low & 1) == 0 ? low : high);
    return sign | (magnitude < midpoint ? low : high);
  }
};

constexpr NarrowType kBf16{7, 127, 0x7f80};
constexpr NarrowType kF16{10, 15, 0x7c00};

struct Conversions {
  const char* name;
  NarrowType type;
  uint16_t (*from_f32)(float);
  uint16_t (*from_f64)(double);
  float (*to_f32)(uint16_t);
};

const Conversions kAll[] = {{"bf16", kBf16, F32ToBf16, F64ToBf16, Bf16ToF32},
                            {"f16", kF16, F32ToF16, F64ToF16, F16ToF32}};

bool IsNan(const NarrowType& type, uint16_t bits) { return (bits & 0x7fff) > type.infinity; }

TEST(Dtype, EveryNarrowValue_RoundTripsExactly) {
  for (const Conversions& c : kAll) {
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const float wide = c.to_f32(bits);
      if (IsNan(c.type, bits)) {
        ASSERT_TRUE(std::isnan(wide)) << c.name << " " << i;
        ASSERT_TRUE(IsNan(c.type, c.from_f32(wide))) << c.name << " " << i;
        continue;
      }
      ASSERT_EQ(c.from_f32(wide), bits) << c.name;
      ASSERT_EQ(c.from_f64(static_cast<double>(wide)), bits) << c.name;
      ASSERT_EQ(std::signbit(wide), bits >> 15 != 0) << c.name;
      const auto magnitude = static_cast<uint16_t>(bits & 0x7fff);
      if (magnitude < c.type.infinity) {
        ASSERT_EQ(std::fabs(static_cast<double>(wide)), c.type.Decode(magnitude)) << c.name << " " << i;
      } else {
        ASSERT_TRUE(std::isinf(wide)) << c.name << " " << i;
      }
    }
  }
}

TEST(Dtype, MidpointsAndTheirNeighbours_RoundToNearestEven) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Conversions& c : kAll) {
    for (uint16_t low = 0; low < c.type.infinity; ++low) {
      const double midpoint = c.type.Decode(low) / 2 + c.type.Decode(static_cast<uint16_t>(low + 1)) / 2;
      const uint16_t even = (low & 1) == 0 ? low : static_cast<uint16_t>(low + 1);
      ASSERT_EQ(c.from_f64(midpoint), even) << c.name << " " << low;
      ASSERT_EQ(c.from_f64(-midpoint), even | 0x8000) << c.name << " " << low;
      ASSERT_EQ(c.from_f64(std::nextafter(midpoint, 0.0)), low) << c.name;
      ASSERT_EQ(c.from_f64(std::nextafter(midpoint, inf)), low + 1) << c.name;
      const auto narrow = static_cast<float>(midpoint);
      // Between the two smallest bf16 subnormals the midpoint is still a float.
      ASSERT_EQ(static_cast<double>(narrow), midpoint);
      ASSERT_EQ(c.from_f32(narrow), even) << c.name << " " << low;
    }
  }
}

TEST(Dtype, RandomFloats_AgreeWithSearch) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  for (const Conversions& c : kAll) {
    for (int i = 0; i < 1'000'000; ++i) {
      const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
      if (std::isnan(value)) {
        ASSERT_TRUE(IsNan(c.type, c.from_f32(value))) << c.name;
        continue;
      }
      ASSERT_EQ(c.from_f32(value), c.type.Nearest(static_cast<double>(value))) << c.name << " " << value;
    }
  }
}

TEST(Dtype, RandomDoubles_RoundOnce) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> exponent(-160, 140);
  for (const Conversions& c : kAll) {
    for (int i = 0; i < 500'000; ++i) {
      const uint64_t fraction = random() & ((uint64_t{1} << 52) - 1);
      const double value = std::ldexp(1.0 + std::ldexp(static_cast<double>(fraction), -52), exponent(random));
      ASSERT_EQ(c.from_f64(value), c.type.Nearest(value)) << c.name << " " << value;
      ASSERT_EQ(c.from_f64(-value), c.type.Nearest(-value)) << c.name << " " << value;
    }
  }
}

TEST(Dtype, DoubleJustAboveTie_IsNotRoundedTwice) {
  // Through f32 this would become the tie itself and go down to the even neighbour.
  const double value = 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  EXPECT_EQ(F64ToBf16(value), 0x3f81);
  EXPECT_EQ(F32ToBf16(static_cast<float>(value)), 0x3f80);
}

TEST(Dtype, SpecialValues_AreKept) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(F32ToBf16(inf), 0x7f80);
  EXPECT_EQ(F32ToF16(-inf), 0xfc00);
  EXPECT_EQ(F32ToBf16(-0.0f), 0x8000);
  EXPECT_EQ(F32ToF16(-0.0f), 0x8000);
  EXPECT_EQ(F32ToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F64ToBf16(std::numeric_limits<double>::max()), 0x7f80);
  EXPECT_EQ(F64ToF16(std::numeric_limits<double>::denorm_min()), 0);
  // A NaN whose payload sits only in bits that are dropped must not become infinity.
  EXPECT_TRUE(IsNan(kBf16, F32ToBf16(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(IsNan(kF16, F32ToF16(std::bit_cast<float>(0xff800001u))));
  EXPECT_TRUE(IsNan(kF16, F64ToF16(std::bit_cast<double>(0x7ff0000000000001u))));
}

TEST(Dtype, NamesAndSizes_Agree) {
  EXPECT_EQ(ToText(DType::kF32), "f32");
  EXPECT_EQ(ToText(DType::kBf16), "bf16");
  EXPECT_EQ(ToText(DType::kF16), "f16");
  EXPECT_EQ(BytesOf(DType::kF32), 4);
  EXPECT_EQ(BytesOf(DType::kBf16), 2);
  EXPECT_EQ(BytesOf(DType::kF16), 2);
  EXPECT_EQ(ToText(ToElementType(DType::kBf16)), "BF16");
  EXPECT_EQ(BytesOf(ElementType::kI64), 8);
  EXPECT_EQ(BytesOf(ElementType::kBool), 1);
}

TEST(Tensor, SetAndAt_RoundOnceInEveryType) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16, ElementType::kF16}) {
    Tensor tensor = Tensor::Zeros(type, {2, 3});
    EXPECT_EQ(tensor.NumElements(), 6);
    EXPECT_EQ(static_cast<int64_t>(tensor.bytes.size()), 6 * BytesOf(type));
    tensor.Set(5, 1.5);
    tensor.Set(0, -std::numeric_limits<double>::infinity());
    tensor.Set(1, std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(tensor.At(5), 1.5);
    EXPECT_EQ(tensor.At(4), 0.0);
    EXPECT_EQ(tensor.At(0), -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(tensor.At(1)));
    tensor.Set(2, 1.0 / 3.0);
    EXPECT_NEAR(tensor.At(2), 1.0 / 3.0, type == ElementType::kF32 ? 1e-7 : 1e-3);
  }
  EXPECT_EQ(Tensor::Zeros(ElementType::kF32, {}).NumElements(), 1);
  EXPECT_TRUE(Tensor::Zeros(ElementType::kF32, {4, 0, 2}).bytes.empty());
}

}  // namespace
}  // namespace tessera
