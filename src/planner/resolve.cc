// resolve: takes the contract's static sets and one batch's facts, and gives one exact run set per distinct
// (run-time facts, head class) pair. Pairs that documents or validity forbid are gone from here on.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

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

// Ids become 0, 1, ... in order of first appearance, so that rows cut alike have equal facts whatever their ids.
BatchRow Renumber(const BatchRow& row) {
  BatchRow out = row;
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

Hash128 FactsDigest(const BatchRow& row) {
  Hasher hasher;
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

Result<RowSet> ConditionSet(const Condition& condition, const BatchRow& row, int64_t q_len, int64_t kv_len) {
  switch (condition.kind) {
    case ConditionKind::kValid:
      return RowSet::FromRun(
          {.q_begin = 0, .q_end = row.q_valid.value_or(q_len), .kv_begin = 0, .kv_end = row.kv_valid.value_or(kv_len)});
    case ConditionKind::kSinkDocument:
      return DocumentSet(row, condition.count);
    case ConditionKind::kDocuments:
      return DocumentSet(row, kv_len);
    case ConditionKind::kBlocks:
      break;
  }
  return Fail(ErrorCode::kRoutingNotExecuted, "the mask uses `blocks`; run without it, or wait for the routing stages",
              "mask.expr");
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

Result<Resolved> Resolve(const Contract& contract, const MaskSets& sets, const std::vector<BatchRow>& rows) {
  Resolved out;
  out.batch = contract.shape.batch;
  out.q_len = contract.shape.q_len;
  out.kv_len = contract.shape.kv_len;
  out.num_q_heads = contract.shape.num_q_heads;
  for (const Unknown& unknown : sets.unknowns) out.conditions.push_back(ToCondition(unknown));
  for (const BatchRow& row : rows) out.rows.push_back(Renumber(row));

  const UnknownSet all = static_cast<UnknownSet>((size_t{1} << sets.unknowns.size()) - 1);
  for (const HeadClass& head_class : sets.classes) {
    out.class_terms.push_back(SplitByConditions(sets, head_class));
    out.class_may_store_bits.push_back(head_class.has_bitmap || head_class.has_registered);
    out.class_widest.push_back(head_class.holding[all]);
    out.mask_capacity += head_class.uses_unknowns ? out.batch : 1;
  }

  // Batch rows with equal facts share their masks.
  std::vector<uint32_t> first_like;
  std::map<Hash128, uint32_t> seen;
  for (const BatchRow& row : out.rows) {
    const auto next = static_cast<uint32_t>(first_like.size());
    first_like.push_back(seen.try_emplace(FactsDigest(row), next).first->second);
  }
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> mask_index;
  std::map<uint32_t, std::vector<RowSet>> condition_sets;
  for (uint32_t b = 0; b < out.rows.size(); ++b) {
    for (int64_t head = 0; head < out.num_q_heads; ++head) {
      const uint32_t head_class = sets.class_of_head[static_cast<size_t>(head)];
      const uint32_t row = sets.classes[head_class].uses_unknowns ? first_like[b] : 0;
      const auto [found, is_new] = mask_index.try_emplace({head_class, row}, static_cast<uint32_t>(out.masks.size()));
      out.mask_of.push_back(found->second);
      if (!is_new) continue;
      std::vector<RowSet>& facts = condition_sets[row];
      if (facts.empty() && sets.classes[head_class].uses_unknowns) {
        for (const Condition& condition : out.conditions) {
          Result<RowSet> set = ConditionSet(condition, out.rows[row], out.q_len, out.kv_len);
          if (!set) return tl::unexpected(std::move(set.error()));
          facts.push_back(std::move(*set));
        }
      }
      RowSet runs;
      for (const ConditionalSet& term : out.class_terms[head_class]) {
        RowSet allowed = term.set;
        for (size_t c = 0; c < out.conditions.size(); ++c) {
          if ((term.conditions >> c & 1U) != 0) allowed = Combine(allowed, facts[c], SetOp::kAnd);
        }
        runs = runs.IsEmpty() ? std::move(allowed) : Combine(runs, allowed, SetOp::kOr);
      }
      out.masks.push_back({head_class, row, std::move(runs)});
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
