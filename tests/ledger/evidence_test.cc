// Where entries come from, and the file they are kept in: what does not follow from receipts is not believed.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "entries.h"
#include "ledger/limits.h"
#include "support/proves.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

TEST(LedgerFileText, RoundTripsAndNamesEveryFault) {
  const Ledger ledger = Wins();
  const Result<Ledger> again = ParseLedger(ToJson(ledger));
  ASSERT_TRUE(again.has_value()) << ToText(again.error());
  EXPECT_EQ(*again, ledger);

  const auto fault = [](std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    const Result<Ledger> read = ParseLedger(text.replace(at, from.size(), to));
    EXPECT_FALSE(read.has_value()) << to;
    EXPECT_TRUE(read || read.error().code == ErrorCode::kLedgerInvalid);
    return read ? std::string() : ToText(read.error());
  };
  const std::string text = ToJson(ledger);
  EXPECT_NE(fault(text, "\"version\": 2", "\"version\": 1").find("version: 2 expected, got 1"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\":500", "\"custom_ns\":0").find("entries[0].custom_ns"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\":500", "\"custom_ns\":\"x\"").find("an integer"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\":500", "\"custom_ns\":36028797018963969").find("custom_ns"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\":500,", "").find("custom_ns: missing"), std::string::npos);
  EXPECT_NE(fault(text, "\"kind\"", "\"sort\"").find("entries[0].sort: no such field"), std::string::npos);
  for (const char* no_date : {"2026-13-31", "2026-02-30", "2026-1-031", "+026-01-31", "2026/01/31", "2026-01-31 "}) {
    EXPECT_NE(fault(text, "2026-01-31", no_date).find("date"), std::string::npos) << no_date;
  }
  EXPECT_NE(fault(text, "\"default_lane\":\"cpu\"", "\"default_lane\":\"reference\"").find("by its receipts"),
            std::string::npos);
  EXPECT_NE(fault(text, "\"f32\"", "\"f64\"").find("dtype"), std::string::npos);
  EXPECT_FALSE(ParseLedger(text.substr(0, text.size() / 2)).has_value());
  EXPECT_FALSE(ParseLedger("[]").has_value());
  EXPECT_FALSE(ParseLedger("").has_value());
  EXPECT_FALSE(ParseLedger(R"({"version": 2, "entries": [[[[[[[[[[]]]]]]]]]]})").has_value());
  std::string wide = R"({"version": 2, "entries": [0)";
  for (int64_t i = 0; i < kMaxLedgerValues; ++i) wide += ",0";
  EXPECT_NE(ToText(ParseLedger(wide + "]}").error()).find("values"), std::string::npos);
}

// A number, a word or a digit that a hand changed does not survive reading, wherever in the file it stands.
TEST(LedgerFileText, HandEditsOfAnyValue_AreRefused) {
  Proves("R58");
  const Json good = Json::parse(ToJson(Ledger{.entries = {Entry(SmallContract())}}));
  ASSERT_TRUE(ParseLedger(good.dump()).has_value()) << ToText(ParseLedger(good.dump()).error());
  std::vector<std::string> leaves;
  const std::function<void(const Json&, const std::string&)> collect = [&](const Json& json, const std::string& at) {
    if (!json.is_structured()) leaves.push_back(at);
    for (const auto& [key, value] : json.items()) {
      if (json.is_structured()) collect(value, at + "/" + key);
    }
  };
  collect(good, "");
  EXPECT_GT(leaves.size(), 200u);
  for (const std::string& at : leaves) {
    Json edited = good;
    Json& value = edited[Json::json_pointer(at)];
    if (value.is_boolean()) {
      value = !value.get<bool>();
    } else if (value.is_number_integer()) {
      value = value.get<int64_t>() == 0 ? 1 : value.get<int64_t>() - 1;
    } else if (value.is_number()) {
      value = value.get<double>() + 1.5;
    } else {
      value = value.get<std::string>() + "x";
    }
    const Result<Ledger> read = ParseLedger(edited.dump());
    ASSERT_FALSE(read.has_value()) << at << " = " << value.dump();
    EXPECT_EQ(read.error().code, ErrorCode::kLedgerInvalid);
  }
  // Also where everything else agrees: both the time and what was made of it, and only the id tells.
  Json edited = good;
  edited["entries"][0]["custom_ns"] = 100;
  for (Json& timing : edited["entries"][0]["custom_run"]["timings"]) {
    if (timing["name"] == "forward") timing["ns"] = 100;
  }
  const Result<Ledger> read = ParseLedger(edited.dump());
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(Words(read.error().violations).rfind("entries[0].id: ", 0), 0u) << ToText(read.error());
}

