// Items over bins that each want so many tokens and so much work: longest first, then exchanges while they help.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::shard {

struct BinItem {
  int64_t tokens = 0;
  int64_t work = 0;
};
struct BinGoal {
  int64_t tokens = 0;
  int64_t work = 0;
};
// What a deviation counts for: tokens and work of a whole shard alike, or tokens first and work where those are equal,
// so that no document reaches over an edge that it can be kept from.
struct BinScale {
  int64_t tokens = 1;
  int64_t work = 1;
  bool tokens_first = false;
};

// The bin of each item. Deterministic; takes a bounded number of steps.
std::vector<uint32_t> FillBins(const std::vector<BinItem>& items, const std::vector<BinGoal>& goals,
                               const BinScale& scale);

}  // namespace tessera::shard
