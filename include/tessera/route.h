// Routing by itself: which blocks of keys each query picks, and how good the picks are. docs/routing.md explains the
// stages; a run does all of this on its own.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/stages.h"

#pragma GCC visibility push(default)
namespace tessera {

struct RouteOptions {
  PlanOptions plan;          // widen_class, verify_stages, dump_stages
  bool compare = false;      // also score every block, to say what hierarchical routing missed
  bool keep_scores = false;  // also what each pick scored
  int64_t mass_queries = 0;  // also measure the attention mass kept, on so many queries evenly spread
};

struct RouteResult {
  Picks picks;  // what is left after legalise: fit for Batch::picks of the same contract without [routing]
  // With `keep_scores`, beside the picks of routing: NaN for a block that is kept whatever it scores (the query's own,
  // the first ones), -inf for one without a score. Empty for a caller's picks.
  std::vector<float> scores;
  PicksReport report;
  std::vector<StageReport> stages;
  // With `compare`: the share of exhaustive picks that the picks have too.
  std::optional<double> recall;
  // With `mass_queries`: the mean share of each query's softmax that falls into picked blocks; with `compare` also that
  // of exhaustive picks.
  std::optional<double> mass_kept;
  std::optional<double> exhaustive_mass_kept;
};

// Of a contract with [routing] (TSR-P009 without q and k), or of a caller's picks, which are united and legalised.
Result<RouteResult> Route(const Contract& contract, const Batch& batch, const RouteInputs& inputs,
                          const RouteOptions& options = {});

}  // namespace tessera
#pragma GCC visibility pop
