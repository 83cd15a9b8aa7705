// The limits of files as such, whatever they hold: docs/limits.md lists them, and a test holds the two together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

inline constexpr int64_t kMaxFileBytes = int64_t{1} << 36;  // of any file whose reader sets no lower limit
inline constexpr int64_t kMaxPipeBytes = int64_t{1} << 30;  // a pipe tells no size and may never end
inline constexpr int kMaxLinks = 40;                        // symbolic links from a name to what is written
inline constexpr uint64_t kMaxNpyHeaderBytes = 65536;

}  // namespace tessera
