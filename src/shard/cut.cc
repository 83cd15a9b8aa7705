// See cut.h.
#include "shard/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/math.h"

namespace tessera::shard {

int64_t PaddedTiles(int64_t tokens, int64_t tile, int64_t shards, CutForm form) {
  return RoundUp(std::max<int64_t>(CeilDiv(tokens, tile), 1), form == CutForm::kZigzag ? 2 * shards : shards);
}

std::vector<uint32_t> ContiguousShards(int64_t tiles, int64_t shards) {
  std::vector<uint32_t> out(static_cast<size_t>(tiles));
  const int64_t each = tiles / shards;
  for (int64_t t = 0; t < tiles; ++t) out[static_cast<size_t>(t)] = static_cast<uint32_t>(t / each);
  return out;
}

std::vector<uint32_t> ZigzagShards(int64_t tiles, int64_t shards) {
  std::vector<uint32_t> out(static_cast<size_t>(tiles));
  const int64_t each = tiles / (2 * shards);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t piece = t / each;
    out[static_cast<size_t>(t)] = static_cast<uint32_t>(piece < shards ? piece : 2 * shards - 1 - piece);
  }
  return out;
}

std::vector<std::vector<Piece>> ShardRows(const std::vector<uint32_t>& shard_of, int64_t shards, int64_t tokens,
                                          int64_t tile) {
  std::vector<std::vector<Piece>> rows(static_cast<size_t>(shards));
  std::vector<int64_t> filled(static_cast<size_t>(shards), 0);
  for (size_t t = 0; t < shard_of.size(); ++t) {
    const size_t shard = shard_of[t];
    const int64_t start = static_cast<int64_t>(t) * tile;
    const int64_t count = std::min(tile, tokens - start);
    if (count > 0) {
      std::vector<Piece>& pieces = rows[shard];
      const bool goes_on = !pieces.empty() && pieces.back().start + pieces.back().count == start &&
                           pieces.back().offset + pieces.back().count == filled[shard];
      if (goes_on) {
        pieces.back().count += count;
      } else {
        pieces.push_back({start, count, filled[shard]});
      }
    }
    filled[shard] += tile;
  }
  return rows;
}

Result<int64_t> CommonTile(TileSize tile) {
  const auto [least, most] = std::minmax(tile.q, tile.kv);
  if (most % least != 0) {
    return Fail(
        ErrorCode::kContextCut,
        fmt::format("expected a tile whose longer side is a multiple of the shorter, found {} x {}", tile.q, tile.kv),
        "tile");
  }
  return most;
}

std::vector<int64_t> TileCosts(const PlanView& plan, int64_t batch_row, int64_t tile, int64_t tiles) {
  const Worklist& list = plan.Of(Direction::kForward);
  std::vector<int64_t> costs(static_cast<size_t>(tiles), 0);
  std::map<uint32_t, int64_t> heads;  // how many have each mask
  for (int64_t h = 0; h < plan.num_q_heads; ++h) {
    ++heads[plan.mask_of[static_cast<size_t>(batch_row * plan.num_q_heads + h)]];
  }
  for (const auto& [mask, count] : heads) {
    for (uint64_t row = 0; row < list.rows_per_mask; ++row) {
      const auto at = static_cast<size_t>(row * list.tile_q) / static_cast<size_t>(tile);
      costs[at] += count * static_cast<int64_t>(list.Row(uint64_t{mask} * list.rows_per_mask + row).size());
    }
  }
  return costs;
}

CutFacts MeasureCut(const PlanView& plan, const std::vector<RowCut>& rows, int64_t tile, int64_t shards) {
  const Worklist& list = plan.Of(Direction::kForward);
  const auto n = static_cast<size_t>(shards);
  CutFacts facts;
  facts.loads.resize(n);
  facts.needs.assign(n, std::vector<std::vector<int32_t>>(n));
  facts.row_needs = facts.needs;
  for (int64_t b = 0; b < plan.batch; ++b) {
    const std::vector<uint32_t>& shard_of = rows[static_cast<size_t>(b)].shard_of;
    const size_t tiles = shard_of.size();
    std::vector<uint8_t> touched(n * tiles, 0);
    std::vector<uint8_t> touching(n * tiles, 0);  // the same of query tiles, by the shard whose keys they touch
    std::map<uint32_t, int64_t> heads;
    for (int64_t h = 0; h < plan.num_q_heads; ++h) {
      ++heads[plan.mask_of[static_cast<size_t>(b * plan.num_q_heads + h)]];
    }
    for (const auto& [mask, count] : heads) {
      for (uint64_t row = 0; row < list.rows_per_mask; ++row) {
        const size_t q_tile = static_cast<size_t>(row * list.tile_q) / static_cast<size_t>(tile);
        const size_t shard = shard_of[q_tile];
        const std::span<const Slot> slots = list.Row(uint64_t{mask} * list.rows_per_mask + row);
        facts.loads[shard].tiles += count * static_cast<int64_t>(slots.size());
        for (const Slot& slot : slots) {
          const size_t kv_tile = static_cast<size_t>(slot.index) * list.tile_kv / static_cast<size_t>(tile);
          touched[shard * tiles + kv_tile] = 1;
          touching[shard_of[kv_tile] * tiles + q_tile] = 1;
        }
      }
    }
    for (size_t target = 0; target < n; ++target) {
      for (size_t t = 0; t < tiles; ++t) {
        if (shard_of[t] == target) continue;
        const auto id = static_cast<int32_t>(static_cast<size_t>(b) * tiles + t);
        if (touching[target * tiles + t] != 0) facts.row_needs[target][shard_of[t]].push_back(id);
        if (touched[target * tiles + t] == 0) continue;
        facts.needs[target][shard_of[t]].push_back(id);
        ++facts.loads[target].received;
      }
    }
  }
  return facts;
}

