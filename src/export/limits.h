// How much an export may take; docs/limits.md has the table.
#pragma once

#include <cstdint>

namespace tessera::exports {

inline constexpr int64_t kMaxArrayBytes = int64_t{1} << 33;  // the index arrays of one export, and its stored tiles

}  // namespace tessera::exports
