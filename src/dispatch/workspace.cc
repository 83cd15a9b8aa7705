#include "dispatch/workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "dispatch/limits.h"
#include "lanes/lane.h"

namespace tessera {
namespace {

// Blocks lie at a boundary of large pages, which the system is asked for.
constexpr int64_t kLargePage = int64_t{2} << 20;
static_assert(kLargePage % kWorkspaceAlignment == 0);
constexpr std::align_val_t kAlign{kLargePage};

struct Block {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

void Free(const Block& block) { ::operator delete[](block.data, kAlign); }

// Blocks that no run uses, at most kMaxIdleWorkspaceBytes of them. The system may take their pages when it is short of
// memory.
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { std::for_each(idle_.begin(), idle_.end(), Free); }

  // The smallest that is large enough, and no more than twice as large: a small run does not keep a large block busy.
  Block Take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (it->bytes < bytes || it->bytes / 2 > bytes) continue;
      if (best == idle_.end() || it->bytes < best->bytes) best = it;
    }
    if (best == idle_.end()) return {};
    const Block block = *best;
    idle_.erase(best);
    idle_bytes_ -= block.bytes;
    return block;
  }

  // Keeps the block, giving up older ones for it.
  void Give(const Block& block) {
    std::vector<Block> superfluous;
    {
      const std::lock_guard lock(mutex_);
      idle_.push_back(block);
      idle_bytes_ += block.bytes;
      auto keep = idle_.begin();
      for (; idle_bytes_ > kMaxIdleWorkspaceBytes; ++keep) {
        superfluous.push_back(*keep);
        idle_bytes_ -= keep->bytes;
      }
      idle_.erase(idle_.begin(), keep);
    }
    std::for_each(superfluous.begin(), superfluous.end(), Free);
  }

 private:
  std::mutex mutex_;
  std::vector<Block> idle_;  // oldest first
  int64_t idle_bytes_ = 0;
};

Pool& ThePool() {
  static Pool pool;
  return pool;
}

Block Allocate(int64_t bytes) {
  const int64_t capacity = std::max(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage);
  const auto size = static_cast<size_t>(capacity);
  Block block{static_cast<std::byte*>(::operator new[](size, kAlign, std::nothrow)), capacity};
  if (block.data != nullptr) madvise(block.data, size, MADV_HUGEPAGE);  // a wish
  return block;
}

}  // namespace

Workspace Workspace::Take(int64_t bytes) {
  Workspace workspace;
  if (bytes < 0 || bytes > kMaxWorkspaceBytes) return workspace;
  Block block = ThePool().Take(std::max(bytes, kLargePage));
  if (block.data == nullptr) block = Allocate(bytes);
  workspace.block_ = block.data;
  workspace.bytes_ = bytes;
  workspace.capacity_ = block.bytes;
  return workspace;
}

Workspace::Workspace(Workspace&& other) noexcept
    : block_(std::exchange(other.block_, nullptr)), bytes_(other.bytes_), capacity_(other.capacity_) {}

Workspace& Workspace::operator=(Workspace&& other) noexcept {
  std::swap(block_, other.block_);
  std::swap(bytes_, other.bytes_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

Workspace::~Workspace() {
  if (block_ == nullptr) return;
  if (capacity_ > kMaxIdleWorkspaceBytes) {
    Free({block_, capacity_});
    return;
  }
#ifdef MADV_FREE
  madvise(block_, static_cast<size_t>(capacity_), MADV_FREE);
#endif
  ThePool().Give({block_, capacity_});
}

}  // namespace tessera
