// xxHash behind our own names, and the one spelling of a hash: 32 lower-case hex digits, first byte first.
#include "base/hash.h"

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): the library's own; no library to link
#include <xxhash.h>

#include <cstring>
#include <new>
#include <type_traits>

namespace tessera {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

XXH3_state_t* StateIn(std::byte* bytes) { return std::launder(reinterpret_cast<XXH3_state_t*>(bytes)); }
const XXH3_state_t* StateIn(const std::byte* bytes) {
  return std::launder(reinterpret_cast<const XXH3_state_t*>(bytes));
}

}  // namespace

Hasher::Hasher() {
  static_assert(sizeof(XXH3_state_t) <= kStateBytes && alignof(XXH3_state_t) <= kStateAlignment);
  static_assert(std::is_trivially_copyable_v<XXH3_state_t> && std::is_trivially_destructible_v<XXH3_state_t>);
  XXH3_128bits_reset(::new (state_.data()) XXH3_state_t);
}

void Hasher::Bytes(const void* data, size_t size) { XXH3_128bits_update(StateIn(state_.data()), data, size); }

std::array<uint8_t, 16> Hasher::Finish() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(StateIn(state_.data())));
  std::array<uint8_t, 16> out;
  std::memcpy(out.data(), canonical.digest, out.size());
  return out;
}

uint64_t Hash64(const void* data, size_t size) { return XXH3_64bits(data, size); }

std::string Hex(const std::array<uint8_t, 16>& hash) {
  std::string text;
  text.reserve(2 * hash.size());
  for (const uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool IsHex(std::string_view text) {
  return text.size() == kHexDigits && text.find_first_not_of(kDigits) == std::string_view::npos;
}

}  // namespace tessera
