#include "plan/mask_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera::plan {
namespace {

// A document id may pair many stretches of queries with many of keys; beyond this many the mask is no longer a
// description of documents.
constexpr size_t kMaxDocumentIntervals = size_t{1} << 25;

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

}  // namespace

Condition ToCondition(const MaskCondition& condition) {
  switch (condition.kind) {
    case TermKind::kValid:
      return {ConditionKind::kValid, 0};
    case TermKind::kBlocks:
      return {ConditionKind::kBlocks, 0};
    case TermKind::kSinkDocument:
      return {ConditionKind::kSinkDocument, static_cast<int32_t>(std::min<int64_t>(condition.count, INT32_MAX))};
    default:
      return {ConditionKind::kDocuments, 0};
  }
}

std::vector<ConditionalSet> SplitByConditions(const MaskSets& sets, const HeadClass& head_class) {
  std::vector<ConditionalSet> terms;
  for (const ConditionSet set : sets.consistent) {
    RowSet added = head_class.holding[set];
    for (const ConditionSet smaller : sets.consistent) {
      if (smaller == set || (smaller & set) != smaller || added.IsEmpty()) continue;
      if (head_class.holding[smaller].IsEmpty()) continue;
      added = Combine(added, head_class.holding[smaller], SetOp::kMinus);
    }
    if (!added.IsEmpty()) terms.push_back({static_cast<uint16_t>(Reduce(sets.conditions, set)), std::move(added)});
  }
  return terms;
}

Result<RowSet> PairsWhere(const Condition& condition, const MaskInputs& inputs) {
  const BatchRow& row = *inputs.row;
  switch (condition.kind) {
    case ConditionKind::kValid:
      return RowSet::FromRun({.q_begin = 0,
                              .q_end = row.q_valid.value_or(inputs.q_len),
                              .kv_begin = 0,
                              .kv_end = row.kv_valid.value_or(inputs.kv_len)});
    case ConditionKind::kSinkDocument:
      return DocumentSet(row, condition.count);
    case ConditionKind::kDocuments:
      return DocumentSet(row, inputs.kv_len);
    case ConditionKind::kBlocks:
      if (inputs.picks != nullptr) return PickedSet(*inputs.picks, inputs.block_tokens, inputs.q_len, inputs.kv_len);
      break;
  }
  return RowSet();
}

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

Result<std::vector<RowSet>> LegalPairs(const Contract& contract, const MaskSets& sets,
                                       const std::vector<BatchRow>& rows) {
  const Shape& shape = contract.shape;
  std::vector<Condition> conditions;
  for (const MaskCondition& condition : sets.conditions) conditions.push_back(ToCondition(condition));
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
      Result<RowSet> set = PairsWhere(condition, {.row = &row, .q_len = shape.q_len, .kv_len = shape.kv_len});
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

}  // namespace tessera::plan
