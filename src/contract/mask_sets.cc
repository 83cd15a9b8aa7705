#include "contract/mask_sets.h"

#include <algorithm>
#include <map>
#include <optional>

#include "contract/mask_registry.h"

namespace tessera {
namespace {

// Whether `a` can hold only where `b` does.
bool Implies(const MaskCondition& a, const MaskCondition& b) {
  if (a.kind != TermKind::kSinkDocument) return false;
  return b.kind == TermKind::kDocuments || (b.kind == TermKind::kSinkDocument && b.count > a.count);
}

RowSet Everything(const Shape& shape) {
  return RowSet::FromRun({.q_begin = 0, .q_end = shape.q_len, .kv_begin = 0, .kv_end = shape.kv_len});
}

RowSet ChunkSet(const Shape& shape, int64_t offset, int64_t size) {
  RowSetBuilder builder;
  // Keys start at 0, so rows with p < 0 share a chunk with none of them.
  for (int64_t p = std::max<int64_t>(offset, 0); p < shape.q_len + offset;) {
    const int64_t chunk_begin = p / size * size;
    const int64_t chunk_end = chunk_begin + size;
    builder.AppendRun({.q_begin = p - offset,
                       .q_end = std::min(chunk_end - offset, shape.q_len),
                       .kv_begin = chunk_begin,
                       .kv_end = std::min(chunk_end, shape.kv_len)});
    p = chunk_end;
  }
  return builder.Finish();
}

RowSet BitmapSet(const Shape& shape, const Bitmap& bitmap, int64_t head) {
  RowSetBuilder builder;
  std::vector<Interval> intervals;
  const uint8_t* row = bitmap.cells.data() + (bitmap.heads == 1 ? 0 : head) * shape.q_len * shape.kv_len;
  for (int64_t q = 0; q < shape.q_len; ++q, row += shape.kv_len) {
    intervals.clear();
    for (int64_t k = 0; k < shape.kv_len;) {
      if (row[k] == 0) {
        ++k;
        continue;
      }
      const int64_t begin = k;
      while (k < shape.kv_len && row[k] != 0) ++k;
      intervals.push_back({{static_cast<int32_t>(begin), 0}, {static_cast<int32_t>(k), 0}});
    }
    builder.Append(q, q + 1, intervals);
  }
  return builder.Finish();
}

bool IsRunTime(const MaskTerm& term) {
  switch (term.kind) {
    case TermKind::kDocuments:
    case TermKind::kDocumentsEqual:
    case TermKind::kValid:
    case TermKind::kBlocks:
      return true;
    case TermKind::kSinkDocument:
      return term.first > 0;  // the first 0 tokens of a document are no tokens
    default:
      return false;
  }
}

MaskCondition ToMaskCondition(const MaskTerm& term) {
  if (term.kind == TermKind::kDocumentsEqual) return {TermKind::kDocuments, 0};
  return {term.kind, term.kind == TermKind::kSinkDocument ? term.first : 0};
}

template <class Visit>
void ForEachTerm(const MaskExpr& expr, const Visit& visit) {
  if (expr.op == MaskExpr::Op::kTerm) visit(expr.term);
  for (const MaskExpr& child : expr.children) ForEachTerm(child, visit);
}

// Evaluates one head's expression under different assignments; static terms are built once.
class Evaluator {
 public:
  Evaluator(const Contract& contract, const std::vector<MaskCondition>& conditions, int64_t head)
      : contract_(contract), conditions_(conditions), head_(head) {}

  RowSet Eval(const MaskExpr& expr, ConditionSet holding) {
    if (expr.op == MaskExpr::Op::kTerm) return Term(expr.term, holding);
    const SetOp op = expr.op == MaskExpr::Op::kAnd ? SetOp::kAnd : SetOp::kOr;
    RowSet result = Eval(expr.children.front(), holding);
    for (size_t i = 1; i < expr.children.size(); ++i) {
      if (op == SetOp::kAnd && result.IsEmpty()) break;
      result = Combine(result, Eval(expr.children[i], holding), op);
    }
    return result;
  }

  // What went wrong with a registered term, if anything; the sets are then of no use.
  const std::optional<Error>& fault() const { return fault_; }

 private:
  RowSet Term(const MaskTerm& term, ConditionSet holding) {
    if (IsRunTime(term)) {
      const auto at = std::find(conditions_.begin(), conditions_.end(), ToMaskCondition(term)) - conditions_.begin();
      return (holding >> at & 1U) != 0 ? Everything(contract_.shape) : RowSet();
    }
    const auto [found, is_new] = built_.try_emplace(&term);
    if (is_new) found->second = term.kind == TermKind::kRegistered ? Registered(term) : TermSet(contract_, term, head_);
    return found->second;
  }

