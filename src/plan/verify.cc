// Checks plan bytes of any origin. Nothing is believed before it is checked: after VerifyPlan, a lane can walk the
// view without a bounds check of its own. Allocations are at most one word per row, cleanup or bit tile the input
// really holds.
#include <fmt/format.h>

#include <algorithm>

#include "contract/limits.h"
#include "plan/layout.h"

namespace tessera {
namespace {

tl::unexpected<Error> Bad(std::string message, std::string where) {
  return Fail(ErrorCode::kPlanMalformed, std::move(message), std::move(where));
}

template <class T>
bool Ascends(std::span<const T> offsets, uint64_t last) {
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != last) return false;
  return std::is_sorted(offsets.begin(), offsets.end());
}

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

Status CheckHeader(const PlanView& view) {
  const auto in_range = [](int64_t value, int64_t limit) { return value >= 1 && value <= limit; };
  if (!in_range(view.batch, kMaxBatch) || !in_range(view.num_q_heads, kMaxHeads) || !in_range(view.q_len, kMaxLength) ||
      !in_range(view.kv_len, kMaxLength)) {
    return Bad("lengths or heads out of range", "header");
  }
  if (!in_range(view.mask_capacity, view.batch * view.num_q_heads) || !in_range(view.num_masks, view.mask_capacity) ||
      view.cleanup_capacity < 0 || view.part_capacity < 0) {
    return Bad("capacities out of range, or more masks than the class holds", "header");
  }
  return {};
}

Status CheckConditionsAndCleanups(const PlanView& view) {
  if (view.conditions.size() > plan::kMaxConditions) return Bad("too many conditions", "conditions");
  for (const Condition& condition : view.conditions) {
    if (static_cast<uint32_t>(condition.kind) > static_cast<uint32_t>(ConditionKind::kSinkDocument) ||
        condition.count < 0) {
      return Bad("unknown condition", "conditions");
    }
  }
  if (view.cleanup_offsets.size() < 2 || view.cleanup_offsets[1] != 0 ||
      !Ascends(view.cleanup_offsets, view.items.size())) {
    return Bad("cleanup offsets must start with an empty cleanup 0, ascend and end at the item count",
               "cleanup_offsets");
  }
  if (view.NumCleanups() - 1 > static_cast<uint64_t>(view.cleanup_capacity)) {
    return Bad("more cleanups than the class holds", "cleanup_offsets");
  }
  if (!Ascends(view.bit_tile_offsets, view.bit_words.size())) {
    return Bad("bit tile offsets must ascend from 0 to the word count", "bit_tile_offsets");
  }
  constexpr auto kTile = static_cast<int32_t>(kMaxTile);
  // Conditions that no item may need.
  const uint32_t never = ~((1U << view.conditions.size()) - 1) | plan::BlocksBits(view.conditions);
  for (size_t i = 0; i < view.items.size(); ++i) {
    const CleanupItem& item = view.items[i];
    const bool ranges_ok = item.q_begin >= 0 && item.q_begin <= item.q_end && item.q_end <= kTile &&
                           item.kv_begin >= 0 && item.kv_begin <= item.kv_end && item.kv_end <= kTile &&
                           item.diag_begin >= kNoDiagBegin && item.diag_begin <= kNoDiagEnd &&
                           item.diag_end >= kNoDiagBegin && item.diag_end <= kNoDiagEnd;
    const bool stores = item.kind == ItemKind::kBits || item.kind == ItemKind::kRows;
    const bool kind_ok =
        item.kind == ItemKind::kBand || (stores && item.bits + uint64_t{1} < view.bit_tile_offsets.size());
    if (!ranges_ok || !kind_ok || (item.conditions & never) != 0) {
      return Bad("item out of range", fmt::format("items[{}]", i));
    }
  }
  return {};
}

// How many words of stored bits every use of a cleanup may read: the smallest tile of bits, and of rows, it names.
struct StoredWords {
  uint64_t bits = UINT64_MAX;
  uint64_t rows = UINT64_MAX;
};
std::vector<StoredWords> SmallestStored(const PlanView& view) {
  if (view.bit_words.empty() && view.bit_tile_offsets.size() == 1) return {};
  std::vector<StoredWords> words(view.NumCleanups());
  for (uint32_t id = 0; id < view.NumCleanups(); ++id) {
    for (const CleanupItem& item : view.Cleanup(id)) {
      if (item.kind == ItemKind::kBand) continue;
      uint64_t& smallest = item.kind == ItemKind::kBits ? words[id].bits : words[id].rows;
      smallest = std::min(smallest, view.bit_tile_offsets[item.bits + 1] - view.bit_tile_offsets[item.bits]);
    }
  }
  return words;
}

Status CheckParts(const Worklist& list, std::string_view name) {
  std::vector<uint64_t> covered(list.row_offsets.begin(), list.row_offsets.end());
  std::vector<uint32_t> next_part(covered.size(), 0);
  if (list.part_slots == 0) return Bad("a part holds no slot in this class", std::string(name));
  for (size_t i = 0; i < list.parts.size(); ++i) {
    const Part& part = list.parts[i];
    if (part.row + uint64_t{1} >= covered.size() || part.slot_begin != covered[part.row] ||
        part.slot_end < part.slot_begin || part.slot_end > list.row_offsets[part.row + 1] ||
        part.part_of_row != next_part[part.row]) {
      return Bad("parts must split each row in order, without gap or overlap", fmt::format("{}.parts[{}]", name, i));
    }
    if (part.part_of_row >= list.MostParts()) {
      return Bad("more parts than the class gives a row", fmt::format("{}.parts[{}]", name, i));
    }
    covered[part.row] = part.slot_end;
    ++next_part[part.row];
  }
  for (size_t row = 0; row + 1 < covered.size(); ++row) {
    if (covered[row] != list.row_offsets[row + 1] || next_part[row] == 0) {
      return Bad("a row is not covered by parts", fmt::format("{} row {}", name, row));
    }
  }
  return {};
}

Status CheckWorklist(const PlanView& view, Direction direction, const std::vector<StoredWords>& stored) {
  const Worklist& list = view.Of(direction);
  const std::string name(ToText(direction));
  const bool is_dkv = direction == Direction::kDkv;
  const auto num_masks = static_cast<uint64_t>(view.num_masks);
  if (list.tile_q == 0 || list.tile_kv == 0 || list.tile_q > uint64_t{kMaxTile} || list.tile_kv > uint64_t{kMaxTile}) {
    return Bad("tile size out of range", name);
  }
  const uint64_t q_tiles = CeilDiv(static_cast<uint64_t>(view.q_len), list.tile_q);
  const uint64_t kv_tiles = CeilDiv(static_cast<uint64_t>(view.kv_len), list.tile_kv);
  const uint64_t rows = is_dkv ? kv_tiles : q_tiles;
  const uint64_t columns = is_dkv ? q_tiles : kv_tiles;
  // A forward-only plan has no transposed rows at all.
  const bool is_absent = is_dkv && list.rows_per_mask == 0;
  if (!is_absent && list.rows_per_mask != rows) return Bad("rows do not match the lengths and the tile", name);
  const uint64_t all_rows = is_absent ? 0 : num_masks * rows;
  if (list.row_offsets.size() != all_rows + 1 || !Ascends(list.row_offsets, list.slots.size())) {
    return Bad("row offsets must ascend from 0 to the slot count", name + ".row_offsets");
  }
  if (list.ranks.size() != (is_dkv ? list.slots.size() : 0)) return Bad("ranks do not match the slots", name);
  for (uint64_t row = 0; row < all_rows; ++row) {
    const std::span<const Slot> slots = list.Row(row);
    if (slots.size() > list.width_capacity) {
      return Bad("a row is wider than the class holds", fmt::format("{} row {}", name, row));
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      const bool in_order = i == 0 || slots[i - 1].index < slots[i].index;
      const bool bits_ok = stored.empty() || slots[i].cleanup >= stored.size() ||
                           (stored[slots[i].cleanup].bits >= list.tile_q * CeilDiv(list.tile_kv, 64) &&
                            stored[slots[i].cleanup].rows >= CeilDiv(list.tile_q, 64));
      if (!in_order || slots[i].index >= columns || slots[i].cleanup >= view.NumCleanups() || !bits_ok) {
        return Bad("slot out of order or out of range", fmt::format("{} row {} slot {}", name, row, i));
      }
    }
  }
  for (const uint32_t rank : list.ranks) {
    if (rank >= kv_tiles) return Bad("rank out of range", name + ".ranks");
  }
  if (list.parts.size() > static_cast<uint64_t>(view.part_capacity))
    return Bad("more parts than the class holds", name);
  return CheckParts(list, name);
}

// With one tile size, the transposed worklist must hold exactly the forward one's pairs.
Status CheckTranspose(const PlanView& view) {
  const Worklist& forward = view.Of(Direction::kForward);
  const Worklist& dkv = view.Of(Direction::kDkv);
  if (dkv.rows_per_mask == 0 || forward.tile_q != dkv.tile_q || forward.tile_kv != dkv.tile_kv) return {};
  if (forward.slots.size() != dkv.slots.size()) return Bad("forward and transposed slots differ in number", "dkv");
  for (uint64_t row = 0; row + 1 < dkv.row_offsets.size(); ++row) {
    const uint64_t mask = row / dkv.rows_per_mask;
    for (uint64_t i = dkv.row_offsets[row]; i < dkv.row_offsets[row + 1]; ++i) {
      const uint64_t forward_row = mask * forward.rows_per_mask + dkv.slots[i].index;
      const std::span<const Slot> slots = forward.Row(forward_row);
      if (dkv.ranks[i] >= slots.size() ||
          slots[dkv.ranks[i]] != Slot{static_cast<uint32_t>(row % dkv.rows_per_mask), dkv.slots[i].cleanup}) {
        return Bad("a transposed slot has no forward twin", fmt::format("dkv row {}", row));
      }
    }
  }
  return {};
}

Status CheckSegments(std::span<const uint64_t> offsets, std::span<const Segment> segments, int64_t batch, int64_t len,
                     std::string name) {
  if (offsets.size() != static_cast<uint64_t>(batch) + 1 || !Ascends(offsets, segments.size())) {
    return Bad("segment offsets must ascend from 0 to the segment count", std::move(name));
  }
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    int64_t end = 0;
    for (const Segment& segment : segments.subspan(offsets[row], offsets[row + 1] - offsets[row])) {
      if (segment.begin < end || segment.end <= segment.begin || segment.end > len || segment.doc < -1 ||
          segment.rank < 0 || segment.rank > len) {
        return Bad("segment out of order or out of range", fmt::format("{} of batch row {}", name, row));
      }
      end = segment.end;
    }
  }
  return {};
}

