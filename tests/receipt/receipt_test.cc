// Receipts: exact round trips, strict reading, and contradictions that must not pass.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/host.h"
#include "engine/fixtures.h"
#include "support/proves.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Of a run with a fallback: the target's own lane is not built.
Receipt GoodReceipt() {
  const Contract contract = SmallContract({.mask = "causal and documents", .softcap = 30});
  const Batch batch = DocumentBatch(contract, {20, 9});
  RunOptions options = Ask{.backward = true};
  options.plan.tile = TileSize{16, 16};  // the target's own would hold it all
  options.input_source = "file \"quoted\\name\".safetensors\n";
  const RunOutcome outcome = tessera::Run(contract, batch, MakeInputs(contract, 1, true), TargetNamed("h200"), options);
  EXPECT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  return outcome.receipt;
}

// The fields named in the error of reading `text`; "ok" when it reads.
std::string Complaint(const std::string& text) {
  Result<Receipt> receipt = ParseReceipt(text);
  if (receipt) return "ok";
  EXPECT_EQ(receipt.error().code, ErrorCode::kReceiptInvalid);
  return receipt.error().violations.empty() ? receipt.error().message : Words(receipt.error().violations);
}

TEST(Receipt, RoundTrip_IsExact) {
  Proves("R53");
  ExpectSound(GoodReceipt());
}

TEST(Receipt, EveryField_IsRequiredAndTyped) {
  const Json good = Json::parse(ToJson(GoodReceipt()));
  EXPECT_EQ(Complaint(good.dump()), "ok");
  for (const auto& [name, value] : good.items()) {
    Json without = good;
    without.erase(name);
    // Receipts from before these came have none of them.
    const bool is_new = name == "owner" || name == "crossing" || name == "kernels" || name == "files";
    EXPECT_EQ(Complaint(without.dump()), is_new ? "ok" : name + ": missing\n");
    for (const Json& wrong : {Json(nullptr), Json(1.5), Json::array({1}), Json{{"x", Json::array()}}}) {
      Json changed = good;
      changed[name] = wrong;
      EXPECT_NE(Complaint(changed.dump()), "ok") << name << " = " << wrong.dump();
    }
  }
  Json extra = good;
  extra["surprise"] = 1;
  extra["tiles"]["half"] = 1;
  extra["decisions"][0]["why"] = "";
  extra["timings"][0]["unit"] = "s";
  const std::string complaint = Complaint(extra.dump());
  for (const char* field : {"surprise: ", "tiles.half: ", "decisions[0].why: ", "timings[0].unit: "}) {
    EXPECT_NE(complaint.find(field), std::string::npos) << "all at once: " << complaint;
  }
  Json huge = good;
  huge["plan_bytes"] = UINT64_MAX;
  EXPECT_EQ(Complaint(huge.dump()), "plan_bytes: an integer expected\n");
}

TEST(Receipt, NotJson_IsAnError) {
  for (const char* text : {"", "{", "[]", "3", "nul", "{\"version\": 1}", "\xff\xfe"}) {
    EXPECT_NE(Complaint(text), "ok") << text;
  }
  const std::string good = ToJson(GoodReceipt());
  for (size_t size = 0; size + 3 < good.size(); size += 97) EXPECT_NE(Complaint(good.substr(0, size)), "ok");
  EXPECT_NE(Complaint(std::string(100000, '[')), "ok");
}