  RowSet Registered(const MaskTerm& term) {
    Result<std::shared_ptr<const RowSet>> set = RegisteredSet(contract_, term, head_);
    if (set) return **set;
    if (!fault_) fault_ = std::move(set.error());
    return {};
  }

  const Contract& contract_;
  const std::vector<MaskCondition>& conditions_;
  int64_t head_;
  std::map<const MaskTerm*, RowSet> built_;
  std::optional<Error> fault_;
};

std::vector<MaskCondition> CollectConditions(const Contract& contract) {
  std::vector<MaskCondition> conditions;
  for (const MaskExpr& expr : contract.mask.heads) {
    ForEachTerm(expr, [&](const MaskTerm& term) {
      if (!IsRunTime(term)) return;
      const MaskCondition condition = ToMaskCondition(term);
      if (std::find(conditions.begin(), conditions.end(), condition) == conditions.end())
        conditions.push_back(condition);
    });
  }
  const auto rank = [](const MaskCondition& condition) {
    switch (condition.kind) {
      case TermKind::kDocuments:
        return 0;
      case TermKind::kValid:
        return 1;
      case TermKind::kBlocks:
        return 2;
      default:
        return 3;
    }
  };
  std::sort(conditions.begin(), conditions.end(), [&](const MaskCondition& a, const MaskCondition& b) {
    return rank(a) != rank(b) ? rank(a) < rank(b) : a.count < b.count;
  });
  return conditions;
}

std::vector<ConditionSet> ConsistentSets(const std::vector<MaskCondition>& conditions) {
  std::vector<ConditionSet> sets;
  for (ConditionSet set = 0; set < (ConditionSet{1} << conditions.size()); ++set) {
    if (Closure(conditions, set) == set) sets.push_back(set);
  }
  return sets;
}

// Whether letting condition `i` hold ever changes a set, all else equal.
bool IsEssential(const MaskSets& sets, size_t i) {
  const ConditionSet bit = ConditionSet{1} << i;
  for (const ConditionSet set : sets.consistent) {
    if ((set & bit) != 0 || Closure(sets.conditions, set | bit) != (set | bit)) continue;
    for (const HeadClass& head_class : sets.classes) {
      if (!(head_class.holding[set] == head_class.holding[set | bit])) return true;
    }
  }
  return false;
}

void DropCondition(MaskSets& sets, size_t i) {
  std::vector<MaskCondition> kept = sets.conditions;
  kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
  const ConditionSet low = (ConditionSet{1} << i) - 1;
  for (HeadClass& head_class : sets.classes) {
    std::vector<RowSet> holding(size_t{1} << kept.size());
    for (const ConditionSet set : ConsistentSets(kept)) {
      const ConditionSet old = (set & low) | ((set & ~low) << 1);
      holding[set] = head_class.holding[Closure(sets.conditions, old)];
    }
    head_class.holding = std::move(holding);
  }
  sets.conditions = std::move(kept);
  sets.consistent = ConsistentSets(sets.conditions);
}

}  // namespace

ConditionSet Closure(const std::vector<MaskCondition>& conditions, ConditionSet set) {
  for (size_t i = 0; i < conditions.size(); ++i) {
    if ((set >> i & 1U) == 0) continue;
    for (size_t j = 0; j < conditions.size(); ++j) {
      if (Implies(conditions[i], conditions[j])) set |= ConditionSet{1} << j;
    }
  }
  return set;
}

ConditionSet Reduce(const std::vector<MaskCondition>& conditions, ConditionSet set) {
  ConditionSet reduced = set;
  for (size_t i = 0; i < conditions.size(); ++i) {
    for (size_t j = 0; j < conditions.size(); ++j) {
      if ((set >> i & 1U) != 0 && Implies(conditions[i], conditions[j])) reduced &= ~(ConditionSet{1} << j);
    }
  }
  return reduced;
}

bool MaskSets::Needs(TermKind kind) const {
  return std::any_of(conditions.begin(), conditions.end(), [&](const MaskCondition& condition) {
    return condition.kind == kind || (kind == TermKind::kDocuments && condition.kind == TermKind::kSinkDocument);
  });
}

RowSet TermSet(const Contract& contract, const MaskTerm& term, int64_t head) {
  const Shape& shape = contract.shape;
  const int64_t offset = contract.mask.offset;
  MaskRun run{.q_begin = 0, .q_end = shape.q_len, .kv_begin = 0, .kv_end = shape.kv_len};
  switch (term.kind) {
    case TermKind::kFull:
      break;
    case TermKind::kCausal:
      run.diag_end = offset + 1;
      break;
    case TermKind::kWindow:
      // Past 2^31 a reach is no limit at any length we accept, and clamping keeps the sums in range.
      if (term.first >= 0) run.diag_begin = offset - std::min<int64_t>(term.first, int64_t{1} << 31);
      if (term.second >= 0) run.diag_end = offset + std::min<int64_t>(term.second, int64_t{1} << 31) + 1;
      break;
    case TermKind::kChunk:
      return ChunkSet(shape, offset, term.first);
    case TermKind::kPrefix:
      run.q_end = std::min(shape.q_len, term.first - offset);
      run.kv_end = std::min(shape.kv_len, term.first);
      break;
    case TermKind::kSink:
      run.kv_end = std::min(shape.kv_len, term.first);
      break;
    case TermKind::kBitmap:
      return BitmapSet(shape, *term.bitmap, head);
    default:
      return {};  // run-time terms have no static set; sink(0, document) is empty
  }
  return RowSet::FromRun(run);
}

Result<MaskSets> BuildMaskSets(const Contract& contract) {
  MaskSets sets;
  sets.conditions = CollectConditions(contract);
  sets.consistent = ConsistentSets(sets.conditions);

  bool reappear = false;
  bool strict = false;
  // Heads that are spelled alike, and have no term that tells heads apart, are evaluated once.
  std::vector<int64_t> evaluated_heads;
  const auto is_per_head = [](const MaskExpr& expr) {
    bool per_head = false;
    ForEachTerm(expr, [&](const MaskTerm& term) {
      per_head |= term.kind == TermKind::kBitmap && term.bitmap->heads > 1;
      per_head |= term.kind == TermKind::kRegistered && term.registered->per_head;
    });
    return per_head;
  };
  for (int64_t head = 0; head < contract.shape.num_q_heads; ++head) {
    const MaskExpr& expr = contract.mask.ForHead(head);
    const bool per_head = is_per_head(expr);
    const auto twin = std::find_if(evaluated_heads.begin(), evaluated_heads.end(),
                                   [&](int64_t other) { return !per_head && contract.mask.ForHead(other) == expr; });
    if (twin != evaluated_heads.end()) {
      sets.class_of_head.push_back(sets.class_of_head[static_cast<size_t>(*twin)]);
      continue;
    }
    evaluated_heads.push_back(head);
    HeadClass head_class;
    head_class.holding.resize(size_t{1} << sets.conditions.size());
    Evaluator evaluator(contract, sets.conditions, head);
    for (const ConditionSet set : sets.consistent) head_class.holding[set] = evaluator.Eval(expr, set);
    if (evaluator.fault()) return tl::unexpected(*evaluator.fault());
    ForEachTerm(expr, [&](const MaskTerm& term) {
      reappear |= term.kind == TermKind::kDocumentsEqual;
      strict |= term.kind == TermKind::kDocuments;
      head_class.has_bitmap |= term.kind == TermKind::kBitmap;
      if (term.kind == TermKind::kRegistered) {
        head_class.has_registered = true;
        sets.registered.push_back(RegisteredText(*term.registered, term.parameters));
      }
      sets.names_documents |= term.kind == TermKind::kDocuments || term.kind == TermKind::kDocumentsEqual ||
                              term.kind == TermKind::kSinkDocument;
      sets.names_valid |= term.kind == TermKind::kValid;
      sets.names_blocks |= term.kind == TermKind::kBlocks;
    });
    const auto same = std::find(sets.classes.begin(), sets.classes.end(), head_class);
    sets.class_of_head.push_back(static_cast<uint32_t>(same - sets.classes.begin()));
    if (same == sets.classes.end()) {
      sets.classes.push_back(std::move(head_class));
    } else {
      same->has_bitmap |= head_class.has_bitmap;
      same->has_registered |= head_class.has_registered;
    }
  }
  std::sort(sets.registered.begin(), sets.registered.end());
  sets.registered.erase(std::unique(sets.registered.begin(), sets.registered.end()), sets.registered.end());
  for (size_t i = sets.conditions.size(); i-- > 0;) {
    if (!IsEssential(sets, i)) DropCondition(sets, i);
  }
  for (HeadClass& head_class : sets.classes) {
    for (const ConditionSet set : sets.consistent) {
      head_class.uses_conditions |= !(head_class.holding[set] == head_class.holding[0]);
    }
  }
  sets.documents_may_reappear = reappear && !strict && sets.Needs(TermKind::kDocuments);
  return sets;
}

}  // namespace tessera
