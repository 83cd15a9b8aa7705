// The ledger: the rule, what counts, the file, and what a run makes of it.
#include "tessera/ledger.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "dispatch/fixtures.h"
#include "ledger/limits.h"
#include "support/proves.h"
#include "tessera/io.h"

namespace tessera {
namespace {

constexpr const char* kHex = "0123456789abcdef0123456789abcdef";

// A measurement that counts here: `reference` as the custom lane, twice as fast as cpu.
LedgerEntry Entry(const Contract& contract, int64_t custom_ns = 500, int64_t default_ns = 1000) {
  return {.custom_lane = "reference",
          .default_lane = "cpu",
          .target = "cpu",
          .kind = LedgerKind(contract).value(),
          .shape = contract.shape,
          .custom_ns = custom_ns,
          .default_ns = default_ns,
          .machine = MachineId(),
          .software = SoftwareId(),
          .mask_digest = kHex,
          .reference_passed = true,
          .receipt = kHex,
          .date = "2026-01-31"};
}

LedgerDecision DecideFor(const Ledger& ledger, const Contract& contract, bool dynamic_shapes = false) {
  const Target cpu = TargetNamed("cpu");
  Result<LedgerDecision> decision = DecideByLedger(ledger, {.contract = contract,
                                                            .target = cpu,
                                                            .custom_lane = "reference",
                                                            .default_lane = "cpu",
                                                            .dynamic_shapes = dynamic_shapes});
  EXPECT_TRUE(decision.has_value());
  return decision.value_or(LedgerDecision{});
}

// Wins at lengths 32, 48 and 64.
Ledger Wins() {
  Ledger ledger;
  for (const int64_t len : {32, 48, 64}) ledger.entries.push_back(Entry(MakeContract({.len = len})));
  return ledger;
}

// A file that goes away with the test.
class LedgerFile {
 public:
  explicit LedgerFile(const std::string& text)
      : path_(testing::TempDir() + "ledger_" + std::to_string(getpid()) + "_" + std::to_string(made_++) + ".json") {
    EXPECT_TRUE(WriteFile(path_, text).has_value());
  }
  explicit LedgerFile(const Ledger& ledger) : LedgerFile(ToJson(ledger)) {}
  ~LedgerFile() { std::remove(path_.c_str()); }
  LedgerFile(const LedgerFile&) = delete;
  LedgerFile& operator=(const LedgerFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  static inline int made_ = 0;
  std::string path_;
};

TEST(LedgerRule, TiedWithinFivePercent_IsNotUsed) {
  Proves("R57");
  const Contract contract = MakeContract();
  for (const auto& [custom_ns, verdict] : {std::pair<int64_t, LedgerVerdict>{949, LedgerVerdict::kExperimental},
                                           {950, LedgerVerdict::kTied},
                                           {1000, LedgerVerdict::kTied},
                                           {1050, LedgerVerdict::kTied},
                                           {3000, LedgerVerdict::kTied}}) {
    const LedgerDecision decision = DecideFor({.entries = {Entry(contract, custom_ns)}}, contract);
    EXPECT_EQ(decision.verdict, verdict) << custom_ns << ": " << decision.note;
    EXPECT_FALSE(decision.Prefers(false));
    EXPECT_EQ(decision.Prefers(true), verdict == LedgerVerdict::kExperimental);
  }
  const std::string slower = DecideFor({.entries = {Entry(contract, 3000)}}, contract).note;
  EXPECT_NE(slower.find("slower"), std::string::npos) << slower;
}

TEST(LedgerRule, OneShape_IsExperimentalAndOnlyThere) {
  Proves("R57");
  const Contract contract = MakeContract();
  const Ledger ledger{.entries = {Entry(contract)}};
  const LedgerDecision here = DecideFor(ledger, contract);
  EXPECT_EQ(here.verdict, LedgerVerdict::kExperimental);
  EXPECT_EQ(here.entry, EntryId(ledger.entries[0]));
  const LedgerDecision elsewhere = DecideFor(ledger, MakeContract({.len = 64}));
  EXPECT_EQ(elsewhere.verdict, LedgerVerdict::kNoEvidence);
  EXPECT_FALSE(elsewhere.Prefers(true)) << elsewhere.note;
  // Many shapes of one length are still narrow.
  Ledger rows;
  for (const int64_t batch : {1, 2, 3, 4}) rows.entries.push_back(Entry(MakeContract({.batch = batch})));
  EXPECT_EQ(DecideFor(rows, contract).verdict, LedgerVerdict::kExperimental);
}

TEST(LedgerRule, ClearWinsAtThreeLengths_ArePromotedBetweenThem) {
  Proves("R57 R58");
  Ledger ledger = Wins();
  ledger.entries[1].custom_ns = 700;
  const LedgerDecision decision = DecideFor(ledger, MakeContract({.len = 40}));
  EXPECT_EQ(decision.verdict, LedgerVerdict::kPromoted) << decision.note;
  EXPECT_EQ(decision.entry, EntryId(ledger.entries[1])) << "the weakest win carries it";
  EXPECT_TRUE(decision.Prefers(false));
  for (const int64_t len : {16, 80}) {
    EXPECT_EQ(DecideFor(ledger, MakeContract({.len = len})).verdict, LedgerVerdict::kNoEvidence) << len;
  }
  // One shape where it does not win, and the others are narrow again.
  ledger.entries[2].custom_ns = 990;
  EXPECT_EQ(DecideFor(ledger, MakeContract({.len = 32})).verdict, LedgerVerdict::kExperimental);
  EXPECT_EQ(DecideFor(ledger, MakeContract({.len = 64})).verdict, LedgerVerdict::kTied);
  EXPECT_EQ(DecideFor(ledger, MakeContract({.len = 40})).verdict, LedgerVerdict::kNoEvidence);
}

TEST(LedgerRule, DynamicShapes_StayOut) {
  Proves("R57");
  EXPECT_EQ(DecideFor(Wins(), MakeContract(), /*dynamic_shapes=*/true).verdict, LedgerVerdict::kDynamic);
  Ledger ledger = Wins();
  for (LedgerEntry& entry : ledger.entries) entry.dynamic_shapes = true;
  const LedgerDecision decision = DecideFor(ledger, MakeContract());
  EXPECT_EQ(decision.verdict, LedgerVerdict::kDynamic);
  EXPECT_FALSE(decision.Prefers(true));
  EXPECT_EQ(decision.uncounted.size(), 3u);
  EXPECT_EQ(AdviseKernel({.dynamic_shapes = true, .explicit_tiling = true}), "stay_in_default");
  EXPECT_EQ(AdviseKernel({.explicit_tiling = true}), "custom_kernel");
  EXPECT_EQ(AdviseKernel({.avoids_dense_mask = true}), "custom_kernel");
  EXPECT_EQ(AdviseKernel({}), "stay_in_default");
}

TEST(LedgerRule, WithoutProof_NothingCounts) {
  Proves("R58");
  const std::pair<const char*, std::function<void(LedgerEntry&)>> faults[] = {
      {"no comparison with the reference", [](LedgerEntry& e) { e.reference_passed = false; }},
      {"no receipt", [](LedgerEntry& e) { e.receipt.clear(); }},
      {"no digest of a mask", [](LedgerEntry& e) { e.mask_digest.clear(); }},
      {"of another machine", [](LedgerEntry& e) { e.machine = "a faster one"; }},
      {"of another version", [](LedgerEntry& e) { e.software = "tessera 9"; }},
  };
  for (const auto& [why, break_it] : faults) {
    Ledger ledger = Wins();
    for (LedgerEntry& entry : ledger.entries) break_it(entry);
    const LedgerDecision decision = DecideFor(ledger, MakeContract());
    EXPECT_EQ(decision.verdict, LedgerVerdict::kNoEvidence) << why;
    ASSERT_EQ(decision.uncounted.size(), 3u);
    EXPECT_EQ(decision.uncounted[0].why.rfind(why, 0), 0u) << decision.uncounted[0].why;
    EXPECT_NE(decision.note.find(why), std::string::npos) << decision.note;
  }
}

TEST(LedgerRule, AnotherKindDtypeOrDirection_IsAnotherQuestion) {
  Proves("R57");
  const Ledger ledger = Wins();
  EXPECT_EQ(DecideFor(ledger, MakeContract({.mask = "full"})).verdict, LedgerVerdict::kNoEvidence);
  EXPECT_EQ(DecideFor(ledger, MakeContract({.softcap = 5})).verdict, LedgerVerdict::kNoEvidence);
  EXPECT_EQ(DecideFor(ledger, MakeContract({.dtype = DType::kBf16})).verdict, LedgerVerdict::kNoEvidence);
  // Another spelling of the same mask is the same kind.
  EXPECT_EQ(DecideFor(ledger, MakeContract({.mask = "causal and window(47, 0)"})).verdict, LedgerVerdict::kPromoted);
  EXPECT_EQ(LedgerKind(MakeContract({.mask = "causal and window(5, 0) and documents", .softcap = 5})).value(),
            "window-documents-softcap");
}

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
  EXPECT_NE(fault(text, "\"version\": 1", "\"version\": 2").find("version: 1 expected"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\": 500", "\"custom_ns\": 0").find("entries[0].custom_ns"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\": 500", "\"custom_ns\": \"x\"").find("an integer"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\": 500", "\"custom_ns\": 36028797018963969").find("custom_ns"), std::string::npos);
  EXPECT_NE(fault(text, "\"custom_ns\": 500,", "").find("custom_ns: missing"), std::string::npos);
  EXPECT_NE(fault(text, "\"kind\"", "\"sort\"").find("entries[0].sort: no such field"), std::string::npos);
  for (const char* no_date : {"2026-13-31", "2026-02-30", "2026-1-031", "+026-01-31", "2026/01/31", "2026-01-31 "}) {
    EXPECT_NE(fault(text, "2026-01-31", no_date).find("date"), std::string::npos) << no_date;
  }
  EXPECT_NE(fault(text, "\"default_lane\": \"cpu\"", "\"default_lane\": \"reference\"").find("another lane"),
            std::string::npos);
  EXPECT_NE(fault(text, "\"f32\"", "\"f64\"").find("dtype"), std::string::npos);
  EXPECT_FALSE(ParseLedger(text.substr(0, text.size() / 2)).has_value());
  EXPECT_FALSE(ParseLedger("[]").has_value());
  EXPECT_FALSE(ParseLedger("").has_value());
  EXPECT_FALSE(ParseLedger(R"({"version": 1, "entries": [[[[[[]]]]]]})").has_value());
}

TEST(LedgerFileText, SameMeasurement_ReplacesTheOlder_AndSizeIsBounded) {
  Ledger ledger = Wins();
  LedgerEntry newer = ledger.entries[0];
  newer.custom_ns = 400;
  ASSERT_TRUE(AddEntry(ledger, newer).has_value());
  ASSERT_EQ(ledger.entries.size(), 3u);
  EXPECT_EQ(ledger.entries.back(), newer);
  LedgerEntry bad = newer;
  bad.default_ns = -1;
  EXPECT_FALSE(AddEntry(ledger, bad).has_value());
  for (int64_t batch = 1; static_cast<int64_t>(ledger.entries.size()) < kMaxLedgerEntries; ++batch) {
    newer.shape.batch = batch;
    ASSERT_TRUE(AddEntry(ledger, newer).has_value());
  }
  EXPECT_LT(static_cast<int64_t>(ToJson(ledger).size()), kMaxLedgerBytes);
  EXPECT_TRUE(AddEntry(ledger, newer).has_value()) << "replacing needs no room";
  newer.shape.batch = kMaxLedgerEntries + 1;
  const Status full = AddEntry(ledger, newer);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kLedgerInvalid);
}

struct Runs {
  Receipt custom_run;
  Receipt default_run;
};
Runs MakeRuns() {
  const Contract contract = MakeContract();
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const Target cpu = TargetNamed("cpu");
  Runs runs{Run(contract, {}, inputs, cpu, Ask{.lane = "reference"}).receipt,
            Run(contract, {}, inputs, cpu, Ask{.lane = "cpu"}).receipt};
  runs.custom_run.options["check"] = "passed";
  return runs;
}

TEST(LedgerEvidence, TwoReceipts_MakeAnEntryThatCounts) {
  Proves("R58");
  const Runs runs = MakeRuns();
  const Result<LedgerEntry> entry = EntryFromReceipts({.custom_run = runs.custom_run, .default_run = runs.default_run});
  ASSERT_TRUE(entry.has_value()) << ToText(entry.error());
  EXPECT_EQ(entry->custom_lane, "reference");
  EXPECT_EQ(entry->default_lane, "cpu");
  EXPECT_EQ(entry->kind, "causal");
  EXPECT_EQ(entry->shape, MakeContract().shape);
  EXPECT_EQ(entry->receipt, ReceiptFingerprint(runs.custom_run));
  EXPECT_EQ(entry->mask_digest, runs.default_run.mask_digest);
  EXPECT_EQ(entry->machine, MachineId());
  EXPECT_EQ(entry->software, SoftwareId());
  EXPECT_EQ(entry->date, Today());
  EXPECT_EQ(DecideFor({.entries = {*entry}}, MakeContract()).counted.size(), 1u);
}

TEST(LedgerEvidence, ReceiptsThatDoNotGoTogether_AreRefused) {
  Proves("R58");
  const Runs good = MakeRuns();
  const std::pair<const char*, std::function<void(Runs&)>> faults[] = {
      {"custom.options.check", [](Runs& r) { r.custom_run.options.erase("check"); }},
      {"custom.options.check", [](Runs& r) { r.custom_run.options["check"] = "failed"; }},
      {"contract_key", [](Runs& r) { r.default_run.contract_key = kHex; }},
      {"mask_digest", [](Runs& r) { r.default_run.mask_digest = kHex; }},
      {"input_digest", [](Runs& r) { r.default_run.input_digest = kHex; }},
      {"batch_digest", [](Runs& r) { r.default_run.batch_digest = kHex; }},
      {"versions.compiler", [](Runs& r) { r.default_run.versions["compiler"] = "cc 1"; }},
      {"options.threads", [](Runs& r) { r.default_run.options["threads"] = "77"; }},
      {"ledger.machine", [](Runs& r) { r.default_run.ledger.machine = "another"; }},
      {"executed", [](Runs& r) { r.default_run = r.custom_run; }},
      {"default.executed", [](Runs& r) { r.default_run.selected = "cuda"; }},
      {"custom.ok", [](Runs& r) { r.custom_run.ok = false; }},
      {"custom.contract_text", [](Runs& r) { r.custom_run.contract_text = "version = 1"; }},
      {"default_ns", [](Runs& r) { r.default_run.timings.clear(); }},
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
}

RunOutcome RunWith(const std::string& file, const Contract& contract, bool experimental = false) {
  RunOptions options;
  options.ledger = file;
  options.experimental = experimental;
  return Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"), options);
}

TEST(LedgerRun, PromotedLane_RunsAndTheReceiptNamesTheEntry) {
  Proves("R57");
  const Ledger ledger = Wins();
  const LedgerFile file(ledger);
  const RunOutcome outcome = RunWith(file.path(), MakeContract());
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  const Receipt& receipt = outcome.receipt;
  ExpectSound(receipt);
  EXPECT_EQ(receipt.selected, "reference");
  EXPECT_EQ(receipt.executed, "reference");
  EXPECT_EQ(receipt.fallback_reason, "");
  EXPECT_EQ(receipt.selection_rule, "cpu: any contract -> cpu; ledger: promoted -> reference");
  EXPECT_EQ(receipt.ledger.verdict, "promoted");
  EXPECT_EQ(receipt.ledger.over, "cpu");
  EXPECT_TRUE(std::any_of(ledger.entries.begin(), ledger.entries.end(),
                          [&](const LedgerEntry& e) { return EntryId(e) == receipt.ledger.entry; }));
}

TEST(LedgerRun, Experimental_OnlyWhenAskedFor) {
  Proves("R57");
  const LedgerFile file(Ledger{.entries = {Entry(MakeContract())}});
  const RunOutcome plain = RunWith(file.path(), MakeContract());
  EXPECT_EQ(plain.receipt.executed, "cpu");
  EXPECT_EQ(plain.receipt.ledger.verdict, "experimental");
  EXPECT_EQ(plain.receipt.ledger.chose, "");
  ExpectSound(plain.receipt);
  const RunOutcome asked = RunWith(file.path(), MakeContract(), /*experimental=*/true);
  EXPECT_EQ(asked.receipt.executed, "reference");
  ExpectSound(asked.receipt);
}

TEST(LedgerRun, TableLaneThatIsTied_GivesWayToItsDefault) {
  Proves("R57");
  LedgerEntry entry = Entry(MakeContract(), 1000, 1010);
  std::swap(entry.custom_lane, entry.default_lane);
  const LedgerFile file(Ledger{.entries = {entry}});
  const RunOutcome outcome = RunWith(file.path(), MakeContract());
  EXPECT_EQ(outcome.receipt.executed, "reference") << outcome.receipt.ledger.note;
  EXPECT_EQ(outcome.receipt.ledger.verdict, "tied");
  ExpectSound(outcome.receipt);
  // One win does not unseat the table's own choice.
  entry.custom_ns = 500;
  const LedgerFile win(Ledger{.entries = {entry}});
  EXPECT_EQ(RunWith(win.path(), MakeContract()).receipt.executed, "cpu");
}

TEST(LedgerRun, UnusableOrStale_ChangesNothingAndSaysSo) {
  Proves("R57");
  const Contract contract = MakeContract();
  const RunOutcome plain = RunWith("", contract);
  EXPECT_EQ(plain.receipt.ledger.verdict, "");
  Ledger stale = Wins();
  for (LedgerEntry& entry : stale.entries) entry.software = "tessera 0.0.1, gcc 1";
  Ledger elsewhere = Wins();
  for (LedgerEntry& entry : elsewhere.entries) entry.machine = "another";
  struct Case {
    std::string text;
    std::string verdict;
    std::string note;
  };
  for (const Case& c : {Case{"{", "unusable", "TSR-L005"}, Case{"{}", "unusable", "TSR-L005"},
                        Case{ToJson(stale), "no_evidence", "of another version: tessera 0.0.1, gcc 1"},
                        Case{ToJson(elsewhere), "no_evidence", "of another machine: another"},
                        Case{R"({"version": 1, "entries": []})", "no_evidence", "no entry has"}}) {
    const LedgerFile file(c.text);
    const RunOutcome outcome = RunWith(file.path(), contract, /*experimental=*/true);
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    EXPECT_EQ(outcome.receipt.executed, plain.receipt.executed);
    EXPECT_EQ(outcome.receipt.output_digest, plain.receipt.output_digest);
    EXPECT_EQ(outcome.receipt.ledger.verdict, c.verdict) << c.text;
    EXPECT_NE(outcome.receipt.ledger.note.find(c.note), std::string::npos) << outcome.receipt.ledger.note;
    EXPECT_EQ(outcome.receipt.ledger.entry, "");
    ExpectSound(outcome.receipt);
  }
  const RunOutcome missing = RunWith("/nonexistent/ledger.json", contract);
  EXPECT_EQ(missing.receipt.output_digest, plain.receipt.output_digest);
  EXPECT_EQ(missing.receipt.ledger.verdict, "unusable");
  EXPECT_NE(missing.receipt.ledger.note.find("TSR-R002"), std::string::npos) << missing.receipt.ledger.note;
  ExpectSound(missing.receipt);
}

TEST(LedgerRun, LaneByName_IsNotAsked) {
  const LedgerFile file(Wins());
  RunOptions options = Ask{.lane = "cpu"};
  options.ledger = file.path();
  const Contract contract = MakeContract();
  const RunOutcome outcome = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"), options);
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_EQ(outcome.receipt.ledger.verdict, "not_asked");
  ExpectSound(outcome.receipt);
}

// On a TPU the table names xla_chunked for a mask that splash cannot do; the ledger knows a custom lane.
TEST(LedgerRun, ChoosesOnlyLanesThatAccept_AndFallsBackToTheTables) {
  Proves("R57");
  const Contract contract = MakeContract({.mask = "prefix(40) or sink(3)"});
  const Target v6e = TargetNamed("v6e");
  Ledger ledger;
  for (const int64_t len : {32, 48, 64}) {
    LedgerEntry entry = Entry(MakeContract({.mask = "prefix(40) or sink(3)", .len = len}));
    entry.kind = LedgerKind(contract).value();
    entry.custom_lane = "xla_pallas";
    entry.default_lane = "xla_chunked";
    entry.target = "v6e";
    ledger.entries.push_back(entry);
  }
  const LedgerFile file(ledger);
  RunOptions options;
  options.ledger = file.path();

  TestTable both;
  TestLane& pallas = both.Build("xla_pallas");
  both.Build("xla_chunked");
  const RunOutcome chosen = both.Run(contract, v6e, options);
  EXPECT_EQ(chosen.receipt.executed, "xla_pallas") << chosen.receipt.ledger.note << ErrorText(chosen);
  EXPECT_EQ(chosen.receipt.ledger.over, "xla_chunked");

  pallas.on_plan = Decision::No(ReasonCode::kScalarMemory, "too much");
  const RunOutcome refused_plan = both.Run(contract, v6e, options);
  EXPECT_EQ(refused_plan.receipt.selected, "xla_pallas");
  EXPECT_EQ(refused_plan.receipt.executed, "xla_chunked") << "the table's lane comes next";
  EXPECT_EQ(refused_plan.receipt.fallback_reason, "plan.scalar_memory");

  TestTable without;  // the custom lane is not built: there is nothing to choose
  without.Build("xla_chunked");
  const RunOutcome table = without.Run(contract, v6e, options);
  EXPECT_EQ(table.receipt.executed, "xla_chunked");
  EXPECT_EQ(table.receipt.ledger.chose, "");

  TestTable only_custom;  // the table's lane refuses: its fallbacks are the table's business
  only_custom.Build("xla_pallas");
  const RunOutcome fallback = only_custom.Run(contract, v6e, options);
  EXPECT_EQ(fallback.receipt.selected, "xla_chunked");
  EXPECT_EQ(fallback.receipt.executed, "reference");
  EXPECT_EQ(fallback.receipt.ledger.verdict, "not_asked");
}

TEST(LedgerRun, Diff_TellsAChoiceFromItsAbsence) {
  const LedgerFile file(Wins());
  const Receipt with = RunWith(file.path(), MakeContract()).receipt;
  const Receipt without = RunWith("", MakeContract()).receipt;
  bool is_told = false;
  for (const ReceiptChange& change : DiffReceipts(without, with)) {
    is_told |= change.field == "ledger.chose" && change.after == "reference" && change.matters;
  }
  EXPECT_TRUE(is_told);
}

}  // namespace
}  // namespace tessera
