#include "export/mask_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace tessera::exports {
namespace {

bool IsTerm(const MaskExpr& expr, TermKind kind) { return expr.op == MaskExpr::Op::kTerm && expr.term.kind == kind; }

bool IsRuntime(TermKind kind) {
  return kind == TermKind::kDocuments || kind == TermKind::kDocumentsEqual || kind == TermKind::kValid ||
         kind == TermKind::kSinkDocument || kind == TermKind::kBlocks;
}

// `causal and chunk(s)`: the libraries have one class for it, which knows no offset.
const MaskTerm* ChunkOfChunkedCausal(const MaskExpr& expr, int64_t offset) {
  if (expr.op != MaskExpr::Op::kAnd || expr.children.size() != 2 || offset != 0) return nullptr;
  const MaskExpr& a = expr.children[0];
  const MaskExpr& b = expr.children[1];
  if (IsTerm(a, TermKind::kCausal) && IsTerm(b, TermKind::kChunk)) return &b.term;
  if (IsTerm(b, TermKind::kCausal) && IsTerm(a, TermKind::kChunk)) return &a.term;
  return nullptr;
}

std::optional<MaskFunction> FunctionOf(const MaskExpr& expr, int64_t offset) {
  MaskFunction function{.offset = offset};
  if (IsTerm(expr, TermKind::kCausal)) {
    function.kind = MaskFunction::Kind::kCausal;
  } else if (IsTerm(expr, TermKind::kWindow)) {
    function.kind = MaskFunction::Kind::kLocal;
    function.left = expr.term.first;
    function.right = expr.term.second;
  } else if (const MaskTerm* chunk = ChunkOfChunkedCausal(expr, offset)) {
    function.kind = MaskFunction::Kind::kChunkedCausal;
    function.chunk = chunk->first;
  } else {
    return std::nullopt;
  }
  return function;
}

// How the libraries would name this mask, or nothing when they have no class for some part of it.
std::optional<std::string> NameOf(const MaskExpr& expr, int64_t offset) {
  if (const MaskTerm* chunk = ChunkOfChunkedCausal(expr, offset)) return fmt::format("chunked({})", chunk->first);
  if (IsTerm(expr, TermKind::kFull) || FunctionOf(expr, offset)) return ToText(expr);
  if (expr.op == MaskExpr::Op::kTerm) return std::nullopt;
  std::string name = expr.op == MaskExpr::Op::kAnd ? "and" : "or";
  for (const MaskExpr& child : expr.children) {
    const std::optional<std::string> part = NameOf(child, offset);
    if (!part) return std::nullopt;
    name += fmt::format("({})", *part);
  }
  return name;
}

// The expression where every run-time term holds everywhere, or nothing where that makes it hold everywhere too. What
// is left is spelled as it was: to the libraries `full and causal` is not `causal`.
std::optional<MaskExpr> Widest(const MaskExpr& expr) {
  if (expr.op == MaskExpr::Op::kTerm) return IsRuntime(expr.term.kind) ? std::nullopt : std::optional(expr);
  MaskExpr out;
  out.op = expr.op;
  for (const MaskExpr& child : expr.children) {
    std::optional<MaskExpr> widest = Widest(child);
    if (widest) {
      out.children.push_back(std::move(*widest));
    } else if (expr.op == MaskExpr::Op::kOr) {
      return std::nullopt;
    }
  }
  if (out.children.empty()) return std::nullopt;
  if (out.children.size() == 1) return std::optional<MaskExpr>(std::in_place, MaskExpr(out.children.front()));
  return out;
}

// How far a set reaches before and after each query's own position.
struct Reach {
  int64_t left = 0;
  int64_t right = 0;
};

Reach ReachOf(const RowSet& set, int64_t offset) {
  Reach reach;
  for (const Slab& slab : set.slabs()) {
    const std::span<const Interval> intervals = set.Intervals(slab);
    if (intervals.empty()) continue;
    for (const int64_t q : {slab.q_begin, slab.q_end - 1}) {  // edges are straight: the ends of a slab decide
      reach.left = std::max(reach.left, q + offset - intervals.front().lo.At(q));
      reach.right = std::max(reach.right, intervals.back().hi.At(q) - 1 - (q + offset));
    }
  }
  return reach;
}

void CollectChunks(const MaskExpr& expr, std::vector<int64_t>& chunks) {
  if (IsTerm(expr, TermKind::kChunk)) chunks.push_back(expr.term.first);
  for (const MaskExpr& child : expr.children) CollectChunks(child, chunks);
}

}  // namespace

