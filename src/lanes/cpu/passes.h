// The two directions as functions. What does not depend on tensors is set up once; the setup refers to the contract's
// and the plan's own data, which outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes/cpu/kernel.h"
#include "lanes/cpu/operands.h"
#include "lanes/cpu/units.h"
#include "lanes/lane.h"

namespace tessera::lanes::cpu {

struct ForwardSetup {
  ForwardSetup(const Kernel& kernel, const BindRequest& request, int64_t threads);
  const Kernel& kernel;
  Sizes sizes;
  const PlanView& plan;
  const Worklist& list;
  int64_t threads;
  int64_t most_panels;  // of a row
  RowUnits work;
  int64_t workspace_bytes = 0;
};

struct BackwardSetup {
  BackwardSetup(const Kernel& kernel, const BindRequest& request, int64_t threads);
  const Kernel& kernel;
  Sizes sizes;
  const PlanView& plan;
  const Worklist& list;
  int64_t threads;
  int64_t q_tiles;
  int64_t panels_per_tile;
  int64_t heads;                        // of all batch rows
  std::vector<uint32_t> num_key_tiles;  // [mask][query tile]
  std::vector<float> dq_factors;        // [panel]: the scale, which score gradients leave out
  int64_t workspace_bytes = 0;
};

// Arguments are checked before; both give the tiles they walked.
int64_t RunForward(const ForwardSetup& setup, const ForwardArgs& args, const LaneCall& call);
int64_t RunBackward(const BackwardSetup& setup, const BackwardArgs& args, const LaneCall& call);

}  // namespace tessera::lanes::cpu
