// XXH3 over values, the same on every machine: integers enter as little-endian 64-bit. Only hash.cc knows the library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "plan bytes and keys are little-endian");

// XXH3-128 of a growing sequence.
class Hasher {
 public:
  Hasher();
  void Bytes(const void* data, size_t size);
  void Int(int64_t value) { Bytes(&value, sizeof(value)); }
  void Real(double value) { Bytes(&value, sizeof(value)); }
  // Length first, so that ("ab", "c") and ("a", "bc") differ.
  void Text(std::string_view text) {
    Int(static_cast<int64_t>(text.size()));
    Bytes(text.data(), text.size());
  }
  std::array<uint8_t, 16> Finish() const;

 private:
  // The library's state lies here, so that a hash allocates nothing; hash.cc checks that it fits.
  static constexpr size_t kStateBytes = 576;
  static constexpr size_t kStateAlignment = 64;
  alignas(kStateAlignment) std::array<std::byte, kStateBytes> state_;
};

// XXH3-64 of bytes that lie in one piece: for tables in memory, never for what is written down.
uint64_t Hash64(const void* data, size_t size);

std::string Hex(const std::array<uint8_t, 16>& hash);
// Is `text` what Hex writes: kHexDigits lower-case hex digits?
bool IsHex(std::string_view text);
inline constexpr size_t kHexDigits = 32;

}  // namespace tessera
