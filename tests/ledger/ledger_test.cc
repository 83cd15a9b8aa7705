// The ledger: the rule, what counts, and what a run makes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "entries.h"
#include "support/proves.h"
#include "tessera/io.h"

namespace tessera {
namespace {

TEST(LedgerRule, TiedWithinFivePercent_IsNotUsed) {
  Proves("R57");
  const Contract contract = SmallContract();
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
  const Contract contract = SmallContract();
  const Ledger ledger{.entries = {Entry(contract)}};
  const LedgerDecision here = DecideFor(ledger, contract);
  EXPECT_EQ(here.verdict, LedgerVerdict::kExperimental);
  EXPECT_EQ(here.entry, EntryId(ledger.entries[0]));
  const LedgerDecision elsewhere = DecideFor(ledger, SmallContract({.len = 64}));
  EXPECT_EQ(elsewhere.verdict, LedgerVerdict::kNoEvidence);
  EXPECT_FALSE(elsewhere.Prefers(true)) << elsewhere.note;
  // Many shapes of one length are still narrow.
  Ledger rows;
  for (const int64_t batch : {1, 2, 3, 4}) rows.entries.push_back(Entry(SmallContract({.batch = batch})));
  EXPECT_EQ(DecideFor(rows, contract).verdict, LedgerVerdict::kExperimental);
}

TEST(LedgerRule, ClearWinsAtThreeLengths_ArePromotedBetweenThem) {
  Proves("R57 R58");
  Ledger ledger = Wins();
  ledger.entries[1] = Entry(SmallContract({.len = 48}), 700);
  const LedgerDecision decision = DecideFor(ledger, SmallContract({.len = 40}));
  EXPECT_EQ(decision.verdict, LedgerVerdict::kPromoted) << decision.note;
  EXPECT_EQ(decision.entry, EntryId(ledger.entries[1])) << "the weakest win carries it";
  EXPECT_TRUE(decision.Prefers(false));
  for (const int64_t len : {16, 80}) {
    EXPECT_EQ(DecideFor(ledger, SmallContract({.len = len})).verdict, LedgerVerdict::kNoEvidence) << len;
  }
  // One shape where it does not win, and the others are narrow again.
  ledger.entries[2] = Entry(SmallContract({.len = 64}), 990);
  EXPECT_EQ(DecideFor(ledger, SmallContract({.len = 32})).verdict, LedgerVerdict::kExperimental);
  EXPECT_EQ(DecideFor(ledger, SmallContract({.len = 64})).verdict, LedgerVerdict::kTied);
  EXPECT_EQ(DecideFor(ledger, SmallContract({.len = 40})).verdict, LedgerVerdict::kNoEvidence);
}

TEST(LedgerRule, DynamicShapes_StayOut) {
  Proves("R57");
  EXPECT_EQ(DecideFor(Wins(), SmallContract(), /*dynamic_shapes=*/true).verdict, LedgerVerdict::kDynamic);
  Ledger ledger = Wins();
  for (LedgerEntry& entry : ledger.entries)
    entry = Changed(
        entry, [](Receipt&) {}, /*dynamic_shapes=*/true);
  const LedgerDecision decision = DecideFor(ledger, SmallContract());
  EXPECT_EQ(decision.verdict, LedgerVerdict::kDynamic);
  EXPECT_FALSE(decision.Prefers(true));
  EXPECT_EQ(decision.uncounted.size(), 3u);
}

TEST(LedgerAdvice, Kernel_IsWorthWritingWhereItCanBeBetter) {
  Proves("R57");
  EXPECT_EQ(AdviseKernel({.dynamic_shapes = true, .explicit_tiling = true}).advice, "stay_in_default");
  EXPECT_EQ(AdviseKernel({.explicit_tiling = true}).advice, "custom_kernel");
  EXPECT_EQ(AdviseKernel({.avoids_dense_mask = true}).advice, "custom_kernel");
  EXPECT_EQ(AdviseKernel({}).advice, "stay_in_default");
  EXPECT_EQ(AdviseKernel({.explicit_tiling = true, .avoids_dense_mask = true}).why,
            "it controls its tiles, and it avoids a dense mask");
  Contract plain = SmallContract();
  plain.tiles = {256, 256};  // which need no reason
  plain.tiles_reason = "";
  ASSERT_TRUE(KernelCaseOf(plain, false).has_value());
  EXPECT_FALSE(KernelCaseOf(plain, false)->explicit_tiling);
  EXPECT_FALSE(KernelCaseOf(plain, false)->avoids_dense_mask);
  EXPECT_TRUE(KernelCaseOf(SmallContract({.mask = "causal and documents"}), false)->avoids_dense_mask);
  EXPECT_TRUE(KernelCaseOf(plain, true)->dynamic_shapes);
}

TEST(LedgerRule, WithoutProof_NothingCounts) {
  Proves("R58");
  const auto with = [](const std::function<void(Receipt&)>& change) {
    return [change](LedgerEntry& e) { e = Changed(e, change); };
  };
  const std::pair<const char*, std::function<void(LedgerEntry&)>> faults[] = {
      {"no proof", [](LedgerEntry& e) { e.proof = {}; }},
      {"of another machine", with([](Receipt& r) { r.ledger.machine = "a faster one"; })},
      {"of another version", with([](Receipt& r) { r.versions["tessera"] = "9"; })},
      // Typed by hand, in a program: as little believed as in a file.
      {"it does not follow from its receipts: custom_ns", [](LedgerEntry& e) { e.custom_ns = 1; }},
      {"it does not follow from its receipts: mask_digest", [](LedgerEntry& e) { e.mask_digest = kHex; }},
      {"it does not follow from its receipts: proof.check", [](LedgerEntry& e) { e.proof.check = "surely"; }},
      {"it does not follow from its receipts: proof.output_digest",
       [](LedgerEntry& e) { e.proof.output_digest = kHex; }},
      {"it does not follow from its receipts: custom_run.failed_at", [](LedgerEntry& e) { e.custom_run.ok = false; }},
  };
  for (const auto& [why, break_it] : faults) {
    Ledger ledger = Wins();
    for (LedgerEntry& entry : ledger.entries) break_it(entry);
    const LedgerDecision decision = DecideFor(ledger, SmallContract());
    EXPECT_EQ(decision.verdict, LedgerVerdict::kNoEvidence) << why;
    ASSERT_EQ(decision.uncounted.size(), 3u);
    EXPECT_EQ(decision.uncounted[0].why.rfind(why, 0), 0u) << decision.uncounted[0].why;
    EXPECT_NE(decision.note.find(why), std::string::npos) << decision.note;
  }
}

TEST(LedgerRule, AnotherKindDtypeOrDirection_IsAnotherQuestion) {
  Proves("R57");
  const Ledger ledger = Wins();
  EXPECT_EQ(DecideFor(ledger, SmallContract({.mask = "full"})).verdict, LedgerVerdict::kNoEvidence);
  EXPECT_EQ(DecideFor(ledger, SmallContract({.softcap = 5})).verdict, LedgerVerdict::kNoEvidence);
  EXPECT_EQ(DecideFor(ledger, SmallContract({.dtype = DType::kBf16})).verdict, LedgerVerdict::kNoEvidence);
  // Another spelling of the same mask is the same kind.
  EXPECT_EQ(DecideFor(ledger, SmallContract({.mask = "causal and window(47, 0)"})).verdict, LedgerVerdict::kPromoted);
  EXPECT_EQ(LedgerKind(SmallContract({.mask = "causal and window(5, 0) and documents", .softcap = 5})).value(),
            "window-documents-softcap");
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
  const RunOutcome outcome = RunWith(file.path(), SmallContract());
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
  const LedgerFile file(Ledger{.entries = {Entry(SmallContract())}});
  const RunOutcome plain = RunWith(file.path(), SmallContract());
  EXPECT_EQ(plain.receipt.executed, "cpu");
  EXPECT_EQ(plain.receipt.ledger.verdict, "experimental");
  EXPECT_EQ(plain.receipt.ledger.chose, "");
  ExpectSound(plain.receipt);
  const RunOutcome asked = RunWith(file.path(), SmallContract(), /*experimental=*/true);
  EXPECT_EQ(asked.receipt.executed, "reference");
  ExpectSound(asked.receipt);
}

TEST(LedgerRun, TableLaneThatIsTied_GivesWayToItsDefault) {
  Proves("R57");
  Runs runs = MakeRuns(SmallContract(), "cpu", "reference");
  SetForward(runs.custom_run, 1000);
  SetForward(runs.default_run, 1010);
  const LedgerEntry entry = ProvedEntry(runs);
  const LedgerFile file(Ledger{.entries = {entry}});
  const RunOutcome outcome = RunWith(file.path(), SmallContract());
  EXPECT_EQ(outcome.receipt.executed, "reference") << outcome.receipt.ledger.note;
  EXPECT_EQ(outcome.receipt.ledger.verdict, "tied");
  ExpectSound(outcome.receipt);
  // One win does not unseat the table's own choice.
  SetForward(runs.custom_run, 500);
  const LedgerFile win(Ledger{.entries = {ProvedEntry(runs)}});
  EXPECT_EQ(RunWith(win.path(), SmallContract()).receipt.executed, "cpu");
}

TEST(LedgerRun, UnusableOrStale_ChangesNothingAndSaysSo) {
  Proves("R57");
  const Contract contract = SmallContract();
  const RunOutcome plain = RunWith("", contract);
  EXPECT_EQ(plain.receipt.ledger.verdict, "");
  Ledger stale = Wins();
  for (LedgerEntry& entry : stale.entries) {
    entry = Changed(entry, [](Receipt& r) { r.versions["tessera"] = "0.0.1", r.versions["compiler"] = "gcc 1"; });
  }
  Ledger elsewhere = Wins();
  for (LedgerEntry& entry : elsewhere.entries) {
    entry = Changed(entry, [](Receipt& r) { r.ledger.machine = "another"; });
  }
  struct Case {
    std::string text;
    std::string verdict;
    std::string note;
  };
  for (const Case& c : {Case{"{", "unusable", "TSR-L005"}, Case{"{}", "unusable", "TSR-L005"},
                        Case{ToJson(stale), "no_evidence", "of another version: tessera 0.0.1, gcc 1"},
                        Case{ToJson(elsewhere), "no_evidence", "of another machine: another"},
                        Case{R"({"version": 2, "entries": []})", "no_evidence", "no entry has"}}) {
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
  const Contract contract = SmallContract();
  const RunOutcome outcome = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"), options);
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_EQ(outcome.receipt.ledger.verdict, "not_asked");
  ExpectSound(outcome.receipt);
}

// On a TPU the table names xla_chunked for a mask that splash cannot do; the ledger knows a custom lane.
TEST(LedgerRun, ChoosesOnlyLanesThatAccept_AndFallsBackToTheTables) {
  Proves("R57");
  const Contract contract = SmallContract({.mask = "prefix(40) or sink(3)"});
  const Target v6e = TargetNamed("v6e");
  Ledger ledger;
  TestTable measured;
  measured.Build("xla_pallas");
  measured.Build("xla_chunked");
  const auto receipt_of = [&](const char* lane, int64_t len, int64_t ns) {
    Receipt receipt =
        measured.Run(SmallContract({.mask = "prefix(40) or sink(3)", .len = len}), v6e, Ask{.lane = lane}).receipt;
    SetForward(receipt, ns);
    if (receipt.device.plugin.empty()) receipt.device = {.kind = "tpu", .name = "Test TPU", .memory = "host"};
    receipt.ran_on = receipt.device.name;
    receipt.fallback_reason = "";
    return receipt;
  };
  for (const int64_t len : {44, 48, 64}) {
    ledger.entries.push_back(ProvedEntry({receipt_of("xla_pallas", len, 500), receipt_of("xla_chunked", len, 1000)}));
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
  EXPECT_EQ(fallback.receipt.executed, "cpu");
  EXPECT_EQ(fallback.receipt.ledger.verdict, "not_asked");
}

TEST(LedgerRun, Diff_TellsAChoiceFromItsAbsence) {
  const LedgerFile file(Wins());
  const Receipt with = RunWith(file.path(), SmallContract()).receipt;
  const Receipt without = RunWith("", SmallContract()).receipt;
  bool is_told = false;
  for (const ReceiptChange& change : DiffReceipts(without, with)) {
    is_told |= change.field == "ledger.chose" && change.after == "reference" && change.matters;
  }
  EXPECT_TRUE(is_told);
}

}  // namespace
}  // namespace tessera
