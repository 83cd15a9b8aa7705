// Fallback, on one page: who may run a prepared request, in which order they are asked, and what is recorded of each
// answer. A lane that refuses is followed by the next; a lane that fails ends it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/prepare.h"

namespace tessera {

struct Failure {
  std::string step;  // as the receipt's failed_at
  Error error;
};

struct BindAsk {
  std::span<const MadeLane> lanes;
  const AttentionOptions& options;
  const Contract& contract;
  const Target& target;
  const Selection& selection;  // the decisions on the contract
  std::string_view selected;   // by the table, the caller or a ledger
  std::string_view over;       // the lane that a ledger put it in place of; often none
  bool compile_only = false;
};

// Before there is a plan: whether any lane that may run this accepted the contract.
std::optional<Failure> CheckAccepted(const BindAsk& ask);

// The first that may run this and accepted the contract; empty where none did.
std::string_view ExpectedLane(const BindAsk& ask);

struct BindResult {
  std::vector<LaneDecision> decisions;  // on the plan, in the order they were asked
  std::string fallback_reason;          // empty: the selected lane, on the machine that was planned for
  const LaneRow* row = nullptr;         // who was bound
  std::unique_ptr<BoundLane> lane;
  std::optional<Failure> failure;
};
// What a plan is bound in place of, if anything.
struct BindEarlier {
  const LaneRow* row = nullptr;
  const BoundLane* lane = nullptr;
  void* stream = nullptr;
  RunMeter* meter = nullptr;  // of who waits for programs to be compiled
};
// Contract and plan outlive what is bound to them.
BindResult BindLane(const BindAsk& ask, const PlanView& plan, const BindEarlier& earlier = {});

std::vector<Pass> PassesOf(const AttentionOptions& options);

}  // namespace tessera
