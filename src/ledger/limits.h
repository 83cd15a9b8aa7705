// The limits of ledgers: docs/limits.md lists them, and a test holds the two together.
#pragma once

#include <cstdint>

namespace tessera {

inline constexpr int64_t kMaxLedgerBytes = int64_t{1} << 25;
inline constexpr int kMaxLedgerNesting = 8;
inline constexpr int64_t kMaxLedgerEntries = 1024;
inline constexpr int64_t kMaxLedgerValues = int64_t{1} << 20;  // of all entries' receipts together
inline constexpr int64_t kMaxLedgerNs = int64_t{1} << 55;      // of one time: more than a year

}  // namespace tessera
