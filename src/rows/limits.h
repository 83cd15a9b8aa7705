// The limits of documents and rows: docs/limits.md lists them, and a test holds the two together.
#pragma once

#include <cstdint>

namespace tessera::rows {

inline constexpr int64_t kMaxDocumentBytes = int64_t{1} << 30;  // of one line of JSONL
inline constexpr int64_t kMaxRowTokens = int64_t{1} << 24;
inline constexpr int64_t kMaxShardTokens = int64_t{1} << 30;  // rows times their length
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 28;

}  // namespace tessera::rows
