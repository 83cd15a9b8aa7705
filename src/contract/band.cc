#include "contract/band.h"

#include <algorithm>

namespace tessera {
namespace {

void Tighten(std::optional<int64_t>& bound, int64_t other) { bound = bound ? std::min(*bound, other) : other; }

// Adds what the expression asks for; false for one that is no band.
bool Add(const MaskExpr& expr, Band& band) {
  if (expr.op == MaskExpr::Op::kAnd) {
    return std::all_of(expr.children.begin(), expr.children.end(), [&](const MaskExpr& e) { return Add(e, band); });
  }
  if (expr.op != MaskExpr::Op::kTerm) return false;
  switch (expr.term.kind) {
    case TermKind::kFull:
      return true;
    case TermKind::kCausal:
      Tighten(band.right, 0);
      return true;
    case TermKind::kWindow:
      if (expr.term.first >= 0) Tighten(band.left, expr.term.first);
      if (expr.term.second >= 0) Tighten(band.right, expr.term.second);
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<Band> BandOf(const Contract& contract, const MaskFacts& facts) {
  const int64_t offset = contract.mask.offset;
  if (facts.is_full) return Band{.offset = offset};
  if (facts.is_causal) return Band{.offset = offset, .right = 0};
  std::optional<Band> same;
  for (const MaskExpr& head : contract.mask.heads) {
    Band band{.offset = offset};
    if (!Add(head, band) || (same && *same != band)) return std::nullopt;
    same = band;
  }
  return same;
}

bool HasKeyForEveryRow(const Band& band, int64_t q_len, int64_t kv_len) {
  if (q_len == 0) return true;
  const int64_t first = band.offset;
  const int64_t last = band.offset + q_len - 1;
  if (kv_len == 0 || (band.left && band.right && *band.left + *band.right < 0)) return false;
  return (!band.right || first + *band.right >= 0) && (!band.left || last - *band.left < kv_len);
}

}  // namespace tessera
