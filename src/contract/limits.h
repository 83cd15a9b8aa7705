// Every limit that contracts and batches are held to, in one place; io/limits.h has those of the files. docs/limits.md
// lists them, and a test holds the two together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

inline constexpr int64_t kMaxContractBytes = int64_t{1} << 24;
inline constexpr size_t kMaxMaskTextBytes = 64 * 1024;
inline constexpr int kMaxMaskNesting = 64;  // parentheses inside parentheses
inline constexpr int kMaxMaskTerms = 256;   // of one expression
inline constexpr int64_t kMaxMaskTermsOverHeads = int64_t{1} << 20;
inline constexpr size_t kMaxRunTimeTerms = 6;                 // distinct ones of one contract
inline constexpr int64_t kMaxLength = int64_t{1} << 30;       // tokens, and any number in a mask
inline constexpr int64_t kMaxChunks = int64_t{1} << 22;       // of chunk(size) in one row: each is a run of its own
inline constexpr size_t kMaxTermRuns = size_t{1} << 22;       // that a registered term gives
inline constexpr size_t kMaxTermIntervals = size_t{1} << 24;  // of a registered term: 16 bytes each
inline constexpr int64_t kMaxTermRects = int64_t{1} << 24;    // that a registered term is asked about
inline constexpr int kMaxTermParameters = 16;
inline constexpr size_t kMaxTermNameBytes = 64;
inline constexpr int64_t kMaxBatch = 65536;
inline constexpr int64_t kMaxHeads = 65536;
inline constexpr int64_t kMaxDim = 65536;
inline constexpr int64_t kMaxTile = 65536;
inline constexpr int64_t kMaxScoreFactor = 1000000000000000;     // scale and softcap; the least is one over it
inline constexpr int64_t kFreeTile = 256;                        // a smaller tile needs a reason
inline constexpr int64_t kMaxTensorElements = int64_t{1} << 48;  // of any one of q, k, v, o

// What a batch may make its reader build before it is refused.
inline constexpr int kMaxBatchRank = 4;                            // dimensions of a field of a batch
inline constexpr int64_t kMaxBatchJsonBytes = int64_t{1} << 30;    // as JSON; more tokens fit in a tensor file
inline constexpr int64_t kMaxBatchTensorBytes = int64_t{1} << 34;  // as safetensors

}  // namespace tessera
