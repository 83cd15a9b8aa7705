// FloatText of attribute.h: MLIR's way to write a float, so that what it printed and we parsed prints as it was.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdlib>

#include "lanes/xla/mosaic/attribute.h"
#include "tessera/dtype.h"

namespace tessera::mosaic {
namespace {

// A decimal text as a number of that element: strtod first, then one rounding. Texts are short, so that the first
// rounding (to double) never decides the second.
double AsElement(double value, Element element) {
  const auto single = static_cast<float>(value);
  return element == Element::kBf16 ? Bf16ToF32(F32ToBf16(single)) : single;
}

std::string Bits(double value, Element element) {
  const auto single = static_cast<float>(value);
  if (element == Element::kBf16) return fmt::format("0x{:04X}", F32ToBf16(single));
  return fmt::format("0x{:08X}", std::bit_cast<uint32_t>(single));
}

// A number rounded to so many decimal digits, halves away from zero as LLVM does it.
struct Decimal {
  std::string sign;
  std::string digits;
  int exponent = 0;  // the power of ten of the first digit
};

Decimal Round(double value, int count) {
  constexpr int kExact = 120;  // more digits than a float has
  const std::string all = fmt::format("{:.{}e}", std::abs(value), kExact);
  const size_t e = all.find('e');
  Decimal decimal{.sign = std::signbit(value) ? "-" : "",
                  .digits = all.substr(0, 1) + all.substr(2, e - 2),
                  .exponent = std::atoi(all.c_str() + e + 1)};
  const bool is_up = decimal.digits[count] >= '5';
  decimal.digits.resize(count);
  if (!is_up) return decimal;
  int at = count - 1;
  while (at >= 0 && decimal.digits[at] == '9') decimal.digits[at--] = '0';
  if (at >= 0) {
    ++decimal.digits[at];
  } else {
    decimal.digits = "1" + decimal.digits.substr(0, count - 1);
    ++decimal.exponent;
  }
  return decimal;
}

bool IsExact(const Decimal& decimal, double value, Element element) {
  const std::string text =
      fmt::format("{}{}.{}e{}", decimal.sign, decimal.digits[0], decimal.digits.substr(1), decimal.exponent);
  return AsElement(std::strtod(text.c_str(), nullptr), element) == value;
}

}  // namespace

std::string FloatText(double value, Element element) {
  if (!std::isfinite(value)) return Bits(value, element);
  // Six digits where they are exact, with a zero that says there is no seventh.
  const Decimal six = Round(value, 6);
  if (IsExact(six, value, element)) {
    return fmt::format("{}{}.{}0e{}{:02}", six.sign, six.digits[0], six.digits.substr(1), six.exponent < 0 ? '-' : '+',
                       std::abs(six.exponent));
  }
  // As many as the format can need, without zeros at the end.
  const int most = element == Element::kBf16 ? 4 : 9;
  auto [sign, digits, first] = Round(value, most);
  if (!IsExact({sign, digits, first}, value, element)) return Bits(value, element);
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  const int count = static_cast<int>(digits.size());
  const int last = first - count + 1;
  constexpr int kMostZeros = 3;  // that may stand in for digits before it is written with an exponent
  const bool scientific = last >= 0 ? last > kMostZeros || count + last > most : first < 0 && -first > kMostZeros;
  if (scientific) {
    const std::string rest = count == 1 ? "0" : digits.substr(1);
    return fmt::format("{}{}.{}E{}{}", sign, digits[0], rest, first < 0 ? '-' : '+', std::abs(first));
  }
  if (last >= 0) return Bits(value, element);  // a whole number has no point, and would read as an integer
  if (first >= 0) return fmt::format("{}{}.{}", sign, digits.substr(0, first + 1), digits.substr(first + 1));
  return fmt::format("{}0.{}{}", sign, std::string(-first - 1, '0'), digits);
}

}  // namespace tessera::mosaic
