// What a mask needs and amounts to, by meaning.
#include <algorithm>

#include "base/try.h"
#include "contract/mask_sets.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

bool HasWindow(const MaskExpr& expr) {
  return (expr.op == MaskExpr::Op::kTerm && expr.term.kind == TermKind::kWindow) ||
         std::any_of(expr.children.begin(), expr.children.end(), HasWindow);
}

// Takes the reach limits off every window. A right reach of 0 stays: it is causality, not a window.
void OpenWindows(MaskExpr& expr) {
  if (expr.op == MaskExpr::Op::kTerm && expr.term.kind == TermKind::kWindow) {
    expr.term.first = -1;
    if (expr.term.second > 0) expr.term.second = -1;
  }
  for (MaskExpr& child : expr.children) OpenWindows(child);
}

Result<bool> WindowRestricts(const Contract& contract, const MaskSets& sets) {
  if (std::none_of(contract.mask.heads.begin(), contract.mask.heads.end(), HasWindow)) return false;
  Contract open = contract;
  for (MaskExpr& expr : open.mask.heads) OpenWindows(expr);
  return BuildMaskSets(open).map(
      [&](const MaskSets& open_sets) { return KeyOf(open, open_sets) != KeyOf(contract, sets); });
}

}  // namespace

MaskFacts NeedsOf(const MaskSets& sets) {
  MaskFacts facts;
  facts.needs_documents = sets.Needs(TermKind::kDocuments);
  facts.documents_may_reappear = sets.documents_may_reappear;
  facts.needs_valid = sets.Needs(TermKind::kValid);
  facts.needs_blocks = sets.Needs(TermKind::kBlocks);
  facts.names_documents = sets.names_documents;
  facts.names_valid = sets.names_valid;
  facts.names_blocks = sets.names_blocks;
  return facts;
}

Result<MaskFacts> DescribeMask(const Contract& contract) {
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations));
  }
  return BuildMaskSets(contract).and_then([&](const MaskSets& sets) { return DescribeMaskWith(contract, sets); });
}

Result<MaskFacts> DescribeMaskWith(const Contract& contract, const MaskSets& sets) {
  MaskFacts facts = NeedsOf(sets);
  const auto all_are = [&](TermKind kind) {
    MaskTerm term;
    term.kind = kind;
    const RowSet set = TermSet(contract, term, 0);
    return sets.conditions.empty() && std::all_of(sets.classes.begin(), sets.classes.end(),
                                                  [&](const HeadClass& head) { return head.holding[0] == set; });
  };
  facts.is_full = all_are(TermKind::kFull);
  facts.is_causal = all_are(TermKind::kCausal);
  if (!facts.is_full && !facts.is_causal) facts.has_window = TESSERA_TRY(WindowRestricts(contract, sets));
  facts.has_bitmap =
      std::any_of(sets.classes.begin(), sets.classes.end(), [](const HeadClass& head) { return head.has_bitmap; });
  return facts;
}

}  // namespace tessera
