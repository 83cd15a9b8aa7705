// A run over any table of lanes; the public Run uses the one in lanes.def.
#pragma once

#include <span>

#include "dispatch/lane_table.h"
#include "tessera/run.h"

namespace tessera {

struct RunRequest {
  std::span<const LaneRow> table;
  const Contract& contract;
  const Batch& batch;
  const TensorMap& inputs;
  const Target& target;
  const RunOptions& options;
};

RunOutcome RunOn(const RunRequest& request);

// The threads a run uses: those asked for, else the target's workers.
int64_t ThreadsOf(const RunRequest& request);

// Fills what the receipt says of the request itself, before anything is tried: options, versions, sources, digests.
void DescribeRequest(const RunRequest& request, Receipt& receipt);

}  // namespace tessera
