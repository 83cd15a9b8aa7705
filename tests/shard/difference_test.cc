// What counts as the same of an output of several devices and of one, and what does not.
#include "shard/difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/proves.h"

namespace tessera::shard {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<float> kWant = {1.0F, -2.0F, 0.0F, 4.0F};

ShardDifference Bits(const std::vector<float>& got, const std::vector<float>& want = kWant) {
  return SameBits("x", got, want);
}
ShardDifference Near(const std::vector<float>& got, double bound = 0.125, const std::vector<float>& want = kWant) {
  return WithinBounds("x", got, want, std::vector<double>(want.size(), bound));
}

TEST(ShardDifference, WithoutABound_EveryBitCounts) {
  Proves("R79");
  EXPECT_TRUE(Bits(kWant).is_good);
  EXPECT_EQ(Bits(kWant).different, 0);
  EXPECT_TRUE(Bits({}, {}).is_good);
  EXPECT_FALSE(Bits({1.0F}).is_good) << "another length";
  const ShardDifference zero = Bits({1.0F, -2.0F, -0.0F, 4.0F});
  EXPECT_FALSE(zero.is_good);
  EXPECT_EQ(zero.different, 1);
  EXPECT_EQ(zero.largest, 0.0);
  EXPECT_TRUE(Bits({kNan}, {kNan}).is_good);
  EXPECT_FALSE(Bits({-kNan}, {kNan}).is_good) << "written in other bits";
  EXPECT_FALSE(Bits({std::nextafter(1.0F, 2.0F), -2.0F, 0.0F, 4.0F}).is_good);
}

// Whatever comes after it.
TEST(ShardDifference, NotANumberOnOneSide_IsNeverGood) {
  for (size_t at = 0; at < kWant.size(); ++at) {
    std::vector<float> got = kWant;
    got[at] = kNan;
    got[(at + 1) % got.size()] += 0.0625F;
    for (const ShardDifference& one : {Bits(got), Near(got), Near(kWant, 0.125, got)}) {
      EXPECT_FALSE(one.is_good) << at;
      EXPECT_TRUE(std::isnan(one.largest)) << at;
      EXPECT_EQ(one.different, 2) << at;
    }
  }
  EXPECT_TRUE(Near({kNan, kInfinity}, 0.125, {kNan, kInfinity}).is_good);
  EXPECT_FALSE(Near({kInfinity}, 0.125, {-kInfinity}).is_good);
  EXPECT_FALSE(Near({kInfinity}, 0.125, {1.0F}).is_good);
  EXPECT_FALSE(Near({1.0F}, kNan, {1.5F}).is_good) << "a bound that is none";
}

TEST(ShardDifference, ABound_IsEachElementsOwn) {
  EXPECT_TRUE(Near({1.125F, -2.125F, -0.0F, 4.0F}).is_good);
  const ShardDifference over = Near({1.125F, -2.0F, 0.0F, 4.1250005F});
  EXPECT_FALSE(over.is_good);
  EXPECT_GT(over.largest, 0.125);
  EXPECT_EQ(over.bound, 0.125);
  // 0.25 of 1 is nearer than 3 of 100, and 0.25 of 0.125 is too far.
  const std::vector<float> got = {1.25F, -2.0F, 3.0F, 4.0F};
  const ShardDifference near = WithinBounds("x", got, kWant, std::vector<double>{1, 0, 100, 0});
  EXPECT_TRUE(near.is_good);
  EXPECT_EQ(near.largest, 0.25);
  EXPECT_EQ(near.bound, 1.0);
  const ShardDifference far = WithinBounds("x", got, kWant, std::vector<double>{0.125, 0, 100, 0});
  EXPECT_FALSE(far.is_good);
  EXPECT_EQ(far.bound, 0.125);
  EXPECT_FALSE(WithinBounds("x", got, kWant, std::vector<double>{1, 0, 0, 0}).is_good) << "a bound of nothing";
  EXPECT_FALSE(WithinBounds("x", got, kWant, std::vector<double>{1}).is_good);
}

// Far below what is summed, however many tiles there are: a gradient of zeros would not pass.
TEST(ShardDifference, Bounds_DoNotOutgrowWhatTheyBound) {
  EXPECT_EQ(ReorderedSum(1000, 0.0), 0.0);
  EXPECT_NEAR(ReorderedSum(16, 3.0), 2 * 0x1p-24 * (16 + 8) * 3.0, 1e-12);
  for (const int64_t tiles : {int64_t{64}, int64_t{4096}, int64_t{1} << 20}) {
    EXPECT_LT(ReorderedSum(tiles, 1.0), 1e-3) << tiles;
    const RingSums sums{.additions = tiles, .dtype = DType::kF32};
    EXPECT_LT(RingLseBound(sums, 5.0F), 1e-3) << tiles;
    EXPECT_LT(RingOutputBound(sums, {.lse = 5.0F, .value = 0.5F, .most = 1.0}), 1e-3) << tiles;
  }
  const RingSums half{.additions = 64, .dtype = DType::kBf16};
  EXPECT_LT(RingOutputBound(half, {.lse = 5.0F, .value = 0.5F, .most = 1.0}), 0.02);
  EXPECT_EQ(RingOutputBound(half, {.lse = -kInfinity, .value = 0.0F, .most = 1.0}), 0.0);
  EXPECT_EQ(RingLseBound(half, -kInfinity), 0.0);
}

}  // namespace
}  // namespace tessera::shard
