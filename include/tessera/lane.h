// Lanes: who can run a plan, and why the others cannot.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

enum class ReasonCode : uint16_t {
#define TESSERA_REASON(name, text, meaning) name,
#include "tessera/reasons.def"
#undef TESSERA_REASON
};
std::string_view ReasonText(ReasonCode reason);  // "cpu.not_built"
std::string_view ReasonMeaning(ReasonCode reason);

// Never a bool: "yes", or "no, because" with a catalogued reason and the facts of this case.
struct Decision {
  bool accepted = true;
  ReasonCode reason = ReasonCode::kNone;
  std::string detail;
  static Decision Yes() { return {}; }
  static Decision No(ReasonCode reason, std::string detail = {}) { return {false, reason, std::move(detail)}; }
  bool operator==(const Decision&) const = default;
};

struct LaneInfo {
  std::string name;
  std::string description;
  std::string runtime_mode;       // how it would run: native, payload, bridge, interpreted, compile-only
  std::vector<std::string> isas;  // what it can run with on this machine, best first; none when it is not built
};

// Every lane there is, in order of preference, `reference` last.
std::vector<LaneInfo> Lanes();

struct LaneDecision {
  std::string lane;
  std::string step;  // "contract" or "plan"
  Decision decision;
  bool operator==(const LaneDecision&) const = default;
};

// Which lane the target's table names for this contract, and why; and what every lane says of it. Selection looks
// only at the contract and the target; whether the lane can really run is the decisions' business.
struct Selection {
  std::string lane;
  std::string rule;  // the matching line of the table, in words
  std::vector<LaneDecision> decisions;
};
Result<Selection> SelectLane(const Contract& contract, const Target& target);

}  // namespace tessera
#pragma GCC visibility pop
