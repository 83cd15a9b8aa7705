// Instruction sets: forced by option or by the environment, refused by a lane that lacks them, an error where no lane
// has them, and always in the receipt.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "fixtures.h"

namespace tessera {
namespace {

// Sets a variable for one test and takes it away again.
class Environment {
 public:
  explicit Environment(const char* value) { setenv("TESSERA_ISA", value, 1); }
  ~Environment() { unsetenv("TESSERA_ISA"); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
};

class Isa : public testing::Test {
 protected:
  Isa() { unsetenv("TESSERA_ISA"); }
  RunOutcome Run(const RunOptions& options = {}) {
    RunOutcome outcome = table_.Run(contract_, TargetNamed("cpu"), options);
    ExpectSound(outcome.receipt);
    return outcome;
  }
  TestTable table_;
  TestLane& cpu_ = table_.Build("cpu");  // has "wide" and "narrow"
  Contract contract_ = MakeContract();
};

TEST_F(Isa, Auto_IsTheLanesBest) {
  const RunOutcome outcome = Run();
  ASSERT_FALSE(outcome.error) << ErrorText(outcome);
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_EQ(cpu_.last_isa, "auto");
  EXPECT_EQ(outcome.receipt.isa, "wide");
  EXPECT_EQ(outcome.receipt.options.at("isa"), "auto");
}

TEST_F(Isa, Forced_ReachesTheLaneAndTheReceipt) {
  const RunOutcome outcome = Run(Ask{.isa = "narrow"});
  ASSERT_FALSE(outcome.error) << ErrorText(outcome);
  EXPECT_EQ(cpu_.last_isa, "narrow");
  EXPECT_EQ(outcome.receipt.isa, "narrow");
  EXPECT_EQ(outcome.receipt.options.at("isa"), "narrow");
}

TEST_F(Isa, Environment_IsTheDefaultAndOnlyThat) {
  const Environment environment("narrow");
  EXPECT_EQ(Run().receipt.isa, "narrow");
  EXPECT_EQ(Run().receipt.options.at("isa"), "narrow");
  EXPECT_EQ(Run(Ask{.isa = "wide"}).receipt.isa, "wide");
}

TEST_F(Isa, EmptyEnvironment_SaysNothing) {
  const Environment environment("");
  EXPECT_EQ(Run().receipt.isa, "wide");
  EXPECT_EQ(Run().receipt.options.at("isa"), "auto");
}

TEST_F(Isa, OneThatNoLaneHas_IsAnErrorThatListsWhatThereIs) {
  const RunOutcome outcome = Run(Ask{.isa = "sse9"});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kIsaUnavailable);
  EXPECT_EQ(outcome.receipt.failed_at, "request");
  EXPECT_NE(ErrorText(outcome).find("wide, narrow (cpu), pjrt (xla_chunked), scalar (reference)"), std::string::npos)
      << ErrorText(outcome);
  EXPECT_EQ(cpu_.forwards, 0);
  const Environment environment("sse8");
  const RunOutcome from_environment = Run();
  ASSERT_TRUE(from_environment.error.has_value());
  EXPECT_EQ(from_environment.error->where, "TESSERA_ISA");
  EXPECT_EQ(from_environment.receipt.options.at("isa"), "sse8");
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
    EXPECT_EQ(lane.isas.empty(), row->lane == nullptr) << lane.name;
  }
  EXPECT_EQ(Lanes().back().isas, std::vector<std::string>{"scalar"});
}

}  // namespace
}  // namespace tessera
