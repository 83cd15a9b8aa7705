// Which lane a target's table names, as data. Selection looks at the contract and the target only; whether the
// selected lane can run is a separate question with a separate answer.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "dispatch/lane_table.h"
#include "tessera/contract.h"
#include "tessera/lane.h"
#include "tessera/target.h"

namespace tessera {

// One line of a target's table. The first line that matches selects.
struct SelectionRule {
  TargetKind target = TargetKind::kCpu;
  std::string_view when;
  bool (*matches)(const Contract& contract, const MaskFacts& facts) = nullptr;
  std::string_view lane;
};

// Every target's table; each target's last line matches everything.
std::span<const SelectionRule> SelectionRules();
const SelectionRule& SelectRule(const Contract& contract, const MaskFacts& facts, const Target& target);
// "tpu: softcap -> xla_pallas".
std::string ToText(const SelectionRule& rule);

// The selected lane, then the one a ledger put it in place of (`over`, often none), then the table's fallbacks: those
// that run on the target, in order, then those whose code runs here instead, the fast one before `reference`. A lane
// that is no fallback (a bridge, say) is never here unless it was selected.
std::vector<const MadeLane*> Candidates(std::span<const MadeLane> lanes, const Target& target,
                                        std::string_view selected, std::string_view over = {});

}  // namespace tessera
