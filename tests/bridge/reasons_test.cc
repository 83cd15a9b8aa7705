// Every way in which there is no bridge: a reason each, and no crash. None of these needs Python.
#include "bridge/bridge_fixture.h"
#include "support/proves.h"

namespace tessera {
namespace {

// The reason with which a run on the bridge is refused, and its detail.
LaneDecision RefusalBy(const std::string& python, const Contract& contract = BridgeContract("causal")) {
  const RunOutcome outcome = RunBridge(EngineWith(python), contract, {}, MakeInputs(contract, 1, true));
  EXPECT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error.value_or(Error{}).code, ErrorCode::kLaneRefused) << outcome.receipt.error;
  EXPECT_TRUE(outcome.outputs.empty());
  EXPECT_TRUE(CheckReceipt(outcome.receipt).empty()) << ToJson(outcome.receipt);
  LaneDecision last;
  for (const LaneDecision& d : outcome.receipt.decisions) {
    if (d.lane == "call_jax") last = d;
  }
  EXPECT_EQ(outcome.receipt.fallback_reason, ReasonText(last.decision.reason));
  return last;
}

std::string Says(const std::string& python, const std::string& jax, const std::string& more = R"("free": "")") {
  return R"({"python": ")" + python + R"(", "jax": ")" + jax + R"(", )" + more +
         R"(, "soname": "libnosuchpython.so.1.0", "libdir": "/nowhere", "multiarch": "", "prefix": "/nowhere"})";
}

TEST(BridgeReasons, NoInterpreter_IsSaid) {
  Proves("R60");
  const TemporaryFolder folder;
  EXPECT_EQ(RefusalBy("").decision.reason, ReasonCode::kBridgeNoInterpreter);
  EXPECT_EQ(RefusalBy("/no/such/python").decision.reason, ReasonCode::kBridgeNoInterpreter);
  for (const auto& [says, status] : {std::pair<std::string, int>{"", 0},
                                     {"no json", 0},
                                     {"[1]", 0},
                                     {Says("3.11.7", "0.10.2"), 1},
                                     {std::string(100000, 'x'), 0}}) {
    const LaneDecision d = RefusalBy(FakePython(folder, says, status));
    EXPECT_EQ(d.decision.reason, ReasonCode::kBridgeNoInterpreter) << says.substr(0, 40);
    EXPECT_EQ(d.step, "plan");
  }
  // It answers, and its library is nowhere.
  const LaneDecision d = RefusalBy(FakePython(folder, Says("3.11.7", "0.10.2")));
  EXPECT_EQ(d.decision.reason, ReasonCode::kBridgeNoInterpreter);
  EXPECT_NE(d.decision.detail.find("/nowhere/libnosuchpython.so.1.0"), std::string::npos) << d.decision.detail;
}

TEST(BridgeReasons, NoJaxAndOldVersions_AreSaid) {
  const TemporaryFolder folder;
  const auto reason = [&](const std::string& says) { return RefusalBy(FakePython(folder, says)).decision.reason; };
  EXPECT_EQ(reason(Says("3.11.7", "")), ReasonCode::kBridgeNoJax);
  EXPECT_EQ(reason(Says("3.9.18", "0.10.2")), ReasonCode::kBridgeVersion);
  EXPECT_EQ(reason(Says("3.11.7", "0.4.38")), ReasonCode::kBridgeVersion);
  EXPECT_EQ(reason(Says("", "")), ReasonCode::kBridgeNoJax);
  EXPECT_EQ(reason(Says("nonsense", "0.10.2")), ReasonCode::kBridgeVersion);
  EXPECT_EQ(reason(Says("3.13.0", "0.10.2", R"("free": "1")")), ReasonCode::kBridgeVersion);
}

// A library that is there and is none of Python's.
TEST(BridgeReasons, AnotherLibrary_IsSaid) {
  const TemporaryFolder folder;
  const std::string says =
      R"({"python": "3.11.7", "jax": "0.10.2", "free": "", "soname": "libm.so.6", "libdir": "/nowhere",)"
      R"( "multiarch": "", "prefix": "/nowhere"})";
  const LaneDecision d = RefusalBy(FakePython(folder, says));
  EXPECT_EQ(d.decision.reason, ReasonCode::kBridgeVersion);
  EXPECT_NE(d.decision.detail.find("Py_BytesMain"), std::string::npos) << d.decision.detail;
}

TEST(BridgeReasons, TooLarge_IsSaidBeforeAnythingIsLoaded) {
  Contract contract = BridgeContract("causal");
  contract.shape.q_len = contract.shape.kv_len = 8192;
  contract.shape.batch = 1;
  const RunOutcome outcome = RunBridge(EngineWith("/no/such/python"), contract, {}, {});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_NE(ToText(*outcome.error).find("call_jax.too_large"), std::string::npos) << ToText(*outcome.error);
}

TEST(BridgeReasons, UnaskedLane_NeverRuns) {
  Proves("R54");
  const Contract contract = BridgeContract("causal");
  for (const char* target : {"cpu", "h200", "v6e"}) {
    Result<Attention> attention = EngineWith("/no/such/python").Prepare(contract, FindTarget(target).value());
    ASSERT_TRUE(attention.has_value());
    for (const LaneDecision& d : attention->selection().decisions) {
      if (d.lane != "call_jax") continue;
      EXPECT_EQ(d.decision.reason, ReasonCode::kOnlyByName) << target;
    }
    EXPECT_NE(attention->ExpectedLane(), "call_jax");
  }
}

TEST(BridgeReasons, Splash_SaysThem) {
  const Result<SplashReport> splash = CompareSplash(EngineWith("/no/such/python"));
  ASSERT_FALSE(splash.has_value());
  EXPECT_EQ(splash.error().code, ErrorCode::kLaneRefused);
  EXPECT_NE(splash.error().message.find("call_jax.no_interpreter"), std::string::npos) << splash.error().message;
}

}  // namespace
}  // namespace tessera
