// The limits of runs: docs/limits.md lists them, and a test holds the two together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// Beyond any machine's memory: asked for, it is a lane's mistake and not worth an allocator's time.
inline constexpr int64_t kMaxWorkspaceBytes = int64_t{1} << 40;

// More than any machine has; what a lane keeps for each of them is taken before the first one starts.
inline constexpr int64_t kMaxThreads = 4096;

// Of workspaces that no run uses, kept for the next ones.
inline constexpr int64_t kMaxIdleWorkspaceBytes = int64_t{1} << 30;

// Of an engine's cache of what it prepared, where its options do not say otherwise.
inline constexpr size_t kMaxCachedRuns = 64;
inline constexpr int64_t kMaxCachedRunBytes = int64_t{1} << 30;
// Ways to write one contract that a cache finds without asking what they mean.
inline constexpr size_t kMaxSpellings = 16;

}  // namespace tessera
