#include "lanes/xla/pjrt/hlo_shape.h"

#include "lanes/xla/pjrt/wire.h"

namespace tessera::pjrt {
namespace {

// Field numbers and types of XLA's xla_data.proto.
namespace shape_field {
constexpr uint32_t kElementType = 2;
constexpr uint32_t kDimensions = 3;
constexpr uint32_t kTupleShapes = 4;
}  // namespace shape_field
constexpr uint64_t kXlaTuple = 13;
constexpr uint64_t kXlaBf16 = 16;

constexpr int kMostNesting = 8;

// XLA numbers its element types like PJRT up to f64, and bf16 apart.
std::optional<ElementType> OfXla(uint64_t number) {
  if (number == kXlaBf16) return ElementType::kBf16;
  const bool is_ours = number >= 1 && number <= static_cast<uint64_t>(ElementType::kF64);
  return is_ours ? std::optional(static_cast<ElementType>(number)) : std::nullopt;
}

std::string ReadNested(std::string_view bytes, HloArrays& arrays, int depth) {
  if (depth > kMostNesting) return "tuples nest too deep";
  uint64_t type = 0;
  std::vector<int64_t> dims;
  WireReader reader(bytes);
  for (WireField field; reader.Next(field);) {
    std::string fault;
    if (field.number == shape_field::kElementType) type = field.value;
    if (field.number == shape_field::kDimensions) fault = AddIntegers(field, dims);
    if (field.number == shape_field::kTupleShapes) fault = ReadNested(field.bytes, arrays, depth + 1);
    if (!fault.empty()) return fault;
  }
  if (!reader.ok()) return reader.Fault();
  if (type == kXlaTuple) return {};
  const std::optional<ElementType> element = OfXla(type);
  arrays.push_back(element ? std::optional(TensorType{*element, std::move(dims)}) : std::nullopt);
  return {};
}

}  // namespace

std::string ReadShape(std::string_view bytes, HloArrays& arrays) { return ReadNested(bytes, arrays, 0); }

}  // namespace tessera::pjrt
