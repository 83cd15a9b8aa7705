#include "engine/workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/math.h"
#include "dispatch/limits.h"
#include "lanes/lane.h"

namespace tessera {
namespace {

// Blocks lie at a boundary of large pages, which the system is asked for.
constexpr int64_t kLargePage = int64_t{2} << 20;
static_assert(kLargePage % kWorkspaceAlignment == 0);
constexpr std::align_val_t kAlign{kLargePage};

// Blocks up to here keep their pages: to take them back would cost more than a short call.
constexpr int64_t kKeptWorkspaceBytes = int64_t{8} << 20;

}  // namespace

void WorkspacePool::Free(const Block& block) { ::operator delete[](block.data, kAlign); }

WorkspacePool::Block WorkspacePool::Allocate(int64_t bytes) {
  const int64_t capacity = std::max(kLargePage, RoundUp(bytes, kLargePage));
  const auto size = static_cast<size_t>(capacity);
  Block block{static_cast<std::byte*>(::operator new[](size, kAlign, std::nothrow)), capacity};
  if (block.data != nullptr) madvise(block.data, size, MADV_HUGEPAGE);  // a wish
  return block;
}

WorkspacePool::~WorkspacePool() { std::for_each(idle_.begin(), idle_.end(), Free); }

// The smallest that is large enough, and no more than twice as large: a small run does not keep a large block busy. Of
// equal ones the one given back last, whose pages the caches and the processor's page tables still know.
WorkspacePool::Block WorkspacePool::TakeIdle(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    if (it->bytes < bytes || it->bytes / 2 > bytes) continue;
    if (best == idle_.end() || it->bytes <= best->bytes) best = it;
  }
  if (best == idle_.end()) return {};
  const Block block = *best;
  idle_.erase(best);
  idle_bytes_ -= block.bytes;
  return block;
}

// Keeps the block, giving up older ones for it.
void WorkspacePool::Give(const Block& block) {
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

Workspace WorkspacePool::Take(int64_t bytes) {
  Workspace workspace;
  if (bytes < 0 || bytes > kMaxWorkspaceBytes) return workspace;
  Block block = TakeIdle(std::max(bytes, kLargePage));
  if (block.data == nullptr) block = Allocate(bytes);
  workspace.pool_ = this;
  workspace.block_ = block.data;
  workspace.bytes_ = bytes;
  workspace.capacity_ = block.bytes;
  return workspace;
}

Workspace::Workspace(Workspace&& other) noexcept
    : pool_(other.pool_),
      block_(std::exchange(other.block_, nullptr)),
      bytes_(other.bytes_),
      capacity_(other.capacity_) {}

Workspace& Workspace::operator=(Workspace&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(block_, other.block_);
  std::swap(bytes_, other.bytes_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

Workspace::~Workspace() {
  if (block_ == nullptr) return;
  if (capacity_ > kMaxIdleWorkspaceBytes) {
    WorkspacePool::Free({block_, capacity_});
    return;
  }
#ifdef MADV_FREE
  if (capacity_ > kKeptWorkspaceBytes) madvise(block_, static_cast<size_t>(capacity_), MADV_FREE);
#endif
  pool_->Give({block_, capacity_});
}

}  // namespace tessera
