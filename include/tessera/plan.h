// The plan: one contiguous, position-independent, little-endian buffer that any lane can walk, and the typed
// view of it. docs/plan_format.md explains it by example; docs/design/0001-plan.md says why it looks like this.
//
// A plan is compact rows (CSR) over the distinct masks of a batch, forward and transposed, with a deduplicated
// table of cleanups: descriptors of what a partial tile still has to test, not stored bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

using Hash128 = std::array<uint8_t, 16>;
std::string ToHex(const Hash128& hash);
Hash128 FromHex(std::string_view hex);  // 32 hex digits; others read as 0

// What can only be known at run time. A cleanup item names the conditions it needs as a bit set over this table.
enum class ConditionKind : uint32_t { kDocuments = 0, kValid = 1, kBlocks = 2, kSinkDocument = 3 };
struct Condition {
  ConditionKind kind = ConditionKind::kDocuments;
  int32_t count = 0;  // kSinkDocument: how many leading tokens of the document
};

// Tile-relative: row r and column c (from the tile's first row and column) pass the item when
//   q_begin <= r < q_end  and  max(kv_begin, r + diag_begin) <= c < min(kv_end, r + diag_end)
// and, for kBits, bit (r, c) of stored tile `bits` is set, for kRows, bit r of it, and every condition in `conditions`
// holds; picks are rows, so none needs kBlocks. A pair passes a cleanup when any of its items does.
enum class ItemKind : uint16_t { kBand = 0, kBits = 1, kRows = 2 };
inline constexpr int32_t kNoDiagBegin = -(1 << 30);
inline constexpr int32_t kNoDiagEnd = 1 << 30;
struct CleanupItem {
  ItemKind kind = ItemKind::kBand;
  uint16_t conditions = 0;
  int32_t q_begin = 0;
  int32_t q_end = 0;
  int32_t kv_begin = 0;
  int32_t kv_end = 0;
  int32_t diag_begin = kNoDiagBegin;
  int32_t diag_end = kNoDiagEnd;
  uint32_t bits = 0;
  bool operator==(const CleanupItem&) const = default;
};
static_assert(sizeof(CleanupItem) == 32);

// One surviving tile in a row: its column (in a transposed worklist, its query tile), and its cleanup.
// Cleanup 0 is "none": the tile is full. "Full" speaks of pairs inside q_len x kv_len; a lane that pads tiles
// bounds the last column by kv_len itself.
struct Slot {
  uint32_t index = 0;
  uint32_t cleanup = 0;
  bool operator==(const Slot&) const = default;
};

// A stretch of one row's slots that one worker runs; listed in the order workers should take them.
struct Part {
  uint32_t row = 0;  // mask * rows_per_mask + row
  uint32_t slot_begin = 0;
  uint32_t slot_end = 0;
  uint32_t part_of_row = 0;  // 0, 1, ... within the row: the order partial results combine in
  bool operator==(const Part&) const = default;
};

enum class Direction : uint32_t { kForward = 0, kDq = 1, kDkv = 2 };
inline constexpr size_t kNumDirections = 3;
std::string_view ToText(Direction direction);

// Rows are query tiles (forward, dq) or key tiles (dkv). Columns ascend within a row.
struct Worklist {
  uint32_t tile_q = 0;
  uint32_t tile_kv = 0;
  uint32_t rows_per_mask = 0;
  uint32_t width_capacity = 0;            // slots a row may hold in this class
  uint32_t part_slots = 0;                // and a part; of dkv, of a key head's row, which all its query heads share
  std::span<const uint64_t> row_offsets;  // [num_masks * rows_per_mask + 1]
  std::span<const Slot> slots;
  std::span<const uint32_t> ranks;  // dkv only: this slot's place among its query tile's columns (dQ write order)
  std::span<const Part> parts;

  std::span<const Slot> Row(uint64_t row) const {
    return slots.subspan(row_offsets[row], row_offsets[row + 1] - row_offsets[row]);
  }
  uint64_t MostParts() const { return part_slots >= width_capacity ? 1 : (width_capacity - 1) / part_slots + 1; }
};

// What a class fixes: two batches of one class give plans whose fixed-shape views have these sizes.
struct ClassShape {
  std::array<TileSize, kNumDirections> tiles;
  std::array<int64_t, kNumDirections> rows{};   // per mask
  std::array<int64_t, kNumDirections> width{};  // slots per row
  std::array<int64_t, kNumDirections> slots{};  // and in a mask
  std::array<int64_t, kNumDirections> part_slots{};
  int64_t masks = 0;  // distinct (batch row, head class) pairs at most
  int64_t cleanups = 0;
  int64_t parts = 0;
  int64_t index_bytes = 4;  // 1, 2 or 4: from the bounds above, never from a batch
  bool operator==(const ClassShape&) const = default;
};