TEST(Receipt, Contradictions_AreFound) {
  Proves("R53 B11");
  const std::string digest(32, 'a');
  const struct {
    const char* field;
    std::function<void(Receipt&)> change;
  } cases[] = {
      {"version", [](Receipt& r) { r.version = 1; }},
      {"failed_at", [](Receipt& r) { r.failed_at = "forward"; }},
      {"failed_at", [](Receipt& r) { r.ok = false; }},
      {"error", [](Receipt& r) { r.error = "something"; }},
      {"requested", [](Receipt& r) { r.requested = "flash"; }},
      {"selected", [](Receipt& r) { r.selected = ""; }},
      {"selected", [](Receipt& r) { r.requested = "cpu"; }},
      {"selection_rule", [](Receipt& r) { r.selection_rule = ""; }},
      {"executed", [](Receipt& r) { r.executed = "flash"; }},
      {"executed", [](Receipt& r) { r.executed = ""; }},
      // Claiming that another lane ran: it never accepted.
      {"decisions", [](Receipt& r) { r.executed = "cuda"; }},
      {"decisions", [](Receipt& r) { r.executed = "splash"; }},
      {"runtime_mode", [](Receipt& r) { r.runtime_mode = "fast"; }},
      {"fallback_reason", [](Receipt& r) { r.fallback_reason = ""; }},
      {"fallback_reason", [](Receipt& r) { r.fallback_reason = "because"; }},
      {"fallback_reason", [](Receipt& r) { r.fallback_reason = "xla.no_plugin"; }},
      {"fallback_reason", [](Receipt& r) { r.selected = "reference"; }},
      {"target", [](Receipt& r) { r.target = ""; }},
      // Flattery: host code that is said to have run on the GPU it was planned for.
      {"ran_on", [](Receipt& r) { r.ran_on = "NVIDIA H200"; }},
      {"ran_on", [](Receipt& r) { r.ran_on = ""; }},
      {"ran_on", [](Receipt& r) { r.device.name = "NVIDIA H200"; }},
      {"device.kind", [](Receipt& r) { r.device.kind = "h200"; }},
      {"device.ordinal", [](Receipt& r) { r.device.ordinal = 1; }},
      {"device.memory", [](Receipt& r) { r.device.memory = ""; }},
      {"device.topology", [](Receipt& r) { r.device.topology = "v6e:1x1"; }},
      {"device.platform", [](Receipt& r) { r.device.platform = "cuda"; }},
      {"programs", [](Receipt& r) { r.device.plugin = "some.so"; }},
      {"compiles", [](Receipt& r) { r.programs.push_back({.pass = "forward", .source = "compiled"}); }},
      {"programs[0].pass", [](Receipt& r) { r.programs.push_back({.pass = "sideways", .source = "compiled"}); }},
      {"work.pairs", [](Receipt& r) { r.work.pairs = -1; }},
      {"work.forward_gflops", [](Receipt& r) { r.work = {.pairs = 100, .forward_gflops = 1e9}; }},
      {"work.backward_gflops", [](Receipt& r) { r.work.backward_gflops = 1; }},
      {"selected", [](Receipt& r) { r.decisions.erase(r.decisions.begin()); }},
      {"decisions", [](Receipt& r) { r.decisions.pop_back(); }},
      {"decisions[0]", [](Receipt& r) { r.decisions.push_back(r.decisions.front()); }},
      {"decisions[1].lane", [](Receipt& r) { r.decisions[1].lane = ""; }},
      {"selected", [](Receipt& r) { r.decisions[0].lane = "flash"; }},
      {"decisions[1].step", [](Receipt& r) { r.decisions[1].step = "later"; }},
      {"decisions[2].reason", [](Receipt& r) { r.decisions[2].decision.accepted = true; }},
      {"contract_key", [&](Receipt& r) { r.contract_key = digest; }},
      {"contract_key", [](Receipt& r) { r.contract_key = "A" + r.contract_key.substr(1); }},
      {"contract_text", [](Receipt& r) { r.contract_text = "version = 1"; }},
      {"contract_text", [](Receipt& r) { r.contract_text = ""; }},
      {"class_key", [](Receipt& r) { r.class_key = ""; }},
      {"mask_digest", [](Receipt& r) { r.mask_digest += "0"; }},
      {"plan_fingerprint", [](Receipt& r) { r.plan_fingerprint[3] = 'g'; }},
      {"input_digest", [](Receipt& r) { r.input_digest = ""; }},
      {"batch_digest", [](Receipt& r) { r.batch_digest = ""; }},
      {"output_digest", [](Receipt& r) { r.output_digest = ""; }},
      {"tiles_executed", [](Receipt& r) { r.tiles_executed += r.tiles.empty; }},  // dense in disguise
      {"tiles_executed", [](Receipt& r) { ++r.tiles.full; }},
      {"tiles_executed_backward", [](Receipt& r) { --r.tiles_executed_backward; }},
      {"tiles.empty", [](Receipt& r) { r.tiles.empty = -1; }},
      {"workspace_bytes", [](Receipt& r) { r.workspace_bytes = -1; }},
      {"options.tile", [](Receipt& r) { r.options.erase("tile"); }},
      {"versions.arch", [](Receipt& r) { r.versions.erase("arch"); }},
      {"timings[0].ns", [](Receipt& r) { r.timings[0].ns = -5; }},
  };
  const Receipt good = GoodReceipt();
  ASSERT_GT(good.tiles.empty, 0);
  int i = 0;
  for (const auto& c : cases) {
    Receipt changed = good;
    c.change(changed);
    const std::string words = "\n" + Words(CheckReceipt(changed));
    EXPECT_NE(words.find("\n" + std::string(c.field) + ": "), std::string::npos)
        << "change " << i << " of " << c.field << " gave: " << words;
    EXPECT_FALSE(ParseReceipt(ToJson(changed)).has_value()) << "change " << i << " of " << c.field;
    ++i;
  }
}

