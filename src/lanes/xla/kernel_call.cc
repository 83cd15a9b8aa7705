#include "lanes/xla/kernel_call.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "base/try.h"
#include "lanes/xla/mosaic/print.h"

namespace tessera::lanes::xla {
namespace {

using stablehlo::Element;

std::string Base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[word >> (18 - 6 * j) & 63U];
    }
  }
  return text;
}

Result<mosaic::ArrayType> ArrayOf(const stablehlo::Type& type) {
  switch (type.element) {
    case Element::kI8:
      return mosaic::ArrayType{mosaic::Element::kI8, type.dims};
    case Element::kI16:
      return mosaic::ArrayType{mosaic::Element::kI16, type.dims};
    case Element::kI32:
      return mosaic::ArrayType{mosaic::Element::kI32, type.dims};
    case Element::kBf16:
      return mosaic::ArrayType{mosaic::Element::kBf16, type.dims};
    case Element::kF32:
      return mosaic::ArrayType{mosaic::Element::kF32, type.dims};
    default:
      return Fail(ErrorCode::kKernelOperands, "an operand of a type that no kernel takes");
  }
}

int64_t LimitOf(int64_t bytes) { return bytes > 0 ? bytes : std::numeric_limits<int64_t>::max(); }

}  // namespace

Element ToHlo(mosaic::Element element) {
  switch (element) {
    case mosaic::Element::kI8:
      return Element::kI8;
    case mosaic::Element::kI16:
      return Element::kI16;
    case mosaic::Element::kBf16:
      return Element::kBf16;
    case mosaic::Element::kF32:
      return Element::kF32;
    default:
      return Element::kI32;
  }
}

Result<stablehlo::Values> CallKernel(stablehlo::Builder& builder, const mosaic::Module& kernel,
                                     const stablehlo::Values& operands, const std::vector<stablehlo::Type>& results,
                                     const mosaic::KernelMemory& limits) {
  std::vector<mosaic::ArrayType> taken, given;
  for (const stablehlo::Value& operand : operands) taken.push_back(TESSERA_TRY(ArrayOf(operand.type)));
  for (const stablehlo::Type& result : results) given.push_back(TESSERA_TRY(ArrayOf(result)));
  TESSERA_TRY(mosaic::VerifyOperands(kernel, taken, given));
  TESSERA_TRY(mosaic::VerifyMemory(kernel, {LimitOf(limits.vmem_bytes), LimitOf(limits.smem_bytes)}));
  return builder.CallKernel({std::string(kernel.functions[0].Name()),
                             fmt::format(R"({{"custom_call_config": {{"body": "{}", "serialization_format": 1, )"
                                         R"("needs_layout_passes": true}}}})",
                                         Base64(mosaic::Print(kernel)))},
                            operands, results);
}

}  // namespace tessera::lanes::xla
