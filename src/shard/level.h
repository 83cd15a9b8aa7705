// The last step of a placement: tiles change shards, one against one, until no shard executes much above the mean.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/context.h"

namespace tessera::shard {

struct LevelGoal {
  int64_t shards = 0;
  int64_t tile = 0;
  int64_t tokens = 0;   // of a row
  int64_t percent = 0;  // above the mean that a shard may execute
};

// What a tile executes does not depend on whose it is, so an exchange is exact; of those that help, the one is taken
// after which least is to be sent. Ends where all shards are level or nothing helps. Deterministic; a bounded number of
// steps.
void LevelShards(const PlanView& plan, const LevelGoal& goal, std::vector<RowCut>& rows);

}  // namespace tessera::shard
