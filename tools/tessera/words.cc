// See words.h.
#include "words.h"

#include <fmt/format.h>

namespace tessera::program {
namespace {

std::string WindowInWords(const MaskTerm& term, const std::string& position) {
  const std::string left = fmt::format("at most {} before", term.first);
  const std::string right = fmt::format("at most {} after", term.second);
  if (term.first < 0 && term.second < 0) return "any key (a window without limits)";
  if (term.first == 0 && term.second == 0) return fmt::format("the key is at {} itself", position);
  if (term.first < 0) return fmt::format("the key is {} {}", right, position);
  if (term.second < 0) return fmt::format("the key is {} {}", left, position);
  if (term.second == 0) return fmt::format("the key is {} {}, and not after it", left, position);
  if (term.first == 0) return fmt::format("the key is {} {}, and not before it", right, position);
  return fmt::format("the key is {} and {} {}", left, right, position);
}

void AddWords(const MaskExpr& expr, int64_t offset, size_t depth, std::string& text) {
  const std::string margin(depth * 2, ' ');
  if (expr.op == MaskExpr::Op::kTerm) {
    text += fmt::format("{}- {}\n", margin, TermInWords(expr.term, offset));
    return;
  }
  text += fmt::format("{}{} of:\n", margin, expr.op == MaskExpr::Op::kAnd ? "all" : "any");
  for (const MaskExpr& child : expr.children) AddWords(child, offset, depth + 1, text);
}

std::string FromRow(int32_t distance) { return distance == 0 ? "row" : fmt::format("row{:+}", distance); }

std::string ConditionInWords(const Condition& condition) {
  switch (condition.kind) {
    case ConditionKind::kDocuments:
      return "same document";
    case ConditionKind::kValid:
      return "both valid";
    case ConditionKind::kBlocks:
      return "block picked";
    case ConditionKind::kSinkDocument:
      return fmt::format("key among the first {} of the query's document", condition.count);
  }
  return "unknown condition";
}

}  // namespace

std::string TermInWords(const MaskTerm& term, int64_t offset) {
  const std::string position = offset == 0 ? "the query" : fmt::format("the query's position (its row {:+})", offset);
  switch (term.kind) {
    case TermKind::kFull:
      return "any key";
    case TermKind::kCausal:
      return fmt::format("the key is not after {}", position);
    case TermKind::kWindow:
      return WindowInWords(term, position);
    case TermKind::kChunk:
      return fmt::format("the key is in the same chunk of {} as {}", term.first, position);
    case TermKind::kPrefix:
      return fmt::format("the key and {} are among the first {}", position, term.first);
    case TermKind::kSink:
      return fmt::format("the key is among the first {} of the row", term.first);
    case TermKind::kSinkDocument:
      return fmt::format("the key is among the first {} of the query's own document", term.first);
    case TermKind::kDocuments:
      return "query and key belong to the same document (an id may not reappear later in a row)";
    case TermKind::kDocumentsEqual:
      return "query and key have the same document id (an id may reappear)";
    case TermKind::kValid:
      return "query and key lie inside the row's valid prefix";
    case TermKind::kBlocks:
      return "the key's block was picked for the query";
    case TermKind::kBitmap:
      return fmt::format("the bitmap {} has a 1 there", term.path);
    case TermKind::kRegistered: {
      MaskExpr expr;
      expr.term = term;
      return fmt::format("the registered term {} holds there", ToText(expr));
    }
  }
  return "unknown term";
}

std::string MaskInWords(const MaskExpr& expr, int64_t offset) {
  std::string text;
  AddWords(expr, offset, 0, text);
  return text;
}

std::string ConditionsInWords(const PlanView& plan, uint16_t conditions) {
  std::string text;
  for (size_t bit = 0; bit < plan.conditions.size() && bit < 16; ++bit) {
    if ((conditions >> bit & 1) == 0) continue;
    if (!text.empty()) text += " and ";
    text += ConditionInWords(plan.conditions[bit]);
  }
  return text;
}

std::string ItemInWords(const PlanView& plan, const CleanupItem& item) {
  std::string text =
      fmt::format("rows {}..{}, keys {}..{}", item.q_begin, item.q_end - 1, item.kv_begin, item.kv_end - 1);
  const bool below = item.diag_begin > kNoDiagBegin;
  const bool above = item.diag_end < kNoDiagEnd;
  if (below && above) {
    text += fmt::format(", {} <= key <= {}", FromRow(item.diag_begin), FromRow(item.diag_end - 1));
  } else if (below) {
    text += ", key >= " + FromRow(item.diag_begin);
  } else if (above) {
    text += ", key <= " + FromRow(item.diag_end - 1);
  }
  if (item.kind == ItemKind::kBits) text += fmt::format(", where stored tile {} has a 1", item.bits);
  if (item.kind == ItemKind::kRows) text += fmt::format(", of the rows that picked it (stored rows {})", item.bits);
  const std::string conditions = ConditionsInWords(plan, item.conditions);
  return conditions.empty() ? text : text + "; " + conditions;
}

}  // namespace tessera::program
