// Where a model's program is cut, so that a compiler schedules its parts one after the other.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::model {

// Layers after which a program of `layers` is cut when it is cut every `every` layers: i in 1 .. layers - 1 with
// i % every == 0; 0 cuts nowhere. The backward's cuts are the same from behind.
std::vector<int64_t> BarriersAfter(int64_t layers, int64_t every);
std::vector<int64_t> BackwardBarriersBefore(int64_t layers, int64_t every);

}  // namespace tessera::model
