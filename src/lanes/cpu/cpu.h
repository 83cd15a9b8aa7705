// The CPU lane: SIMD kernels for what this machine's processor has, on as many threads as it is told; the same bits
// for any number of them. docs/cpu_lane.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lanes/lane.h"

namespace tessera {

struct CpuOptions {
  std::string isa = "auto";  // or one of Isas(): that one, or what it builds on
  // The best instruction set that counts as this machine's; empty: what it has. A test's way to be another machine.
  std::string machine_isa = {};
  int64_t threads = 1;
};
std::unique_ptr<Lane> MakeCpuLane(CpuOptions options);

}  // namespace tessera
