// The one spelling of a hash: 32 lower-case hex digits, first byte first.
#include "base/hash.h"

namespace tessera {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

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
