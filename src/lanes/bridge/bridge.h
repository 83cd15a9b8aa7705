// The bridge: one operation is handed to JAX in a Python interpreter inside this process. Nothing of Python is linked:
// its library is found and loaded when the lane is first asked about a plan, by names of the stable ABI alone, and
// never unloaded. docs/bridge.md.
#pragma once

#include <memory>
#include <string>

#include "lanes/lane.h"

namespace tessera {

struct BridgeOptions {
  std::string python = {};  // the program whose interpreter is loaded, where this process is not Python itself
};
std::unique_ptr<Lane> MakeBridgeLane(BridgeOptions options);

}  // namespace tessera
