// A run over any table of lanes; the public Run uses the one in lanes.def.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "dispatch/lane_table.h"
#include "tessera/prepare.h"
#include "tessera/run.h"

namespace tessera {

struct RunRequest {
  std::span<const LaneRow> table;
  const Contract& contract;
  const Batch* batch = nullptr;  // null only where a given plan comes without its batch
  const Target& target;
  const RunOptions& options;
  // One of the two: tensors by name, whose outputs go into the outcome, or memory of the caller's.
  const TensorMap* inputs = nullptr;
  const RunTensors* tensors = nullptr;
  const Plan* plan = nullptr;                        // made before; else each lane that gets that far has one made
  std::string isa = "auto";                          // RunOn fills it: what AskedIsa says when the run begins
  XlaOptions xla = {};                               // and this: what AskedXla says
  std::shared_ptr<const PreparedRun> prepared = {};  // and this: what no batch changes
};

RunOutcome RunOn(const RunRequest& request);

// The threads a run uses: those asked for, else the target's workers.
int64_t ThreadsOf(const RunRequest& request);

// Fills what the receipt says of the request itself, before anything is tried: options, versions, sources, digests.
void DescribeRequest(const RunRequest& request, Receipt& receipt);

}  // namespace tessera
