// resolve: takes the contract's static sets and one batch's facts, and gives one exact run set per distinct
// (run-time facts, head class) pair. Pairs that documents or validity forbid are gone from here on.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "plan/layout.h"
#include "plan/mask_pairs.h"
#include "planner/stages.h"

namespace tessera::planner {
namespace {

// Numbers documents whose ids ascend, and gives whether they did; padding is -1.
bool NumberUpwards(std::vector<Segment>& segments) {
  int32_t last = -1;
  int32_t number = 0;
  for (Segment& segment : segments) {
    if (segment.doc < 0) {
      segment.doc = -1;
      segment.rank = 0;
      continue;
    }
    if (segment.doc <= last) return false;
    last = segment.doc;
    segment.doc = number++;
  }
  return true;
}

// Ids become 0, 1, ... in order of first appearance, so that rows cut alike have equal facts whatever their ids.
BatchRow Renumber(const BatchRow& row) {
  BatchRow out = row;
  // Packers number documents upwards, and mostly queries and keys are the same tokens: then counting is enough.
  if (row.q_segments == row.kv_segments && NumberUpwards(out.q_segments)) {
    out.kv_segments = out.q_segments;
    return out;
  }
  out.q_segments = row.q_segments;
  std::unordered_map<int32_t, int32_t> number;
  number.reserve(row.q_segments.size() + row.kv_segments.size());
  for (std::vector<Segment>* segments : {&out.q_segments, &out.kv_segments}) {
    for (Segment& segment : *segments) {
      if (segment.doc < 0) {
        segment.doc = -1;
        segment.rank = 0;
        continue;
      }
      segment.doc = number.try_emplace(segment.doc, static_cast<int32_t>(number.size())).first->second;
    }
  }
  return out;
}

void AddPicks(Hasher& hasher, const QueryPicks& picks) {
  hasher.Bytes(picks.offsets.data(), picks.offsets.size() * sizeof(uint32_t));
  hasher.Bytes(picks.blocks.data(), picks.blocks.size() * sizeof(int32_t));
}

// Of the facts a mask is made with; `picks` where it needs them.
Hash128 FactsDigest(const BatchRow& row, const QueryPicks* picks) {
  Hasher hasher;
  if (picks != nullptr) AddPicks(hasher, *picks);
  for (const std::vector<Segment>* segments : {&row.q_segments, &row.kv_segments}) {
    hasher.Int(static_cast<int64_t>(segments->size()));
    hasher.Bytes(segments->data(), segments->size() * sizeof(Segment));
  }
  hasher.Int(row.q_valid.value_or(-1));
  hasher.Int(row.kv_valid.value_or(-1));
  return hasher.Finish();
}

// KV heads whose group has a head of this class.
int64_t NumKvHeads(const Contract& contract, const MaskSets& sets, size_t head_class) {
  const int64_t group = contract.shape.num_q_heads / contract.shape.num_kv_heads;
  int64_t count = 0;
  int64_t last = -1;
  for (int64_t head = 0; head < contract.shape.num_q_heads; ++head) {
    if (sets.class_of_head[static_cast<size_t>(head)] != head_class || head / group == last) continue;
    last = head / group;
    ++count;
  }
  return count;
}

}  // namespace

Result<Resolved> Resolve(const Contract& contract, const MaskSets& sets, const std::vector<BatchRow>& rows,
                         std::optional<BatchPicks> picks) {
  // Counted before anything grows with it: both may be at their own limits.
  const uint64_t heads =
      static_cast<uint64_t>(contract.shape.batch) * static_cast<uint64_t>(contract.shape.num_q_heads);
  if (heads > plan::kMaxPlanHeads) {
    return Fail(ErrorCode::kPlanTooLarge,
                fmt::format("{} batch rows of {} heads: a plan holds at most {} of both together", contract.shape.batch,
                            contract.shape.num_q_heads, plan::kMaxPlanHeads),
                "resolve");
  }
  Resolved out;
  out.batch = contract.shape.batch;
  out.q_len = contract.shape.q_len;
  out.kv_len = contract.shape.kv_len;
  out.num_q_heads = contract.shape.num_q_heads;
  out.picks = std::move(picks);
  for (const MaskCondition& condition : sets.conditions) out.conditions.push_back(plan::ToCondition(condition));
  for (const BatchRow& row : rows) out.rows.push_back(Renumber(row));

  const ConditionSet all = static_cast<ConditionSet>((size_t{1} << sets.conditions.size()) - 1);
  const uint32_t blocks_bits = plan::BlocksBits(out.conditions);
  std::vector<bool> needs_picks;
  for (const HeadClass& head_class : sets.classes) {
    out.class_terms.push_back(plan::SplitByConditions(sets, head_class));
    out.class_may_store_bits.push_back(head_class.has_bitmap || head_class.has_registered);
    out.class_widest.push_back(head_class.holding[all]);
    needs_picks.push_back(std::ranges::any_of(
        out.class_terms.back(), [&](const ConditionalSet& term) { return (term.conditions & blocks_bits) != 0; }));
    const int64_t per_row = needs_picks.back() ? NumKvHeads(contract, sets, out.class_terms.size() - 1) : 1;
    out.mask_capacity += head_class.uses_conditions ? out.batch * per_row : 1;
  }

  // Batch rows with equal facts share their masks, and KV heads with equal picks do too.
  const int64_t num_kv_heads = contract.shape.num_kv_heads;
  const auto picks_of = [&](uint32_t row, uint32_t kv_head) -> const QueryPicks* {
    return out.picks ? &out.picks->lists[static_cast<size_t>(row * num_kv_heads + kv_head)] : nullptr;
  };
  using Source = std::pair<uint32_t, uint32_t>;  // batch row, KV head
  std::map<Source, Source> first_like;
  std::map<std::pair<bool, Hash128>, Source> seen;
  const auto like = [&](Source source, bool with_picks) {
    const auto found = first_like.find(source);
    if (with_picks && found != first_like.end()) return found->second;
    const Hash128 digest =
        FactsDigest(out.rows[source.first], with_picks ? picks_of(source.first, source.second) : nullptr);
    const Source first = seen.try_emplace({with_picks, digest}, source).first->second;
    if (with_picks) first_like[source] = first;
    return first;
  };
  std::vector<Source> row_like;
  for (uint32_t b = 0; b < out.rows.size(); ++b) row_like.push_back(like({b, 0}, false));

  std::map<std::pair<uint32_t, Source>, uint32_t> mask_index;
  std::map<Source, std::vector<RowSet>> condition_sets;
  const int64_t group = out.num_q_heads / num_kv_heads;
  out.mask_of.reserve(heads);
  constexpr uint32_t kUnknown = UINT32_MAX;
  std::vector<uint32_t> mask_of_class;  // in the batch row at hand, for classes that need no picks
  for (uint32_t b = 0; b < out.rows.size(); ++b) {
    mask_of_class.assign(sets.classes.size(), kUnknown);
    for (int64_t head = 0; head < out.num_q_heads; ++head) {
      const uint32_t head_class = sets.class_of_head[static_cast<size_t>(head)];
      if (mask_of_class[head_class] != kUnknown) {
        out.mask_of.push_back(mask_of_class[head_class]);
        continue;
      }
      Source source{0, 0};
      if (needs_picks[head_class]) {
        source = like({b, static_cast<uint32_t>(head / group)}, true);
      } else if (sets.classes[head_class].uses_conditions) {
        source = row_like[b];
      }
      const auto [found, is_new] =
          mask_index.try_emplace({head_class, source}, static_cast<uint32_t>(out.masks.size()));
      out.mask_of.push_back(found->second);
      if (!needs_picks[head_class]) mask_of_class[head_class] = found->second;
      if (!is_new) continue;
      std::vector<RowSet>& holds = condition_sets[source];
      if (holds.empty() && sets.classes[head_class].uses_conditions) {
        for (const Condition& condition : out.conditions) {
          Result<RowSet> set = plan::PairsWhere(condition, {.row = &out.rows[source.first],
                                                            .picks = picks_of(source.first, source.second),
                                                            .block_tokens = out.picks ? out.picks->block_tokens : 0,
                                                            .q_len = out.q_len,
                                                            .kv_len = out.kv_len});
          if (!set) return tl::unexpected(std::move(set.error()));
          holds.push_back(std::move(*set));
        }
      }
      out.masks.push_back({head_class, source.first, source.second, plan::PairsOf(out.class_terms[head_class], holds)});
    }
  }

  std::vector<Hash128> digests;
  for (const ResolvedMask& mask : out.masks) {
    Hasher hasher;
    mask.runs.AddTo(hasher);
    digests.push_back(hasher.Finish());
  }
  Hasher hasher;
  for (const int64_t value : {out.batch, out.num_q_heads, out.q_len, out.kv_len}) hasher.Int(value);
  for (const uint32_t mask : out.mask_of) hasher.Bytes(digests[mask].data(), digests[mask].size());
  out.mask_digest = hasher.Finish();
  return out;
}

}  // namespace tessera::planner
