// Checks plan bytes of any origin. Nothing is believed before it is checked: after VerifyPlan, a lane can walk the
// view without a bounds check of its own. Allocations are at most one word per row, cleanup or bit tile the input
// really holds.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "contract/limits.h"
#include "plan/layout.h"
#include "tessera/version.h"

namespace tessera {
namespace {

using plan::Header;
using plan::Section;
using plan::WorklistHeader;

tl::unexpected<Error> Bad(std::string message, std::string where) {
  return Fail(ErrorCode::kPlanMalformed, std::move(message), std::move(where));
}

template <class T>
Status Bind(std::span<const std::byte> bytes, const Section& section, std::string_view name, std::span<const T>& out) {
  if (section.offset % plan::kAlign != 0 || section.offset < sizeof(Header) || section.offset > bytes.size() ||
      section.count > (bytes.size() - section.offset) / sizeof(T)) {
    return Bad(fmt::format("section lies outside the plan or is misaligned (offset {}, {} elements, plan {} bytes)",
                           section.offset, section.count, bytes.size()),
               std::string(name));
  }
  out = {reinterpret_cast<const T*>(bytes.data() + section.offset), static_cast<size_t>(section.count)};
  return {};
}

template <class T>
bool Ascends(std::span<const T> offsets, uint64_t last) {
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != last) return false;
  return std::is_sorted(offsets.begin(), offsets.end());
}

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

Status CheckHeader(const Header& header) {
  if (header.batch == 0 || header.q_len == 0 || header.kv_len == 0 || header.num_q_heads == 0 ||
      header.q_len > uint64_t{kMaxLength} || header.kv_len > uint64_t{kMaxLength} ||
      header.batch > uint64_t{kMaxBatch} || header.num_q_heads > uint64_t{kMaxHeads} || header.num_masks > header.batch * header.num_q_heads || header.num_masks == 0) {
    return Bad("lengths, heads or counts out of range", "header");
  }
  if (header.num_masks > header.mask_capacity) return Bad("more masks than the class holds", "header");
  if (header.mask_capacity > header.batch * header.num_q_heads) return Bad("mask capacity out of range", "header");
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
  for (size_t i = 0; i < view.items.size(); ++i) {
    const CleanupItem& item = view.items[i];
    const bool ranges_ok = item.q_begin >= 0 && item.q_begin <= item.q_end && item.q_end <= kTile &&
                           item.kv_begin >= 0 && item.kv_begin <= item.kv_end && item.kv_end <= kTile &&
                           item.diag_begin >= kNoDiagBegin && item.diag_begin <= kNoDiagEnd &&
                           item.diag_end >= kNoDiagBegin && item.diag_end <= kNoDiagEnd;
    const bool kind_ok = item.kind == ItemKind::kBand ||
                         (item.kind == ItemKind::kBits && item.bits + uint64_t{1} < view.bit_tile_offsets.size());
    if (!ranges_ok || !kind_ok || (item.conditions >> view.conditions.size()) != 0) {
      return Bad("item out of range", fmt::format("items[{}]", i));
    }
  }
  return {};
}

// How many words of stored bits every use of a cleanup may read: the smallest bit tile it names.
std::vector<uint64_t> SmallestBitTiles(const PlanView& view) {
  if (view.bit_words.empty() && view.bit_tile_offsets.size() == 1) return {};
  std::vector<uint64_t> words(view.NumCleanups(), UINT64_MAX);
  for (uint32_t id = 0; id < view.NumCleanups(); ++id) {
    for (const CleanupItem& item : view.Cleanup(id)) {
      if (item.kind != ItemKind::kBits) continue;
      words[id] = std::min(words[id], view.bit_tile_offsets[item.bits + 1] - view.bit_tile_offsets[item.bits]);
    }
  }
  return words;
}

Status CheckParts(const Worklist& list, std::string_view name) {
  std::vector<uint64_t> covered(list.row_offsets.begin(), list.row_offsets.end());
  std::vector<uint32_t> next_part(covered.size(), 0);
  for (size_t i = 0; i < list.parts.size(); ++i) {
    const Part& part = list.parts[i];
    if (part.row + uint64_t{1} >= covered.size() || part.slot_begin != covered[part.row] ||
        part.slot_end < part.slot_begin || part.slot_end > list.row_offsets[part.row + 1] ||
        part.part_of_row != next_part[part.row]) {
      return Bad("parts must split each row in order, without gap or overlap", fmt::format("{}.parts[{}]", name, i));
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

Status CheckWorklist(const PlanView& view, Direction direction, const std::vector<uint64_t>& bit_tiles) {
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
      const bool bits_ok = bit_tiles.empty() || slots[i].cleanup >= bit_tiles.size() ||
                           bit_tiles[slots[i].cleanup] >= list.tile_q * CeilDiv(list.tile_kv, 64);
      if (!in_order || slots[i].index >= columns || slots[i].cleanup >= view.NumCleanups() || !bits_ok) {
        return Bad("slot out of order or out of range", fmt::format("{} row {} slot {}", name, row, i));
      }
    }
  }
  for (const uint32_t rank : list.ranks) {
    if (rank >= kv_tiles) return Bad("rank out of range", name + ".ranks");
  }
  if (list.parts.size() > static_cast<uint64_t>(view.part_capacity)) return Bad("more parts than the class holds", name);
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

Status BindAll(std::span<const std::byte> bytes, const Header& header, PlanView& view) {
  Status ok;
  const auto bind = [&](const Section& section, std::string_view name, auto& out) {
    if (ok) ok = Bind(bytes, section, name, out);
  };
  for (size_t d = 0; d < kNumDirections; ++d) {
    const WorklistHeader& from = header.worklists[d];
    Worklist& to = view.worklists[d];
    to.tile_q = from.tile_q;
    to.tile_kv = from.tile_kv;
    to.rows_per_mask = from.rows_per_mask;
    to.width_capacity = from.width_capacity;
    bind(from.row_offsets, "row_offsets", to.row_offsets);
    bind(from.slots, "slots", to.slots);
    bind(from.ranks, "ranks", to.ranks);
    bind(from.parts, "parts", to.parts);
  }
  bind(header.mask_of, "mask_of", view.mask_of);
  bind(header.batch_of, "batch_of", view.batch_of);
  bind(header.conditions, "conditions", view.conditions);
  bind(header.cleanup_offsets, "cleanup_offsets", view.cleanup_offsets);
  bind(header.items, "items", view.items);
  bind(header.bit_tile_offsets, "bit_tile_offsets", view.bit_tile_offsets);
  bind(header.bit_words, "bit_words", view.bit_words);
  bind(header.q_segment_offsets, "q_segment_offsets", view.q_segment_offsets);
  bind(header.q_segments, "q_segments", view.q_segments);
  bind(header.kv_segment_offsets, "kv_segment_offsets", view.kv_segment_offsets);
  bind(header.kv_segments, "kv_segments", view.kv_segments);
  bind(header.q_valid, "q_valid", view.q_valid);
  bind(header.kv_valid, "kv_valid", view.kv_valid);
  return ok;
}

}  // namespace

Result<PlanView> VerifyPlan(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Header)) {
    return Bad(fmt::format("a plan has at least {} bytes, this has {}", sizeof(Header), bytes.size()), "header");
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % plan::kAlign != 0) {
    return Bad("the bytes must lie at an 8-byte boundary", "header");
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != plan::kMagic) return Bad("the first eight bytes are not a plan's", "header");
  if (header.version != kPlanVersion) {
    return Fail(ErrorCode::kPlanVersion,
                fmt::format("format version {}, this program reads {}", header.version, kPlanVersion), "header");
  }
  if (header.header_bytes != sizeof(Header) || header.total_bytes != bytes.size()) {
    return Bad(fmt::format("the header says {} bytes, there are {}", header.total_bytes, bytes.size()), "header");
  }
  if (header.fingerprint != plan::FingerprintOf(bytes)) {
    return Bad("the fingerprint does not match the content", "header");
  }
  PlanView view;
  view.bytes = bytes;
  view.fingerprint = header.fingerprint;
  view.contract_key = header.contract_key;
  view.class_key = header.class_key;
  view.mask_digest = header.mask_digest;
  view.batch = static_cast<int64_t>(header.batch);
  view.q_len = static_cast<int64_t>(header.q_len);
  view.kv_len = static_cast<int64_t>(header.kv_len);
  view.num_q_heads = static_cast<int64_t>(header.num_q_heads);
  view.num_masks = static_cast<int64_t>(header.num_masks);
  view.mask_capacity = static_cast<int64_t>(header.mask_capacity);
  view.cleanup_capacity = static_cast<int64_t>(header.cleanup_capacity);
  view.part_capacity = static_cast<int64_t>(header.part_capacity);
  Status ok = CheckHeader(header);
  if (ok) ok = BindAll(bytes, header, view);
  if (ok) ok = CheckBatchFacts(view);
  if (ok) ok = CheckConditionsAndCleanups(view);
  if (ok) {
    const std::vector<uint64_t> bit_tiles = SmallestBitTiles(view);
    for (size_t d = 0; d < kNumDirections && ok; ++d) ok = CheckWorklist(view, static_cast<Direction>(d), bit_tiles);
  }
  if (ok) ok = CheckTranspose(view);
  if (!ok) return tl::unexpected(std::move(ok.error()));
  return view;
}

}  // namespace tessera
