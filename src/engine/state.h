// What stands behind Engine, Attention and Bound.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dispatch/bind.h"
#include "dispatch/lane_table.h"
#include "dispatch/prepared_cache.h"
#include "engine/workspace.h"
#include "tessera/engine.h"
#include "tessera/mask_term.h"
#include "tessera/receipt.h"

namespace tessera {

// Every mutable thing there is.
struct EngineState {
  EngineState(EngineOptions options_in, std::span<const LaneRow> table_in);
  const EngineOptions options;
  const std::span<const LaneRow> table;
  const std::shared_ptr<lanes::xla::State> xla;
  const std::shared_ptr<lanes::cuda::State> cuda;
  MaskTerms mask_terms;
  PreparedCache cache;
  WorkspacePool workspaces;
};

struct AttentionState {
  std::shared_ptr<EngineState> engine;
  AttentionOptions options;  // settled: nothing is left to the engine
  bool compile_only = false;
  bool emit_only = false;  // nothing is compiled either
  bool may_copy = false;   // host tensors to a lane's device and back
  int64_t threads = 1;
  std::vector<MadeLane> lanes;
  std::shared_ptr<const Prepared> prepared;
  Contract contract;  // as it was asked for: `prepared` may be another spelling's
  bool is_same_spelling = true;
  CacheUse cache;
  LedgerUse ledger;
  std::string selected;
  std::string selection_rule;
  int64_t prepare_ns = 0;

  BindAsk Ask() const;
};

struct BoundState {
  std::shared_ptr<const AttentionState> attention;
  Plan plan;
  bool is_of_class = false;             // of the attention's: then images of its plans run in this one's workspace
  std::vector<LaneDecision> decisions;  // on the plan
  std::string fallback_reason;
  const LaneRow* row = nullptr;
  std::unique_ptr<BoundLane> lane;
  std::string kernel;
  std::string isa;
  std::string lane_name;
  int64_t bind_ns = 0;
  mutable std::once_flag pairs_once;
  mutable int64_t pairs = 0;  // that the mask allows: counted when first asked for
};

// The library's own way in and out of the public values.
struct EngineAccess {
  static Engine Make(EngineOptions options, std::span<const LaneRow> table);
  static const std::shared_ptr<EngineState>& Of(const Engine& engine) { return engine.state_; }
  static const std::shared_ptr<const AttentionState>& Of(const Attention& attention) { return attention.state_; }
  static const std::shared_ptr<const BoundState>& Of(const Bound& bound) { return bound.state_; }
  static Attention Wrap(std::shared_ptr<const AttentionState> state) { return Attention(std::move(state)); }
  static Bound Wrap(std::shared_ptr<const BoundState> state) { return Bound(std::move(state)); }
};

// The request's options with what they leave open filled from the engine's.
AttentionOptions Settle(const EngineOptions& engine, AttentionOptions options);

// A value, or the step that failed and why.
template <class T>
using Attempt = tl::expected<T, Failure>;

// What it is prepared for, beside calls.
struct PrepareUse {
  bool compile_only = false;
  bool emit_only = false;  // with compile_only: programs are written, and nothing is compiled
  bool may_copy = false;   // a one-shot run, whose tensors are the host's wherever its lane runs
};
Attempt<std::shared_ptr<const AttentionState>> PrepareAttention(const std::shared_ptr<EngineState>& engine,
                                                                const Contract& contract, const Target& target,
                                                                const AttentionOptions& options, const PrepareUse& use);

Result<PlanResult> PlanFor(const AttentionState& attention, const Batch& batch, const RouteInputs* route);

// A bound lane, or why not; the decisions on the plan either way.
struct BindOutcome {
  std::shared_ptr<const BoundState> bound;
  std::vector<LaneDecision> decisions;
  std::string fallback_reason;
  std::optional<Failure> failure;
};
BindOutcome BindPlan(const std::shared_ptr<const AttentionState>& attention, Plan plan,
                     const BindEarlier& earlier = {});

// One pass of a bound lane, timed, in a workspace of the engine's. The tensors are the lane's to check.
struct PassRun {
  int64_t tiles = 0;
  int64_t ns = 0;
  int64_t copied_bytes = 0;  // between memories, of a one-shot run
  CrossingUse crossing = {};
};
Result<PassRun> RunPass(const BoundState& bound, Pass pass, const RunTensors& tensors, const CallOptions& call,
                        std::atomic<int64_t>* tiles_done = nullptr);

// Query-key pairs that the bound plan's mask allows.
int64_t PairsOf(const BoundState& bound);

}  // namespace tessera
