// The most cleanups that a plan of a contract can have. What a tile's cleanup is depends on where the tile lies and on
// which conditions hold in all of it, in some of it or in none of it, and on nothing else of a batch: so every tile is
// looked at under each of these, and what is the same counts once, as in a plan.
#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "base/hash.h"
#include "plan/tile_rows.h"
#include "planner/cleanup.h"
#include "planner/prepared.h"
#include "planner/settings.h"

namespace tessera::planner {
namespace {

using Truths = CleanupWriter::Truths;

// How conditions can hold in a tile, all of them together. Both that ask for documents look at the same ones: where
// tokens are of none, or of two documents, neither holds; where all are of one, only the first holds for all pairs.
std::vector<Truths> AllTruths(const std::vector<Condition>& conditions) {
  enum How : uint8_t { kNowhere, kSomewhere, kEverywhere };
  std::vector<Truths> all;
  for (const How valid : {kNowhere, kSomewhere, kEverywhere}) {
    for (const How documents : {kNowhere, kSomewhere, kEverywhere}) {
      Truths truths;
      for (size_t c = 0; c < conditions.size(); ++c) {
        const bool is_valid = conditions[c].kind == ConditionKind::kValid;
        How how = is_valid ? valid : documents;
        if (conditions[c].kind == ConditionKind::kSinkDocument) how = std::min(how, kSomewhere);
        truths.everywhere |= static_cast<uint32_t>(how == kEverywhere) << c;
        truths.nowhere |= static_cast<uint32_t>(how == kNowhere) << c;
      }
      const bool is_known = std::any_of(all.begin(), all.end(), [&](const Truths& one) {
        return one.everywhere == truths.everywhere && one.nowhere == truths.nowhere;
      });
      if (!is_known) all.push_back(truths);
    }
  }
  return all;
}

class Counter {
 public:
  explicit Counter(const Resolved& resolved) : resolved_(resolved), truths_(AllTruths(resolved.conditions)) {}

  // Every head class at one tile.
  void Count(TileSize tile) {
    for (uint32_t head_class = 0; head_class < resolved_.class_widest.size(); ++head_class) {
      ResolvedMask mask;
      mask.head_class = head_class;
      CleanupWriter writer(resolved_, mask, tile);
      plan::TileRows rows(resolved_.class_widest[head_class], tile, resolved_.q_len, resolved_.kv_len);
      known_.clear();
      const auto num_rows = static_cast<uint32_t>((resolved_.q_len + tile.q - 1) / tile.q);
      for (uint32_t row = 0; row < num_rows; ++row) {
        const std::span<const plan::ColumnRange> ranges = rows.Next();
        writer.BeginRow(row);
        uint32_t column = 0;
        for (const plan::ColumnRange& range : ranges) {
          for (column = std::max(column, range.begin); column < range.end; ++column) CountTile(writer, column);
        }
      }
    }
  }

  const CleanupRoom& room() const { return room_; }

 private:
  void CountTile(CleanupWriter& writer, uint32_t column) {
    for (const Truths& truths : truths_) {
      const CleanupWriter::Key key = writer.KeyOf(column, truths);
      if (key.pieces != 0 && !known_.insert({key.pieces, key.truths, key.distance}).second) continue;
      items_.clear();
      bit_words_.clear();
      row_words_.clear();
      writer.WriteAs(column, truths, {&items_, &bit_words_, &row_words_});
      if (items_.empty()) continue;
      Hasher hasher;
      hasher.Bytes(items_.data(), items_.size() * sizeof(CleanupItem));
      hasher.Bytes(bit_words_.data(), bit_words_.size() * sizeof(uint64_t));
      if (!seen_.insert(hasher.Finish()).second) continue;
      room_.items += static_cast<int64_t>(items_.size());
      room_.bit_words += static_cast<int64_t>(bit_words_.size());
    }
  }

  const Resolved& resolved_;
  const std::vector<Truths> truths_;
  std::set<std::array<uint8_t, 16>> seen_;                   // cleanups, of all tile sizes
  std::set<std::tuple<uint32_t, uint32_t, int64_t>> known_;  // keys of tiles that were looked at
  std::vector<CleanupItem> items_;
  std::vector<uint64_t> bit_words_, row_words_;
  CleanupRoom room_;
};

}  // namespace

Result<CleanupRoom> MostCleanups(const PreparedContract& prepared, const Target& target, const PlanOptions& options) {
  const Contract& contract = prepared.contract;
  const std::vector<BatchRow> no_facts(static_cast<size_t>(contract.shape.batch));
  Result<Resolved> resolved = Resolve(contract, prepared.sets, no_facts);
  if (!resolved) return tl::unexpected(std::move(resolved.error()));
  Counter counter(*resolved);
  const std::array<TileSize, kNumDirections> tiles = PickTiles(contract, target, options);
  for (size_t d = 0; d < kNumDirections; ++d) {
    if (std::find(tiles.begin(), tiles.begin() + d, tiles[d]) == tiles.begin() + d) counter.Count(tiles[d]);
  }
  return counter.room();
}

}  // namespace tessera::planner
