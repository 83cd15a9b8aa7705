// Who runs when: force, exclude, strict, fallback and failure, with made-up lanes in the real table's rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/fixtures.h"
#include "support/proves.h"

namespace tessera {
namespace {

TEST(Fallback, SelectedLaneAccepts_RunsItAndNoOther) {
  Proves("R53");
  TestTable table;
  TestLane& cpu = table.Build("cpu");
  TestLane& chunked = table.Build("xla_chunked");
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("cpu"), Ask{.strict = true});
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  EXPECT_EQ(cpu.forwards, 1);
  EXPECT_EQ(chunked.forwards, 0);
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_EQ(outcome.receipt.fallback_reason, "");
  EXPECT_EQ(outcome.receipt.kernel, "test_kernel");
  // A lane after the one that ran still has its decision on record.
  EXPECT_TRUE(DecisionOf(outcome.receipt, "reference", "contract").accepted);
  EXPECT_EQ(DecisionOf(outcome.receipt, "cuda", "contract").reason, ReasonCode::kOtherTarget);
  ExpectSound(outcome.receipt);
}

TEST(Fallback, PlanRefused_NextLaneGetsItsOwnPlan) {
  Proves("R50");
  TestTable table;
  TestLane& pallas = table.Build("xla_pallas");
  TestLane& chunked = table.Build("xla_chunked");
  pallas.on_plan = Decision::No(ReasonCode::kScalarMemory, "too much");
  const RunOutcome outcome = table.Run(SmallContract({.softcap = 5}), TargetNamed("v6e"));
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  EXPECT_EQ(pallas.forwards, 0);
  EXPECT_EQ(chunked.forwards, 1);
  EXPECT_EQ(outcome.receipt.selected, "xla_pallas");
  EXPECT_EQ(outcome.receipt.executed, "xla_chunked");
  EXPECT_EQ(outcome.receipt.fallback_reason, "plan.scalar_memory");
  EXPECT_TRUE(DecisionOf(outcome.receipt, "xla_pallas", "contract").accepted);
  EXPECT_EQ(DecisionOf(outcome.receipt, "xla_pallas", "plan").detail, "too much");
  EXPECT_TRUE(DecisionOf(outcome.receipt, "xla_chunked", "plan").accepted);
  EXPECT_EQ(FindDecision(outcome.receipt, "reference", "plan"), nullptr);
  ExpectSound(outcome.receipt);
}

TEST(Fallback, LaneThatCannotHonourTheRequest_IsNotUsed) {
  Proves("R54 B33");
  TestTable table;
  TestLane& chunked = table.Build("xla_chunked");
  chunked.on_contract = Decision::No(ReasonCode::kSplashSoftcap);
  const Contract contract = SmallContract({.softcap = 5});
  const RunOutcome next = table.Run(contract, TargetNamed("v6e"));
  // Off its machine a plan falls back to the fast lane that is here, and only then to the scalar one.
  EXPECT_EQ(next.receipt.executed, "cpu");
  EXPECT_EQ(next.receipt.ran_on, HostDevice().name);
  EXPECT_EQ(table.Run(contract, TargetNamed("v6e"), Ask{.exclude = {"cpu"}}).receipt.executed, "reference");
  const RunOutcome none = table.Run(contract, TargetNamed("v6e"), Ask{.exclude = {"cpu", "reference"}});
  ASSERT_TRUE(none.error.has_value());
  EXPECT_EQ(none.error->code, ErrorCode::kLaneRefused);
  EXPECT_NE(none.error->message.find("splash.softcap"), std::string::npos) << none.error->message;
  EXPECT_EQ(none.receipt.executed, "");
  EXPECT_TRUE(none.outputs.empty());
  EXPECT_EQ(chunked.forwards, 0);
  ExpectSound(none.receipt);
}

TEST(Fallback, OtherLanesOfTheTpuTable_AreNoFallbacks) {
  TestTable table;
  TestLane& pallas = table.Build("xla_pallas");
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("v6e"));
  EXPECT_EQ(outcome.receipt.selected, "splash");
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_EQ(pallas.forwards, 0);
}

TEST(Fallback, LaneFails_RunFailsAndNothingElseIsTried) {
  TestTable table;
  TestLane& cpu = table.Build("cpu");
  cpu.forward_error = Error{ErrorCode::kTooLarge, "the kernel gave up", "cpu", {}};
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("cpu"));
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kTooLarge);
  EXPECT_EQ(outcome.receipt.failed_at, "forward");
  EXPECT_EQ(outcome.receipt.executed, "");
  EXPECT_EQ(outcome.receipt.error, ErrorText(outcome));
  EXPECT_EQ(FindDecision(outcome.receipt, "reference", "plan"), nullptr);
  ExpectSound(outcome.receipt);
}