// Planned for another machine and run here by the lane that was asked for: not the machine's own result.
TEST(Receipt, RunOffTheMachine_IsAFallback) {
  Proves("R51");
  const Contract contract = SmallContract();
  const RunOutcome outcome =
      tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("v6e"), Ask{.lane = "reference"});
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  const Receipt& r = outcome.receipt;
  ExpectSound(r);
  EXPECT_EQ(r.fallback_reason, "dispatch.off_machine");
  EXPECT_EQ(r.ran_on, HostProcessor());
  EXPECT_EQ(r.device.kind, "cpu");
  EXPECT_EQ(
      ToLine(r).rfind(
          "reference ran (asked reference: dispatch.off_machine) on " + HostProcessor() + ", planned for v6e, ", 0),
      0u)
      << ToLine(r);
  Receipt flattering = r;
  flattering.fallback_reason = "";
  EXPECT_NE(Words(CheckReceipt(flattering)).find("fallback_reason"), std::string::npos);
  Receipt modest = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu")).receipt;
  EXPECT_EQ(modest.fallback_reason, "");
  modest.fallback_reason = "dispatch.off_machine";
  EXPECT_NE(Words(CheckReceipt(modest)).find("fallback_reason"), std::string::npos);
}

TEST(Receipt, DigestsNobodyAskedFor_AreNotTaken) {
  Receipt receipt = GoodReceipt();
  receipt.input_digest = receipt.batch_digest = receipt.output_digest = kNotTaken;
  ExpectSound(receipt);
  receipt.mask_digest = kNotTaken;
  EXPECT_NE(Words(CheckReceipt(receipt)).find("mask_digest"), std::string::npos);
}

TEST(Receipt, Work_FollowsFromPairsAndTimes) {
  Receipt receipt = GoodReceipt();
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  for (const Timing& timing : receipt.timings) {
    if (timing.name == "forward") forward_ns = timing.ns;
    if (timing.name == "backward") backward_ns = timing.ns;
  }
  const Result<Contract> contract = ParseContract(receipt.contract_text);
  ASSERT_TRUE(contract.has_value());
  receipt.work = WorkOf(contract->shape, 1000, forward_ns, backward_ns);
  ExpectSound(receipt);
  // 2 (8 + 4) operations of each pair, and 2 (3 * 8 + 2 * 4).
  EXPECT_DOUBLE_EQ(receipt.work.forward_gflops, 24e3 / static_cast<double>(forward_ns));
  EXPECT_DOUBLE_EQ(receipt.work.backward_gflops, 64e3 / static_cast<double>(backward_ns));
  EXPECT_EQ(WorkOf(contract->shape, 1000, 0, 0).forward_gflops, 0);
  receipt.work.forward_gflops *= 1.01;
  EXPECT_NE(Words(CheckReceipt(receipt)).find("work.forward_gflops"), std::string::npos);
}

