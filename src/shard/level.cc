// See level.h.
#include "shard/level.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>

#include "shard/cut.h"

namespace tessera::shard {
namespace {

constexpr int kMostExchanges = 64;
constexpr size_t kMostMeasured = 24;  // for each exchange: what it leads to is counted on the plan itself

struct TileAt {
  size_t row = 0;  // of the batch
  size_t tile = 0;
};
struct Exchanged {
  TileAt from;  // the largest shard's
  TileAt to;
  int64_t off = 0;  // how far the shards stay from level
};

class Leveller {
 public:
  Leveller(const PlanView& plan, const LevelGoal& goal, std::vector<RowCut>& rows)
      : plan_(plan), goal_(goal), rows_(rows), loads_(static_cast<size_t>(goal.shards), 0) {
    for (size_t b = 0; b < rows.size(); ++b) {
      const std::vector<uint32_t>& shard_of = rows[b].shard_of;
      costs_.push_back(TileCosts(plan, static_cast<int64_t>(b), goal.tile, static_cast<int64_t>(shard_of.size())));
      for (size_t t = 0; t < shard_of.size(); ++t) loads_[shard_of[t]] += costs_[b][t];
    }
    const int64_t sum = std::accumulate(loads_.begin(), loads_.end(), int64_t{0});
    limit_ = sum * (100 + goal.percent) / (100 * goal.shards);
  }

  void Run() {
    for (int step = 0; step < kMostExchanges; ++step) {
      const auto most = static_cast<size_t>(std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
      if (loads_[most] <= limit_) break;
      const std::optional<Exchanged> best = Cheapest(most);
      if (!best) break;
      Exchange(*best);
    }
    for (RowCut& row : rows_) row.rows = ShardRows(row.shard_of, goal_.shards, goal_.tokens, goal_.tile);
  }

 private:
  int64_t CostOf(const TileAt& at) const { return costs_[at.row][at.tile]; }
  uint32_t& ShardOf(const TileAt& at) { return rows_[at.row].shard_of[at.tile]; }

  void Exchange(const Exchanged& one) {
    const int64_t moved = CostOf(one.from) - CostOf(one.to);
    loads_[ShardOf(one.from)] -= moved;
    loads_[ShardOf(one.to)] += moved;
    std::swap(ShardOf(one.from), ShardOf(one.to));
  }

  // Every tile of the largest shard against the one of each other shard that brings it nearest to the limit without
  // making the other too large.
  std::vector<Exchanged> Candidates(size_t most) {
    std::vector<Exchanged> found;
    for (size_t b = 0; b < rows_.size(); ++b) {
      const std::vector<uint32_t>& shard_of = rows_[b].shard_of;
      for (size_t from = 0; from < shard_of.size(); ++from) {
        if (shard_of[from] != most) continue;
        std::vector<std::optional<Exchanged>> nearest(loads_.size());
        for (size_t to = 0; to < shard_of.size(); ++to) {
          const size_t other = shard_of[to];
          const int64_t moved = costs_[b][from] - costs_[b][to];
          if (other == most || moved <= 0 || loads_[other] + moved > limit_) continue;
          const Exchanged one{{b, from}, {b, to}, std::abs(loads_[most] - limit_ - moved)};
          if (!nearest[other] || one.off < nearest[other]->off) nearest[other] = one;
        }
        for (const std::optional<Exchanged>& one : nearest) {
          if (one) found.push_back(*one);
        }
      }
    }
    std::stable_sort(found.begin(), found.end(), [](const Exchanged& a, const Exchanged& b) { return a.off < b.off; });
    if (found.size() > kMostMeasured) found.resize(kMostMeasured);
    return found;
  }

  std::optional<Exchanged> Cheapest(size_t most) {
    std::optional<Exchanged> best;
    int64_t least = 0;
    for (const Exchanged& one : Candidates(most)) {
      Exchange(one);
      int64_t received = 0;
      for (const ShardLoad& load : MeasureCut(plan_, rows_, goal_.tile, goal_.shards).loads) received += load.received;
      Exchange({one.to, one.from, 0});
      if (!best || received < least) {
        best = one;
        least = received;
      }
    }
    return best;
  }

  const PlanView& plan_;
  const LevelGoal& goal_;
  std::vector<RowCut>& rows_;
  std::vector<std::vector<int64_t>> costs_;  // [batch row][tile]
  std::vector<int64_t> loads_;
  int64_t limit_ = 0;
};

}  // namespace

void LevelShards(const PlanView& plan, const LevelGoal& goal, std::vector<RowCut>& rows) {
  Leveller(plan, goal, rows).Run();
}

}  // namespace tessera::shard