int64_t PairsInRows(const RowSet& set, int64_t q_begin, int64_t q_end) {
  int64_t pairs = 0;
  const std::span<const Slab> slabs = set.slabs();
  const auto first =
      std::partition_point(slabs.begin(), slabs.end(), [&](const Slab& s) { return s.q_end <= q_begin; });
  for (auto slab = first; slab != slabs.end() && slab->q_begin < q_end; ++slab) {
    const int64_t begin = std::max<int64_t>(slab->q_begin, q_begin);
    const int64_t last = std::min<int64_t>(slab->q_end, q_end) - 1;
    for (const Interval& interval : set.Intervals(*slab)) {
      // Lengths change by the same step from row to row.
      const int64_t at_first = interval.hi.At(begin) - interval.lo.At(begin);
      const int64_t at_last = interval.hi.At(last) - interval.lo.At(last);
      pairs += (at_first + at_last) * (last - begin + 1) / 2;
    }
  }
  return pairs;
}

void CountShardPairs(const planner::Resolved& resolved, const std::vector<RowCut>& rows,
                     std::vector<ShardLoad>& loads) {
  for (int64_t b = 0; b < resolved.batch; ++b) {
    std::map<uint32_t, int64_t> heads;
    for (int64_t h = 0; h < resolved.num_q_heads; ++h) {
      ++heads[resolved.mask_of[static_cast<size_t>(b * resolved.num_q_heads + h)]];
    }
    for (const auto& [mask, count] : heads) {
      for (size_t shard = 0; shard < loads.size(); ++shard) {
        for (const Piece& piece : rows[static_cast<size_t>(b)].rows[shard]) {
          loads[shard].pairs += count * PairsInRows(resolved.masks[mask].runs, piece.start, piece.start + piece.count);
        }
      }
    }
  }
}

}  // namespace tessera::shard

namespace tessera {

std::vector<Piece> InverseOrder(const std::vector<Piece>& order) {
  std::vector<Piece> out;
  out.reserve(order.size());
  for (const Piece& piece : order) out.push_back({piece.offset, piece.count, piece.start});
  std::sort(out.begin(), out.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
  return out;
}

Status VerifyCut(const RowCut& cut, int64_t tokens, int64_t tile, int64_t shards) {
  const auto fail = [](std::string text) { return Fail(ErrorCode::kContextMismatch, std::move(text), "cut"); };
  if (shards < 1 || tile < 1 || cut.rows.size() != static_cast<size_t>(shards)) {
    return fail(fmt::format("expected the rows of {} shards, found those of {}", shards, cut.rows.size()));
  }
  const auto tiles = static_cast<int64_t>(cut.shard_of.size());
  if (tiles % shards != 0 || tiles * tile < tokens) {
    return fail(fmt::format("expected tiles of {} tokens for {} tokens, as many on each of {} shards, found {}", tile,
                            tokens, shards, tiles));
  }
  std::vector<int64_t> counts(static_cast<size_t>(shards), 0);
  for (const uint32_t shard : cut.shard_of) {
    if (shard >= static_cast<uint64_t>(shards))
      return fail(fmt::format("a tile is given to shard {} of {}", shard, shards));
    ++counts[shard];
  }
  for (const int64_t count : counts) {
    if (count != tiles / shards)
      return fail(fmt::format("expected {} tiles on each shard, found {}", tiles / shards, count));
  }
  if (cut.rows != shard::ShardRows(cut.shard_of, shards, tokens, tile)) {
    return fail("the pieces of the shards are not those of their tiles");
  }
  // Pieces sorted by where they start must cover the row once, and those by offset follow one another.
  int64_t at = 0;
  for (const Piece& piece : InverseOrder(InverseOrder(cut.order))) {
    if (piece.offset != at || piece.count < 1) return fail(fmt::format("the order has no token at {}", at));
    at += piece.count;
  }
  if (at != tokens) return fail(fmt::format("the order has {} tokens of {}", at, tokens));
  at = 0;
  for (const Piece& piece : InverseOrder(cut.order)) {
    if (piece.offset != at) return fail(fmt::format("token {} is not in the order exactly once", at));
    at += piece.count;
  }
  return {};
}

}  // namespace tessera
