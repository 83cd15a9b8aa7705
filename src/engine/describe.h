// What a receipt says, step by step as a run gets there. Each function fills what its step knows and nothing else.
#pragma once

#include "engine/state.h"
#include "tessera/receipt.h"
#include "tessera/run.h"

namespace tessera {

// The request itself, before anything is tried.
struct RequestFacts {
  const AttentionOptions& options;  // settled
  const Target& target;
  int64_t threads = 1;
  bool compile_only = false;
  bool emit_only = false;  // with compile_only: said in its place
  bool plan_given = false;
  bool row_max = false;
  Layout layout = Layout::kBhtd;
};
void DescribeRequest(const RequestFacts& facts, Receipt& receipt);

// Keys, selection, decisions on the contract, cache and ledger.
void DescribeAttention(const AttentionState& attention, Receipt& receipt);
// The plan, and of the passes asked for the tiles it has.
void DescribePlan(const PlanView& view, const AttentionOptions& options, Receipt& receipt);
void DescribePicks(const PicksReport& report, Receipt& receipt);
// The decisions on the plan, why it is not the selected lane's, and what its calls will take.
void DescribeBinding(const BoundState& bound, Receipt& receipt);
// Who ran, or compiled, and on what machine.
void DescribeLane(const BoundState& bound, Receipt& receipt);
// A program that was written, and its kernels.
void DescribeEmitted(const ProgramText& program, const Target& target, Receipt& receipt);
void DescribePass(const BoundState& bound, Pass pass, const PassRun& run, Receipt& receipt);
// Pairs and GFLOP/s over them, from the times that are there.
void DescribeWork(const BoundState& bound, Receipt& receipt);

}  // namespace tessera
