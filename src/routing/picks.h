// Picks on their way through routing: from the caller or from score to what the planner reads.
#pragma once

#include <optional>
#include <vector>

#include "contract/mask_sets.h"
#include "plan/picks.h"
#include "plan/runner.h"
#include "routing/routing.h"

namespace tessera::routing {

// A caller's picks, one list per query, ascending: their order does not matter, and picks of a query tile are those of
// each of its queries.
// An indexer that returned nothing (top_n 0) leaves every key: one block that holds them all.
PickRows ToPickRows(const Contract& contract, const Picks& picks);
// How picks of this contract are united; `block_tokens` is theirs.
UniteConfig UniteConfigOf(const Contract& contract, const PickRows& picks, bool widen);

plan::BatchPicks ToBatchPicks(const UnionMaps& maps, int64_t q_len);
Picks ToPicks(const UnionMaps& maps, int64_t q_len);

// How many blocks the tiles of queries need.
struct UnionSizes {
  double mean = 0.0;
  int64_t widest = 0;
};
UnionSizes SizesOf(const UnionMaps& maps);

// Every union holds exactly the picks of its queries, by the other way to unite them.
Status VerifyUnion(const UniteConfig& config, const PickRows& picks, const UnionMaps& maps);

struct Picked {
  PickRows raw;  // before legalise
  Legalised legalised;
};
struct PickRequest {
  const Contract* contract = nullptr;
  const MaskSets* sets = nullptr;
  const std::vector<BatchRow>* rows = nullptr;
  const Batch* batch = nullptr;
  const RouteInputs* route = nullptr;
  bool widen = false;
  bool keep_scores = false;
};
// score -> expand -> unite -> legalise, or the last two for a caller's picks: routing.cc.
Result<Picked> PickBlocks(const PickRequest& request, plan::Runner& runner);
PicksReport ReportOf(const Contract& contract, const Batch& batch, const Picked& picked);

}  // namespace tessera::routing
