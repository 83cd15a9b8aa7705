// Instruction sets: forced by option or by the environment, refused by a lane that lacks them, an error where no lane
// has them, and always in the receipt.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/fixtures.h"

namespace tessera {
namespace {

class Isa : public testing::Test {
 protected:
  RunOutcome Run(const RunOptions& options = {}) {
    RunOutcome outcome = table_.Run(contract_, TargetNamed("cpu"), options);
    ExpectSound(outcome.receipt);
    return outcome;
  }
  TestTable table_;
  TestLane& cpu_ = table_.Build("cpu");  // has "wide" and "narrow"
  Contract contract_ = SmallContract();
};

TEST_F(Isa, Auto_IsTheLanesBest) {
  const RunOutcome outcome = Run();
  ASSERT_FALSE(outcome.error) << ErrorText(outcome);
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_EQ(cpu_.asked_isa, "auto");
  EXPECT_EQ(outcome.receipt.isa, "wide");
  EXPECT_EQ(outcome.receipt.options.at("isa"), "auto");
}

TEST_F(Isa, Forced_ReachesTheLaneAndTheReceipt) {
  const RunOutcome outcome = Run(Ask{.isa = "narrow"});
  ASSERT_FALSE(outcome.error) << ErrorText(outcome);
  EXPECT_EQ(cpu_.asked_isa, "narrow");
  EXPECT_EQ(outcome.receipt.isa, "narrow");
  EXPECT_EQ(outcome.receipt.options.at("isa"), "narrow");
}

TEST_F(Isa, Engine_HasTheDefaultAndOnlyThat) {
  const auto run = [&](const std::string& of_engine, const RunOptions& options = {}) {
    EngineOptions engine;
    engine.isa = of_engine;
    const TensorMap inputs = MakeInputs(contract_, 1, false);
    return tessera::Run(table_.MakeEngine(engine), contract_, {}, inputs, TargetNamed("cpu"), options).receipt;
  };
  EXPECT_EQ(run("narrow").isa, "narrow");
  EXPECT_EQ(run("narrow").options.at("isa"), "narrow");
  EXPECT_EQ(run("narrow", Ask{.isa = "wide"}).isa, "wide");
  EXPECT_EQ(run("auto").isa, "wide");
}

// The one function that reads the environment.
TEST(Environment, Variables_BecomeAnEnginesOptions) {
  const std::vector<std::pair<const char*, const char*>> variables = {
      {"TESSERA_LANE", "reference"},  {"TESSERA_ISA", "narrow"},       {"TESSERA_MACHINE_ISA", "wide"},
      {"TESSERA_LEDGER", "l.json"},   {"TESSERA_PJRT_PLUGIN", "p.so"}, {"TESSERA_XLA", "/folder"},
      {"LIBTPU_INIT_ARGS", "--quick"}};
  std::map<std::string, std::string> before;
  for (const auto& [name, value] : variables) {
    if (const char* old = std::getenv(name)) before[name] = old;
    setenv(name, value, 1);
  }
  const EngineOptions options = OptionsFromEnvironment();
  for (const auto& [name, value] : variables) setenv(name, "", 1);  // says nothing
  const EngineOptions plain = OptionsFromEnvironment();
  for (const auto& [name, value] : variables) {
    if (before.count(name) != 0) {
      setenv(name, before[name].c_str(), 1);
    } else {
      unsetenv(name);
    }
  }
  EXPECT_EQ(options.lane, "reference");
  EXPECT_EQ(options.isa, "narrow");
  EXPECT_EQ(options.machine_isa, "wide");
  EXPECT_EQ(options.ledger, "l.json");
  EXPECT_EQ(options.plugin, "p.so");
  EXPECT_EQ(options.xla_folder, "/folder");
  EXPECT_NE(options.xla_flags.find("LIBTPU_INIT_ARGS=--quick"), std::string::npos) << options.xla_flags;
  EXPECT_EQ(plain.lane, "auto");
  EXPECT_EQ(plain.isa, "auto");
  EXPECT_EQ(plain.plugin, "");
}

TEST_F(Isa, OneThatNoLaneHas_IsAnErrorThatListsWhatThereIs) {
  const RunOutcome outcome = Run(Ask{.isa = "sse9"});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kIsaUnavailable);
  EXPECT_EQ(outcome.receipt.failed_at, "request");
  EXPECT_NE(ErrorText(outcome).find("wide, narrow (cpu), pjrt (splash), pjrt (xla_pallas), pjrt (xla_chunked), jax "
                                    "(call_jax), scalar (reference)"),
            std::string::npos)
      << ErrorText(outcome);
  EXPECT_EQ(cpu_.forwards, 0);
}

TEST_F(Isa, LaneWithoutIt_RefusesAndTheNextOneRuns) {
  const RunOutcome outcome = Run(Ask{.isa = "scalar"});
  ASSERT_FALSE(outcome.error) << ErrorText(outcome);
  EXPECT_EQ(outcome.receipt.executed, "reference");
  EXPECT_EQ(outcome.receipt.fallback_reason, "dispatch.isa");
  EXPECT_EQ(DecisionOf(outcome.receipt, "cpu", "contract"),
            Decision::No(ReasonCode::kIsa, "scalar was asked for, and here it has wide, narrow"));
  // What a lane can never do it says first.
  EXPECT_EQ(DecisionOf(outcome.receipt, "cuda", "contract").reason, ReasonCode::kOtherTarget);
}

TEST_F(Isa, LaneWithoutIt_AskedForByNameOrStrictly_IsTheEnd) {
  const RunOutcome forced = Run(Ask{.lane = "reference", .isa = "narrow"});
  ASSERT_TRUE(forced.error.has_value());
  EXPECT_EQ(forced.error->code, ErrorCode::kLaneRefused);
  EXPECT_NE(ErrorText(forced).find("dispatch.isa"), std::string::npos) << ErrorText(forced);
  const RunOutcome strict = Run(Ask{.strict = true, .isa = "scalar"});
  ASSERT_TRUE(strict.error.has_value());
  EXPECT_EQ(strict.error->code, ErrorCode::kStrictFallback);
}

TEST_F(Isa, ReceiptThatRanAnotherThanForced_IsNotBelieved) {
  Receipt receipt = Run(Ask{.isa = "narrow"}).receipt;
  receipt.isa = "wide";
  EXPECT_NE(Words(CheckReceipt(receipt)).find("isa: "), std::string::npos);
  receipt = Run(Ask{.isa = "scalar"}).receipt;
  receipt.options["isa"] = "auto";
  EXPECT_NE(Words(CheckReceipt(receipt)).find("dispatch.isa only where"), std::string::npos);
}

TEST_F(Isa, Table_SaysWhatEachLaneHas) {
  for (const LaneInfo& lane : Lanes()) {
    const LaneRow* row = FindLane(LaneTable(), lane.name);
    EXPECT_EQ(lane.isas.empty(), !row->make) << lane.name;
  }
  EXPECT_EQ(Lanes().back().isas, std::vector<std::string>{"scalar"});
}

}  // namespace
}  // namespace tessera
