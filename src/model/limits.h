// Bounds of what a model may be, beside those of contracts (docs/limits.md).
#pragma once

#include <cstdint>

namespace tessera::model {

inline constexpr int64_t kMaxVocab = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxWidth = 65536;
inline constexpr int64_t kMaxTokens = int64_t{1} << 24;  // of a micro-batch
inline constexpr int64_t kMaxParameters = int64_t{1} << 34;

}  // namespace tessera::model