Status CheckBatchFacts(const PlanView& view) {
  if (view.mask_of.size() != static_cast<uint64_t>(view.batch) * static_cast<uint64_t>(view.num_q_heads)) {
    return Bad("must have one entry per batch row and head", "mask_of");
  }
  const auto below = [](std::span<const uint32_t> values, int64_t limit) {
    return std::all_of(values.begin(), values.end(), [&](uint32_t value) { return value < limit; });
  };
  if (!below(view.mask_of, view.num_masks)) return Bad("names a mask that is not there", "mask_of");
  if (view.batch_of.size() != static_cast<uint64_t>(view.num_masks) || !below(view.batch_of, view.batch)) {
    return Bad("must name one batch row per mask", "batch_of");
  }
  const auto valid_ok = [&](std::span<const int32_t> values, int64_t len) {
    return values.size() == static_cast<uint64_t>(view.batch) &&
           std::all_of(values.begin(), values.end(), [&](int32_t value) { return value >= -1 && value <= len; });
  };
  if (!valid_ok(view.q_valid, view.q_len) || !valid_ok(view.kv_valid, view.kv_len)) {
    return Bad("valid lengths out of range", "q_valid, kv_valid");
  }
  if (Status ok = CheckSegments(view.q_segment_offsets, view.q_segments, view.batch, view.q_len, "q_segments"); !ok) {
    return ok;
  }
  return CheckSegments(view.kv_segment_offsets, view.kv_segments, view.batch, view.kv_len, "kv_segments");
}

}  // namespace

Result<PlanView> VerifyPlan(std::span<const std::byte> bytes) {
  Result<PlanView> view = plan::BindPlan(bytes);
  if (!view) return view;
  Status ok;
  if (view->fingerprint != plan::FingerprintOf(bytes)) ok = Bad("the fingerprint does not match the content", "header");
  if (ok) ok = CheckHeader(*view);
  if (ok) ok = CheckBatchFacts(*view);
  if (ok) ok = CheckConditionsAndCleanups(*view);
  if (ok) {
    const std::vector<StoredWords> stored = SmallestStored(*view);
    for (size_t d = 0; d < kNumDirections && ok; ++d) ok = CheckWorklist(*view, static_cast<Direction>(d), stored);
  }
  if (ok) ok = CheckTranspose(*view);
  if (!ok) return tl::unexpected(std::move(ok.error()));
  return view;
}

}  // namespace tessera
