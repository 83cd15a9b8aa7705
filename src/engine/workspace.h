// Memory for lanes to work in. A call gives its workspace back to its engine's pool, so that the next one does not pay
// for fresh pages: on a short run those cost as much as the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace tessera {

class WorkspacePool;

// Owns a block while it lives, and its pool outlives it. Move-only; empty when the machine does not have that much.
class Workspace {
 public:
  Workspace() = default;
  Workspace(Workspace&& other) noexcept;
  Workspace& operator=(Workspace&& other) noexcept;
  ~Workspace();

  bool has_memory() const { return block_ != nullptr; }
  std::span<std::byte> bytes() const { return {block_, static_cast<size_t>(bytes_)}; }

 private:
  friend class WorkspacePool;
  WorkspacePool* pool_ = nullptr;
  std::byte* block_ = nullptr;
  int64_t bytes_ = 0;     // asked for
  int64_t capacity_ = 0;  // there
};

// Blocks that no call uses, at most kMaxIdleWorkspaceBytes of them. The system may take their pages when it is short of
// memory.
class WorkspacePool {
 public:
  WorkspacePool() = default;
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;
  ~WorkspacePool();

  Workspace Take(int64_t bytes);

 private:
  friend class Workspace;
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  static void Free(const Block& block);
  static Block Allocate(int64_t bytes);
  Block TakeIdle(int64_t bytes);
  void Give(const Block& block);

  std::mutex mutex_;
  std::vector<Block> idle_;  // oldest first
  int64_t idle_bytes_ = 0;
};

}  // namespace tessera