// A checked, typed view of plan bytes; the bytes must outlive it.
struct PlanView {
  Hash128 fingerprint{};
  Hash128 contract_key{};
  Hash128 class_key{};
  Hash128 mask_digest{};  // of the resolved mask: equal on every target
  int64_t batch = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t num_q_heads = 0;
  int64_t num_masks = 0;
  int64_t mask_capacity = 0;
  int64_t cleanup_capacity = 0;
  int64_t part_capacity = 0;
  std::array<Worklist, kNumDirections> worklists;
  std::span<const uint32_t> mask_of;   // [batch * num_q_heads]
  std::span<const uint32_t> batch_of;  // [num_masks]: a batch row whose run-time facts the mask was made with
  std::span<const Condition> conditions;
  std::span<const uint32_t> cleanup_offsets;  // [num_cleanups + 1]; cleanup 0 has no items
  std::span<const CleanupItem> items;
  std::span<const uint64_t> bit_tile_offsets;   // [num_bit_tiles + 1], in words
  std::span<const uint64_t> bit_words;          // a stored tile: rows of ceil(tile_kv / 64) words, or one bit per row
  std::span<const uint64_t> q_segment_offsets;  // [batch + 1]
  std::span<const Segment> q_segments;
  std::span<const uint64_t> kv_segment_offsets;
  std::span<const Segment> kv_segments;
  std::span<const int32_t> q_valid;  // [batch], -1 = absent
  std::span<const int32_t> kv_valid;
  std::span<const std::byte> bytes;

  const Worklist& Of(Direction d) const { return worklists[static_cast<size_t>(d)]; }
  std::span<const CleanupItem> Cleanup(uint32_t id) const {
    return items.subspan(cleanup_offsets[id], cleanup_offsets[id + 1] - cleanup_offsets[id]);
  }
  // Whether a kRows item holds for this row of the tile.
  bool HasRow(const CleanupItem& item, int64_t row) const {
    return (bit_words[bit_tile_offsets[item.bits] + static_cast<uint64_t>(row) / 64] >> (row % 64) & 1U) != 0;
  }
  uint32_t NumCleanups() const { return static_cast<uint32_t>(cleanup_offsets.size() - 1); }
};

class Plan;
namespace plan {
// For the planner alone: owns bytes that Pack just wrote, without checking them again.
Plan Trust(std::vector<std::byte> bytes);
}  // namespace plan

// The owner of plan bytes. Move-only; the view stays valid while the Plan lives, moves included.
class Plan {
 public:
  Plan() = default;
  static Result<Plan> FromBytes(std::vector<std::byte> bytes);  // after VerifyPlan has accepted them
  const PlanView& view() const { return view_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  Plan(Plan&&) = default;
  Plan& operator=(Plan&&) = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

 private:
  friend Plan plan::Trust(std::vector<std::byte> bytes);
  std::vector<std::byte> bytes_;
  PlanView view_;
};

// Accepts any bytes: a valid plan gives its view, anything else an error naming the place. Never reads outside
// the span and never allocates more than the input's own size.
Result<PlanView> VerifyPlan(std::span<const std::byte> bytes);
Result<Plan> ReadPlan(const std::string& path);
Status WritePlan(const std::string& path, const Plan& plan);

// Tile counts of one direction, over every (batch row, head) pair.
struct TileCounts {
  int64_t empty = 0;
  int64_t partial = 0;
  int64_t full = 0;
};
TileCounts CountTiles(const PlanView& plan, Direction direction);

// The run-time facts of one batch row, spread over tokens so that a cleanup can be tested pair by pair.
struct TokenFacts {
  std::vector<int32_t> q_doc;  // -1 where there is no document
  std::vector<int32_t> kv_doc;
  std::vector<int32_t> kv_rank;
  int64_t q_valid = 0;  // the whole length when validity is absent
  int64_t kv_valid = 0;
};
TokenFacts SpreadTokenFacts(const PlanView& plan, int64_t batch_row);

// Whether a surviving tile of `worklist` at (tile_row, tile_column) lets query q see key k. q and k are absolute
// and lie inside that tile and inside the lengths.
bool TileAllows(const PlanView& plan, const Worklist& worklist, uint32_t cleanup, const TokenFacts& facts, int64_t q,
                int64_t k);

// Decompresses one (batch row, head) of one direction to a dense [q_len, kv_len] mask. For tests and `explain`.
Result<std::vector<uint8_t>> ToDense(const PlanView& plan, Direction direction, int64_t batch_row, int64_t head);

// Bytes of scalar memory the padded operands of this plan need on a TPU-like target (data_next, block_mask,
// cleanup ids, at the class's index width), and the verdict against the target before anything is launched.
int64_t MetadataBytes(const PlanView& plan);
bool FitsScalarMemory(const PlanView& plan, const Target& target);

// One JSON document (the whole plan), and a short table for people.
std::string ToJson(const PlanView& plan);
std::string Summary(const PlanView& plan);
// The tile map of one (batch row, head), down-sampled to at most `max_columns` x `max_rows` cells, with a legend.
std::string DrawTiles(const PlanView& plan, int64_t batch_row, int64_t head, int64_t max_columns, int64_t max_rows);
std::string MixedDocumentPolicyJson();  // how tiles that hold several documents are treated

}  // namespace tessera
#pragma GCC visibility pop
