// Workspaces come back to a pool that is bounded, and that never hands one block to two runs.
#include "engine/workspace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "dispatch/limits.h"
#include "lanes/lane.h"

namespace tessera {
namespace {

TEST(Workspace, TakenAgain_IsTheSameBlockWhileNobodyHasIt) {
  WorkspacePool pool;
  constexpr int64_t kBytes = int64_t{5} << 20;
  Workspace first = pool.Take(kBytes);
  ASSERT_TRUE(first.has_memory());
  EXPECT_EQ(first.bytes().size(), static_cast<size_t>(kBytes));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.bytes().data()) % kWorkspaceAlignment, 0u);
  const std::byte* block = first.bytes().data();
  const Workspace second = pool.Take(kBytes);
  EXPECT_NE(second.bytes().data(), block);
  first = Workspace();
  EXPECT_EQ(pool.Take(kBytes - 100).bytes().data(), block);
}

TEST(Workspace, OfEqualBlocks_TheOneGivenBackLastIsTaken) {
  WorkspacePool pool;
  constexpr int64_t kBytes = int64_t{3} << 20;
  Workspace first = pool.Take(kBytes);
  Workspace second = pool.Take(kBytes);
  const std::byte* warm = first.bytes().data();
  second = Workspace();
  first = Workspace();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pool.Take(kBytes).bytes().data(), warm);
}

TEST(Workspace, FarTooLargeBlock_IsNotGivenToASmallRun) {
  WorkspacePool pool;
  const std::byte* large = pool.Take(int64_t{200} << 20).bytes().data();
  EXPECT_NE(pool.Take(int64_t{3} << 20).bytes().data(), large);
}

TEST(Workspace, BeyondTheLimit_HasNoMemory) {
  WorkspacePool pool;
  EXPECT_FALSE(pool.Take(kMaxWorkspaceBytes + 1).has_memory());
  EXPECT_FALSE(pool.Take(-1).has_memory());
  EXPECT_TRUE(pool.Take(0).has_memory());
}

TEST(Workspace, ManyThreads_NeverShareOne) {
  WorkspacePool pool;
  std::vector<std::jthread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([t, &pool] {
      for (int i = 0; i < 50; ++i) {
        const Workspace mine = pool.Take(int64_t{1} << 20);
        std::memset(mine.bytes().data(), t, mine.bytes().size());
        std::this_thread::yield();
        for (const size_t at : {size_t{0}, mine.bytes().size() / 2, mine.bytes().size() - 1}) {
          ASSERT_EQ(mine.bytes()[at], static_cast<std::byte>(t));
        }
      }
    });
  }
}

}  // namespace
}  // namespace tessera
