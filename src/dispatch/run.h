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
  // Compile alone: nothing is run, `inputs` are what routing reads, and there are no outputs.
  Asked asked = Asked::kRun;
  const Plan* plan = nullptr;                        // made before; else each lane that gets that far has one made
  std::string isa = "auto";                          // RunOn fills it: what AskedIsa says when the run begins
  XlaOptions xla = {};                               // and this: what AskedXla says
  std::shared_ptr<const PreparedRun> prepared = {};  // and this: what no batch changes
};

RunOutcome RunOn(const RunRequest& request);

struct RunFailure {
  std::string step;  // as the receipt's failed_at
  Error error;
};
// Compiles what a run would run, and tells the receipt once all of it is there (compile.cc).
std::optional<RunFailure> CompileLane(const RunRequest& request, const LaneRow& row, const PlanView& plan,
                                      Receipt& receipt);

// Which lane did the work, how, and with what.
void DescribeLane(const LaneRow& row, std::string_view mode, const RunStats& stats, Receipt& receipt);
// Where it did, and where that is not the target's kind of machine, that this is a fallback too.
void DescribeDevice(const XlaUse& use, const Target& target, Receipt& receipt);
// A program that was compiled counts as one compile, one that was found as one hit.
void DescribeProgram(std::string_view pass, const XlaProgramUse& use, Receipt& receipt);

// The threads a run uses: those asked for, else the target's workers.
int64_t ThreadsOf(const RunRequest& request);

// Fills what the receipt says of the request itself, before anything is tried: options, versions, sources, digests.
void DescribeRequest(const RunRequest& request, Receipt& receipt);

}  // namespace tessera
