// The ledger: kernel choice by evidence. A file of measured results decides whether a custom lane may stand in for the
// lane a target's table names. Goals: nothing is preferred without receipts, a run again with a comparison to the
// reference, and a clear win; a ledger that is missing, malformed, edited, or of another machine or version changes
// nothing, and says so. docs/ledger.md has the rule with a worked example, and what it does not protect from. Not a
// goal: measuring; receipts do that.
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

// What running both lanes again showed, when the entry was added. Empty as a whole: nobody did, and nothing counts.
struct LedgerProof {
  std::string date = {};
  std::string machine = {};
  std::string software = {};
  std::string check = {};          // "passed ...": the custom lane's outputs against the contract
  std::string output_digest = {};  // of the custom lane's outputs: those of its receipt
  int64_t custom_ns = 0;           // measured again
  int64_t default_ns = 0;
  bool operator==(const LedgerProof&) const = default;
};

// One measurement: a custom lane and the lane it would stand in for, on one contract, batch and machine. All but
// dynamic_shapes, date and proof follows from the two receipts, and is made from them again whenever it is read.
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
  std::string machine;      // MachineId()
  std::string software;     // SoftwareId()
  std::string mask_digest;  // of the mask both ran, made again on any CPU from contract and batch
  std::string date;         // 2026-01-31
  LedgerProof proof = {};
  Receipt custom_run = {};
  Receipt default_run = {};
  bool operator==(const LedgerEntry& other) const;  // by their ids
};

struct Ledger {
  int64_t version = 2;
  std::vector<LedgerEntry> entries;
  bool operator==(const Ledger&) const = default;
};

// Reading is strict: every field, no other field, the right type, every value the one that the receipts give, and an id
// over all of it; every fault is named (TSR-L005).
Result<Ledger> ParseLedger(std::string_view json);
Result<Ledger> ReadLedger(const std::string& path);
std::string ToJson(const Ledger& ledger);
std::string ToJson(const LedgerEntry& entry);  // without its receipts, which it names by their fingerprints
// Replaces the file whole or leaves it as it was.
Status WriteLedger(const std::string& path, const Ledger& ledger);

// Puts an entry at the end, in place of an older one of the same lanes, kind, shape, direction, machine and software.
// Refused when it does not follow from its receipts (TSR-L006).
Status AddEntry(Ledger& ledger, LedgerEntry entry);
// The same to a file, which it begins where there is none: read, changed and written while nobody else does, so that
// several programs which add at once lose nothing. Gives the ledger as it is then.
Result<Ledger> AddToLedger(const std::string& path, LedgerEntry entry);
// 32 hex digits of everything an entry says, receipts and all.
std::string EntryId(const LedgerEntry& entry);

// The custom and the default lane's receipts of one request: good receipts of the same contract, batch, inputs, mask,
// options, versions and machine, with digests, and nothing fell back. Every reason why not is listed (TSR-L006).
struct Evidence {
  const Receipt& custom_run;
  const Receipt& default_run;
  bool dynamic_shapes = false;
  std::string date = {};             // empty: today
  const MaskTerms* terms = nullptr;  // for contracts with terms of the user's own
};
Result<LedgerEntry> EntryFromReceipts(const Evidence& evidence);
// A receipt, or the one inside a file of `tessera bench run --json`: that of the run which took the median time.
Result<Receipt> ReadMeasurement(const std::string& path);
// What makes an entry count: receipts of the same two requests, run again here and now. The outputs of both are those
// of the first time, and the custom lane's were compared with what the contract says (options "check") and agreed
// (TSR-L006 otherwise).
Result<LedgerEntry> ProveEntry(LedgerEntry entry, const Receipt& custom_again, const Receipt& default_again);

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
  kTied,          // within 5 percent of the default, or slower, at the first or at the second time: not used
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
  double speedup = 0.0;                   // its default time over its custom time, the worse of the two times
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
// What a contract says of it: it names its tiles and why, and no plain kernel has its mask.
Result<KernelCase> KernelCaseOf(const Contract& contract, bool dynamic_shapes);
struct KernelAdvice {
  std::string advice;  // "stay_in_default" or "custom_kernel"
  std::string why;
};
KernelAdvice AdviseKernel(const KernelCase& facts);

}  // namespace tessera
#pragma GCC visibility pop
