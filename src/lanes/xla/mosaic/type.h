// Types of a Mosaic kernel: scalars, vectors in registers, and memrefs in one of a TPU core's memories.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::mosaic {

enum class Element : uint8_t { kI1, kI8, kI16, kI32, kI64, kIndex, kBf16, kF32, kSemaphore, kDmaSemaphore };
bool IsFloat(Element element);
bool IsInteger(Element element);           // i1 and index among them
int64_t BitsOf(Element element);           // of one element in memory; i1 counts 32, as TPUs keep booleans
std::string_view ToText(Element element);  // "bf16"
bool ParseElement(std::string_view text, Element* element);

// Vector memory (windows and scratch), scalar memory, the chip's own memory, wherever the compiler likes, semaphores.
enum class Space : uint8_t { kVmem, kSmem, kHbm, kAny, kSemaphore };
std::string_view ToText(Space space);  // "vmem"
bool ParseSpace(std::string_view text, Space* space);

enum class TypeKind : uint8_t { kScalar, kVector, kMemref };

struct Type {
  TypeKind kind = TypeKind::kScalar;
  Element element = Element::kI32;
  std::vector<int64_t> dims = {};  // none for a scalar
  Space space = Space::kVmem;      // of a memref

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  bool IsScalar() const { return kind == TypeKind::kScalar; }
  bool IsVector() const { return kind == TypeKind::kVector; }
  bool IsMemref() const { return kind == TypeKind::kMemref; }
  bool operator==(const Type&) const = default;
};

Type ScalarOf(Element element);
Type VectorOf(Element element, std::vector<int64_t> dims);
Type MemrefOf(Space space, Element element, std::vector<int64_t> dims);
// The same shape of another element.
Type WithElement(Type type, Element element);

int64_t NumElements(const Type& type);  // the largest int64 where the product is larger
std::string ToText(const Type& type);   // "memref<8x128xf32, #tpu.memory_space<vmem>>"

}  // namespace tessera::mosaic
