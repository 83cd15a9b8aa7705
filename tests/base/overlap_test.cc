// Overlaps of strided tensors against a set of the bytes themselves, and the views of one buffer that programs use.
#include "base/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "support/seed.h"

namespace tessera {
namespace {

std::multiset<int64_t> BytesIn(const ByteRows& rows, const std::byte* origin) {
  std::multiset<int64_t> bytes;
  for (int64_t a = 0; a < rows.axes[0].count; ++a) {
    for (int64_t b = 0; b < rows.axes[1].count; ++b) {
      for (int64_t c = 0; c < rows.axes[2].count; ++c) {
        const int64_t at = a * rows.axes[0].stride + b * rows.axes[1].stride + c * rows.axes[2].stride;
        for (int64_t byte = 0; byte < rows.row_bytes; ++byte) bytes.insert(rows.data - origin + at + byte);
      }
    }
  }
  return bytes;
}

TEST(Overlap, RandomStrides_MatchTheBytes) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<std::byte> memory(4096);
  int64_t meeting = 0;
  int64_t interleaved = 0;
  for (int round = 0; round < 4000; ++round) {
    const int64_t unit = 1 + below(4);
    const auto make = [&] {
      ByteRows rows{.data = memory.data() + below(120), .row_bytes = unit * (1 + below(3))};
      for (ByteRows::Axis& axis : rows.axes) axis = {unit * below(24), 1 + below(4)};
      return rows;
    };
    const ByteRows a = make();
    const ByteRows b = make();
    const std::multiset<int64_t> in_a = BytesIn(a, memory.data());
    const std::multiset<int64_t> in_b = BytesIn(b, memory.data());
    bool meets = false;
    for (const int64_t byte : in_b) meets = meets || in_a.count(byte) > 0;
    ASSERT_EQ(MayOverlap(a, b), meets) << "round " << round;
    ASSERT_EQ(MayOverlap(b, a), meets) << "round " << round;
    const bool repeats = std::set<int64_t>(in_a.begin(), in_a.end()).size() < in_a.size();
    ASSERT_TRUE(!repeats || RowsMayOverlap(a)) << "round " << round;
    EXPECT_EQ(ExtentOf(a), *in_a.rbegin() - *in_a.begin() + 1);
    meeting += meets ? 1 : 0;
    interleaved += !meets && *in_a.begin() <= *in_b.rbegin() && *in_b.begin() <= *in_a.rbegin() ? 1 : 0;
  }
  EXPECT_GT(meeting, 100);
  EXPECT_GT(interleaved, 100);
}

TEST(Overlap, FusedViews_InterleaveAtAnySize) {
  // [B, T, 3, H, D] of four bytes, as q, k and v: too many rows to look at one by one.
  constexpr int64_t kBatch = 64, kTokens = int64_t{1} << 17, kHeads = 16, kDim = 128, kSize = 4;
  constexpr int64_t kRow = 3 * kHeads * kDim * kSize;
  const auto* buffer = reinterpret_cast<const std::byte*>(uintptr_t{1} << 40);  // never read
  const auto view = [&](int64_t slice, int64_t tokens) {
    return ByteRows{.data = buffer + slice * kHeads * kDim * kSize,
                    .row_bytes = kDim * kSize,
                    .axes = {{{kTokens * kRow, kBatch}, {kDim * kSize, kHeads}, {kRow, tokens}}}};
  };
  EXPECT_FALSE(MayOverlap(view(0, kTokens), view(1, kTokens)));
  EXPECT_FALSE(MayOverlap(view(2, kTokens), view(0, kTokens)));
  EXPECT_FALSE(MayOverlap(view(0, kTokens), view(1, kTokens / 2))) << "axes that no longer join";
  EXPECT_TRUE(MayOverlap(view(1, kTokens), view(1, kTokens)));
  ByteRows shifted = view(1, kTokens);
  shifted.data -= kSize;
  EXPECT_TRUE(MayOverlap(view(0, kTokens), shifted)) << "one element";
  EXPECT_FALSE(RowsMayOverlap(view(0, kTokens)));
}

TEST(Overlap, Extents_BeyondAnyMemory_AreNoExtents) {
  ByteRows rows{.data = nullptr, .row_bytes = 8, .axes = {{{INT64_MAX / 2, 3}, {}, {}}}};
  EXPECT_EQ(ExtentOf(rows), -1);
  rows.axes[0] = {INT64_MAX, 2};
  EXPECT_EQ(ExtentOf(rows), -1);
  rows.axes[0] = {INT64_MAX, 1};
  EXPECT_EQ(ExtentOf(rows), 8);
}

}  // namespace
}  // namespace tessera
