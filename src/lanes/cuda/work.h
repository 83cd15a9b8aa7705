// Rows of tiles of every head, in the order workers take them, and the parts of those that are cut.
#pragma once

#include <cstdint>
#include <vector>

#include "lanes/cuda/abi.h"
#include "lanes/cuda/idle.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::lanes::cuda {

// What every batch of a class has at most: launches and workspace depend on this alone.
struct ClassWork {
  int64_t rows = 0;    // of all heads
  int64_t splits = 0;  // of these, rows that are cut
  int64_t parts = 0;   // that those are cut into
  int64_t work() const { return rows - splits + parts; }
  bool operator==(const ClassWork&) const = default;
};
// Of the contract's mask at its widest, every condition holding everywhere, and of what the plan says of its class. A
// batch's rows have no more slots than those, and fewer slots never make more parts.
Result<ClassWork> ClassWorkOf(const Contract& contract, const PlanView& plan, Direction direction);

struct RowWork {
  std::vector<Work> work;
  std::vector<Split> splits;
  int64_t parts = 0;  // of all splits
  int64_t tiles = 0;  // over all heads
};
RowWork MakeWork(const Contract& contract, const PlanView& plan, Direction direction, const IdleCells& idle);

}  // namespace tessera::lanes::cuda
