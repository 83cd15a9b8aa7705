// The limits of receipts: docs/limits.md lists them, and a test holds the two together.
#pragma once

#include <cstdint>

namespace tessera {

inline constexpr int64_t kMaxReceiptBytes = int64_t{1} << 26;
inline constexpr int kMaxReceiptNesting = 8;
inline constexpr int64_t kMaxReceiptValues = 65536;

}  // namespace tessera
