// XXH3-128 over a growing sequence of values, the same on every machine: integers enter as little-endian 64-bit.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tessera {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "plan bytes and keys are little-endian");

class Hasher {
 public:
  Hasher() { XXH3_128bits_reset(&state_); }
  void Bytes(const void* data, size_t size) { XXH3_128bits_update(&state_, data, size); }
  void Int(int64_t value) { Bytes(&value, sizeof(value)); }
  void Real(double value) { Bytes(&value, sizeof(value)); }
  // Length first, so that ("ab", "c") and ("a", "bc") differ.
  void Text(std::string_view text) {
    Int(static_cast<int64_t>(text.size()));
    Bytes(text.data(), text.size());
  }
  std::array<uint8_t, 16> Finish() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    std::array<uint8_t, 16> out;
    std::memcpy(out.data(), canonical.digest, out.size());
    return out;
  }

 private:
  XXH3_state_t state_;
};

std::string Hex(const std::array<uint8_t, 16>& hash);
// Is `text` what Hex writes: kHexDigits lower-case hex digits?
bool IsHex(std::string_view text);
inline constexpr size_t kHexDigits = 32;

}  // namespace tessera
