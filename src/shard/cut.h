// A row's tiles over shards, and what that means: each shard's executed tiles, pairs, and the key tiles it needs.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stages.h"
#include "tessera/context.h"

namespace tessera::shard {

// Tiles of a row of so many tokens, rounded up so that every shard gets as many.
int64_t PaddedTiles(int64_t tokens, int64_t tile, int64_t shards, CutForm form);
std::vector<uint32_t> ContiguousShards(int64_t tiles, int64_t shards);
std::vector<uint32_t> ZigzagShards(int64_t tiles, int64_t shards);

// The pieces of each shard: neighbouring tiles of one shard are one piece. Ends at `tokens`, which may cut the last.
std::vector<std::vector<Piece>> ShardRows(const std::vector<uint32_t>& shard_of, int64_t shards, int64_t tokens,
                                          int64_t tile);

// The tile that both sides of the worklist divide, so that a shard's queries and keys are the same tokens: TSR-S020
// where neither side is a multiple of the other.
Result<int64_t> CommonTile(TileSize tile);

// Executed tiles of each query tile of a batch row, over its heads: [tiles], zero where there is only padding.
std::vector<int64_t> TileCosts(const PlanView& plan, int64_t batch_row, int64_t tile, int64_t tiles);

// Adds up, over batch rows and heads.
struct CutFacts {
  std::vector<ShardLoad> loads;
  std::vector<std::vector<std::vector<int32_t>>> needs;  // as in ContextPlan
  // [target][source]: the query tiles of the source that touch keys of the target, as needs has key tiles.
  std::vector<std::vector<std::vector<int32_t>>> row_needs;
};
CutFacts MeasureCut(const PlanView& plan, const std::vector<RowCut>& rows, int64_t tile, int64_t shards);
// Fills in ShardLoad::pairs from the resolved masks.
void CountShardPairs(const planner::Resolved& resolved, const std::vector<RowCut>& rows, std::vector<ShardLoad>& loads);
// Pairs of a run set in rows [q_begin, q_end).
int64_t PairsInRows(const RowSet& set, int64_t q_begin, int64_t q_end);

}  // namespace tessera::shard
