// An output of several devices beside one device's: which elements may differ, and by how much.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/shard_run.h"

namespace tessera::shard {

// Every bit the same: a zero of the other sign and another way to write that something is no number are differences.
ShardDifference SameBits(const char* name, std::span<const float> got, std::span<const float> want);

// Element i of both at most bounds[i] apart; what is no number is so on both sides, and infinities are the same.
ShardDifference WithinBounds(const char* name, std::span<const float> got, std::span<const float> want,
                             std::span<const double> bounds);

// How far two sums of the same `count` terms may lie apart that f32 adds in different orders, where their absolute
// values add up to `magnitude` (docs/numerics.md).
double ReorderedSum(int64_t count, double magnitude);

// How far a ring's outputs may lie from one device's. A row's weights are the same but for the shift of their
// exponents, and for how many roundings of tiles and shards they went through.
struct RingSums {
  int64_t additions = 0;  // tiles of a row, and shards
  DType dtype = DType::kF32;
};
double RingLseBound(const RingSums& sums, float lse);
// `most` is the largest absolute value that the column of v has.
struct RingOutput {
  float lse = 0;
  float value = 0;
  double most = 0;
};
double RingOutputBound(const RingSums& sums, const RingOutput& output);

}  // namespace tessera::shard
