// The planner's stages: each takes the previous stage's struct and returns a new one. One file per stage, named like
// it; planner.cc has the order. No base class, no shared mutable state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contract/mask_sets.h"
#include "plan/mask_pairs.h"
#include "plan/picks.h"
#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/plan.h"

namespace tessera::planner {

using plan::BatchPicks;
using plan::ConditionalSet;
using plan::QueryPicks;

// ---- resolve: static masks + run-time facts -> one exact run set per distinct mask

struct ResolvedMask {
  uint32_t head_class = 0;
  uint32_t batch_row = 0;  // any row with these run-time facts
  uint32_t kv_head = 0;    // any with these picks; 0 where the mask needs none
  RowSet runs;             // exactly the allowed pairs
};

struct Resolved {
  int64_t batch = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t num_q_heads = 0;
  std::vector<Condition> conditions;
  std::vector<std::vector<ConditionalSet>> class_terms;  // [head class]
  std::vector<bool> class_may_store_bits;
  std::vector<RowSet> class_widest;  // [head class]: every condition holding everywhere
  int64_t mask_capacity = 0;         // distinct masks at most, for any batch
  std::vector<ResolvedMask> masks;
  std::vector<uint32_t> mask_of;  // [batch * num_q_heads]
  std::vector<BatchRow> rows;     // document ids renumbered by first appearance
  std::optional<BatchPicks> picks;
  Hash128 mask_digest{};
};
// Without picks, the `blocks` term passes nothing.
Result<Resolved> Resolve(const Contract& contract, const MaskSets& sets, const std::vector<BatchRow>& rows,
                         std::optional<BatchPicks> picks = {});
// ---- classify: run sets -> every surviving tile, partial or full, with what a partial tile still has to test

// Columns [begin, end) of one row, all full (no items) or all partial with the same items. Runs may share their items.
struct TileRun {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t item_begin = 0;
  uint32_t item_count = 0;
};

struct Classified {
  TileSize tile;
  int64_t q_tiles = 0;
  int64_t kv_tiles = 0;
  int64_t num_tiles = 0;
  int64_t num_full = 0;               // of these
  std::vector<uint64_t> row_offsets;  // [masks * q_tiles + 1] into runs
  std::vector<TileRun> runs;
  std::vector<CleanupItem> items;
  std::vector<uint64_t> bit_words;  // stored tiles, each tile.q rows of ceil(tile.kv / 64) words
  std::vector<uint64_t> row_words;  // stored rows, each ceil(tile.q / 64) words: who picked a block
};
Result<Classified> Classify(const Resolved& resolved, TileSize tile);
// Every tile against the run sets, pair by pair; small lengths only.
Status VerifyClassified(const Resolved& resolved, const Classified& classified);

// ---- shrink: tile runs -> compact rows of slots, over one table of distinct cleanups

struct CleanupTable {
  std::vector<uint32_t> offsets{0, 0};  // cleanup 0 is "none"
  std::vector<CleanupItem> items;
  std::vector<uint64_t> bit_tile_offsets{0};
  std::vector<uint64_t> bit_words;
  int64_t Size() const { return static_cast<int64_t>(offsets.size()) - 2; }
};

struct CompactRows {
  TileSize tile;
  int64_t q_tiles = 0;
  int64_t kv_tiles = 0;
  std::vector<uint64_t> row_offsets;  // [masks * q_tiles + 1] into slots
  std::vector<Slot> slots;
  int64_t num_cleanups = 0;  // in the table after this tile size
  int64_t widest = 0;        // slots of the longest row
};
// Interns the cleanups of `classified` into `table`; with `share` off every partial run gets its own entry.
CompactRows Shrink(const Classified& classified, CleanupTable& table, bool share);
Status VerifyCompactRows(const Classified& classified, const CompactRows& rows, const CleanupTable& table);

// ---- transpose: the same pairs by key column, with each pair's place in its query row

struct CompactColumns {
  int64_t kv_tiles = 0;
  std::vector<uint64_t> row_offsets;  // [masks * kv_tiles + 1]
  std::vector<Slot> slots;
  std::vector<uint32_t> ranks;
  int64_t widest = 0;  // slots of the longest column
};
CompactColumns Transpose(const CompactRows& rows, int64_t num_masks);
Status VerifyTransposed(const CompactRows& rows, const CompactColumns& columns, int64_t num_masks);

// ---- balance: rows -> parts, longest first

std::vector<Part> Balance(std::span<const uint64_t> row_offsets, int64_t part_slots);
// One part per row, in row order: what runs when the stage is disabled.
std::vector<Part> RowOrder(std::span<const uint64_t> row_offsets);
Status VerifyParts(std::span<const uint64_t> row_offsets, std::span<const Part> parts);

// ---- the class: what every batch's plan must fit

struct ClassRequest {
  const Contract* contract = nullptr;
  const Resolved* resolved = nullptr;
  std::array<TileSize, kNumDirections> tiles;
  const Target* target = nullptr;
  int64_t static_cleanups = 0;  // the count itself when no condition can change it
};
ClassShape MakeShape(const ClassRequest& request);
// Sets part_slots and parts, from the rest of the class alone, so that parts do not depend on a batch.
void SetParts(ClassShape& shape, const Contract& contract, const Target& target);

std::string ClassKeyOf(const Contract& contract, const MaskSets& sets, const ClassShape& shape);

// ---- pack: everything -> one buffer

struct PackInput {
  const Resolved* resolved = nullptr;
  const CleanupTable* cleanups = nullptr;
  const CompactRows* forward = nullptr;
  const CompactRows* dq = nullptr;          // may be forward itself
  const CompactColumns* columns = nullptr;  // null: a forward-only plan
  std::array<std::vector<Part>, kNumDirections> parts;
  ClassShape shape;
  Hash128 contract_key{};
  Hash128 class_key{};
};
std::vector<std::byte> Pack(const PackInput& input);

}  // namespace tessera::planner
