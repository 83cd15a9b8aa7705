// See operands.h.
#include "lanes/xla/operands.h"

#include <algorithm>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::lanes::xla {
namespace {

using stablehlo::ItemColumn;

std::array<int32_t, stablehlo::kItemColumns> ToRow(const PlanView& plan, const CleanupItem& item) {
  std::array<int32_t, stablehlo::kItemColumns> row{};
  const auto set = [&](ItemColumn column, int64_t value) {
    row[static_cast<size_t>(column)] = static_cast<int32_t>(value);
  };
  set(ItemColumn::kKind, static_cast<int64_t>(item.kind));
  set(ItemColumn::kQBegin, item.q_begin);
  set(ItemColumn::kQEnd, item.q_end);
  set(ItemColumn::kKvBegin, item.kv_begin);
  set(ItemColumn::kKvEnd, item.kv_end);
  set(ItemColumn::kDiagBegin, item.diag_begin);
  set(ItemColumn::kDiagEnd, item.diag_end);
  if (item.kind != ItemKind::kBand) set(ItemColumn::kWord, static_cast<int64_t>(plan.bit_tile_offsets[item.bits] * 2));
  int32_t needs = 0;
  int32_t sink_count = stablehlo::kAnyCount;
  for (size_t c = 0; c < plan.conditions.size(); ++c) {
    if ((item.conditions >> c & 1U) == 0) continue;
    const Condition& condition = plan.conditions[c];
    if (condition.kind == ConditionKind::kValid) needs |= stablehlo::kNeedsValid;
    if (condition.kind == ConditionKind::kDocuments) needs |= stablehlo::kNeedsDocuments;
    if (condition.kind == ConditionKind::kSinkDocument) {
      needs |= stablehlo::kNeedsDocuments;
      sink_count = std::min(sink_count, condition.count);
    }
  }
  set(ItemColumn::kConditions, needs);
  set(ItemColumn::kSinkCount, sink_count);
  return row;
}

// Every pair of a tile. For full tiles that reach over the last token: the lengths alone bound them.
CleanupItem WholeTile(const stablehlo::ProgramSpec& spec) {
  CleanupItem item;
  for (const stablehlo::ListShape& list : spec.lists) {
    item.q_end = std::max(item.q_end, static_cast<int32_t>(list.tile_q));
    item.kv_end = std::max(item.kv_end, static_cast<int32_t>(list.tile_kv));
  }
  return item;
}

class Filler {
 public:
  Filler(const stablehlo::ProgramSpec& spec, const PlanView& plan) : spec_(spec), plan_(plan) {}

  void Items(std::vector<int32_t>& out) const {
    size_t at = 0;
    for (const CleanupItem& item : plan_.items) {
      const auto row = ToRow(plan_, item);
      std::copy(row.begin(), row.end(), out.begin() + static_cast<int64_t>(at));
      at += row.size();
    }
    const auto whole = ToRow(plan_, WholeTile(spec_));
    std::copy(whole.begin(), whole.end(), out.begin() + static_cast<int64_t>(at));
  }

  void Words(std::vector<int32_t>& out) const {
    for (size_t i = 0; i < plan_.bit_words.size(); ++i) {
      out[2 * i] = static_cast<int32_t>(static_cast<uint32_t>(plan_.bit_words[i]));
      out[2 * i + 1] = static_cast<int32_t>(static_cast<uint32_t>(plan_.bit_words[i] >> 32));
    }
  }

  void Counts(Direction direction, std::vector<int32_t>& out) const {
    const Worklist& list = plan_.Of(direction);
    for (size_t row = 0; row + 1 < list.row_offsets.size(); ++row) {
      out[row] = static_cast<int32_t>(list.Row(row).size());
    }
  }

