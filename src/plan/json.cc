// The whole plan as one JSON document. Written straight into one string: plans have millions of slots, and a tree of
// JSON values would cost many times the plan.
#include <fmt/format.h>

#include <iterator>
#include <string>

#include "tessera/plan.h"
#include "tessera/version.h"

namespace tessera {
namespace {

using Out = fmt::memory_buffer;

template <class... Args>
void Put(Out& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Writes "[a,b,c]", where `put` writes one element.
template <class Range, class PutOne>
void PutList(Out& out, const Range& range, PutOne put) {
  out.push_back('[');
  bool first = true;
  for (const auto& element : range) {
    if (!first) out.push_back(',');
    first = false;
    put(element);
  }
  out.push_back(']');
}

template <class Range>
void PutNumbers(Out& out, const Range& range) {
  PutList(out, range, [&](auto number) { Put(out, "{}", number); });
}

std::string_view NameOf(ConditionKind kind) {
  switch (kind) {
    case ConditionKind::kDocuments:
      return "documents";
    case ConditionKind::kValid:
      return "valid";
    case ConditionKind::kBlocks:
      return "blocks";
    case ConditionKind::kSinkDocument:
      return "sink_document";
  }
  return "unknown";
}

std::string_view NameOf(ItemKind kind) {
  switch (kind) {
    case ItemKind::kBand:
      return "band";
    case ItemKind::kBits:
      return "bits";
    case ItemKind::kRows:
      return "rows";
  }
  return "unknown";
}

void PutItem(Out& out, const CleanupItem& item) {
  Put(out, R"({{"kind":"{}","q":[{},{}],"kv":[{},{}],"diag":[)", NameOf(item.kind), item.q_begin, item.q_end,
      item.kv_begin, item.kv_end);
  // An open side of the diagonal is null, so that nobody mistakes the sentinel for a number of tokens.
  item.diag_begin <= kNoDiagBegin ? Put(out, "null,") : Put(out, "{},", item.diag_begin);
  item.diag_end >= kNoDiagEnd ? Put(out, "null") : Put(out, "{}", item.diag_end);
  Put(out, R"(],"conditions":[)");
  bool first = true;
  for (int bit = 0; bit < 16; ++bit) {
    if ((item.conditions >> bit & 1) == 0) continue;
    Put(out, "{}{}", first ? "" : ",", bit);
    first = false;
  }
  Put(out, "]");
  if (item.kind != ItemKind::kBand) Put(out, R"(,"bits":{})", item.bits);
  Put(out, "}}");
}

void PutCleanups(Out& out, const PlanView& plan) {
  Put(out, R"("conditions":)");
  PutList(out, plan.conditions, [&](const Condition& condition) {
    Put(out, R"({{"kind":"{}","count":{}}})", NameOf(condition.kind), condition.count);
  });
  Put(out, R"(,"cleanups":[)");
  for (uint32_t id = 0; id < plan.NumCleanups(); ++id) {
    if (id > 0) Put(out, ",");
    PutList(out, plan.Cleanup(id), [&](const CleanupItem& item) { PutItem(out, item); });
  }
  Put(out, R"(],"bit_tiles":[)");
  for (size_t tile = 0; tile + 1 < plan.bit_tile_offsets.size(); ++tile) {
    if (tile > 0) Put(out, ",");
    const uint64_t begin = plan.bit_tile_offsets[tile];
    PutList(out, plan.bit_words.subspan(begin, plan.bit_tile_offsets[tile + 1] - begin),
            [&](uint64_t word) { Put(out, R"("{:016x}")", word); });
  }
  Put(out, "]");
}

void PutSegments(Out& out, std::string_view name, std::span<const uint64_t> offsets,
                 std::span<const Segment> segments) {
  Put(out, R"("{}":[)", name);
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    if (row > 0) Put(out, ",");
    PutList(out, segments.subspan(offsets[row], offsets[row + 1] - offsets[row]), [&](const Segment& segment) {
      Put(out, "[{},{},{},{}]", segment.begin, segment.end, segment.doc, segment.rank);
    });
  }
  Put(out, "]");
}

void PutValid(Out& out, std::string_view name, std::span<const int32_t> counts) {
  Put(out, R"("{}":)", name);
  // Absent is null, never zero: zero means the row is empty on purpose.
  PutList(out, counts, [&](int32_t count) { count < 0 ? Put(out, "null") : Put(out, "{}", count); });
}

void PutDirection(Out& out, const PlanView& plan, Direction direction) {
  const Worklist& worklist = plan.Of(direction);
  const TileCounts counts = CountTiles(plan, direction);
  Put(out, R"("{}":{{"tile":[{},{}],"rows_per_mask":{},"width_capacity":{},)", ToText(direction), worklist.tile_q,
      worklist.tile_kv, worklist.rows_per_mask, worklist.width_capacity);
  Put(out, R"("tile_counts":{{"empty":{},"partial":{},"full":{}}},"rows":[)", counts.empty, counts.partial,
      counts.full);
  for (int64_t mask = 0; mask < plan.num_masks; ++mask) {
    Put(out, "{}[", mask > 0 ? "," : "");
    for (uint64_t row = 0; row < worklist.rows_per_mask; ++row) {
      if (row > 0) Put(out, ",");
      PutList(out, worklist.Row(static_cast<uint64_t>(mask) * worklist.rows_per_mask + row), [&](const Slot& slot) {
        Put(out, R"([{},"{}",{}])", slot.index, slot.cleanup == 0 ? "full" : "partial", slot.cleanup);
      });
    }
    Put(out, "]");
  }
  Put(out, "],");
  if (!worklist.ranks.empty()) {
    Put(out, R"("ranks":)");
    PutNumbers(out, worklist.ranks);
    Put(out, ",");
  }
  Put(out, R"("parts":)");
  PutList(out, worklist.parts, [&](const Part& part) {
    Put(out, "[{},{},{},{}]", part.row, part.slot_begin, part.slot_end, part.part_of_row);
  });
  Put(out, "}}");
}

}  // namespace

std::string ToJson(const PlanView& plan) {
  Out out;
  Put(out, R"({{"version":{},"fingerprint":"{}","contract_key":"{}","class_key":"{}","mask_digest":"{}",)",
      kPlanVersion, ToHex(plan.fingerprint), ToHex(plan.contract_key), ToHex(plan.class_key), ToHex(plan.mask_digest));
  Put(out, R"("batch":{},"num_q_heads":{},"q_len":{},"kv_len":{},"bytes":{},"metadata_bytes":{},)", plan.batch,
      plan.num_q_heads, plan.q_len, plan.kv_len, plan.bytes.size(), MetadataBytes(plan));
  Put(out, R"("num_masks":{},"mask_capacity":{},"cleanup_capacity":{},"part_capacity":{},"mask_of":[)", plan.num_masks,
      plan.mask_capacity, plan.cleanup_capacity, plan.part_capacity);
  const auto heads = static_cast<size_t>(plan.num_q_heads);
  for (size_t row = 0; row < static_cast<size_t>(plan.batch); ++row) {
    if (row > 0) Put(out, ",");
    PutNumbers(out, plan.mask_of.subspan(row * heads, heads));
  }
  Put(out, R"(],"batch_of":)");
  PutNumbers(out, plan.batch_of);
  Put(out, ",");
  PutCleanups(out, plan);
  Put(out, R"(,"directions":{{)");
  for (size_t d = 0; d < kNumDirections; ++d) {
    if (d > 0) Put(out, ",");
    PutDirection(out, plan, static_cast<Direction>(d));
  }
  Put(out, "}},");
  PutSegments(out, "q_segments", plan.q_segment_offsets, plan.q_segments);
  Put(out, ",");
  PutSegments(out, "kv_segments", plan.kv_segment_offsets, plan.kv_segments);
  Put(out, ",");
  PutValid(out, "q_valid", plan.q_valid);
  Put(out, ",");
  PutValid(out, "kv_valid", plan.kv_valid);
  Put(out, "}}");
  return fmt::to_string(out);
}

}  // namespace tessera
