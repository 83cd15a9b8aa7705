// The selection tables.
#include "dispatch/select.h"

#include <fmt/format.h>

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
// Such as the usual scale of head dim 128, which is no power of two, or grouped heads, which the stock kernel runs only
// by name. What both refuse stays the stock kernel's, whose reason is the receipt's.
bool IsPlainForOurs(const Contract& contract, const MaskFacts& facts) {
  const auto runs = [&](std::string_view lane) {
    return FindLane(LaneTable(), lane)->refuses(contract, facts).accepted;
  };
  const bool is_grouped = contract.shape.num_q_heads != contract.shape.num_kv_heads;
  return IsPlain(contract, facts) && (is_grouped || !runs(kXlaSplash)) && runs(kXlaPallas);
}

constexpr SelectionRule kRules[] = {
    {TargetKind::kCpu, "any contract", Always, "cpu"},
    {TargetKind::kGpu, "any contract", Always, "cuda"},
    {TargetKind::kTpu, "routing or picks", IsRouted, kXlaPallas},
    {TargetKind::kTpu, "a bitmap", HasBitmap, kXlaPallas},
    {TargetKind::kTpu, "softcap", HasSoftcap, kXlaPallas},
    {TargetKind::kTpu, "a window", HasWindow, kXlaPallas},
    {TargetKind::kTpu, "documents", HasDocuments, kXlaPallas},
    {TargetKind::kTpu, "plain, and not the stock kernel's", IsPlainForOurs, kXlaPallas},
    {TargetKind::kTpu, "plain causal or full", IsPlain, kXlaSplash},
    {TargetKind::kTpu, "anything else", Always, kXlaChunked},
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

std::vector<const MadeLane*> Candidates(std::span<const MadeLane> lanes, const Target& target,
                                        std::string_view selected, std::string_view over) {
  std::vector<const MadeLane*> candidates;
  for (const std::string_view first : {selected, over}) {
    for (const MadeLane& made : lanes) {
      if (made.row->name == first) candidates.push_back(&made);
    }
  }
  for (const bool on_target : {true, false}) {
    for (const MadeLane& made : lanes) {
      const LaneRow& row = *made.row;
      if (((row.targets & KindBit(target.kind)) != 0) != on_target) continue;
      if (row.is_fallback && row.name != selected && row.name != over) candidates.push_back(&made);
    }
  }
  return candidates;
}

}  // namespace tessera
