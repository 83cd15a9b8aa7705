// Whether the bridge to JAX can be trusted on this machine, case by case, each on the path that a run takes: never by a
// fallback, and unhealthy with the first NaN.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::program {

struct BridgeCase {
  std::string name;
  bool pass = false;
  int64_t nans = 0;               // in everything the bridge gave
  std::string note;               // what was seen
  std::vector<Receipt> receipts;  // of its runs
};
struct BridgeHealth {
  CrossingUse use;  // what answered; the counts are those of all cases
  std::vector<BridgeCase> cases;
  bool IsHealthy() const;
};

// An error where the bridge refuses: no interpreter, no JAX, another version.
Result<BridgeHealth> CheckBridge(const Engine& engine);
std::string ToJson(const BridgeHealth& health);

}  // namespace tessera::program