Result<std::optional<MaskFunction>> FunctionByMeaning(const Contract& contract, const MaskSets& sets) {
  using Kind = MaskFunction::Kind;
  const auto refuse = [](std::string why) {
    return Fail(ErrorCode::kExportMask, std::move(why) + "; bake the documents of a batch instead", "mask");
  };
  const auto other = std::find_if(sets.class_of_head.begin(), sets.class_of_head.end(),
                                  [&](uint32_t head_class) { return head_class != sets.class_of_head.front(); });
  if (other != sets.class_of_head.end()) {
    return refuse(fmt::format("a kernel computes one mask function for all heads, and head {} differs from head 0",
                              other - sets.class_of_head.begin()));
  }
  const RowSet& mask = sets.classes[sets.class_of_head.front()].holding.back();  // every unknown holds
  const auto term = [&](TermKind kind, int64_t first = 0, int64_t second = 0) {
    MaskTerm value;
    value.kind = kind;
    value.first = first;
    value.second = second;
    return TermSet(contract, value, 0);
  };
  if (mask == term(TermKind::kFull)) return std::nullopt;
  const int64_t offset = contract.mask.offset;
  if (mask == term(TermKind::kCausal)) return MaskFunction{.kind = Kind::kCausal, .offset = offset};
  const Reach reach = ReachOf(mask, offset);
  const Reach windows[] = {{reach.left, -1}, {-1, reach.right}, {reach.left, reach.right}};
  for (const Reach& window : windows) {
    if (mask != term(TermKind::kWindow, window.left, window.right)) continue;
    return MaskFunction{.kind = Kind::kLocal, .left = window.left, .right = window.right, .offset = offset};
  }
  std::vector<int64_t> chunks;
  if (offset == 0) CollectChunks(contract.mask.ForHead(0), chunks);
  for (const int64_t chunk : chunks) {
    if (mask != Combine(term(TermKind::kCausal), term(TermKind::kChunk, chunk), SetOp::kAnd)) continue;
    return MaskFunction{.kind = Kind::kChunkedCausal, .chunk = chunk};
  }
  return refuse(
      "apart from documents and validity the mask is none of those a kernel has a function for (every pair, causal, "
      "one window, causal chunks without offset)");
}

HeadForms OneForm(int64_t num_heads, const std::optional<MaskFunction>& function) {
  return {std::vector<uint32_t>(static_cast<size_t>(num_heads), 0), {0}, function};
}

HeadForms GroupHeads(const Contract& contract, std::span<const uint32_t> content_of_head, bool stored) {
  HeadForms forms;
  std::vector<std::string> names;
  for (size_t head = 0; head < content_of_head.size(); ++head) {
    const MaskExpr& expr = contract.mask.ForHead(static_cast<int64_t>(head));
    std::optional<std::string> name;
    if (!stored) name = NameOf(expr, contract.mask.offset);
    if (!name) name = fmt::format("#{}", content_of_head[head]);
    const auto found = std::find(names.begin(), names.end(), *name) - names.begin();
    forms.form_of_head.push_back(static_cast<uint32_t>(found));
    if (static_cast<size_t>(found) < names.size()) continue;
    names.push_back(std::move(*name));
    forms.head_of_form.push_back(static_cast<int64_t>(head));
  }
  if (!stored && forms.NumForms() == 1) forms.function = FunctionOf(contract.mask.ForHead(0), contract.mask.offset);
  return forms;
}

Result<Contract> LeaveSegmentsToRuntime(const Contract& contract, const MaskSets& sets) {
  const auto all = static_cast<ConditionSet>((ConditionSet{1} << sets.conditions.size()) - 1);
  for (const MaskCondition& condition : sets.conditions) {
    if (condition.kind == TermKind::kDocuments || condition.kind == TermKind::kValid) continue;
    return Fail(ErrorCode::kExportMask,
                "`sink(n, document)` cannot be said with segment ids; bake the documents of a batch instead", "mask");
  }
  for (const ConditionSet set : sets.consistent) {
    if (set == all) continue;
    const auto other = std::find_if(sets.class_of_head.begin(), sets.class_of_head.end(), [&](uint32_t head_class) {
      return !sets.classes[head_class].holding[set].IsEmpty();
    });
    if (other == sets.class_of_head.end()) continue;
    return Fail(ErrorCode::kExportMask,
                fmt::format("segment ids restrict every pair of every head, but head {} may attend some pairs whose "
                            "documents or validity differ; bake the documents of a batch instead",
                            other - sets.class_of_head.begin()),
                "mask");
  }
  Contract out = contract;
  for (MaskExpr& expr : out.mask.heads) expr = Widest(expr).value_or(MaskExpr());
  return out;
}

}  // namespace tessera::exports
