// The receipt: what was asked, what ran, and why nothing else did. Versioned JSON, and one line for people.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"
#include "tessera/lane.h"
#include "tessera/plan.h"

#pragma GCC visibility push(default)
namespace tessera {

// What a digest says that nobody asked for: hashing megabytes takes time.
inline constexpr const char* kNotTaken = "not taken";
// The runtime_mode when programs were made and none was run; and the option that is there then.
inline constexpr const char* kCompileOnly = "compile-only";
inline constexpr const char* kCompileOnlyOption = "compile_only";
inline constexpr const char* kEmitted = "emitted";  // written, and not even compiled
inline constexpr const char* kEmitOnlyOption = "emit_only";
// Who owns a kernel that is not plain code of ours: we do, and it is traced into a program of XLA's; or JAX does, and
// is called.
inline constexpr const char* kOwnerPallas = "trace_pallas";
inline constexpr const char* kOwnerJax = "call_jax";

// docs/receipts.md lists the names: prepare, plan, bind, compile.forward, digest, forward, ...
struct Timing {
  std::string name;
  int64_t ns = 0;
  bool operator==(const Timing&) const = default;
};

// What a run found prepared. The counts are the cache's totals once the run had asked: docs/caching.md.
struct CacheUse {
  std::string outcome;  // "hit", "miss" or "off"; empty when the run failed before it asked
  std::string key;      // of what was prepared
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t builds = 0;
  int64_t evictions = 0;
  bool operator==(const CacheUse&) const = default;
};

// What a ledger had to say of the choice between lanes (docs/ledger.md).
struct LedgerUse {
  std::string file = {};  // empty: none was asked for
  std::string verdict =
      {};                  // "no_evidence", "dynamic", "tied", "experimental" or "promoted"; "unusable" or "not_asked"
  std::string chose = {};  // the lane it put in place of the table's; empty when it changed nothing
  std::string over = {};   // the table's, then
  std::string entry = {};  // the id of the entry that decided
  std::string note = {};   // why
  std::string machine = {};  // this one: what a measurement of this run would count for
  bool operator==(const LedgerUse&) const = default;
};

// Which request a run at a class was made for (docs/classes.md); empty for a run of the contract as it is.
struct ClassUse {
  std::string request = {};      // its sizes
  std::string padded = {};       // and the class's
  std::string request_key = {};  // its contract key
  int64_t exact_slots = 0;       // forward worklist slots it needs
  int64_t class_slots = 0;       // and those of the class
  bool operator==(const ClassUse&) const = default;
};

// Where the picks of a `blocks` term came from and what became of them (docs/routing.md); empty without one.
struct PicksUse {
  std::string source = {};   // "routing", "caller", or "reroute_to_full": the caller's indexer returned nothing
  std::string reason = {};   // "indexer_returned_none" when rerouted
  int64_t picks = 0;         // before legalise
  int64_t kept = 0;          // with a legal key
  int64_t nan_scores = 0;    // that routing counted as -inf
  int64_t widest_union = 0;  // blocks that the neediest tile of queries needs
  bool operator==(const PicksUse&) const = default;
};

// How much there was to do, and how fast it was done: over the pairs that the mask allows, so that a lane which
// computes more than it must gains nothing. 0 = not counted, not measured.
struct WorkUse {
  int64_t pairs = 0;  // query-key pairs that the mask allows, over batch and query heads
  double forward_gflops = 0;
  double backward_gflops = 0;
  bool operator==(const WorkUse&) const = default;
};
// Of times as a receipt has them, 0 = not timed: 2 (dim_qk + dim_v) operations of a pair forward, and
// 2 (3 dim_qk + 2 dim_v) backward, which makes the scores again.
WorkUse WorkOf(const Shape& shape, int64_t pairs, int64_t forward_ns, int64_t backward_ns);

// Of emitted programs: a kernel and what it takes of the chip (a limit of 0 is none), and a file beside the receipt.
struct KernelUse {
  std::string name = {};
  int64_t vector_bytes = 0, vector_limit = 0;
  int64_t scalar_bytes = 0, scalar_limit = 0;
  bool operator==(const KernelUse&) const = default;
};
struct FileUse {
  std::string name = {};
  int64_t bytes = 0;
  std::string digest = {};  // FileDigest
  bool operator==(const FileUse&) const = default;
};
std::string FileDigest(std::string_view bytes);

struct Receipt {
  int64_t version = 2;
  bool ok = false;
  std::string failed_at;  // empty when ok; else the step that failed
  std::string error;      // and its error text
  std::string requested;  // "auto" or a lane's name
  std::string selected;   // by the target's table
  std::string selection_rule;
  std::string executed;  // empty when nothing ran
  std::string runtime_mode;
  std::string owner;            // whose program a custom kernel was: kOwnerPallas or kOwnerJax; empty for native lanes
  std::string fallback_reason;  // empty if and only if selected == executed, on the machine that was planned for
  std::string target;           // planned for
  std::string ran_on;           // this machine's processor, GPU or TPU by name, or "interpreter"; empty: nothing ran
  DeviceUse device;             // the same with all that is known of it
  CrossingUse crossing;         // of a bridge
  LedgerUse ledger;
  std::vector<LaneDecision> decisions;  // every lane's, also of lanes after the one that ran
  std::string contract_key;
  std::string contract_text;    // canonical TOML
  std::string contract_source;  // "file NAME"; its folder is where bitmaps are looked for
  std::string class_key;
  ClassUse class_request;
  PicksUse picks;
  std::string mask_digest;
  std::string plan_fingerprint;
  TileCounts tiles;            // forward
  int64_t tiles_executed = 0;  // forward
  TileCounts tiles_backward;   // dkv, when a backward ran
  int64_t tiles_executed_backward = 0;
  int64_t plan_bytes = 0;
  int64_t metadata_bytes = 0;
  int64_t metadata_limit = 0;  // 0 = the target sets none
  std::string kernel;
  std::string isa;
  int64_t compiles = 0;
  int64_t cache_hits = 0;
  CacheUse cache;
  std::vector<ProgramUse> programs;
  std::vector<KernelUse> kernels;  // of emitted programs
  std::vector<FileUse> files;      // and where they were written to
  WorkUse work;
  int64_t workspace_bytes = 0;
  std::string determinism;   // "bitwise": the same plan and inputs give the same bits
  std::string input_source;  // "seed 7", or "file NAME"
  std::string input_digest;  // this and the next two: 32 hex digits, or kNotTaken
  std::string batch_source;
  std::string batch_digest;
  std::string output_digest;
  std::map<std::string, std::string> options;
  std::map<std::string, std::string> versions;
  std::vector<Timing> timings;
};

std::string ToJson(const Receipt& receipt);
// One line: "cpu ran (asked auto, selected cpu) natively on Neoverse-V1, ...".
std::string ToLine(const Receipt& receipt);
// How receipts and ledgers write sizes: "b1 q2048 kv2048 h8/2 d64/64 f32".
std::string ShapeText(const Shape& shape);
// The program of a pass; empty as a whole where none ran.
ProgramUse ProgramOf(const Receipt& receipt, std::string_view pass);
// What a receipt of this build says under `versions`.
std::map<std::string, std::string> Versions();

// Schema and types only: what is enough to compare a receipt of another version with one of this. One of version 1 is
// read too, its groups of XLA as device and programs, and keeps its number: it can be compared, and no more.
Result<Receipt> ParseReceiptFields(std::string_view json);
// The names in an option such as "exclude", which a receipt writes with commas between them.
std::vector<std::string> SplitNames(const std::string& text);
// Every rule of docs/receipts.md that the receipt breaks: its parts agree with each other. Nothing is selected or
// planned again to find out. The key of a contract with terms of the user's own is checked where `terms` has them.
std::vector<Violation> CheckReceipt(const Receipt& receipt, const MaskTerms* terms = nullptr);
// Both.
Result<Receipt> ParseReceipt(std::string_view json, const MaskTerms* terms = nullptr);

// Reads a file; checks the rules where the receipt is of this version, and always when `is_strict`.
Result<Receipt> ReadReceipt(const std::string& path, bool is_strict = true, const MaskTerms* terms = nullptr);

// One thing that differs between two receipts. In order of importance: "meaning", "batch", "inputs", "outputs", "what
// ran", "plan", "options", "versions", "cost", "timings"; an empty text stands for something that is not there.
struct ReceiptChange {
  std::string group;
  std::string field;
  std::string before;
  std::string after;
  bool matters = true;  // false: a name, a cost or a time, which two runs of one request may differ in
  bool operator==(const ReceiptChange&) const = default;
};
std::vector<ReceiptChange> DiffReceipts(const Receipt& before, const Receipt& after);

}  // namespace tessera
#pragma GCC visibility pop
