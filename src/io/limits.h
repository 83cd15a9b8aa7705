// The limits of files and formats, whatever they hold: docs/limits.md lists them, and a test holds the two together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

inline constexpr int64_t kMaxFileBytes = int64_t{1} << 36;  // of any file whose reader sets no lower limit
inline constexpr int64_t kMaxPipeBytes = int64_t{1} << 30;  // a pipe tells no size and may never end
inline constexpr int kMaxLinks = 40;                        // symbolic links from a name to what is written
inline constexpr int64_t kMaxLockSeconds = 60;              // for another process that changes the same file
inline constexpr uint64_t kMaxNpyHeaderBytes = 65536;
inline constexpr int64_t kMaxBitmapBytes = int64_t{1} << 34;          // of one .npy file
inline constexpr uint64_t kMaxTensorHeaderBytes = uint64_t{1} << 24;  // of a safetensors file
inline constexpr size_t kMaxTensorsPerFile = 4096;
inline constexpr size_t kMaxTensorRank = 8;

// What a document may make its reader build before it is refused.
inline constexpr int kMaxJsonNesting = 64;
inline constexpr int kMaxTomlNesting = 64;
inline constexpr int kMaxTomlKeyParts = 16;
inline constexpr int kMaxTomlTables = 4096;  // by headers and by dotted keys: what reads them looks each up among all

}  // namespace tessera
