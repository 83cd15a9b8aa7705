// resolve: takes the contract's static sets and one batch's facts, and gives one exact run set per distinct
// (run-time facts, head class) pair. Pairs that documents or validity forbid are gone from here on.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "plan/layout.h"
#include "planner/stages.h"

namespace tessera::planner {
namespace {

// A document id may pair many stretches of queries with many of keys; beyond this many the mask is no longer a
// description of documents.
constexpr size_t kMaxDocumentIntervals = size_t{1} << 25;

Condition ToCondition(const Unknown& unknown) {
  switch (unknown.kind) {
    case TermKind::kValid:
      return {ConditionKind::kValid, 0};
    case TermKind::kBlocks:
      return {ConditionKind::kBlocks, 0};
    case TermKind::kSinkDocument:
      return {ConditionKind::kSinkDocument, static_cast<int32_t>(std::min<int64_t>(unknown.count, INT32_MAX))};
    default:
      return {ConditionKind::kDocuments, 0};
  }
}

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

// The pairs of one document, keeping of each document only its first `max_rank` keys.
Result<RowSet> DocumentSet(const BatchRow& row, int64_t max_rank) {
  std::vector<Segment> keys;
  keys.reserve(row.kv_segments.size());
  for (Segment segment : row.kv_segments) {
    if (segment.doc < 0 || segment.rank >= max_rank) continue;
    segment.end = static_cast<int32_t>(std::min<int64_t>(segment.end, segment.begin + max_rank - segment.rank));
    keys.push_back(segment);
  }
  const auto by_doc = [](const Segment& a, const Segment& b) { return a.doc < b.doc; };
  if (!std::is_sorted(keys.begin(), keys.end(), by_doc)) std::stable_sort(keys.begin(), keys.end(), by_doc);
  RowSetBuilder builder;
  builder.Reserve(row.q_segments.size(), keys.size());
  std::vector<Interval> intervals;
  size_t total = 0;
  auto hint = keys.begin();
  for (const Segment& queries : row.q_segments) {
    if (queries.doc < 0) continue;
    if (hint == keys.end() || hint->doc != queries.doc) {
      hint = std::lower_bound(keys.begin(), keys.end(), queries, by_doc);
    }
    intervals.clear();
    for (; hint != keys.end() && hint->doc == queries.doc; ++hint) {
      // Two stretches of one document can touch where padding with another id was dropped between them.
      if (!intervals.empty() && intervals.back().hi.offset == hint->begin) {
        intervals.back().hi.offset = hint->end;
      } else {
        intervals.push_back({{hint->begin, 0}, {hint->end, 0}});
      }
    }
    total += intervals.size();
    if (total > kMaxDocumentIntervals) {
      return Fail(ErrorCode::kPlanTooLarge,
                  fmt::format("document ids alternate too often: more than {} pairs of stretches share an id",
                              kMaxDocumentIntervals),
                  "resolve");
    }
    builder.Append(queries.begin, queries.end, intervals);
  }
  return builder.Finish();
}

// The pairs of queries and keys in blocks they picked; blocks that touch become one interval.
RowSet PickedSet(const QueryPicks& picks, int64_t block_tokens, int64_t q_len, int64_t kv_len) {
  RowSetBuilder builder;
  std::vector<Interval> intervals;
  for (int64_t begin = 0; begin < q_len;) {
    const std::span<const int32_t> blocks = picks.Of(begin);
    int64_t end = begin + 1;
    while (end < q_len && std::ranges::equal(picks.Of(end), blocks)) ++end;
    intervals.clear();
    for (const int32_t block : blocks) {
      const auto key = static_cast<int32_t>(block * block_tokens);
      const auto key_end = static_cast<int32_t>(std::min(key + block_tokens, kv_len));
      if (!intervals.empty() && intervals.back().hi.offset == key) {
        intervals.back().hi.offset = key_end;
      } else {
        intervals.push_back({{key, 0}, {key_end, 0}});
      }
    }
    builder.Append(begin, end, intervals);
    begin = end;
  }
  return builder.Finish();
}

// What one mask is made with: a batch row's facts, and the picks of one of its KV heads (null: not known).
struct Facts {
  const BatchRow* row = nullptr;
  const QueryPicks* picks = nullptr;
  int64_t block_tokens = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
};

Result<RowSet> ConditionSet(const Condition& condition, const Facts& facts) {
  const BatchRow& row = *facts.row;
  switch (condition.kind) {
    case ConditionKind::kValid:
      return RowSet::FromRun({.q_begin = 0,
                              .q_end = row.q_valid.value_or(facts.q_len),
                              .kv_begin = 0,
                              .kv_end = row.kv_valid.value_or(facts.kv_len)});
    case ConditionKind::kSinkDocument:
      return DocumentSet(row, condition.count);
    case ConditionKind::kDocuments:
      return DocumentSet(row, facts.kv_len);
    case ConditionKind::kBlocks:
      if (facts.picks != nullptr) return PickedSet(*facts.picks, facts.block_tokens, facts.q_len, facts.kv_len);
      break;
  }
  return RowSet();
}

// Exactly the pairs that a head class lets attend, given the set of each condition.
RowSet PairsOf(const std::vector<ConditionalSet>& terms, const std::vector<RowSet>& holds) {
  RowSet runs;
  for (const ConditionalSet& term : terms) {
    RowSet allowed = term.set;
    for (size_t c = 0; c < holds.size(); ++c) {
      if ((term.conditions >> c & 1U) != 0) allowed = Combine(allowed, holds[c], SetOp::kAnd);
    }
    runs = runs.IsEmpty() ? std::move(allowed) : Combine(runs, allowed, SetOp::kOr);
  }
  return runs;
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

// Splits a head class into terms that do not overlap: what a set of conditions adds to all smaller sets.
std::vector<ConditionalSet> SplitByConditions(const MaskSets& sets, const HeadClass& head_class) {
  std::vector<ConditionalSet> terms;
  for (const UnknownSet set : sets.consistent) {
    RowSet added = head_class.holding[set];
    for (const UnknownSet smaller : sets.consistent) {
      if (smaller == set || (smaller & set) != smaller || added.IsEmpty()) continue;
      if (head_class.holding[smaller].IsEmpty()) continue;
      added = Combine(added, head_class.holding[smaller], SetOp::kMinus);
    }
    if (!added.IsEmpty()) terms.push_back({static_cast<uint16_t>(Reduce(sets.unknowns, set)), std::move(added)});
  }
  return terms;
}

}  // namespace

Result<Resolved> Resolve(const Contract& contract, const MaskSets& sets, const std::vector<BatchRow>& rows,
                         std::optional<BatchPicks> picks) {
  Resolved out;
  out.batch = contract.shape.batch;
  out.q_len = contract.shape.q_len;
  out.kv_len = contract.shape.kv_len;
  out.num_q_heads = contract.shape.num_q_heads;
  out.picks = std::move(picks);
  for (const Unknown& unknown : sets.unknowns) out.conditions.push_back(ToCondition(unknown));
  for (const BatchRow& row : rows) out.rows.push_back(Renumber(row));

  const UnknownSet all = static_cast<UnknownSet>((size_t{1} << sets.unknowns.size()) - 1);
  const uint32_t blocks_bits = plan::BlocksBits(out.conditions);
  std::vector<bool> needs_picks;
  for (const HeadClass& head_class : sets.classes) {
    out.class_terms.push_back(SplitByConditions(sets, head_class));
    out.class_may_store_bits.push_back(head_class.has_bitmap || head_class.has_registered);
    out.class_widest.push_back(head_class.holding[all]);
    needs_picks.push_back(std::ranges::any_of(
        out.class_terms.back(), [&](const ConditionalSet& term) { return (term.conditions & blocks_bits) != 0; }));
    const int64_t per_row = needs_picks.back() ? NumKvHeads(contract, sets, out.class_terms.size() - 1) : 1;
    out.mask_capacity += head_class.uses_unknowns ? out.batch * per_row : 1;
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
  for (uint32_t b = 0; b < out.rows.size(); ++b) {
    for (int64_t head = 0; head < out.num_q_heads; ++head) {
      const uint32_t head_class = sets.class_of_head[static_cast<size_t>(head)];
      Source source{0, 0};
      if (needs_picks[head_class]) {
        source = like({b, static_cast<uint32_t>(head / group)}, true);
      } else if (sets.classes[head_class].uses_unknowns) {
        source = row_like[b];
      }
      const auto [found, is_new] =
          mask_index.try_emplace({head_class, source}, static_cast<uint32_t>(out.masks.size()));
      out.mask_of.push_back(found->second);
      if (!is_new) continue;
      std::vector<RowSet>& holds = condition_sets[source];
      if (holds.empty() && sets.classes[head_class].uses_unknowns) {
        for (const Condition& condition : out.conditions) {
          Result<RowSet> set = ConditionSet(condition, {.row = &out.rows[source.first],
                                                        .picks = picks_of(source.first, source.second),
                                                        .block_tokens = out.picks ? out.picks->block_tokens : 0,
                                                        .q_len = out.q_len,
                                                        .kv_len = out.kv_len});
          if (!set) return tl::unexpected(std::move(set.error()));
          holds.push_back(std::move(*set));
        }
      }
      out.masks.push_back({head_class, source.first, source.second, PairsOf(out.class_terms[head_class], holds)});
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

Result<std::vector<RowSet>> LegalPairs(const Contract& contract, const MaskSets& sets,
                                       const std::vector<BatchRow>& rows) {
  const Shape& shape = contract.shape;
  std::vector<Condition> conditions;
  for (const Unknown& unknown : sets.unknowns) conditions.push_back(ToCondition(unknown));
  std::vector<std::vector<ConditionalSet>> class_terms;
  for (const HeadClass& head_class : sets.classes) class_terms.push_back(SplitByConditions(sets, head_class));
  const RowSet everything =
      RowSet::FromRun({.q_begin = 0, .q_end = shape.q_len, .kv_begin = 0, .kv_end = shape.kv_len});
  const int64_t group = shape.num_q_heads / shape.num_kv_heads;
  std::vector<RowSet> legal;
  for (const BatchRow& row : rows) {
    std::vector<RowSet> holds;
    for (const Condition& condition : conditions) {
      if (condition.kind == ConditionKind::kBlocks) {
        holds.push_back(everything);
        continue;
      }
      Result<RowSet> set = ConditionSet(condition, {.row = &row, .q_len = shape.q_len, .kv_len = shape.kv_len});
      if (!set) return tl::unexpected(std::move(set.error()));
      holds.push_back(std::move(*set));
    }
    std::vector<RowSet> of_class;
    for (const std::vector<ConditionalSet>& terms : class_terms) of_class.push_back(PairsOf(terms, holds));
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      uint32_t head_class = sets.class_of_head[static_cast<size_t>(kv_head * group)];
      RowSet pairs = of_class[head_class];
      for (int64_t head = kv_head * group + 1; head < (kv_head + 1) * group; ++head) {
        if (sets.class_of_head[static_cast<size_t>(head)] == head_class) continue;
        head_class = sets.class_of_head[static_cast<size_t>(head)];
        pairs = Combine(pairs, of_class[head_class], SetOp::kOr);
      }
      legal.push_back(std::move(pairs));
    }
  }
  return legal;
}

}  // namespace tessera::planner