TEST(Fallback, BackwardFails_ReceiptSaysTheForwardRan) {
  TestTable table;
  table.Build("cpu").backward_error = Error{ErrorCode::kTooLarge, "no", "", {}};
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("cpu"), Ask{.backward = true});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.receipt.failed_at, "backward");
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_TRUE(outcome.outputs.empty());
  ExpectSound(outcome.receipt);
}

TEST(Fallback, WorkspaceBeyondTheMachine_IsAnErrorNotACrash) {
  TestTable table;
  table.Build("cpu").workspace_bytes = int64_t{1} << 60;
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("cpu"));
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kTooLarge);
  EXPECT_EQ(outcome.receipt.failed_at, "workspace");
  EXPECT_EQ(outcome.receipt.workspace_bytes, int64_t{1} << 60);
  ExpectSound(outcome.receipt);
}

TEST(Force, EachLane_RunsExactlyThatLane) {
  Proves("R51 R52 R60 B11");
  const struct {
    const char* lane;
    const char* target;
    const char* mode;
  } cases[] = {{"cuda", "h200", "native"},       {"cpu", "cpu", "native"},         {"splash", "v6e", "payload"},
               {"xla_pallas", "v6e", "payload"}, {"xla_chunked", "v5e", "native"}, {"call_jax", "cpu", "bridge"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.lane);
    TestTable table;
    std::map<std::string, TestLane*> lanes;
    for (const LaneInfo& info : Lanes()) lanes[info.name] = &table.Build(info.name);
    const RunOutcome outcome = table.Run(SmallContract(), TargetNamed(c.target), Ask{.lane = c.lane, .backward = true});
    ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    for (const auto& [name, lane] : lanes) {
      EXPECT_EQ(lane->forwards, name == c.lane ? 1 : 0) << name;
      EXPECT_EQ(lane->backwards, name == c.lane ? 1 : 0) << name;
      if (name != c.lane) {
        EXPECT_EQ(DecisionOf(outcome.receipt, name, "contract").reason, ReasonCode::kNotRequested);
      }
    }
    EXPECT_EQ(outcome.receipt.requested, c.lane);
    EXPECT_EQ(outcome.receipt.selected, c.lane);
    EXPECT_EQ(outcome.receipt.executed, c.lane);
    EXPECT_EQ(outcome.receipt.runtime_mode, c.mode);
    const std::string mode = c.mode;
    EXPECT_EQ(outcome.receipt.owner, mode == "payload" ? "trace_pallas" : mode == "bridge" ? "call_jax" : "");
    EXPECT_EQ(outcome.receipt.selection_rule, "requested by name");
    ExpectSound(outcome.receipt);
  }
}

TEST(Force, Bridge_IsNeverChosenByItself) {
  Proves("R52");
  for (const Target& target : Targets()) {
    TestTable table;
    TestLane& bridge = table.Build("call_jax");
    const RunOutcome outcome = table.Run(SmallContract(), target);
    EXPECT_EQ(outcome.receipt.executed, "cpu");
    EXPECT_EQ(bridge.forwards, 0);
    EXPECT_EQ(DecisionOf(outcome.receipt, "call_jax", "contract").reason, ReasonCode::kOnlyByName);
    // Nor when nothing else is left.
    const RunOutcome alone = table.Run(SmallContract(), target, Ask{.exclude = {"cpu", "reference"}});
    ASSERT_TRUE(alone.error.has_value());
    EXPECT_EQ(alone.error->code, ErrorCode::kLaneRefused);
    EXPECT_EQ(bridge.forwards, 0);
  }
}

