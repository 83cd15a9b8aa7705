// Element by element: see compute.h.
#include "lanes/xla/mosaic/compute.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "lanes/xla/mosaic/words.h"

namespace tessera::mosaic {
namespace {

template <class T, class F>
void Map(const T* x, T* out, int64_t count, const F& f) {
  for (int64_t at = 0; at < count; ++at) out[at] = f(x[at]);
}

template <class T, class U, class F>
void Map2(const T* a, const T* b, U* out, int64_t count, const F& f) {
  for (int64_t at = 0; at < count; ++at) out[at] = f(a[at], b[at]);
}

float Maximum(float a, float b) { return a > b || a != a ? a : b; }  // a NaN on either side wins
float Minimum(float a, float b) { return a < b || a != a ? a : b; }

// Keeps a result of integers inside its width; the arithmetic itself wraps.
void Wrap(Element element, int32_t* out, int64_t count) {
  if (element == Element::kI1) Map(out, out, count, [](int32_t x) { return x & 1; });
  if (element == Element::kI8) Map(out, out, count, [](int32_t x) { return int32_t{static_cast<int8_t>(x)}; });
  if (element == Element::kI16) Map(out, out, count, [](int32_t x) { return int32_t{static_cast<int16_t>(x)}; });
}

int32_t Wrapped(uint32_t value) { return static_cast<int32_t>(value); }
constexpr uint32_t kWordBits = 32;

std::string IntBinary(OpCode code, const int32_t* a, const int32_t* b, int32_t* out, int64_t count) {
  const auto u = [](int32_t x) { return static_cast<uint32_t>(x); };
  switch (code) {
    case OpCode::kAddI:
      Map2(a, b, out, count, [&](int32_t x, int32_t y) { return Wrapped(u(x) + u(y)); });
      break;
    case OpCode::kSubI:
      Map2(a, b, out, count, [&](int32_t x, int32_t y) { return Wrapped(u(x) - u(y)); });
      break;
    case OpCode::kMulI:
      Map2(a, b, out, count, [&](int32_t x, int32_t y) { return Wrapped(u(x) * u(y)); });
      break;
    case OpCode::kDivSI:
    case OpCode::kRemSI: {
      const bool divides = code == OpCode::kDivSI;
      for (int64_t at = 0; at < count; ++at) {
        if (b[at] == 0) return "a division by zero";
        const int64_t x = a[at];
        out[at] = static_cast<int32_t>(divides ? x / b[at] : x % b[at]);
      }
      break;
    }
    case OpCode::kAndI:
      Map2(a, b, out, count, [](int32_t x, int32_t y) { return x & y; });
      break;
    case OpCode::kOrI:
      Map2(a, b, out, count, [](int32_t x, int32_t y) { return x | y; });
      break;
    case OpCode::kXorI:
      Map2(a, b, out, count, [](int32_t x, int32_t y) { return x ^ y; });
      break;
    case OpCode::kShlI:
      Map2(a, b, out, count, [&](int32_t x, int32_t y) { return u(y) < kWordBits ? Wrapped(u(x) << u(y)) : 0; });
      break;
    case OpCode::kShrSI:
      Map2(a, b, out, count, [&](int32_t x, int32_t y) { return x >> (u(y) < kWordBits ? y : 31); });
      break;
    case OpCode::kShrUI:
      Map2(a, b, out, count, [&](int32_t x, int32_t y) { return u(y) < kWordBits ? Wrapped(u(x) >> u(y)) : 0; });
      break;
    case OpCode::kMaxSI:
      Map2(a, b, out, count, [](int32_t x, int32_t y) { return x > y ? x : y; });
      break;
    default:  // kMinSI
      Map2(a, b, out, count, [](int32_t x, int32_t y) { return x < y ? x : y; });
      break;
  }
  return {};
}

int32_t ToInt(float value, int32_t low, int32_t high) {
  if (value != value) return 0;
  if (value <= static_cast<float>(low)) return low;
  if (value >= static_cast<float>(high)) return high;
  return static_cast<int32_t>(value);
}

template <class T, class F>
void CompareAll(std::span<const std::byte* const> operands, std::byte* out, int64_t count, const F& f) {
  const T* a = reinterpret_cast<const T*>(operands[0]);
  const T* b = reinterpret_cast<const T*>(operands[1]);
  int32_t* to = Ints(out);
  for (int64_t at = 0; at < count; ++at) to[at] = f(a[at], b[at]) ? 1 : 0;
}

// MLIR's sixteen, by their numbers: a bit for each of greater, less, equal and unordered that makes them true.
constexpr unsigned kGreater = 1, kLess = 2, kEqual = 4, kUnordered = 8;
constexpr unsigned kFloatPredicates[] = {0,
                                         kEqual,
                                         kGreater,
                                         kGreater | kEqual,
                                         kLess,
                                         kLess | kEqual,
                                         kLess | kGreater,
                                         kLess | kGreater | kEqual,
                                         kUnordered | kEqual,
                                         kUnordered | kGreater,
                                         kUnordered | kGreater | kEqual,
                                         kUnordered | kLess,
                                         kUnordered | kLess | kEqual,
                                         kUnordered | kLess | kGreater,
                                         kUnordered,
                                         kUnordered | kLess | kGreater | kEqual};

}  // namespace

void ComputeUnary(OpCode code, Element element, const std::byte* x, std::byte* out, int64_t count) {
  const float* from = Floats(x);
  float* to = Floats(out);
  switch (code) {
    case OpCode::kNegF:
      Map(from, to, count, [](float v) { return -v; });
      break;
    case OpCode::kExp:
      Map(from, to, count, [](float v) { return std::exp(v); });
      break;
    case OpCode::kExp2:
      Map(from, to, count, [](float v) { return std::exp2(v); });
      break;
    case OpCode::kLog:
      Map(from, to, count, [](float v) { return std::log(v); });
      break;
    case OpCode::kLog2:
      Map(from, to, count, [](float v) { return std::log2(v); });
      break;
    case OpCode::kLog1p:
      Map(from, to, count, [](float v) { return std::log1p(v); });
      break;
    case OpCode::kTanh:
      Map(from, to, count, [](float v) { return std::tanh(v); });
      break;
    case OpCode::kAbsF:
      Map(from, to, count, [](float v) { return std::abs(v); });
      break;
    case OpCode::kSqrt:
      Map(from, to, count, [](float v) { return std::sqrt(v); });
      break;
    case OpCode::kRsqrt:
      Map(from, to, count, [](float v) { return 1 / std::sqrt(v); });
      break;
    default:  // kReciprocal
      Map(from, to, count, [](float v) { return 1 / v; });
      break;
  }
  if (element == Element::kBf16) Map(to, to, count, RoundToBf16);
}

std::string ComputeBinary(OpCode code, Element element, std::span<const std::byte* const> operands, std::byte* out,
                          int64_t count) {
  if (!IsFloat(element)) {
    std::string wrong = IntBinary(code, Ints(operands[0]), Ints(operands[1]), Ints(out), count);
    Wrap(element, Ints(out), count);
    return wrong;
  }
  const float* a = Floats(operands[0]);
  const float* b = Floats(operands[1]);
  float* to = Floats(out);
  switch (code) {
    case OpCode::kAddF:
      Map2(a, b, to, count, [](float x, float y) { return x + y; });
      break;
    case OpCode::kSubF:
      Map2(a, b, to, count, [](float x, float y) { return x - y; });
      break;
    case OpCode::kMulF:
      Map2(a, b, to, count, [](float x, float y) { return x * y; });
      break;
    case OpCode::kDivF:
      Map2(a, b, to, count, [](float x, float y) { return x / y; });
      break;
    case OpCode::kMaximumF:
      Map2(a, b, to, count, Maximum);
      break;
    default:  // kMinimumF
      Map2(a, b, to, count, Minimum);
      break;
  }
  if (element == Element::kBf16) Map(to, to, count, RoundToBf16);
  return {};
}

void ComputeCompare(OpCode code, int64_t predicate, std::span<const std::byte* const> operands, std::byte* out,
                    int64_t count) {
  if (code == OpCode::kCmpF) {
    const unsigned mask = kFloatPredicates[predicate];
    CompareAll<float>(operands, out, count, [mask](float a, float b) {
      const unsigned is = (a > b ? kGreater : 0U) | (a < b ? kLess : 0U) | (a == b ? kEqual : 0U);
      return ((is == 0 ? kUnordered : is) & mask) != 0;
    });
    return;
  }
  switch (predicate) {
    case 0:
      return CompareAll<int32_t>(operands, out, count, [](int32_t a, int32_t b) { return a == b; });
    case 1:
      return CompareAll<int32_t>(operands, out, count, [](int32_t a, int32_t b) { return a != b; });
    case 2:
      return CompareAll<int32_t>(operands, out, count, [](int32_t a, int32_t b) { return a < b; });
    case 3:
      return CompareAll<int32_t>(operands, out, count, [](int32_t a, int32_t b) { return a <= b; });
    case 4:
      return CompareAll<int32_t>(operands, out, count, [](int32_t a, int32_t b) { return a > b; });
    case 5:
      return CompareAll<int32_t>(operands, out, count, [](int32_t a, int32_t b) { return a >= b; });
    case 6:
      return CompareAll<uint32_t>(operands, out, count, [](uint32_t a, uint32_t b) { return a < b; });
    case 7:
      return CompareAll<uint32_t>(operands, out, count, [](uint32_t a, uint32_t b) { return a <= b; });
    case 8:
      return CompareAll<uint32_t>(operands, out, count, [](uint32_t a, uint32_t b) { return a > b; });
    default:
      return CompareAll<uint32_t>(operands, out, count, [](uint32_t a, uint32_t b) { return a >= b; });
  }
}

void ComputeSelect(std::span<const std::byte* const> operands, bool is_single, std::byte* out, int64_t count) {
  const int32_t* condition = Ints(operands[0]);
  if (is_single) {
    std::memcpy(out, condition[0] != 0 ? operands[1] : operands[2], static_cast<size_t>(count * kWordBytes));
    return;
  }
  for (int64_t at = 0; at < count; ++at) {
    const std::byte* from = condition[at] != 0 ? operands[1] : operands[2];
    std::memcpy(out + at * kWordBytes, from + at * kWordBytes, kWordBytes);
  }
}

void ComputeConvert(const Conversion& conversion, const std::byte* x, std::byte* out, int64_t count) {
  switch (conversion.code) {
    case OpCode::kTruncF:
      return Map(Floats(x), Floats(out), count, RoundToBf16);
    case OpCode::kSIToFP:
      for (int64_t at = 0; at < count; ++at) Floats(out)[at] = static_cast<float>(Ints(x)[at]);
      if (conversion.to == Element::kBf16) Map(Floats(out), Floats(out), count, RoundToBf16);
      return;
    case OpCode::kFPToSI: {
      const int64_t bits = BitsOf(conversion.to);
      const auto high = static_cast<int32_t>((int64_t{1} << (bits - 1)) - 1);
      for (int64_t at = 0; at < count; ++at) Ints(out)[at] = ToInt(Floats(x)[at], -high - 1, high);
      return;
    }
    case OpCode::kExtSI:
      return Map(Ints(x), Ints(out), count,
                 [is_bit = conversion.from == Element::kI1](int32_t v) { return is_bit ? -v : v; });
    case OpCode::kExtUI: {
      const auto mask = conversion.from == Element::kI8    ? int32_t{0xFF}
                        : conversion.from == Element::kI16 ? int32_t{0xFFFF}
                                                           : int32_t{-1};
      return Map(Ints(x), Ints(out), count, [mask](int32_t v) { return v & mask; });
    }
    case OpCode::kTruncI:
      Map(Ints(x), Ints(out), count, [](int32_t v) { return v; });
      return Wrap(conversion.to, Ints(out), count);
    default:  // extf and index_cast: the word is the same
      std::memcpy(out, x, static_cast<size_t>(count * kWordBytes));
      return;
  }
}

}  // namespace tessera::mosaic
