// What an attention is prepared with, and the keys it is kept under. docs/caching.md explains the keys by example.
//
// Goals: equal contracts meet however they are spelled; nothing a batch says is in a key. Not a goal: keeping anything
// between processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/contract.h"
#include "tessera/lane.h"
#include "tessera/plan.h"
#include "tessera/planner.h"
#include "tessera/target.h"
#include "tessera/tensor.h"
#include "tessera/xla.h"

#pragma GCC visibility push(default)
namespace tessera {

struct AttentionOptions {
  std::string lane = "auto";              // or a lane's name: that lane or an error; auto asks the engine's first
  std::vector<std::string> exclude = {};  // lanes never to use
  bool strict = false;                    // any fallback is an error
  bool forward = true;                    // which passes will be called
  bool backward = false;
  std::optional<int64_t> threads = {};  // absent: as many as the target has workers; 0 is an error
  std::string isa = "auto";   // or an instruction set's name: that one or an error; auto asks the engine's first
  MemorySpace memory = {};    // where the tensors of the calls will be
  XlaOptions xla = {};        // for the lanes that go through XLA
  std::string ledger = {};    // a file of measurements that may choose between lanes; empty = none (docs/ledger.md)
  bool experimental = false;  // let it choose a lane that won at this shape only
  PlanOptions plan = {};
};

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

// Everything that a prepared attention depends on, and nothing else.
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
  // The options that decisions depend on, by name and as receipts write them.
  std::vector<std::pair<std::string, std::string>> options;
  bool operator==(const ForwardCacheKey&) const = default;
};
std::string ToText(const ForwardCacheKey& key);  // "mask: ...; q_len: 8192; ..."
std::string Digest(const ForwardCacheKey& key);  // 32 hex digits of every field
size_t HashOf(const ForwardCacheKey& key);

// Of an engine's cache of what it prepared, in totals.
struct CacheStats {
  int64_t hits = 0;       // requests that found theirs prepared, or waited for a thread that was preparing it
  int64_t misses = 0;     // requests that did not
  int64_t builds = 0;     // prepared and kept; a miss whose contract is refused builds nothing
  int64_t evictions = 0;  // given up for others
  int64_t respelled = 0;  // hits found by meaning only: the first of each new spelling
  int64_t entries = 0;    // kept now
  int64_t bytes = 0;      // of memory they take, about
  bool operator==(const CacheStats&) const = default;
};

}  // namespace tessera

template <>
struct std::hash<tessera::ForwardCacheKey> {
  size_t operator()(const tessera::ForwardCacheKey& key) const { return tessera::HashOf(key); }
};
#pragma GCC visibility pop