// Host code runs here whatever was planned for, and says so; strictly, that is no success.
TEST(Force, HostLaneForAnotherMachine_IsAFallbackWithItsOwnReason) {
  Proves("R51 B11");
  for (const char* lane : {"cpu", "reference"}) {
    for (const char* target : {"h200", "v6e"}) {
      const Contract contract = SmallContract();
      const TensorMap inputs = MakeInputs(contract, 1, false);
      const RunOutcome outcome = tessera::Run(contract, {}, inputs, TargetNamed(target), Ask{.lane = lane});
      ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
      EXPECT_EQ(outcome.receipt.executed, lane);
      EXPECT_EQ(outcome.receipt.fallback_reason, "dispatch.off_machine");
      EXPECT_EQ(outcome.receipt.device.kind, "cpu");
      EXPECT_EQ(outcome.receipt.ran_on, HostDevice().name);
      EXPECT_NE(ToLine(outcome.receipt).find(HostDevice().name), std::string::npos) << ToLine(outcome.receipt);
      ExpectSound(outcome.receipt);
      const RunOutcome strict =
          tessera::Run(contract, {}, inputs, TargetNamed(target), Ask{.lane = lane, .strict = true});
      ASSERT_TRUE(strict.error.has_value());
      EXPECT_EQ(strict.error->code, ErrorCode::kStrictFallback);
      ExpectSound(strict.receipt);
    }
  }
}

TEST(Force, LaneRefuses_NoOtherStepsIn) {
  Proves("R60 B11");
  const struct {
    const char* lane;
    const char* target;
    const char* reason;
  } cases[] = {{"cuda", "h200", WhyNoCuda()},
               {"cuda", "cpu", "dispatch.other_target"},
               {"xla_pallas", "h200", "dispatch.other_target"},
               {"splash", "v6e", "tpu.dtype"},
               {"xla_pallas", "v6e", "tpu.head_dim"},
               {"xla_chunked", "cpu", "xla.no_plugin"},
               {"splash", "cpu", "dispatch.other_target"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.lane);
    const Contract contract = SmallContract({.mask = "causal and window(7, 0)"});
    const RunOutcome outcome =
        tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed(c.target), Ask{.lane = c.lane});
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code, ErrorCode::kLaneRefused);
    EXPECT_NE(outcome.error->message.find(c.reason), std::string::npos) << outcome.error->message;
    EXPECT_EQ(outcome.receipt.selected, c.lane);
    EXPECT_EQ(outcome.receipt.executed, "");
    EXPECT_EQ(outcome.receipt.failed_at, "decide");
    EXPECT_EQ(ReasonText(DecisionOf(outcome.receipt, c.lane, "contract").reason), c.reason);
    EXPECT_TRUE(outcome.outputs.empty());
    ExpectSound(outcome.receipt);
  }
}

TEST(Force, LaneWithoutAnInstructionSet_RefusesOnItsOwnTarget) {
  Proves("R60");
  TestTable table;
  TestLane& cpu = table.Build("cpu");
  cpu.on_contract = Decision::No(ReasonCode::kCpuNoIsa);
  const RunOutcome forced = table.Run(SmallContract(), TargetNamed("cpu"), Ask{.lane = "cpu"});
  ASSERT_TRUE(forced.error.has_value());
  EXPECT_EQ(forced.error->code, ErrorCode::kLaneRefused);
  EXPECT_EQ(forced.receipt.fallback_reason, "cpu.isa");
  ExpectSound(forced.receipt);
  const RunOutcome fallen = table.Run(SmallContract(), TargetNamed("cpu"));
  EXPECT_EQ(fallen.receipt.executed, "reference");
  EXPECT_EQ(fallen.receipt.fallback_reason, "cpu.isa");
  EXPECT_EQ(cpu.forwards, 0);
  ExpectSound(fallen.receipt);
}

TEST(Force, PlanRefused_IsAnErrorToo) {
  TestTable table;
  table.Build("xla_pallas").on_plan = Decision::No(ReasonCode::kScalarMemory);
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("v6e"), Ask{.lane = "xla_pallas"});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kLaneRefused);
  EXPECT_EQ(outcome.receipt.failed_at, "decide_plan");
  EXPECT_EQ(outcome.receipt.fallback_reason, "plan.scalar_memory");
  EXPECT_FALSE(outcome.receipt.plan_fingerprint.empty());
  ExpectSound(outcome.receipt);
}

TEST(Force, UnknownName_IsAnErrorValue) {
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const RunOptions cases[] = {Ask{.lane = "flash"}, Ask{.lane = ""}, Ask{.lane = "Reference"},
                              Ask{.exclude = {"reference", "flash"}}};
  for (const RunOptions& options : cases) {
    const RunOutcome outcome = tessera::Run(contract, {}, inputs, TargetNamed("cpu"), options);
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code, ErrorCode::kLaneUnknown);
    EXPECT_NE(outcome.error->message.find("reference"), std::string::npos) << "the message lists the lanes";
    EXPECT_EQ(outcome.receipt.failed_at, "request");
    EXPECT_EQ(outcome.receipt.contract_key, ContractKey(contract).value());
    ExpectSound(outcome.receipt);
  }
}

