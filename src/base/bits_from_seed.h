// Numbers from a seed, in exact integer arithmetic: every machine has the same bits.
#pragma once

#include <cstdint>

namespace tessera {

// splitmix64's output function: a good 64-bit mix of a counter.
constexpr uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The sum of four 16-bit uniforms, centred: close to a Gaussian with standard deviation 37836, never beyond 131070.
constexpr int64_t BellSum(uint64_t bits) {
  const uint64_t sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
  return static_cast<int64_t>(sum) - 2 * 0xffff;
}

}  // namespace tessera
