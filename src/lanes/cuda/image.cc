// See image.h. Lists are built one direction at a time; sections are appended as they are finished, and the header,
// which says where they are, is written last.
#include "lanes/cuda/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/math.h"
#include "base/try.h"

namespace tessera::lanes::cuda {
namespace {

constexpr int64_t kSectionUnit = 16;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

Error TooLarge(const char* what) {
  return {ErrorCode::kPlanTooLarge, fmt::format("the plan has more {} than 31 bits can count", what), "cuda", {}};
}

class ImageWriter {
 public:
  ImageWriter() : bytes_(RoundUp(sizeof(PlanHeader), kSectionUnit)) {}

  template <class T>
  Section Add(const std::vector<T>& values) {
    if (values.empty()) return 0;
    const size_t place = bytes_.size();
    const size_t size = values.size() * sizeof(T);
    bytes_.resize(place + static_cast<size_t>(RoundUp(static_cast<int64_t>(size), kSectionUnit)));
    std::memcpy(bytes_.data() + place, values.data(), size);
    return static_cast<Section>(place / kSectionUnit);
  }
  Result<std::vector<std::byte>> Finish(const PlanHeader& header) {
    if (static_cast<int64_t>(bytes_.size()) / kSectionUnit > kMost) return tl::unexpected(TooLarge("bytes"));
    std::memcpy(bytes_.data(), &header, sizeof(header));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

// The items of one direction, each cleanup's once, and the stored bits they name.
class ItemTable {
 public:
  ItemTable(const PlanView& plan, const Worklist& list, bool is_transposed, std::vector<uint64_t>& bits)
      : plan_(plan), list_(list), is_transposed_(is_transposed), bits_(bits), first_(plan.NumCleanups(), -1) {
    Item every{};
    every.row_end = every.col_end = kMost;
    every.diag_begin = kNoDiagBegin;
    every.diag_end = kNoDiagEnd;
    every.flags = kItemLast;
    items_.push_back(every);
  }

  // As a slot names it.
  int32_t Find(uint32_t cleanup) {
    int64_t& first = first_[cleanup];
    if (first < 0) {
      first = static_cast<int64_t>(items_.size());
      for (const CleanupItem& item : plan_.Cleanup(cleanup)) items_.push_back(ToItem(item));
      items_.back().flags |= kItemLast;
    }
    return static_cast<int32_t>(1 + first);
  }

  bool needs_documents() const { return needs_documents_; }
  const std::vector<Item>& items() const { return items_; }

 private:
  Item ToItem(const CleanupItem& from) {
    Item item{};
    item.flags = FlagsOf(from.conditions);
    if (is_transposed_) {
      item.row_begin = from.kv_begin;
      item.row_end = from.kv_end;
      item.col_begin = from.q_begin;
      item.col_end = from.q_end;
      // Open ends stay open.
      item.diag_begin = from.diag_end >= kNoDiagEnd ? kNoDiagBegin : 1 - from.diag_end;
      item.diag_end = from.diag_begin <= kNoDiagBegin ? kNoDiagEnd : 1 - from.diag_begin;
    } else {
      item.row_begin = from.q_begin;
      item.row_end = from.q_end;
      item.col_begin = from.kv_begin;
      item.col_end = from.kv_end;
      item.diag_begin = from.diag_begin;
      item.diag_end = from.diag_end;
    }
    if (from.kind == ItemKind::kRows) {
      item.flags |= is_transposed_ ? kItemBits | kItemSameBits : kItemRows;
      item.bits = Stored(from.bits, false);
    } else if (from.kind == ItemKind::kBits) {
      item.flags |= kItemBits;
      item.bits = Stored(from.bits, is_transposed_);
    }
    return item;
  }

  uint32_t FlagsOf(uint16_t conditions) {
    uint32_t flags = 0;
    uint32_t sink = kItemMaxSink;
    for (size_t c = 0; c < plan_.conditions.size(); ++c) {
      if ((conditions >> c & 1U) == 0) continue;
      const Condition& condition = plan_.conditions[c];
      switch (condition.kind) {
        case ConditionKind::kDocuments:
          flags |= kItemDocument;
          break;
        case ConditionKind::kValid:
          flags |= kItemValid;
          break;
        case ConditionKind::kSinkDocument:
          flags |= kItemDocument | kItemSink;
          sink = std::min(sink, static_cast<uint32_t>(std::max(condition.count, 0)));
          break;
        case ConditionKind::kBlocks:
          break;  // picks are rows of bits: VerifyPlan lets no item ask for this
      }
    }
    needs_documents_ = needs_documents_ || (flags & kItemDocument) != 0;
    return (flags & kItemSink) != 0 ? flags | sink << kItemSinkShift : flags;
  }

  uint32_t Stored(uint32_t tile, bool transpose) {
    const auto [at, is_new] = stored_.try_emplace({tile, transpose}, static_cast<uint32_t>(bits_.size()));
    if (!is_new) return at->second;
    const uint64_t begin = plan_.bit_tile_offsets[tile];
    const auto words = plan_.bit_words.subspan(begin, plan_.bit_tile_offsets[tile + 1] - begin);
    if (!transpose) {
      bits_.insert(bits_.end(), words.begin(), words.end());
      return at->second;
    }
    const size_t from_words = (list_.tile_kv + size_t{63}) / 64;
    const size_t to_words = (list_.tile_q + size_t{63}) / 64;
    const size_t base = bits_.size();
    bits_.resize(base + list_.tile_kv * to_words, 0);
    for (size_t q = 0; q < list_.tile_q; ++q) {
      for (size_t w = 0; w < from_words; ++w) {
        for (uint64_t left = words[q * from_words + w]; left != 0; left &= left - 1) {
          const size_t k = w * 64 + static_cast<size_t>(__builtin_ctzll(left));
          bits_[base + k * to_words + q / 64] |= uint64_t{1} << (q % 64);
        }
      }
    }
    return at->second;
  }

  const PlanView& plan_;
  const Worklist& list_;
  bool is_transposed_;
  bool needs_documents_ = false;
  std::vector<uint64_t>& bits_;
  std::vector<int64_t> first_;
  std::vector<Item> items_;
  std::map<std::pair<uint32_t, bool>, uint32_t> stored_;
};

// What documents are on the other side, for every token of the rows.
struct TokenTables {
  std::vector<TokenSpan> tokens;
  std::vector<TokenSpan> spans;
};
TokenTables MakeTokens(const PlanView& plan, bool keys_are_rows, int64_t padded_rows) {
  const auto of_row = [](std::span<const uint64_t> offsets, std::span<const Segment> segments, int64_t row) {
    const auto at = static_cast<size_t>(row);
    return segments.subspan(offsets[at], offsets[at + 1] - offsets[at]);
  };
  TokenTables out;
  out.tokens.resize(static_cast<size_t>(plan.batch * padded_rows));
  for (int64_t b = 0; b < plan.batch; ++b) {
    const auto q = of_row(plan.q_segment_offsets, plan.q_segments, b);
    const auto kv = of_row(plan.kv_segment_offsets, plan.kv_segments, b);
    const auto rows = keys_are_rows ? kv : q;
    const auto cols = keys_are_rows ? q : kv;
    // A document's first stretch on the columns' side; the others are chained, ascending.
    struct Chain {
      TokenSpan first{};
      int64_t last = -1;  // in `spans`; -1: the first is the last
    };
    std::map<int32_t, Chain> chains;
    for (const Segment& segment : cols) {
      if (segment.doc < 0) continue;
      const TokenSpan span{segment.begin, segment.end, segment.begin - segment.rank, 0};
      const auto [at, is_first] = chains.try_emplace(segment.doc, Chain{span, -1});
      if (is_first) continue;
      Chain& chain = at->second;
      out.spans.push_back(span);
      (chain.last < 0 ? chain.first : out.spans[static_cast<size_t>(chain.last)]).next =
          static_cast<int32_t>(out.spans.size());
      chain.last = static_cast<int64_t>(out.spans.size()) - 1;
    }
    for (const Segment& segment : rows) {
      const auto at = chains.find(segment.doc);
      if (segment.doc < 0 || at == chains.end()) continue;
      for (int32_t token = segment.begin; token < segment.end; ++token) {
        TokenSpan span = at->second.first;
        if (keys_are_rows) span.origin = segment.rank + token - segment.begin;
        out.tokens[static_cast<size_t>(b * padded_rows + token)] = span;
      }
    }
  }
  // A key says by its own entry where it is in its document; what is chained to it serves every key of the document.
  return out;
}

}  // namespace

Result<PlanImage> MakeImage(const Contract& contract, const PlanView& plan, const ImageNeeds& needs) {
  PlanImage image;
  ImageWriter writer;
  PlanHeader header{};
  std::vector<uint64_t> bits;
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    const bool is_forward = direction == Direction::kForward;
    if (is_forward ? !needs.forward : !needs.backward) continue;
    const bool is_dkv = direction == Direction::kDkv;
    const Worklist& list = plan.Of(direction);
    PlanList& out = header.lists[static_cast<size_t>(direction)];
    out.rows_per_mask = static_cast<int32_t>(list.rows_per_mask);
    if (static_cast<int64_t>(list.slots.size()) > kMost || static_cast<int64_t>(plan.items.size()) >= kMost) {
      return tl::unexpected(TooLarge("slots or items"));
    }

    ItemTable items(plan, list, is_dkv, bits);
    const int64_t columns = is_dkv ? plan.q_len : plan.kv_len;
    const int64_t tile_columns = is_dkv ? list.tile_q : list.tile_kv;
    std::vector<Slot> slots;
    slots.reserve(list.slots.size());
    for (const tessera::Slot& slot : list.slots) {
      const bool is_ragged = (static_cast<int64_t>(slot.index) + 1) * tile_columns > columns;
      const int32_t cleanup = slot.cleanup != 0 ? items.Find(slot.cleanup) : is_ragged ? 1 : 0;
      slots.push_back({static_cast<int32_t>(slot.index), cleanup});
    }

    TokenTables tables;
    if (items.needs_documents()) {
      const int64_t tile_rows = is_dkv ? list.tile_kv : list.tile_q;
      tables = MakeTokens(plan, is_dkv, static_cast<int64_t>(list.rows_per_mask) * tile_rows);
    }
    const RowWork rows = MakeWork(contract, plan, direction, IdleCells(plan, direction, tables.tokens));
    const ClassWork most = TESSERA_TRY(ClassWorkOf(contract, plan, direction));
    if (static_cast<int64_t>(rows.work.size()) > kMost) return tl::unexpected(TooLarge("rows"));
    if (rows.parts > most.parts) {  // no planner's: their sums would have no room
      return Fail(ErrorCode::kPlanMalformed,
                  fmt::format("rows of {} have {} parts, and the contract's widest mask gives {}", ToText(direction),
                              rows.parts, most.parts),
                  "cuda");
    }
    image.tiles[static_cast<size_t>(direction)] = rows.tiles;
    image.work[static_cast<size_t>(direction)] = most;
    out.work = writer.Add(rows.work);
    out.work_count = static_cast<int32_t>(rows.work.size());
    out.splits = writer.Add(rows.splits);
    out.split_count = static_cast<int32_t>(rows.splits.size());
    out.slots = writer.Add(slots);
    out.items = writer.Add(items.items());
    if (is_dkv) out.row_offsets = writer.Add(std::vector<uint32_t>(list.row_offsets.begin(), list.row_offsets.end()));
    out.tokens = writer.Add(tables.tokens);
    out.spans = writer.Add(tables.spans);
  }
  header.mask_of = writer.Add(std::vector<uint32_t>(plan.mask_of.begin(), plan.mask_of.end()));
  std::vector<ValidTokens> valid;
  for (size_t b = 0; b < plan.q_valid.size(); ++b) {
    const int64_t q = plan.q_valid[b] < 0 ? plan.q_len : plan.q_valid[b];
    const int64_t kv = plan.kv_valid[b] < 0 ? plan.kv_len : plan.kv_valid[b];
    valid.push_back({static_cast<int32_t>(q), static_cast<int32_t>(kv)});
  }
  header.valid = writer.Add(valid);
  header.bits = writer.Add(bits);
  image.bytes = TESSERA_TRY(writer.Finish(header));
  return image;
}

}  // namespace tessera::lanes::cuda
