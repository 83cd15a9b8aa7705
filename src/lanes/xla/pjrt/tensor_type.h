// What a buffer holds: element type and shape, as PJRT numbers and StableHLO names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera::pjrt {

// PJRT's own numbers.
enum class ElementType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBf16 = 13,
};

int64_t BytesOf(ElementType type);
std::string_view ToText(ElementType type);  // "f32", "pred"
// Nothing for a number that is not one of ours (complex, 4-bit and 8-bit floats).
std::optional<ElementType> ElementTypeOf(int32_t number);

struct TensorType {
  ElementType type = ElementType::kF32;
  std::vector<int64_t> dims = {};

  bool operator==(const TensorType&) const = default;
  // Of a dense array; the type has passed CheckTensorType.
  int64_t bytes() const;
};

std::string ToText(const TensorType& type);  // "f32[2,3]"

// Refuses a negative dimension and a size that int64 cannot hold (TSR-L010).
Status CheckTensorType(const TensorType& type, const std::string& where);

}  // namespace tessera::pjrt
