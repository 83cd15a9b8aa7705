// The ledger: kernel choice by evidence. A file of measured results decides whether a custom lane may stand in for the
// lane a target's table names. Goals: nothing is preferred without a comparison with the reference, a receipt and a
// clear win; a ledger that is missing, malformed or of another machine or version changes nothing, and says so.
// docs/ledger.md has the rule with a worked example. Not a goal: measuring; receipts do that.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/receipt.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

// One measurement: a custom lane and the lane it would stand in for, on one contract, batch and machine.
struct LedgerEntry {
  std::string custom_lane;
  std::string default_lane;
  std::string target;           // a target's name
  std::string kind;             // what LedgerKind says of the contract
  Shape shape;                  // lengths, heads, dims and dtype
  bool dynamic_shapes = false;  // lengths changed from step to step while it was measured
  bool backward = false;        // the times are of a forward and a backward
  int64_t custom_ns = 0;
  int64_t default_ns = 0;
  std::string machine;            // MachineId()
  std::string software;           // SoftwareId()
  std::string mask_digest;        // of the mask both ran, made again on any CPU from contract and batch
  bool reference_passed = false;  // the custom lane's outputs were compared with the oracle and agreed
  std::string receipt;            // ReceiptFingerprint of the custom lane's run; empty = none
  std::string date;               // 2026-01-31
  bool operator==(const LedgerEntry&) const = default;
};

struct Ledger {
  int64_t version = 1;
  std::vector<LedgerEntry> entries;
  bool operator==(const Ledger&) const = default;
};

// Reading is strict: every field, no other field, the right type; every fault is named (TSR-L005).
Result<Ledger> ParseLedger(std::string_view json);
Result<Ledger> ReadLedger(const std::string& path);
std::string ToJson(const Ledger& ledger);
std::string ToJson(const LedgerEntry& entry);
// Replaces the file whole or leaves it as it was.
Status WriteLedger(const std::string& path, const Ledger& ledger);

// Puts an entry at the end, in place of an older one of the same lanes, kind, shape, direction, machine and software.
Status AddEntry(Ledger& ledger, LedgerEntry entry);
// 32 hex digits of everything an entry says.
std::string EntryId(const LedgerEntry& entry);

// The custom and the default lane's receipts of one request: the same contract, batch, inputs, mask, options, versions
// and machine, nothing fell back, and the custom one passed `--check`. Every reason why not is listed (TSR-L006).
struct Evidence {
  const Receipt& custom_run;
  const Receipt& default_run;
  bool dynamic_shapes = false;
  std::string date = {};             // empty: today
  const MaskTerms* terms = nullptr;  // for contracts with terms of the user's own
};
Result<LedgerEntry> EntryFromReceipts(const Evidence& evidence);

std::string ReceiptFingerprint(const Receipt& receipt);
// What makes times comparable: the processor and its workers; the library's version and the compiler.
std::string MachineId();
std::string SoftwareId();
// What the mask and the scores ask of a kernel, by meaning: "causal", "window-documents-softcap".
Result<std::string> LedgerKind(const Contract& contract);
std::string Today();  // UTC

enum class LedgerVerdict : uint8_t {
  kNoEvidence,    // nothing that counts was measured for this contract
  kDynamic,       // lengths change from step to step: such kernels stay out
  kTied,          // within 5 percent of the default, or slower: not used
  kExperimental,  // a clear win at this shape, but at too few: used by those who ask for it
  kPromoted,      // a clear win at every measured shape, of at least three lengths, around this contract's
};
std::string_view ToText(LedgerVerdict verdict);  // "no_evidence", "dynamic", "tied", "experimental", "promoted"

inline constexpr int64_t kTiePercent = 5;
inline constexpr int64_t kPromotedLengths = 3;

struct LedgerQuestion {
  const Contract& contract;
  const Target& target;
  std::string custom_lane;
  std::string default_lane;
  bool backward = false;
  bool dynamic_shapes = false;
};
struct UncountedEntry {
  LedgerEntry entry;
  std::string why;
};
struct LedgerDecision {
  LedgerVerdict verdict = LedgerVerdict::kNoEvidence;
  std::string note;                       // one sentence: why
  std::vector<LedgerEntry> counted;       // of this question, one per shape
  std::vector<UncountedEntry> uncounted;  // of this question, and why they do not count
  std::string entry;                      // the id of the one that decided; empty without evidence
  double speedup = 0.0;                   // its default time over its custom time
  // Whether the custom lane is to be used.
  bool Prefers(bool experimental) const {
    return verdict == LedgerVerdict::kPromoted || (verdict == LedgerVerdict::kExperimental && experimental);
  }
};
Result<LedgerDecision> DecideByLedger(const Ledger& ledger, const LedgerQuestion& question);

// Before anything is measured: whether a custom kernel is worth writing. Dynamic shapes never are; explicit tiling, or
// a dense mask that it avoids, is what it can be better at.
struct KernelCase {
  bool dynamic_shapes = false;
  bool explicit_tiling = false;
  bool avoids_dense_mask = false;
};
std::string_view AdviseKernel(const KernelCase& facts);  // "stay_in_default" or "custom_kernel"

}  // namespace tessera
#pragma GCC visibility pop
