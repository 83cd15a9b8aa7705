// Entries for the ledger's tests: made from real runs, with times that a test makes up.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "engine/fixtures.h"
#include "tessera/ledger.h"

namespace tessera {

inline constexpr const char* kHex = "0123456789abcdef0123456789abcdef";

struct Runs {
  Receipt custom_run;
  Receipt default_run;
};

// Of one request, with nothing about them made up.
inline Runs MakeRuns(const Contract& contract, const char* custom_lane = "reference", const char* default_lane = "cpu",
                     const Batch& batch = {}) {
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const Target cpu = TargetNamed("cpu");
  return {Run(contract, batch, inputs, cpu, Ask{.lane = custom_lane}).receipt,
          Run(contract, batch, inputs, cpu, Ask{.lane = default_lane}).receipt};
}

// A test may lie about its times: a forward that took this long.
inline void SetForward(Receipt& receipt, int64_t ns) {
  receipt.work = {};
  for (Timing& timing : receipt.timings) {
    if (timing.name == "forward") timing.ns = ns;
  }
}

inline LedgerEntry ProvedEntry(const Runs& runs, bool dynamic_shapes = false) {
  const Result<LedgerEntry> entry = EntryFromReceipts({.custom_run = runs.custom_run,
                                                       .default_run = runs.default_run,
                                                       .dynamic_shapes = dynamic_shapes,
                                                       .date = "2026-01-31"});
  EXPECT_TRUE(entry.has_value()) << ToText(entry.error());
  Receipt again = runs.custom_run;
  again.options["check"] = "passed";
  const Result<LedgerEntry> proved = ProveEntry(entry.value_or(LedgerEntry{}), again, runs.default_run);
  EXPECT_TRUE(proved.has_value()) << ToText(proved.error());
  return proved.value_or(LedgerEntry{});
}

// A measurement that counts here: `reference` as the custom lane, twice as fast as cpu.
inline LedgerEntry Entry(const Contract& contract, int64_t custom_ns = 500, int64_t default_ns = 1000) {
  Runs runs = MakeRuns(contract);
  SetForward(runs.custom_run, custom_ns);
  SetForward(runs.default_run, default_ns);
  return ProvedEntry(runs);
}

// The same as if both receipts had said something else.
inline LedgerEntry Changed(const LedgerEntry& entry, const std::function<void(Receipt&)>& change,
                           bool dynamic_shapes = false) {
  Runs runs{entry.custom_run, entry.default_run};
  change(runs.custom_run);
  change(runs.default_run);
  return ProvedEntry(runs, dynamic_shapes);
}

inline LedgerDecision DecideFor(const Ledger& ledger, const Contract& contract, bool dynamic_shapes = false) {
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
inline Ledger Wins() {
  Ledger ledger;
  for (const int64_t len : {32, 48, 64}) ledger.entries.push_back(Entry(SmallContract({.len = len})));
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

}  // namespace tessera
