// What routing and planning share: how their stages are asked to run, and what they say of themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/contract.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

struct PlanOptions {
  std::optional<TileSize> tile;  // overrides the target's and the contract's, in every direction
  // A batch that does not fit the class: false = TSR-P003, true = a wider class (and so another class key).
  bool widen_class = false;
  bool verify_stages = false;        // run each stage's invariant check
  bool dump_stages = false;          // keep each stage's text dump in its report
  std::vector<std::string> disable;  // stages by name; only those whose absence keeps the plan exact
};

// Calls work(0) .. work(count - 1), each once, in any order and on any threads. Empty: in order, on this thread.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& work)>;

// What a contract with [routing] makes its picks from; other contracts do not look at it.
struct RouteInputs {
  TensorRef q;  // [batch, num_q_heads, q_len, dim_qk]
  TensorRef k;  // [batch, num_kv_heads, kv_len, dim_qk]
  ParallelFor parallel = {};
};

// What one stage did, why, and how long it took.
struct StageReport {
  std::string name;
  int64_t ns = 0;
  bool disabled = false;
  std::string summary;
  std::string dump;
};

// A caller's indexer that returned nothing at all (picks with top_n 0) means every block, and is said to.
inline constexpr const char* kRerouted = "reroute_to_full";

// What became of the picks that the `blocks` term reads, and how many blocks a tile of queries needs for them.
struct PicksReport {
  std::string source;  // "routing", "caller", or kRerouted
  int64_t picks = 0;
  int64_t kept = 0;  // the others had no legal key, because of
  int64_t padding = 0;
  int64_t documents = 0;
  int64_t causality = 0;
  int64_t window = 0;
  int64_t other = 0;
  int64_t nan_scores = 0;  // counted as -inf
  double mean_union = 0.0;
  int64_t widest_union = 0;
  int64_t union_capacity = 0;
  bool operator==(const PicksReport&) const = default;
};

// The stages, in order, with what each does.
struct StageInfo {
  std::string name;
  std::string does;
  bool can_disable = false;
};
const std::vector<StageInfo>& Stages();

}  // namespace tessera
#pragma GCC visibility pop
