// See type.h.
#include "lanes/xla/mosaic/type.h"

#include <array>
#include <limits>
#include <utility>

#include "base/checked.h"

namespace tessera::mosaic {
namespace {

constexpr std::array<std::string_view, 10> kElements = {
    "i1", "i8", "i16", "i32", "i64", "index", "bf16", "f32", "!tpu.semaphore", "!tpu.dma_semaphore"};
constexpr std::array<std::string_view, 5> kSpaces = {"vmem", "smem", "hbm", "any", "semaphore_mem"};

}  // namespace

bool IsFloat(Element element) { return element == Element::kBf16 || element == Element::kF32; }
bool IsInteger(Element element) { return element <= Element::kIndex; }

int64_t BitsOf(Element element) {
  switch (element) {
    case Element::kI8:
      return 8;
    case Element::kI16:
    case Element::kBf16:
      return 16;
    case Element::kI64:
      return 64;
    default:
      return 32;
  }
}

std::string_view ToText(Element element) { return kElements[static_cast<size_t>(element)]; }
std::string_view ToText(Space space) { return kSpaces[static_cast<size_t>(space)]; }

bool ParseElement(std::string_view text, Element* element) {
  for (size_t at = 0; at < kElements.size(); ++at) {
    if (kElements[at] == text) {
      *element = static_cast<Element>(at);
      return true;
    }
  }
  return false;
}

bool ParseSpace(std::string_view text, Space* space) {
  for (size_t at = 0; at < kSpaces.size(); ++at) {
    if (kSpaces[at] == text) {
      *space = static_cast<Space>(at);
      return true;
    }
  }
  return false;
}

Type ScalarOf(Element element) { return {TypeKind::kScalar, element, {}, Space::kVmem}; }
Type VectorOf(Element element, std::vector<int64_t> dims) {
  return {TypeKind::kVector, element, std::move(dims), Space::kVmem};
}
Type MemrefOf(Space space, Element element, std::vector<int64_t> dims) {
  return {TypeKind::kMemref, element, std::move(dims), space};
}
Type WithElement(Type type, Element element) {
  type.element = element;
  return type;
}

int64_t NumElements(const Type& type) {
  return CheckedProduct(type.dims).value_or(std::numeric_limits<int64_t>::max());
}

std::string ToText(const Type& type) {
  if (type.IsScalar()) return std::string(ToText(type.element));
  std::string text = type.IsVector() ? "vector<" : "memref<";
  for (const int64_t dim : type.dims) text += std::to_string(dim) + "x";
  text += ToText(type.element);
  if (type.IsMemref()) text += ", #tpu.memory_space<" + std::string(ToText(type.space)) + ">";
  return text + ">";
}

}  // namespace tessera::mosaic
