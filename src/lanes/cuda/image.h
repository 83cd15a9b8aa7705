// A plan as the kernels read it (abi.h): one image of bytes, made on the host in time proportional to slots, items,
// tokens and rows of heads, and copied to the device as it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes/cuda/abi.h"
#include "lanes/cuda/work.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::lanes::cuda {

struct PlanImage {
  std::vector<std::byte> bytes;                  // begins with a PlanHeader
  std::array<ClassWork, kNumDirections> work{};  // of each direction that the image has
  std::array<int64_t, kNumDirections> tiles{};   // that they run, over all heads
};

// Whose rows the image has: those of the passes that will be called.
struct ImageNeeds {
  bool forward = true;
  bool backward = false;
};

// The plan's tiles are those of the kernels (TileOf). TSR-P004 for a plan with more slots, items or bytes than 32 bits
// of the image's own can count, TSR-P005 for one with more parts than its class can have.
Result<PlanImage> MakeImage(const Contract& contract, const PlanView& plan, const ImageNeeds& needs);

}  // namespace tessera::lanes::cuda
