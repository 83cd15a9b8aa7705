// See facts.h.
#include "lanes/xla/mosaic/facts.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace tessera::mosaic {
namespace {

constexpr int64_t kFar = int64_t{1} << 40;  // beyond it nothing is known: no sum of two overflows

Fact Exactly(int64_t value) {
  const bool is_near = value > -kFar && value < kFar;
  return {value, value, is_near, is_near ? value : 1};
}

Fact Interval(int64_t low, int64_t high, bool is_known, int64_t multiple) {
  return {low, high, is_known && low > -kFar && high < kFar, std::abs(multiple) < kFar ? multiple : 1};
}

Fact Product(const Fact& a, const Fact& b) {
  int64_t corners[4] = {0, 0, 0, 0};
  bool fits = a.is_known && b.is_known;
  fits = fits && !__builtin_mul_overflow(a.low, b.low, &corners[0]) &&
         !__builtin_mul_overflow(a.low, b.high, &corners[1]) && !__builtin_mul_overflow(a.high, b.low, &corners[2]) &&
         !__builtin_mul_overflow(a.high, b.high, &corners[3]);
  int64_t multiple = 1;
  if (__builtin_mul_overflow(a.multiple, b.multiple, &multiple)) multiple = 1;
  return Interval(*std::ranges::min_element(corners), *std::ranges::max_element(corners), fits, multiple);
}

}  // namespace

void Facts::Learn(const Function& function, const Op& op) {
  if (op.results.size() != 1 || !function.TypeOf(op.results[0]).IsScalar()) return;
  if (!IsInteger(function.TypeOf(op.results[0]).element)) return;
  const auto operand = [&](size_t at) -> const Fact& { return Of(op.operands[at]); };
  Fact fact;
  switch (op.code) {
    case OpCode::kConstant:
      if (const Attribute* value = Find(op.attributes, "value")) fact = Exactly(value->integer);
      break;
    case OpCode::kIndexCast:
    case OpCode::kExtSI:
      fact = operand(0);
      break;
    case OpCode::kAssumeMultiple:
      fact = operand(0);
      if (const Attribute* multiple = Find(op.attributes, "multiple")) {
        const int64_t said = multiple->integer;  // below 2^20: verify_op.cc
        if (std::abs(fact.multiple) < (kFar >> 20)) fact.multiple = std::lcm(fact.multiple, said);
      }
      break;
    case OpCode::kAddI:
      fact = Interval(operand(0).low + operand(1).low, operand(0).high + operand(1).high,
                      operand(0).is_known && operand(1).is_known, std::gcd(operand(0).multiple, operand(1).multiple));
      break;
    case OpCode::kSubI:
      fact = Interval(operand(0).low - operand(1).high, operand(0).high - operand(1).low,
                      operand(0).is_known && operand(1).is_known, std::gcd(operand(0).multiple, operand(1).multiple));
      break;
    case OpCode::kMulI:
      fact = Product(operand(0), operand(1));
      break;
    case OpCode::kDivSI:
      if (operand(0).is_known && operand(1).is_known && operand(1).low == operand(1).high && operand(1).low > 0) {
        fact = Interval(operand(0).low / operand(1).low, operand(0).high / operand(1).low, true, 1);
      }
      break;
    default:
      break;
  }
  Set(op.results[0], fact);
}

}  // namespace tessera::mosaic
