// Bounds of what a model may be, beside those of contracts (docs/limits.md).
#pragma once

#include <cstdint>

namespace tessera::model {

inline constexpr int64_t kMaxModelVocab = int64_t{1} << 22;
inline constexpr int64_t kMaxModelLayers = 1024;
inline constexpr int64_t kMaxModelWidth = 65536;
inline constexpr int64_t kMaxModelTokens = int64_t{1} << 24;  // of a micro-batch
inline constexpr int64_t kMaxModelParameters = int64_t{1} << 34;

inline constexpr int64_t kMaxModelDevices = 32;  // of a mesh: what the CPU plugin was seen to take in one process

}  // namespace tessera::model
