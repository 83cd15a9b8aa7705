// A mask that is a band around the diagonal, the same for every head: what kernels have a form for that compute their
// mask from token numbers. Judged by spelling, so that an unusual way to write a band is none rather than a guess.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/contract.h"

namespace tessera {

// Query i sees the keys from i + offset - left to i + offset + right, both included; without a bound where there is
// none.
struct Band {
  int64_t offset = 0;
  std::optional<int64_t> left = {};
  std::optional<int64_t> right = {};
  bool operator==(const Band&) const = default;
  bool IsFull() const { return !left && !right; }
  bool IsCausal() const { return !left && right == 0; }
};

std::optional<Band> BandOf(const Contract& contract, const MaskFacts& facts);
// Whether every query of these lengths sees a key.
bool HasKeyForEveryRow(const Band& band, int64_t q_len, int64_t kv_len);

}  // namespace tessera
