// One lane on one plan: books the workspace and runs forward, backward or both. Decides nothing.
#pragma once

#include <string>
#include <string_view>

#include "dispatch/lane_table.h"
#include "tessera/contract.h"
#include "tessera/plan.h"
#include "tessera/run.h"

namespace tessera {

struct ExecuteRequest {
  const Lane& lane;
  const Contract& contract;
  std::string_view contract_key;  // of `contract`
  const PlanView& plan;
  const RunTensors& tensors;  // checked before
  const RunOptions& options;
  int64_t threads = 1;
  std::string_view isa = "auto";
  TargetKind target = TargetKind::kCpu;
  XlaOptions xla = {};
};

// What ran, as far as it came: `step` is the last step begun, and `error` is set when that step failed.
struct ExecuteResult {
  std::string step;
  std::optional<Error> error;
  int64_t workspace_bytes = 0;
  std::optional<RunStats> forward;
  std::optional<RunStats> backward;
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
};

// Refuses a plan of another contract (TSR-P007) before it touches a tensor.
ExecuteResult Execute(const ExecuteRequest& request);

}  // namespace tessera
