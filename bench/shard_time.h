// How long a forward takes on several devices of a CPU, against the lane that is not sharded, on the same cores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::bench {

struct ShardTimes {
  int64_t tokens = 0;
  int64_t shards = 8;
  uint64_t seed = 0;
  int64_t repeats = 5;
  std::string documents = {};  // a file for the documents' lengths; empty: none is written
};
struct ShardTime {
  std::string what;
  std::string about;
  double ratio = 0;  // of medians
};
// Both by their public calls, from whole tensors in the host's memory to whole tensors there, taking turns. Plans,
// programs and tables are there before; what the two write is compared, and an error ends the program.
std::vector<ShardTime> TimeShards(const ShardTimes& times);

}  // namespace tessera::bench