// Version 1 had its XLA groups: read for comparing, and for nothing else.
TEST(Receipt, OfVersion1_IsComparedAndNoMore) {
  Json old = Json::parse(ToJson(GoodReceipt()));
  const Receipt now = ParseReceipt(old.dump()).value();
  for (const char* name : {"ran_on", "device", "programs", "work", "kernels", "files"}) old.erase(name);
  old["version"] = 1;
  old["versions"]["receipt"] = "1";
  old["xla"] = {{"plugin", "a.so"},      {"platform", "cuda"}, {"platform_version", "12"},
                {"pjrt", "0.81"},        {"stablehlo", "1"},   {"device", 3},
                {"device_kind", "H200"}, {"topology", ""},     {"guard", "not needed"}};
  Json program = {{"name", "forward_x"}, {"source", "disk"}, {"note", ""},          {"key", std::string(32, 'a')},
                  {"compile_ns", 5},     {"parts", 1},       {"argument_bytes", 1}, {"output_bytes", 1},
                  {"temp_bytes", 1},     {"code_bytes", 1},  {"instructions", 1},   {"opcodes", ""},
                  {"custom_calls", ""},  {"collectives", ""}};
  old["xla_forward"] = program;
  program["source"] = "";
  old["xla_backward"] = program;
  const Result<Receipt> read = ParseReceiptFields(old.dump());
  ASSERT_TRUE(read.has_value()) << ToText(read.error());
  EXPECT_EQ(read->version, 1);
  EXPECT_EQ(read->device.name, "H200");
  EXPECT_EQ(read->device.ordinal, 3);
  ASSERT_EQ(read->programs.size(), 1u);
  EXPECT_EQ(ProgramOf(*read, "forward").compile_ns, 5);
  EXPECT_FALSE(DiffReceipts(*read, now).empty());
  const std::string complaint = Complaint(old.dump());
  EXPECT_NE(complaint.find("version: 2 expected, got one of version 1: compare only"), std::string::npos) << complaint;
}

TEST(Receipt, LaneThatRanDense_IsCaught) {
  Proves("B11");
  TestTable table;
  table.Build("cpu").extra_tiles = 3;
  const RunOutcome outcome = table.Run(SmallContract(), TargetNamed("cpu"));
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  const std::vector<Violation> violations = CheckReceipt(outcome.receipt);
  ASSERT_EQ(violations.size(), 1u) << Words(violations);
  EXPECT_EQ(violations[0].field, "tiles_executed");
}

TEST(Receipt, Line_SaysWhatRanAndWhy) {
  Proves("R51");
  Receipt receipt = GoodReceipt();
  const std::string line = ToLine(receipt);
  EXPECT_EQ(line.rfind(std::string("cpu ran (asked auto, selected cuda: ") + WhyNoCuda() + ") on " + HostProcessor() +
                           ", planned for h200, ",
                       0),
            0u)
      << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_NE(line.find("tiles"), std::string::npos);

  const Contract contract = SmallContract();
  const RunOutcome forced =
      tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"), Ask{.lane = "reference"});
  EXPECT_EQ(ToLine(forced.receipt).rfind("reference ran (asked reference) natively on " + HostProcessor() + ", ", 0),
            0u)
      << ToLine(forced.receipt);
  const RunOutcome chosen = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"));
  EXPECT_EQ(ToLine(chosen.receipt).rfind("cpu ran (asked auto, selected cpu) natively on " + HostProcessor() + ", ", 0),
            0u)
      << ToLine(chosen.receipt);
  const RunOutcome failed = tessera::Run(contract, {}, {}, TargetNamed("v6e"));
  const std::string failed_line = ToLine(failed.receipt);
  EXPECT_EQ(failed_line.rfind("failed at inputs (asked auto, selected splash: tpu.dtype) for v6e: TSR-R001", 0), 0u)
      << failed_line;
  EXPECT_EQ(failed_line.find('\n'), std::string::npos);
}

TEST(Receipt, BytesThatAreNotUtf8_DoNotThrow) {
  Receipt receipt = GoodReceipt();
  receipt.input_source = "file \xff\xfe.safetensors";
  EXPECT_TRUE(ParseReceipt(ToJson(receipt)).has_value());
}

}  // namespace
}  // namespace tessera
