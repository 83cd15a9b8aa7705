// The table of lanes as values, and what one row says of a contract. Whoever asks brings the table, so that tests can
// put lanes of their own in it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/cuda/cuda.h"
#include "lanes/lane.h"
#include "lanes/xla/xla.h"
#include "tessera/contract.h"
#include "tessera/lane.h"
#include "tessera/target.h"

namespace tessera {

// A set of target kinds, one bit each.
using TargetKinds = uint8_t;
constexpr TargetKinds KindBit(TargetKind kind) { return static_cast<TargetKinds>(1u << static_cast<unsigned>(kind)); }

// All that lanes are made from; a row hands each lane what that one uses.
struct LaneContext {
  std::string isa = "auto";
  std::string machine_isa = {};
  int64_t threads = 1;
  XlaOptions xla = {};
  bool compile_only = false;
  bool emit_only = false;
  std::shared_ptr<lanes::xla::State> xla_state = {};
  MemorySpace memory = {};
  std::shared_ptr<lanes::cuda::State> cuda_state = {};
  std::string python = {};
};
using MakeLane = std::function<std::shared_ptr<const Lane>(const LaneContext& context)>;

struct LaneRow {
  std::string_view name;
  std::string_view runtime_mode;
  TargetKinds targets = 0;                // that it runs on
  bool is_host = false;                   // its code also runs here, for a target that is not
  bool is_fallback = false;               // `auto` may use it when the selected lane refuses
  bool has_programs = false;              // that can be compiled without being run
  MemoryKind memory = MemoryKind::kHost;  // where it takes tensors
  ReasonCode not_built = ReasonCode::kNone;
  Decision (*refuses)(const Contract& contract, const MaskFacts& facts) = nullptr;
  MakeLane make = {};  // empty: not built
  std::string_view determinism;
  std::string_view description;

  bool IsOnlyByName() const { return runtime_mode == "bridge"; }
};

// Every lane, in order of preference.
std::span<const LaneRow> LaneTable();
const LaneRow* FindLane(std::span<const LaneRow> table, std::string_view name);

// A row with its lane, made; null for one that is not built.
struct MadeLane {
  const LaneRow* row = nullptr;
  std::shared_ptr<const Lane> lane;
};
std::vector<MadeLane> MakeLanes(std::span<const LaneRow> table, const LaneContext& context);

// The instruction sets a lane can run with here, best first; none for a lane that is not built.
std::vector<std::string_view> IsasOf(const MadeLane& made);

// What the row says of the contract: the target first, then what the lane cannot do, then whether it is built, then the
// lane itself. `compile_only`: of compiling without running.
Decision DecideContract(const MadeLane& made, const Contract& contract, const MaskFacts& facts, const Target& target,
                        bool compile_only = false);

std::vector<LaneInfo> InfosOf(std::span<const MadeLane> lanes);

}  // namespace tessera