  void Slots(Direction direction, std::vector<int32_t>& out) const {
    const Worklist& list = plan_.Of(direction);
    for (size_t row = 0; row + 1 < list.row_offsets.size(); ++row) {
      const std::span<const Slot> slots = list.Row(row);
      int32_t* at = out.data() + row * list.width_capacity * stablehlo::kSlotColumns;
      for (const Slot& slot : slots) {
        const auto [begin, end] = ItemsOf(direction, static_cast<int64_t>(row % list.rows_per_mask), slot);
        *at++ = static_cast<int32_t>(slot.index);
        *at++ = begin;
        *at++ = end;
      }
    }
  }

  // Negative ids belong to no document; -1 for a query and -2 for a key, so that none equals another.
  void Documents(PlanTables& tables) const {
    for (int64_t b = 0; b < plan_.batch; ++b) {
      const TokenFacts facts = SpreadTokenFacts(plan_, b);
      const auto copy = [&](const std::vector<int32_t>& from, int64_t len, int32_t none, std::vector<int32_t>& out) {
        const auto to = out.begin() + b * len;
        if (from.empty()) std::fill_n(to, len, none);
        std::transform(from.begin(), from.end(), to, [&](int32_t value) { return value < 0 ? none : value; });
      };
      copy(facts.q_doc, plan_.q_len, -1, tables["q_documents"]);
      copy(facts.kv_doc, plan_.kv_len, -2, tables["kv_documents"]);
      copy(facts.kv_rank, plan_.kv_len, 0, tables["kv_ranks"]);
    }
  }

  static void Valid(std::span<const int32_t> counts, int64_t len, std::vector<int32_t>& out) {
    for (size_t b = 0; b < counts.size(); ++b) out[b] = counts[b] < 0 ? static_cast<int32_t>(len) : counts[b];
  }

 private:
  std::pair<int32_t, int32_t> ItemsOf(Direction direction, int64_t row, const Slot& slot) const {
    if (slot.cleanup != 0) {
      return {static_cast<int32_t>(plan_.cleanup_offsets[slot.cleanup]),
              static_cast<int32_t>(plan_.cleanup_offsets[slot.cleanup + 1])};
    }
    const Worklist& list = plan_.Of(direction);
    const bool is_dkv = direction == Direction::kDkv;
    const int64_t q_tile = is_dkv ? slot.index : row;
    const int64_t kv_tile = is_dkv ? row : slot.index;
    const bool is_inside = (q_tile + 1) * list.tile_q <= plan_.q_len && (kv_tile + 1) * list.tile_kv <= plan_.kv_len;
    if (is_inside) return {0, 0};
    const auto whole = static_cast<int32_t>(plan_.items.size());
    return {whole, whole + 1};
  }

  const stablehlo::ProgramSpec& spec_;
  const PlanView& plan_;
};

}  // namespace

PlanTables MakeTables(const stablehlo::ProgramSpec& spec, const PlanView& plan,
                      const std::vector<stablehlo::NamedType>& inputs, int32_t padding) {
  const Filler fill(spec, plan);
  PlanTables tables;
  for (const stablehlo::NamedType& input : inputs) {
    if (stablehlo::IsFloat(input.type.element)) continue;
    tables[input.name].assign(static_cast<size_t>(stablehlo::NumElements(input.type)), padding);
  }
  fill.Items(tables["items"]);
  fill.Words(tables["words"]);
  std::copy(plan.mask_of.begin(), plan.mask_of.end(), tables["mask_of"].begin());
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    const auto slots = tables.find(stablehlo::ListInput(direction, "slots"));
    if (slots == tables.end()) continue;
    fill.Slots(direction, slots->second);
    fill.Counts(direction, tables[stablehlo::ListInput(direction, "counts")]);
  }
  if (spec.has_documents) fill.Documents(tables);
  if (spec.has_valid) {
    Filler::Valid(plan.q_valid, plan.q_len, tables["q_valid"]);
    Filler::Valid(plan.kv_valid, plan.kv_len, tables["kv_valid"]);
  }
  return tables;
}

}  // namespace tessera::lanes::xla