TEST(LedgerFileText, SameMeasurement_ReplacesTheOlder_AndSizeIsBounded) {
  Ledger ledger = Wins();
  const LedgerEntry newer = Entry(SmallContract({.len = 32}), 400);
  ASSERT_TRUE(AddEntry(ledger, newer).has_value());
  ASSERT_EQ(ledger.entries.size(), 3u);
  EXPECT_EQ(ledger.entries.back(), newer);
  LedgerEntry bad = newer;
  bad.default_ns = -1;
  EXPECT_FALSE(AddEntry(ledger, bad).has_value());
  ledger.entries.assign(static_cast<size_t>(kMaxLedgerEntries), ledger.entries[0]);
  ledger.entries.back() = newer;
  EXPECT_LT(static_cast<int64_t>(ToJson(Ledger{.entries = {newer}}).size()) * kMaxLedgerEntries, kMaxLedgerBytes);
  EXPECT_TRUE(AddEntry(ledger, newer).has_value()) << "replacing needs no room";
  const Status full = AddEntry(ledger, Entry(SmallContract({.len = 80})));
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kLedgerInvalid);
}

TEST(LedgerEvidence, TwoReceiptsRunAgain_MakeAnEntryThatCounts) {
  Proves("R58");
  const Runs runs = MakeRuns(SmallContract());
  const Result<LedgerEntry> entry = EntryFromReceipts({.custom_run = runs.custom_run, .default_run = runs.default_run});
  ASSERT_TRUE(entry.has_value()) << ToText(entry.error());
  EXPECT_EQ(entry->custom_lane, "reference");
  EXPECT_EQ(entry->default_lane, "cpu");
  EXPECT_EQ(entry->kind, "causal");
  EXPECT_EQ(entry->shape, SmallContract().shape);
  EXPECT_EQ(entry->mask_digest, runs.default_run.mask_digest);
  EXPECT_EQ(entry->machine, MachineId());
  EXPECT_EQ(entry->software, SoftwareId());
  EXPECT_EQ(entry->date, Today());
  EXPECT_EQ(DecideFor({.entries = {*entry}}, SmallContract()).counted.size(), 0u) << "nobody ran it again";
  Runs again = MakeRuns(SmallContract());
  EXPECT_FALSE(ProveEntry(*entry, again.custom_run, again.default_run).has_value()) << "and it was not compared";
  again.custom_run.options["check"] = "passed";
  const Result<LedgerEntry> proved = ProveEntry(*entry, again.custom_run, again.default_run);
  ASSERT_TRUE(proved.has_value()) << ToText(proved.error());
  EXPECT_EQ(proved->proof.check, "passed");
  EXPECT_EQ(proved->proof.output_digest, runs.custom_run.output_digest);
  EXPECT_EQ(DecideFor({.entries = {*proved}}, SmallContract()).counted.size(), 1u);
  EXPECT_NE(ToJson(*proved).find(ReceiptFingerprint(runs.custom_run)), std::string::npos);
}

// What the receipts claim and what running again showed are both times: a win is one in both.
TEST(LedgerEvidence, ClaimedWinThatIsNotSeenAgain_IsNone) {
  Proves("R58");
  Ledger ledger = Wins();
  for (LedgerEntry& entry : ledger.entries) entry.proof.custom_ns = entry.proof.default_ns;
  const LedgerDecision decision = DecideFor(ledger, SmallContract());
  EXPECT_EQ(decision.verdict, LedgerVerdict::kTied) << decision.note;
  EXPECT_FALSE(decision.Prefers(true));
}

TEST(LedgerEvidence, RunAgainThatIsAnother_ProvesNothing) {
  Proves("R58");
  const Runs runs = MakeRuns(SmallContract());
  const LedgerEntry entry = EntryFromReceipts({.custom_run = runs.custom_run, .default_run = runs.default_run}).value();
  Runs good = runs;
  good.custom_run.options["check"] = "passed";
  ASSERT_TRUE(ProveEntry(entry, good.custom_run, good.default_run).has_value());
  const std::pair<const char*, std::function<void(Runs&)>> faults[] = {
      {"custom_again.options.check", [](Runs& r) { r.custom_run.options["check"] = "failed"; }},
      {"custom_again.output_digest", [](Runs& r) { r.custom_run.output_digest = kHex; }},
      {"default_again.output_digest", [](Runs& r) { r.default_run.output_digest = kHex; }},
      {"custom_again.input_digest", [](Runs& r) { r.custom_run.input_digest = kHex; }},
      {"custom_again.mask_digest", [](Runs& r) { r.custom_run.mask_digest = kHex; }},
      {"custom_again.ledger.machine", [](Runs& r) { r.custom_run.ledger.machine = "another"; }},
      {"custom_again.ran_on", [](Runs& r) { r.custom_run.ran_on = "another"; }},
      {"default_again.executed", [](Runs& r) { r.default_run = r.custom_run; }},
      {"proof.custom_ns", [](Runs& r) { SetForward(r.custom_run, 0); }},
  };
  for (const auto& [field, break_it] : faults) {
    Runs again = good;
    break_it(again);
    const Result<LedgerEntry> proved = ProveEntry(entry, again.custom_run, again.default_run);
    ASSERT_FALSE(proved.has_value()) << field;
    EXPECT_EQ(proved.error().code, ErrorCode::kLedgerEvidence);
    EXPECT_NE(Words(proved.error().violations).find(std::string(field) + ": "), std::string::npos)
        << field << ": " << ToText(proved.error());
  }
}

