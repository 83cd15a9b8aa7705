// Structs that grow: reading one of any age, and writing back into one.
//
// Every field is eight bytes wide or made of such, so that a size that is a multiple of eight never cuts one in two.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "capi/handles.h"

namespace tessera::capi {

// Beyond any struct there will be: such a size was never set, and is not worth reading that far for.
inline constexpr size_t kMaxStructSize = 4096;

struct StructPlace {
  std::string_view name;   // "options"
  std::string_view where;  // the C function
};

inline Status CheckStructSize(const void* given, size_t known, const StructPlace& at, size_t& size) {
  TESSERA_TRY(NotNull(given, at.name, at.where));
  std::memcpy(&size, given, sizeof(size));
  if (size < sizeof(size) || size % 8 != 0 || size > kMaxStructSize) {
    return BadArgument(at.where, fmt::format("{}->struct_size is {}; its _init function sets it, {} in this version",
                                             at.name, size, known));
  }
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (size > known && std::any_of(bytes + known, bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return BadArgument(at.where,
                       fmt::format("{} has {} bytes, {} are known in this version, and what is beyond them is "
                                   "not zero: it asks for something this version does not have",
                                   at.name, size, known));
  }
  return {};
}

// What the caller gave, with zeros for what its version did not know.
template <class Struct>
Result<Struct> ReadStruct(const Struct* given, const StructPlace& at) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  Struct out{};
  size_t size = 0;
  TESSERA_TRY(CheckStructSize(given, sizeof(Struct), at, size));
  std::memcpy(&out, given, std::min(size, sizeof(Struct)));
  return out;
}

// Writes no further than the caller's struct goes, and leaves its size as it is.
template <class Struct>
Status WriteStruct(const Struct& value, Struct* given, const StructPlace& at) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  size_t size = 0;
  TESSERA_TRY(CheckStructSize(given, sizeof(Struct), at, size));
  std::memcpy(reinterpret_cast<std::byte*>(given) + sizeof(size),
              reinterpret_cast<const std::byte*>(&value) + sizeof(size), std::min(size, sizeof(Struct)) - sizeof(size));
  return {};
}

// A flag of a C struct: 0 or 1, anything else is a mistake somewhere in the caller.
inline Result<bool> ReadFlag(int64_t value, std::string_view name, std::string_view where) {
  if (value == 0 || value == 1) return value == 1;
  return BadArgument(where, fmt::format("{} is {}; 0 or 1 expected", name, value));
}

// A field of a struct, "args->q." and "dtype": put together only where it is wrong, because calls read many.
struct FieldName {
  std::string_view of;
  std::string_view field;
};

// One of 0 .. count - 1, where each number has a name in the header: `expected` says which.
inline Result<int64_t> ReadChoice(int64_t value, int64_t count, const FieldName& name, std::string_view expected,
                                  std::string_view where) {
  if (value >= 0 && value < count) return value;
  return BadArgument(where, fmt::format("{}{} is {}; {} expected", name.of, name.field, value, expected));
}

// `count` names.
inline Result<std::vector<std::string>> ReadNames(const char* const* names, size_t count, const StructPlace& at) {
  std::vector<std::string> out;
  if (count == 0) return out;
  TESSERA_TRY(NotNull(names, at.name, at.where));
  for (size_t i = 0; i < count; ++i) {
    TESSERA_TRY(NotNull(names[i], fmt::format("{}[{}]", at.name, i), at.where));
    out.emplace_back(names[i]);
  }
  return out;
}

}  // namespace tessera::capi
