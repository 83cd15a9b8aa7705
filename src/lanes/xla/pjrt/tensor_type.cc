#include "lanes/xla/pjrt/tensor_type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"

namespace tessera::pjrt {

int64_t BytesOf(ElementType type) {
  switch (type) {
    case ElementType::kPred:
    case ElementType::kS8:
    case ElementType::kU8:
      return 1;
    case ElementType::kS16:
    case ElementType::kU16:
    case ElementType::kF16:
    case ElementType::kBf16:
      return 2;
    case ElementType::kS32:
    case ElementType::kU32:
    case ElementType::kF32:
      return 4;
    case ElementType::kS64:
    case ElementType::kU64:
    case ElementType::kF64:
      return 8;
  }
  return 0;
}

std::string_view ToText(ElementType type) {
  switch (type) {
    case ElementType::kPred:
      return "pred";
    case ElementType::kS8:
      return "s8";
    case ElementType::kS16:
      return "s16";
    case ElementType::kS32:
      return "s32";
    case ElementType::kS64:
      return "s64";
    case ElementType::kU8:
      return "u8";
    case ElementType::kU16:
      return "u16";
    case ElementType::kU32:
      return "u32";
    case ElementType::kU64:
      return "u64";
    case ElementType::kF16:
      return "f16";
    case ElementType::kF32:
      return "f32";
    case ElementType::kF64:
      return "f64";
    case ElementType::kBf16:
      return "bf16";
  }
  return "?";
}

std::optional<ElementType> ElementTypeOf(int32_t number) {
  const bool is_ours =
      number >= static_cast<int32_t>(ElementType::kPred) && number <= static_cast<int32_t>(ElementType::kBf16);
  return is_ours ? std::optional(static_cast<ElementType>(number)) : std::nullopt;
}

int64_t TensorType::bytes() const {
  int64_t bytes = BytesOf(type);
  for (const int64_t dim : dims) bytes *= dim;
  return bytes;
}

std::string ToText(const TensorType& type) {
  return fmt::format("{}[{}]", ToText(type.type), fmt::join(type.dims, ","));
}

Status CheckTensorType(const TensorType& type, const std::string& where) {
  const std::optional<int64_t> count = CheckedProduct(type.dims);
  if (!ElementTypeOf(static_cast<int32_t>(type.type))) {
    return Fail(ErrorCode::kProgramMismatch,
                fmt::format("element type {} is not one of ours", static_cast<int32_t>(type.type)), where);
  }
  if (!count || !CheckedMul(*count, BytesOf(type.type))) {
    return Fail(ErrorCode::kProgramMismatch,
                fmt::format("{} has a negative dimension or more bytes than can be counted", ToText(type)), where);
  }
  return {};
}

}  // namespace tessera::pjrt