TEST(LedgerEvidence, ReceiptsThatDoNotGoTogether_AreRefused) {
  Proves("R58");
  const Runs good = MakeRuns(SmallContract());
  const std::pair<const char*, std::function<void(Runs&)>> faults[] = {
      {"contract_key", [](Runs& r) { r.default_run = MakeRuns(SmallContract({.softcap = 5})).default_run; }},
      {"mask_digest", [](Runs& r) { r.default_run.mask_digest = kHex; }},
      {"input_digest", [](Runs& r) { r.default_run.input_digest = kHex; }},
      {"batch_digest", [](Runs& r) { r.default_run.batch_digest = kHex; }},
      {"versions.compiler", [](Runs& r) { r.default_run.versions["compiler"] = "cc 1"; }},
      {"options.threads", [](Runs& r) { r.default_run.options["threads"] = "77"; }},
      {"ledger.machine", [](Runs& r) { r.default_run.ledger.machine = "another"; }},
      {"executed", [](Runs& r) { r.default_run = r.custom_run; }},
      {"default_run.selected", [](Runs& r) { r.default_run.selected = "cuda"; }},
      {"custom_run.failed_at", [](Runs& r) { r.custom_run.ok = false; }},
      {"custom_run.output_digest", [](Runs& r) { r.custom_run.output_digest = kNotTaken; }},
      {"custom_run.contract_text", [](Runs& r) { r.custom_run.contract_text = "version = 1"; }},
      {"default_run.timings", [](Runs& r) { r.default_run.timings.clear(), r.default_run.work = {}; }},
      {"default_run.timings", [](Runs& r) { SetForward(r.default_run, 0); }},
  };
  for (const auto& [field, break_it] : faults) {
    Runs runs = good;
    break_it(runs);
    const Result<LedgerEntry> entry =
        EntryFromReceipts({.custom_run = runs.custom_run, .default_run = runs.default_run});
    ASSERT_FALSE(entry.has_value()) << field;
    EXPECT_EQ(entry.error().code, ErrorCode::kLedgerEvidence);
    ASSERT_FALSE(entry.error().violations.empty());
    EXPECT_EQ(entry.error().violations[0].field, field) << ToText(entry.error());
  }
  // Planned for another machine and run here: says nothing of that one.
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const Receipt off = tessera::Run(contract, {}, inputs, TargetNamed("v6e"), Ask{.lane = "reference"}).receipt;
  const Result<LedgerEntry> entry = EntryFromReceipts({.custom_run = off, .default_run = good.default_run});
  ASSERT_FALSE(entry.has_value());
  EXPECT_EQ(entry.error().violations[0].field, "custom_run.fallback_reason");
}

TEST(LedgerEvidence, Measurement_IsAReceiptOrTheMedianOfABenchmark) {
  const Receipt receipt = MakeRuns(SmallContract()).custom_run;
  int64_t ns = 0;
  for (const Timing& timing : receipt.timings) {
    if (timing.name == "forward") ns = timing.ns;
  }
  const LedgerFile plain(ToJson(receipt));
  ASSERT_TRUE(ReadMeasurement(plain.path()).has_value());
  const auto benchmark = [&](int64_t median) {
    return "{\"what\": \"forward\", \"median_ns\": " + std::to_string(median) + ", \"receipt\": " + ToJson(receipt) +
           "}";
  };
  const LedgerFile median(benchmark(ns));
  ASSERT_TRUE(ReadMeasurement(median.path()).has_value());
  EXPECT_EQ(ToJson(*ReadMeasurement(median.path())), ToJson(receipt));
  const LedgerFile typed(benchmark(ns / 2));
  EXPECT_EQ(ReadMeasurement(typed.path()).error().code, ErrorCode::kLedgerEvidence);
  const LedgerFile broken(std::string("{\"median_ns\": 1, \"receipt\": {}}"));
  EXPECT_EQ(ReadMeasurement(broken.path()).error().code, ErrorCode::kReceiptInvalid);
  EXPECT_EQ(ReadMeasurement("/nonexistent").error().code, ErrorCode::kFileRead);
}

}  // namespace
}  // namespace tessera
