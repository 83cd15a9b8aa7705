// `tessera bench --stability`: shows that one contract serves many batches.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::program {

struct StabilityOptions {
  bool is_asked = false;
  std::string contract;  // a file; else a few of its own
  int64_t batches = 1000;
  uint64_t seed = 1;
  bool json = false;
  bool progress = false;
};

int BenchStability(const StabilityOptions& options);

}  // namespace tessera::program
