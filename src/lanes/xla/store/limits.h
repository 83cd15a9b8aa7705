// The limits of programs and of the store of compiled ones: docs/limits.md lists them, and a test holds the two
// together.
#pragma once

#include <cstdint>

namespace tessera::lanes::xla {

inline constexpr int64_t kMaxTileScores = int64_t{1} << 28;  // of one tile of a program
inline constexpr int64_t kMaxProgramStoreBytes = int64_t{1}
                                                 << 30;  // all entries of a store that is told no other limit
inline constexpr int64_t kMaxStoredProgramBytes = int64_t{1} << 28;  // one entry
inline constexpr int64_t kMaxProgramKeyBytes = int64_t{1} << 16;     // one part of an entry's key
inline constexpr int64_t kMaxCpuinfoBytes = int64_t{1} << 24;        // what the system tells of its processors

}  // namespace tessera::lanes::xla
