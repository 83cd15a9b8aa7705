// The table of lanes as values, and what one row says of a contract. A run takes its table as an argument, so that
// tests can put lanes of their own in it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lanes/lane.h"
#include "tessera/contract.h"
#include "tessera/lane.h"
#include "tessera/target.h"

namespace tessera {

// A set of target kinds, one bit each.
using TargetKinds = uint8_t;
constexpr TargetKinds KindBit(TargetKind kind) { return static_cast<TargetKinds>(1u << static_cast<unsigned>(kind)); }

struct LaneRow {
  std::string_view name;
  std::string_view runtime_mode;
  TargetKinds targets = 0;
  bool is_fallback = false;
  ReasonCode not_built = ReasonCode::kNone;
  Decision (*refuses)(const Contract& contract, const MaskFacts& facts) = nullptr;
  const Lane* lane = nullptr;
  std::string_view determinism;
  std::string_view description;
};

// Every lane, in order of preference.
std::span<const LaneRow> LaneTable();
const LaneRow* FindLane(std::span<const LaneRow> table, std::string_view name);

// The instruction sets a row's lane can run with here, best first; none for a lane that is not built.
std::vector<std::string_view> IsasOf(const LaneRow& row);

// What the row says of the contract: the target first, then what the lane cannot do, then whether it is built. Of
// running it, or of compiling alone.
enum class Asked : uint8_t { kRun, kCompile };
Decision DecideContract(const LaneRow& row, const Contract& contract, const MaskFacts& facts, const Target& target,
                        const XlaOptions& xla = {}, Asked asked = Asked::kRun);

}  // namespace tessera
