// Compiling without running: what the receipt says of it, who refuses, and that nothing runs. With made-up programs:
// tests/xla compiles real ones for this machine's CPU, tests/tpu for a TPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/compiling_lane.h"
#include "support/proves.h"

namespace tessera {
namespace {

std::set<std::string> TimedSteps(const Receipt& receipt) {
  std::set<std::string> names;
  for (const Timing& timing : receipt.timings) {
    if (timing.name.rfind("plan.", 0) != 0) names.insert(timing.name);
  }
  return names;
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Compile, Receipt_SaysWhatWasMadeAndThatNothingRan) {
  Proves("R53");
  const CompileTable table;
  const Contract contract = SmallContract({.mask = "causal and window(9, 0)"});
  const RunOutcome outcome = table.Compile(contract, TargetNamed("v6e"), Ask{.backward = true});
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  const Receipt& r = outcome.receipt;
  ExpectSound(r);
  EXPECT_EQ(r.executed, "xla_chunked");
  EXPECT_EQ(r.runtime_mode, "compile-only");
  EXPECT_EQ(r.selected, "xla_pallas");
  EXPECT_EQ(r.fallback_reason, "tpu.head_dim");
  EXPECT_EQ(r.kernel, "test_kernel");
  EXPECT_EQ(r.compiles, 2);
  EXPECT_EQ(r.cache_hits, 0);
  EXPECT_EQ(r.device.topology, "v6e:1x1");
  EXPECT_EQ(ProgramOf(r, "forward").name, "forward_" + r.class_key);
  EXPECT_EQ(ProgramOf(r, "backward").name, "backward_" + r.class_key);
  EXPECT_EQ(r.output_digest, "");
  EXPECT_TRUE(outcome.outputs.empty());
  EXPECT_GT(r.tiles.partial + r.tiles.full, 0);
  EXPECT_GT(r.tiles_backward.partial + r.tiles_backward.full, 0);
  EXPECT_EQ(r.tiles_executed, 0);
  EXPECT_EQ(r.tiles_executed_backward, 0);
  EXPECT_EQ(TimedSteps(r),
            (std::set<std::string>{"prepare", "plan", "bind", "compile.forward", "compile.backward", "total"}));
  EXPECT_EQ(table.lane.compiled, (std::vector<Pass>{Pass::kForward, Pass::kBackward}));
  EXPECT_EQ(table.lane.forwards + table.lane.backwards, 0);
  EXPECT_TRUE(Contains(ToLine(r), "xla_chunked compiled for v6e:1x1 (asked auto, ")) << ToLine(r);
}

TEST(Compile, OnePass_IsAllThatIsCompiled) {
  CompileTable table;
  const Receipt forward = table.Compile(SmallContract(), TargetNamed("v6e")).receipt;
  ExpectSound(forward);
  EXPECT_EQ(forward.compiles, 1);
  EXPECT_EQ(ProgramOf(forward, "backward"), ProgramUse{});
  RunOptions options = Ask{.backward = true};
  options.forward = false;
  const Receipt backward = table.Compile(SmallContract(), TargetNamed("v6e"), options).receipt;
  ExpectSound(backward);
  EXPECT_EQ(backward.compiles, 1);
  EXPECT_EQ(ProgramOf(backward, "forward"), ProgramUse{});
  EXPECT_EQ(table.lane.compiled, (std::vector<Pass>{Pass::kForward, Pass::kBackward}));
}

TEST(Compile, ProgramThatDoesNotCompile_IsAFailureThatMadeNothing) {
  CompileTable table;
  table.lane.compile_error = Error{ErrorCode::kPluginFailed, "no such instruction", "made_up.so", {}};
  const RunOutcome outcome = table.Compile(SmallContract(), TargetNamed("v6e"), Ask{.backward = true});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kPluginFailed);
  ExpectSound(outcome.receipt);
  EXPECT_EQ(outcome.receipt.failed_at, "compile");
  EXPECT_EQ(outcome.receipt.executed, "");
  EXPECT_EQ(outcome.receipt.compiles, 0);
  EXPECT_EQ(ProgramOf(outcome.receipt, "forward"), ProgramUse{});
}

TEST(Compile, LanesWithoutPrograms_SaySo) {
  const CompileTable table;
  const RunOutcome outcome = table.Compile(SmallContract(), TargetNamed("cpu"));
  ExpectSound(outcome.receipt);
  EXPECT_EQ(outcome.receipt.selected, "cpu");
  EXPECT_EQ(outcome.receipt.executed, "xla_chunked");
  for (const char* lane : {"cpu", "reference"}) {
    EXPECT_EQ(DecisionOf(outcome.receipt, lane, "contract").reason, ReasonCode::kNothingToCompile) << lane;
  }
  const RunOutcome forced = table.Compile(SmallContract(), TargetNamed("cpu"), Ask{.lane = "reference"});
  ASSERT_TRUE(forced.error.has_value());
  EXPECT_EQ(forced.error->code, ErrorCode::kLaneRefused);
  EXPECT_TRUE(Contains(ErrorText(forced), "dispatch.nothing_to_compile")) << ErrorText(forced);
  ExpectSound(forced.receipt);
}

TEST(Compile, CompilerThatRefuses_IsARefusalAtItsStep) {
  CompileTable table;
  table.lane.on_plan = Decision::No(ReasonCode::kXlaTooLarge, "by far");
  const RunOutcome late = table.Compile(SmallContract(), TargetNamed("v6e"), Ask{.lane = "xla_chunked"});
  ASSERT_TRUE(late.error.has_value());
  EXPECT_EQ(late.receipt.failed_at, "decide_plan");
  ExpectSound(late.receipt);
  table.lane.on_compile = Decision::No(ReasonCode::kXlaPlugin, "of another machine");
  const RunOutcome early = table.Compile(SmallContract(), TargetNamed("v6e"));
  ASSERT_TRUE(early.error.has_value());
  EXPECT_TRUE(Contains(ErrorText(early), "every lane that could compile this refused")) << ErrorText(early);
  EXPECT_TRUE(Contains(ErrorText(early), "of another machine")) << ErrorText(early);
  ExpectSound(early.receipt);
}

TEST(Compile, RoutedContract_NeedsQAndK) {
  const CompileTable table;
  const Contract contract = MakeRoutedContract();
  const RunOutcome without = table.Compile(contract, TargetNamed("v6e"));
  ASSERT_TRUE(without.error.has_value());
  EXPECT_EQ(without.receipt.failed_at, "inputs");
  ExpectSound(without.receipt);
  const RunOutcome with = table.Compile(contract, TargetNamed("v6e"), {}, MakeInputs(contract, 1, false));
  EXPECT_FALSE(with.error.has_value()) << ErrorText(with);
  EXPECT_EQ(with.receipt.picks.source, "routing");
  ExpectSound(with.receipt);
}

// What a receipt of a run says, one of compiling may not, and the other way round.
TEST(Compile, Receipts_AreNotMistakenForRuns) {
  const CompileTable table;
  const Receipt good = table.Compile(SmallContract(), TargetNamed("v6e"), Ask{.backward = true}).receipt;
  const auto complaint = [&](auto change) {
    Receipt bad = good;
    change(bad);
    return Words(CheckReceipt(bad));
  };
  EXPECT_EQ(complaint([](Receipt&) {}), "");
  EXPECT_NE(complaint([](Receipt& r) { r.options.erase("compile_only"); }), "");
  EXPECT_TRUE(Contains(complaint([](Receipt& r) { r.options["compile_only"] = "false"; }), "options.compile_only"));
  EXPECT_TRUE(Contains(complaint([](Receipt& r) { r.runtime_mode = "native"; }), "runtime_mode"));
  EXPECT_TRUE(Contains(complaint([](Receipt& r) { r.tiles_executed = 1; }), "tiles_executed"));
  EXPECT_TRUE(Contains(complaint([](Receipt& r) { r.tiles_executed_backward = 1; }), "tiles_executed_backward"));
  EXPECT_TRUE(Contains(complaint([](Receipt& r) { r.output_digest = std::string(32, 'a'); }), "output_digest"));
  EXPECT_TRUE(Contains(complaint([](Receipt& r) { r.timings.push_back({"forward", 0}); }), "timings"));
  EXPECT_TRUE(Contains(complaint([](Receipt& r) {
                         std::erase_if(r.timings, [](const Timing& t) { return t.name == "compile.forward"; });
                       }),
                       "a time of compile.forward"));
  EXPECT_TRUE(Contains(complaint([](Receipt& r) {
                         r.programs[0].source = "memory";
                         r.compiles = 1;
                         r.cache_hits = 1;
                       }),
                       "programs[0].source"));
  Receipt run = tessera::Run(SmallContract(), {}, MakeInputs(SmallContract(), 1, false), TargetNamed("cpu")).receipt;
  run.options["compile_only"] = "true";
  EXPECT_NE(Words(CheckReceipt(run)), "");
}

TEST(LowerPrograms, Texts_NeedNoPluginAndCarryTheClassKey) {
  RunOptions options = Ask{.backward = true};
  options.xla.plugin = "/no/such/plugin.so";
  const Contract contract = SmallContract({.mask = "causal and window(9, 0)", .softcap = 5});
  for (const Target& target : Targets()) {
    SCOPED_TRACE(target.name);
    const Result<std::vector<ProgramText>> programs = LowerPrograms(TestEngine(), contract, {}, target, options);
    ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
    ASSERT_EQ(programs->size(), 2u);
    const Result<PlanResult> plan = MakePlan(contract, {}, target);
    for (const ProgramText& program : *programs) {
      EXPECT_TRUE(Contains(program.name, ToHex(plan->plan.view().class_key))) << program.name;
      EXPECT_TRUE(Contains(program.text, "stablehlo.dot_general"));
    }
    EXPECT_NE(programs->front().name, programs->back().name);
    EXPECT_EQ(LowerPrograms(TestEngine(), contract, {}, target, options).value(), *programs);
  }
  const Result<std::vector<ProgramText>> none =
      LowerPrograms(TestEngine(), contract, {}, TargetNamed("cpu"), Ask{.lane = "cpu"});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kLaneRefused);
  EXPECT_EQ(LowerPrograms(TestEngine(), contract, {}, TargetNamed("cpu"), Ask{.lane = "flash"}).error().code,
            ErrorCode::kLaneUnknown);
}

TEST(CompileXla, TpuOfAnUnknownName_IsRefusedByItsTopology) {
  Target target = TargetNamed("v6e");
  target.name = "v99";
  target.topology = "";
  const RunOutcome outcome = tessera::Compile(TestEngine(), SmallContract(), {}, target, Ask{.lane = "xla_chunked"});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_TRUE(Contains(ErrorText(outcome), "xla.no_topology")) << ErrorText(outcome);
  EXPECT_TRUE(Contains(ErrorText(outcome), "v6e")) << ErrorText(outcome);
}

}  // namespace
}  // namespace tessera
