// Mask expressions as canonical text, and their equality.
#include <fmt/format.h>

#include "base/spelling.h"
#include "contract/mask_registry.h"
#include "contract/mask_terms.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

void AppendTerm(const MaskTerm& term, std::string* out) {
  switch (term.kind) {
    case TermKind::kWindow:
      *out += fmt::format("window({}, {})", term.first, term.second);
      return;
    case TermKind::kChunk:
    case TermKind::kPrefix:
    case TermKind::kSink:
      *out += fmt::format("{}({})", FindTermSpec(term.kind)->word, term.first);
      return;
    case TermKind::kSinkDocument:
      *out += fmt::format("sink({}, document)", term.first);
      return;
    case TermKind::kBitmap:
      *out += fmt::format("bitmap({}, {})", QuoteText(term.path), QuoteText(term.bitmap ? term.bitmap->digest : ""));
      return;
    case TermKind::kRegistered:
      *out += term.registered ? RegisteredText(*term.registered, term.parameters) : "?";
      return;
    default: {
      const TermSpec* spec = FindTermSpec(term.kind);
      *out += spec == nullptr ? "?" : spec->usage;
    }
  }
}

// `inside` is the operator of the enclosing expression: an `or` inside an `and` is the only case for parentheses.
void Append(const MaskExpr& expr, MaskExpr::Op inside, std::string* out) {
  if (expr.op == MaskExpr::Op::kTerm) {
    AppendTerm(expr.term, out);
    return;
  }
  const bool parentheses = expr.op == MaskExpr::Op::kOr && inside == MaskExpr::Op::kAnd;
  const std::string_view joint = expr.op == MaskExpr::Op::kAnd ? " and " : " or ";
  if (parentheses) *out += '(';
  bool first = true;
  for (const MaskExpr& child : expr.children) {
    if (!first) *out += joint;
    first = false;
    Append(child, expr.op, out);
  }
  if (parentheses) *out += ')';
}

}  // namespace

bool MaskTerm::operator==(const MaskTerm& other) const {
  if (kind != other.kind || first != other.first || second != other.second || path != other.path) return false;
  // Two registrations are two terms, whatever their names: functions cannot be compared.
  if (parameters != other.parameters || registered != other.registered) return false;
  if ((bitmap == nullptr) != (other.bitmap == nullptr)) return false;
  return bitmap == nullptr || bitmap == other.bitmap || bitmap->digest == other.bitmap->digest;
}

std::string ToText(const MaskExpr& expr) {
  std::string out;
  Append(expr, MaskExpr::Op::kOr, &out);
  return out;
}

std::string ArgumentProblem(const TermSpec& spec, int index, int64_t value) {
  const TermArgument& argument = spec.arguments[static_cast<size_t>(index)];
  if (value >= argument.min && value <= kMaxLength) return {};
  const std::string_view hint = spec.kind == TermKind::kWindow ? " (-1 = unlimited)" : "";
  return fmt::format("expected {} of {} from {} to {}{}, found {}", argument.name, spec.usage, argument.min, kMaxLength,
                     hint, value);
}

}  // namespace tessera
