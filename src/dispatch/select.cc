// The selection tables and the public SelectLane.
#include "dispatch/select.h"

#include <fmt/format.h>

#include "tessera/run.h"

namespace tessera {
namespace {

bool Always(const Contract&, const MaskFacts&) { return true; }
bool IsRouted(const Contract& contract, const MaskFacts& facts) {
  return contract.routing.has_value() || facts.needs_blocks;
}
bool HasBitmap(const Contract&, const MaskFacts& facts) { return facts.has_bitmap; }
bool HasSoftcap(const Contract& contract, const MaskFacts&) { return contract.score.softcap > 0; }
bool HasWindow(const Contract&, const MaskFacts& facts) { return facts.has_window; }
bool HasDocuments(const Contract&, const MaskFacts& facts) { return facts.needs_documents; }
bool IsPlain(const Contract&, const MaskFacts& facts) { return facts.is_causal || facts.is_full; }

constexpr SelectionRule kRules[] = {
    {TargetKind::kCpu, "any contract", Always, "cpu"},
    {TargetKind::kGpu, "any contract", Always, "cuda"},
    {TargetKind::kTpu, "routing or picks", IsRouted, "xla_pallas"},
    {TargetKind::kTpu, "a bitmap", HasBitmap, "xla_pallas"},
    {TargetKind::kTpu, "softcap", HasSoftcap, "xla_pallas"},
    {TargetKind::kTpu, "a window", HasWindow, "xla_pallas"},
    {TargetKind::kTpu, "documents", HasDocuments, "xla_pallas"},
    {TargetKind::kTpu, "plain causal or full", IsPlain, "splash"},
    {TargetKind::kTpu, "anything else", Always, "xla_chunked"},
};

}  // namespace

std::span<const SelectionRule> SelectionRules() { return kRules; }

const SelectionRule& SelectRule(const Contract& contract, const MaskFacts& facts, const Target& target) {
  const SelectionRule* last = nullptr;
  for (const SelectionRule& rule : kRules) {
    if (rule.target != target.kind) continue;
    last = &rule;
    if (rule.matches(contract, facts)) break;
  }
  return *last;
}

std::string ToText(const SelectionRule& rule) {
  return fmt::format("{}: {} -> {}", ToText(rule.target), rule.when, rule.lane);
}

std::vector<const LaneRow*> Candidates(std::span<const LaneRow> table, std::string_view selected,
                                       std::string_view over) {
  std::vector<const LaneRow*> candidates;
  if (const LaneRow* row = FindLane(table, selected)) candidates.push_back(row);
  if (const LaneRow* row = FindLane(table, over)) candidates.push_back(row);
  for (const LaneRow& row : table) {
    if (row.is_fallback && row.name != selected && row.name != over) candidates.push_back(&row);
  }
  return candidates;
}

Result<Selection> SelectLane(const Contract& contract, const Target& target) {
  Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  const SelectionRule& rule = SelectRule(contract, *facts, target);
  const XlaOptions xla = AskedXla({});
  Selection selection{.lane = std::string(rule.lane), .rule = ToText(rule), .decisions = {}};
  for (const LaneRow& row : LaneTable()) {
    selection.decisions.push_back(
        {std::string(row.name), "contract", DecideContract(row, contract, *facts, target, xla)});
  }
  return selection;
}

}  // namespace tessera
