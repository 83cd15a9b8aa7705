// The limits of parameter lists and specs: docs/limits.md lists them, and a test holds the two together.
#pragma once

#include <cstdint>

namespace tessera {

inline constexpr int64_t kMaxShardFileBytes = int64_t{1} << 26;  // of a list of parameters or a file of specs
inline constexpr int64_t kMaxShardTensors = 65536;
inline constexpr int64_t kMaxShardRules = 1024;

}  // namespace tessera
