#include "model/barriers.h"

#include <algorithm>

namespace tessera::model {

std::vector<int64_t> BarriersAfter(int64_t layers, int64_t every) {
  std::vector<int64_t> barriers;
  if (every <= 0) return barriers;
  for (int64_t i = every; i < layers; i += every) barriers.push_back(i);
  return barriers;
}

std::vector<int64_t> BackwardBarriersBefore(int64_t layers, int64_t every) {
  std::vector<int64_t> barriers = BarriersAfter(layers, every);
  std::reverse(barriers.begin(), barriers.end());
  return barriers;
}

}  // namespace tessera::model
