// `tessera ledger` and the runs that ask one: the worked example of docs/ledger.md, and what goes wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "ledger/entries.h"
#include "program_test.h"

namespace tessera {
namespace {

class LedgerProgram : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "ledger_program_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(File(name)) << text; }
  // Of the test's folder, or by its whole path.
  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(name[0] == '/' ? name : File(name)).rdbuf();
    return text.str();
  }

  ProgramResult RunPacked(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {
        "run", Example("packed.toml"), "--batch", Example("packed_batch.json"), "--seed", "7"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Tessera(arguments);
  }
  void MakeReceipts() const {
    ASSERT_EQ(RunPacked({"--lane", "cpu", "--receipt", File("custom.json")}).exit_code, 0);
    ASSERT_EQ(RunPacked({"--lane", "reference", "--receipt", File("default.json")}).exit_code, 0);
  }
  ProgramResult Add(const std::string& custom_run, const std::string& default_run) const {
    return Tessera(
        {"ledger", "add", "--ledger", File("l.json"), "--custom", File(custom_run), "--default", File(default_run)});
  }

 private:
  std::string folder_;
};

TEST_F(LedgerProgram, WorkedExample_TwoReceiptsMakeAnEntryThatDecides) {
  Proves("R57 R58");
  MakeReceipts();
  const ProgramResult added = Add("custom.json", "default.json");
  ASSERT_EQ(added.exit_code, 0) << added.err;
  EXPECT_NE(added.out.find("window-documents-valid-softcap"), std::string::npos) << added.out;
  EXPECT_NE(added.out.find("run again: the same outputs, check passed"), std::string::npos) << added.out;
  ASSERT_EQ(Add("custom.json", "default.json").exit_code, 0);
  const ProgramResult shown = Tessera({"ledger", "show", "--ledger", File("l.json"), "--json"});
  EXPECT_EQ(OnlyDocument(shown)["entries"].size(), 1u) << "the same measurement replaces itself";
  const ProgramResult table = Tessera({"ledger", "show", "--ledger", File("l.json")});
  EXPECT_NE(table.out.find("b2 q384 kv384 h4/2 d32/32 f32"), std::string::npos) << table.out;

  const ProgramResult decided =
      Tessera({"ledger", "decide", Example("packed.toml"), "--ledger", File("l.json"), "--json"});
  ASSERT_EQ(decided.exit_code, 0) << decided.err;
  const nlohmann::json decision = OnlyDocument(decided)["decisions"][0];
  EXPECT_EQ(decision["custom_lane"], "cpu");
  EXPECT_EQ(decision["counted"].size(), 1u);
  EXPECT_TRUE(decision["verdict"] == "experimental" || decision["verdict"] == "tied") << decision;
  EXPECT_EQ(decision["used"], false);
  const ProgramResult dynamic =
      Tessera({"ledger", "decide", Example("packed.toml"), "--ledger", File("l.json"), "--dynamic"});
  EXPECT_NE(dynamic.out.find("dynamic, not used"), std::string::npos) << dynamic.out;
}

// A receipt with another time for its forward, and every rule kept.
std::string WithForward(const std::string& text, int64_t ns) {
  Receipt receipt = ParseReceipt(text).value();
  SetForward(receipt, ns);
  return ToJson(receipt);
}

TEST_F(LedgerProgram, WhatIsNotSoWhenRunAgain_IsRefused) {
  Proves("R58");
  MakeReceipts();
  // Outputs that this lane does not have.
  Receipt other = ParseReceipt(Read("custom.json")).value();
  other.output_digest = std::string(32, 'a');
  Write("other.json", ToJson(other));
  const ProgramResult outputs = Add("other.json", "default.json");
  EXPECT_EQ(outputs.exit_code, 2);
  EXPECT_NE(outputs.err.find("TSR-L006"), std::string::npos) << outputs.err;
  EXPECT_NE(outputs.err.find("output_digest"), std::string::npos) << outputs.err;
  // A batch that is no longer what it was.
  Write("b.json", "{}");
  other = ParseReceipt(Read("custom.json")).value();
  other.batch_source = "file " + File("b.json");
  Write("other.json", ToJson(other));
  const ProgramResult batch = Add("other.json", "default.json");
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_NE(batch.err.find("cannot be run again"), std::string::npos) << batch.err;
  // Two runs of one lane measure nothing.
  EXPECT_EQ(Add("custom.json", "custom.json").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(File("l.json")));
  Write("l.json", "not a ledger");
  const ProgramResult damaged = Add("custom.json", "default.json");
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_NE(damaged.err.find("TSR-L005"), std::string::npos) << damaged.err;
  EXPECT_EQ(Read("l.json"), "not a ledger") << "what cannot be read is not written over";
}

// A time typed into a receipt is a claim: running again shows what it is worth.
TEST_F(LedgerProgram, TypedTimes_WinNothing) {
  Proves("R58");
  MakeReceipts();
  Write("quick.json", WithForward(Read("default.json"), 1));
  const ProgramResult added = Add("quick.json", "custom.json");  // the scalar lane, said to be the fast one
  ASSERT_EQ(added.exit_code, 0) << added.err;
  const ProgramResult decided =
      Tessera({"ledger", "decide", Example("packed.toml"), "--ledger", File("l.json"), "--experimental", "--json"});
  const nlohmann::json decision = OnlyDocument(decided)["decisions"][0];
  EXPECT_EQ(decision["custom_lane"], "reference");
  EXPECT_EQ(decision["verdict"], "tied") << decision;
  EXPECT_EQ(decision["used"], false);
  // And one typed into the ledger is not even read.
  nlohmann::ordered_json ledger = nlohmann::ordered_json::parse(Read("l.json"), nullptr, false);
  ledger["entries"][0]["proof"]["custom_ns"] = 1;
  Write("l.json", ledger.dump());
  const ProgramResult shown = Tessera({"ledger", "show", "--ledger", File("l.json")});
  EXPECT_EQ(shown.exit_code, 2);
  EXPECT_NE(shown.err.find("entries[0].id"), std::string::npos) << shown.err;
}

TEST_F(LedgerProgram, Benchmarks_AreMeasurementsToo) {
  Proves("R57");
  for (const char* lane : {"cpu", "reference"}) {
    const ProgramResult bench =
        Tessera({"bench", "run", Example("packed.toml"), "--batch", Example("packed_batch.json"), "--seed", "7",
                 "--repeat", "3", "--lane", lane, "--json"});
    ASSERT_EQ(bench.exit_code, 0) << bench.err;
    Write(std::string(lane) + ".json", bench.out);
  }
  const ProgramResult added = Add("cpu.json", "reference.json");
  ASSERT_EQ(added.exit_code, 0) << added.err;
  const ProgramResult shown = Tessera({"ledger", "show", "--ledger", File("l.json"), "--json"});
  EXPECT_EQ(OnlyDocument(shown)["entries"][0]["custom_ns"], ParseJson(Read("cpu.json"))["median_ns"]);
}

TEST_F(LedgerProgram, Advice_ComesBeforeAnyMeasurement) {
  Proves("R57");
  const ProgramResult packed = Tessera({"ledger", "advise", Example("packed.toml")});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_EQ(packed.out.rfind("custom_kernel: ", 0), 0u) << packed.out;
  const ProgramResult dynamic = Tessera({"ledger", "advise", Example("packed.toml"), "--dynamic", "--json"});
  EXPECT_EQ(OnlyDocument(dynamic)["advice"], "stay_in_default");
  Write("plain.toml", "version = 1\n[shape]\nq_len = 256\ndim_qk = 16\n[mask]\nexpr = \"causal\"\n");
  EXPECT_EQ(Tessera({"ledger", "advise", File("plain.toml")}).out.rfind("stay_in_default: ", 0), 0u);
}

TEST_F(LedgerProgram, RunsAskIt_AndRepeatWithoutIt) {
  Proves("R57");
  // A program may lie where a hand cannot: reference wins at three lengths around the example's.
  Ledger ledger;
  for (const int64_t len : {256, 384, 512}) {
    Contract contract = ParseContract(Read(Example("packed.toml"))).value();
    contract.shape.q_len = contract.shape.kv_len = len;
    Batch batch = DocumentBatch(contract, {100, 50});
    batch.valid_tokens = std::vector<int64_t>(static_cast<size_t>(contract.shape.batch), len);
    Runs runs = MakeRuns(contract, "reference", "cpu", batch);
    SetForward(runs.custom_run, 700);
    SetForward(runs.default_run, 1000);
    ledger.entries.push_back(ProvedEntry(runs));
  }
  ASSERT_TRUE(WriteLedger(File("l.json"), ledger).has_value());
  const ProgramResult run = RunPacked({"--ledger", File("l.json"), "--receipt", File("r.json"), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json receipt = OnlyDocument(run);
  EXPECT_EQ(receipt["executed"], "reference");
  EXPECT_EQ(receipt["ledger"]["verdict"], "promoted");
  EXPECT_EQ(receipt["ledger"]["over"], "cpu");
  EXPECT_EQ(Tessera({"receipt", "check", File("r.json")}).exit_code, 0);
  std::filesystem::remove(File("l.json"));
  const ProgramResult again = Tessera({"run", "--from-receipt", File("r.json")});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("was the choice of a ledger"), std::string::npos) << again.out;
  const ProgramResult gone = RunPacked({"--ledger", File("l.json"), "--json"});
  EXPECT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_EQ(OnlyDocument(gone)["executed"], "cpu");
  EXPECT_EQ(OnlyDocument(gone)["ledger"]["verdict"], "unusable");
  EXPECT_EQ(Tessera({"run", "--from-receipt", File("r.json"), "--ledger", File("l.json")}).exit_code, 2);
}

TEST_F(LedgerProgram, AtClass_ChecksAndSaysWhatItCost) {
  Proves("R46");
  Write(
      "c.toml",
      "version = 1\n[shape]\nq_len = 300\ndim_qk = 16\nnum_q_heads = 5\n[mask]\nexpr = \"causal and window(40, 0)\"\n");
  const ProgramResult run =
      Tessera({"run", File("c.toml"), "--class", "--backward", "--check", "--receipt", File("r.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Tessera({"receipt", "check", File("r.json")}).exit_code, 0);
  const nlohmann::json receipt = ParseJson(Read("r.json"));
  EXPECT_EQ(receipt["class_request"]["request"], "b1 q300 kv300 h5/5 d16/16 f32");
  EXPECT_EQ(receipt["class_request"]["padded"], "b1 q384 kv384 h6/6 d16/16 f32");
  EXPECT_EQ(Tessera({"run", "--from-receipt", File("r.json")}).exit_code, 2);
  // Picks are made at the class, and compared as the request's.
  Write("routed.toml",
        "version = 1\n[shape]\nbatch = 3\nq_len = 300\ndim_qk = 16\nnum_q_heads = 6\nnum_kv_heads = 3\n[mask]\n"
        "expr = \"causal and blocks\"\n[routing]\nselected_block = 32\ncompression_block = 16\nblock_stride = 8\n"
        "kv_tile = 64\ntop_n = 3\nfirst_blocks = 1\n");
  const ProgramResult routed = Tessera({"run", File("routed.toml"), "--class", "--backward", "--check"});
  EXPECT_EQ(routed.exit_code, 0) << routed.out << routed.err;
  Write("long.toml",
        "version = 1\n[shape]\nq_len = 1048577\ndim_qk = 1\n[mask]\nexpr = \"causal and window(40, 0)\"\n");
  const ProgramResult too_long = Tessera({"run", File("long.toml"), "--class"});
  EXPECT_EQ(too_long.exit_code, 2);
  EXPECT_NE(too_long.err.find("TSR-L007"), std::string::npos) << too_long.err;
}

TEST_F(LedgerProgram, BadArguments_SayWhatWasExpected) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"ledger"},
                                                    {"ledger", "show"},
                                                    {"ledger", "add", "--ledger", File("l.json")},
                                                    {"ledger", "decide", Example("packed.toml")},
                                                    {"ledger", "show", "--ledger", File("none.json")}}) {
    const ProgramResult result = Tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments.back();
    EXPECT_NE(result.err.find("TSR-R00"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace tessera
