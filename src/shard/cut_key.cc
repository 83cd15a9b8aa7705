// Keys of shards and of cuts: what a shard's rows are, whatever the form of the cut is called.
#include <algorithm>

#include "base/hash.h"
#include "base/try.h"
#include "tessera/context.h"

namespace tessera {
namespace {

// A shard's tokens as stretches of the batch row as given, each with its place in the shard, none of which goes on in
// the next.
std::vector<Piece> OriginOf(const RowCut& row, size_t shard) {
  std::vector<Piece> origin;
  for (const Piece& mine : row.rows[shard]) {
    for (const Piece& piece : row.order) {
      const int64_t begin = std::max(mine.start, piece.offset);
      const int64_t end = std::min(mine.start + mine.count, piece.offset + piece.count);
      if (begin >= end) continue;
      const Piece next{piece.start + begin - piece.offset, end - begin, mine.offset + begin - mine.start};
      const bool goes_on = !origin.empty() && origin.back().start + origin.back().count == next.start &&
                           origin.back().offset + origin.back().count == next.offset;
      if (goes_on) {
        origin.back().count += next.count;
      } else {
        origin.push_back(next);
      }
    }
  }
  return origin;
}

}  // namespace

Result<std::vector<std::string>> ShardKeys(const ContextPlan& plan) {
  const std::string contract = TESSERA_TRY(ContractKey(plan.contract));
  std::vector<std::string> keys;
  for (size_t shard = 0; shard < static_cast<size_t>(plan.shards); ++shard) {
    Hasher hasher;
    hasher.Text("tessera shard rows 1");
    hasher.Text(contract);
    hasher.Int(plan.tile);
    hasher.Int(plan.tiles_per_shard);
    for (const RowCut& row : plan.rows) {
      const std::vector<Piece> origin = OriginOf(row, shard);
      hasher.Int(static_cast<int64_t>(origin.size()));
      for (const Piece& piece : origin) {
        for (const int64_t value : {piece.start, piece.count, piece.offset}) hasher.Int(value);
      }
    }
    keys.push_back(Hex(hasher.Finish()));
  }
  return keys;
}

Result<std::string> CutKey(const ContextPlan& plan) {
  Hasher hasher;
  hasher.Text("tessera cut 1");
  for (const std::string& key : TESSERA_TRY(ShardKeys(plan))) hasher.Text(key);
  return Hex(hasher.Finish());
}

}  // namespace tessera
