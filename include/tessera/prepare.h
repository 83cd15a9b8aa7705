// What of a run no batch changes, made once and kept: the keys it is kept under, and the cache that keeps it. Run,
// RunStrided and RunPlan use the process-wide cache without being told; docs/caching.md explains by example.
//
// Goals: one build for any number of batches; equal contracts meet however they are spelled; nothing a batch says is in
// a key; memory is bounded and losing an entry costs time only. Not a goal: keeping anything between processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/contract.h"
#include "tessera/lane.h"
#include "tessera/plan.h"
#include "tessera/run.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

// Which pairs a mask allows, as far as no batch says: read off the meaning, so every spelling gives the same key. Two
// masks of one length that differ in a pair, or in what they need at run time, have different keys.
struct ExactMaskKey {
  // Keys from row - left to row + right, of rows counted to the end of the keys; -1 = unlimited. The default is causal.
  std::array<int64_t, 2> window_size{-1, 0};
  int64_t local_window = 0;  // keys a row sees, itself included, where the window is (left, 0); 0 = no such window
  bool has_doc_ids = false;
  bool has_valid_token_counts = false;
  std::string mask_digest = {};  // 32 hex digits for a mask that the fields above do not say whole, else empty
  bool operator==(const ExactMaskKey&) const = default;
};
Result<ExactMaskKey> MakeExactMaskKey(const Contract& contract);
std::string ToText(const ExactMaskKey& key);  // "window (1023, 0), local window 1024, documents"

// Everything that a prepared run depends on, and nothing else.
struct ForwardCacheKey {
  ExactMaskKey mask;
  bool use_fused_scoring = false;  // the contract routes
  bool use_pallas = false;         // the selected lane runs a custom kernel as a payload
  int64_t q_len = 0;
  int64_t kv_len = 0;
  std::optional<Routing> routing;
  std::array<TileSize, kNumDirections> tiles{};
  Capacity capacity;
  std::string contract_key;
  std::string class_key;  // empty where the contract has no class on this target with this tile
  // Of what spelling decides beside meaning: the run-time tensors a batch may bring without need, and where a mask came
  // from a bitmap or a registered term, which selection and stored tiles ask.
  std::string form_digest;
  Target target;
  std::string lane;  // as asked for, with the lanes excluded, the instruction set and the stages disabled
  std::vector<std::string> exclude;
  std::string isa;
  std::string plugin;  // empty: the installed one
  std::vector<std::string> disable;
  bool operator==(const ForwardCacheKey&) const = default;
};
std::string ToText(const ForwardCacheKey& key);  // "mask: ...; q_len: 8192; ..."
std::string Digest(const ForwardCacheKey& key);  // 32 hex digits of every field
size_t HashOf(const ForwardCacheKey& key);

struct PreparedContract;  // the planner's part

// What follows from contract, target and options alone. Never changes once made, so any number of threads may run it.
struct PreparedRun {
  ForwardCacheKey key;
  std::string key_digest;
  Hash128 spelling{};  // of the request as it was written: equal ones need no second look
  Contract contract;
  std::string contract_text;  // canonical
  MaskFacts facts;
  Target target;
  std::optional<ClassShape> shape;  // absent where planning would fail, which a run reports when it plans
  Selection selection;              // with every lane's decision on the contract
  std::shared_ptr<const PreparedContract> planning;
  int64_t bytes = 0;  // of memory, about
};

// Prepares a run or finds it prepared, by the options' cache. A run may then be held to it: RunOptions::pinned.
Result<std::shared_ptr<const PreparedRun>> Prepare(const Contract& contract, const Target& target,
                                                   const RunOptions& options = {});

struct RunCacheStats {
  int64_t hits = 0;       // runs that found theirs prepared, or waited for a thread that was preparing it
  int64_t misses = 0;     // runs that did not
  int64_t builds = 0;     // runs prepared and kept; a miss whose contract is refused builds nothing
  int64_t evictions = 0;  // prepared runs given up for others
  int64_t respelled = 0;  // hits found by meaning only: the first of each new spelling
  int64_t entries = 0;    // kept now
  int64_t bytes = 0;      // of memory they take, about
  bool operator==(const RunCacheStats&) const = default;
};

// What a run got from a cache, with the totals as of then.
struct CachedRun {
  std::shared_ptr<const PreparedRun> prepared;
  bool is_hit = false;
  bool is_same_spelling = false;  // and not only the same meaning
  RunCacheStats stats;
};

struct __attribute__((visibility("hidden"))) RunCacheAccess;  // the library's own way in

// Keeps the prepared runs used last, bounded in number and in bytes. Thread-safe: when several threads ask for one key
// at once, one builds and the others wait. What is given up stays alive for the runs that use it.
class RunCache {
 public:
  // Entries, 0 keeps nothing; and about as many bytes, docs/limits.md saying how many where the caller does not.
  explicit RunCache(size_t capacity, std::optional<int64_t> max_bytes = {});
  ~RunCache();
  RunCache(const RunCache&) = delete;
  RunCache& operator=(const RunCache&) = delete;

  static RunCache& Default();  // the process's, used where no other is named

  Result<CachedRun> Get(const Contract& contract, const Target& target, const RunOptions& options = {});

  RunCacheStats stats() const;
  size_t capacity() const;
  void Clear();  // forgets every entry; counters stay

 private:
  friend struct RunCacheAccess;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera

template <>
struct std::hash<tessera::ForwardCacheKey> {
  size_t operator()(const tessera::ForwardCacheKey& key) const { return tessera::HashOf(key); }
};
#pragma GCC visibility pop