TEST(Exclude, SelectedLane_FallsBackWithThatReason) {
  Proves("R53");
  TestTable table;
  TestLane& cpu = table.Build("cpu");
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("cpu"), Ask{.exclude = {"cpu"}});
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  EXPECT_EQ(cpu.forwards, 0);
  EXPECT_EQ(outcome.receipt.selected, "cpu");
  EXPECT_EQ(outcome.receipt.executed, "reference");
  EXPECT_EQ(outcome.receipt.fallback_reason, "dispatch.excluded");
  ExpectSound(outcome.receipt);
}

TEST(Exclude, ForcedLane_Refuses) {
  const Contract contract = SmallContract();
  const RunOutcome outcome = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"),
                                          Ask{.lane = "reference", .exclude = {"reference"}});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kLaneRefused);
  EXPECT_NE(outcome.error->message.find("dispatch.excluded"), std::string::npos);
  ExpectSound(outcome.receipt);
}

TEST(Strict, AnyFallback_IsAnError) {
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, 1, false);
  for (const Target& target : Targets()) {
    // The lane of a CPU is there, so on that target something else must stand in its way.
    const std::vector<std::string> exclude(target.kind == TargetKind::kCpu ? 1 : 0, "cpu");
    const RunOutcome outcome = tessera::Run(contract, {}, inputs, target, Ask{.exclude = exclude, .strict = true});
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code, ErrorCode::kStrictFallback);
    EXPECT_EQ(outcome.receipt.executed, "");
    EXPECT_EQ(outcome.receipt.failed_at, "decide");
    EXPECT_FALSE(outcome.receipt.fallback_reason.empty());
    ExpectSound(outcome.receipt);
  }
  TestTable table;
  table.Build("cpu").on_plan = Decision::No(ReasonCode::kScalarMemory);
  const RunOutcome late = table.Run(contract, TargetNamed("cpu"), Ask{.strict = true});
  ASSERT_TRUE(late.error.has_value());
  EXPECT_EQ(late.error->code, ErrorCode::kStrictFallback);
  EXPECT_EQ(late.receipt.failed_at, "decide_plan");
  const RunOutcome named =
      tessera::Run(contract, {}, inputs, TargetNamed("cpu"), Ask{.lane = "reference", .strict = true});
  EXPECT_FALSE(named.error.has_value()) << ErrorText(named);
}

// An indexer that returned nothing at all: attention to every legal key, and the receipt says why.
TEST(Routing, IndexerReturnedNothing_ReroutesToFull) {
  Proves("R59");
  const Contract contract = SmallContract({.mask = "causal and blocks"});
  const Contract full = SmallContract({.mask = "causal"});
  const Shape& s = contract.shape;
  Batch batch;
  batch.picks = Picks{.block_tokens = 8, .shape = {s.batch, s.q_len, s.num_kv_heads, 0}, .blocks = {}};
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const RunOutcome outcome = tessera::Run(contract, batch, inputs, TargetNamed("cpu"));
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  ExpectSound(outcome.receipt);
  EXPECT_EQ(outcome.receipt.picks.source, kRerouted);
  EXPECT_EQ(outcome.receipt.picks.reason, "indexer_returned_none");
  EXPECT_TRUE(outcome.outputs == tessera::Run(full, {}, inputs, TargetNamed("cpu")).outputs);
}

TEST(Routing, Runs_AndTheReceiptTimesItsStages) {
  Proves("R19 R26");
  const Contract contract = MakeRoutedContract();
  const RunOutcome outcome = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"));
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  ExpectSound(outcome.receipt);
  for (const char* stage : {"score", "expand", "unite", "legalise"}) {
    EXPECT_TRUE(std::ranges::any_of(outcome.receipt.timings, [&](const Timing& timing) {
      return timing.name == std::string("plan.") + stage;
    })) << stage;
  }
  ASSERT_TRUE(outcome.picks.has_value());
  EXPECT_EQ(outcome.picks_report->source, "routing");
  EXPECT_EQ(outcome.receipt.picks.source, "routing");
  EXPECT_EQ(outcome.receipt.picks.kept, outcome.receipt.picks.picks);
  // Without q and k there is nothing to route by, and the planner says so.
  const Result<PlanResult> made = MakePlan(contract, {}, TargetNamed("cpu"));
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kRouteInputs);
}

}  // namespace
}  // namespace tessera
