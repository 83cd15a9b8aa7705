// Leaks of a mask, read off its static sets: what is allowed where a condition does not hold is allowed for any batch.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "contract/mask_sets.h"
#include "tessera/mask_leak.h"

namespace tessera {
namespace {

bool Names(const MaskExpr& expr, TermKind kind) {
  if (expr.op == MaskExpr::Op::kTerm) return expr.term.kind == kind;
  return std::any_of(expr.children.begin(), expr.children.end(),
                     [&](const MaskExpr& child) { return Names(child, kind); });
}

// Keys from `first` on and before `end`, counted from the query's own index.
RowSet Band(const Shape& shape, int64_t first, int64_t end) {
  return RowSet::FromRun({.q_begin = 0,
                          .q_end = shape.q_len,
                          .kv_begin = 0,
                          .kv_end = shape.kv_len,
                          .diag_begin = first,
                          .diag_end = end});
}

// Every condition but document sinks of fewer than `count` tokens.
ConditionSet WithoutSinks(const MaskSets& sets, int64_t count) {
  ConditionSet set = 0;
  for (size_t i = 0; i < sets.conditions.size(); ++i) {
    if (sets.conditions[i].kind == TermKind::kSinkDocument && sets.conditions[i].count < count) continue;
    set |= ConditionSet{1} << i;
  }
  return set;
}

// The pairs that some batch lets attend. All conditions can hold at once, except that where queries and keys are the
// same tokens, a later key has tokens of its document before it, the query itself at least: those between them too,
// unless documents may be in pieces. A document sink of fewer tokens than that does not reach the key.
RowSet Attainable(const Contract& contract, const MaskSets& sets, const HeadClass& head) {
  const Shape& shape = contract.shape;
  RowSet pairs = head.holding[WithoutSinks(sets, MaskRun::kNone)];
  for (const MaskCondition& condition : sets.conditions) {
    if (condition.kind != TermKind::kSinkDocument) continue;
    int64_t reach = condition.count;  // keys j with j - i below it
    if (shape.q_len != shape.kv_len || (sets.documents_may_reappear && condition.count > 1)) reach = MaskRun::kNone;
    const RowSet& holding = head.holding[WithoutSinks(sets, condition.count)];
    pairs = Combine(pairs, Combine(holding, Band(shape, -MaskRun::kNone, reach), SetOp::kAnd), SetOp::kOr);
  }
  return pairs;
}

// The pairs that attend whatever their documents are. A token is never in another document than its own.
RowSet AcrossDocuments(const Contract& contract, const MaskSets& sets, const HeadClass& head) {
  ConditionSet set = 0;
  for (size_t i = 0; i < sets.conditions.size(); ++i) {
    const TermKind kind = sets.conditions[i].kind;
    if (kind != TermKind::kDocuments && kind != TermKind::kSinkDocument) set |= ConditionSet{1} << i;
  }
  if (contract.shape.q_len != contract.shape.kv_len) return head.holding[set];
  return Combine(head.holding[set], Band(contract.shape, 0, 1), SetOp::kMinus);
}

std::optional<MaskLeak> FirstOf(const RowSet& pairs, MaskLeak::Kind kind, int64_t head) {
  if (pairs.IsEmpty()) return std::nullopt;
  const Slab& slab = pairs.slabs().front();
  return MaskLeak{kind, head, slab.q_begin, pairs.Intervals(slab).front().lo.At(slab.q_begin)};
}

}  // namespace

Result<std::vector<MaskLeak>> FindLeaks(const Contract& contract) {
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations));
  }
  const Result<MaskSets> sets = BuildMaskSets(contract);
  if (!sets) return tl::unexpected(sets.error());
  MaskTerm causal;
  causal.kind = TermKind::kCausal;
  const RowSet earlier = TermSet(contract, causal, 0);
  std::optional<MaskLeak> later;
  std::optional<MaskLeak> other;
  for (int64_t head = 0; head < contract.shape.num_q_heads && !(later && other); ++head) {
    const MaskExpr& expr = contract.mask.ForHead(head);
    const HeadClass& head_class = sets->classes[sets->class_of_head[static_cast<size_t>(head)]];
    if (!later && Names(expr, TermKind::kCausal)) {
      later = FirstOf(Combine(Attainable(contract, *sets, head_class), earlier, SetOp::kMinus), MaskLeak::Kind::kLater,
                      head);
    }
    if (!other && (Names(expr, TermKind::kDocuments) || Names(expr, TermKind::kDocumentsEqual))) {
      other = FirstOf(AcrossDocuments(contract, *sets, head_class), MaskLeak::Kind::kOtherDocument, head);
    }
  }
  std::vector<MaskLeak> leaks;
  for (const std::optional<MaskLeak>& leak : {later, other}) {
    if (leak) leaks.push_back(*leak);
  }
  return leaks;
}

std::string ToText(const MaskLeak& leak) {
  const bool is_later = leak.kind == MaskLeak::Kind::kLater;
  return fmt::format("head {} lets query {} see key {}, which {}, although the mask names {}", leak.head, leak.query,
                     leak.key, is_later ? "is later" : "may be of another document", is_later ? "causal" : "documents");
}

}  // namespace tessera
