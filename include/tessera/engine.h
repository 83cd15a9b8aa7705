// The engine. An Engine owns every mutable thing there is: what it prepared, workspaces, plugins' clients, compiled
// programs, registered mask terms. Prepare gives an Attention, which says once and for all what will run and why; its
// Plan takes a batch; its Bind gives a Bound, whose Forward and Backward are called on the caller's own memory, many
// times and from any thread.
//
// Goals: nothing is decided, looked up or copied in a call that could be done before it; two engines share nothing but
// loaded plugin libraries. Attentions and Bounds are values that share what is behind them, and keep their engine's
// things alive. docs/engine.md has worked examples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/mask_term.h"
#include "tessera/planner.h"
#include "tessera/prepare.h"
#include "tessera/receipt.h"
#include "tessera/route.h"
#include "tessera/run_tensors.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

struct EngineOptions {
  std::string lane = "auto";     // for requests that leave it open
  std::string isa = "auto";      // the same
  std::string plugin = {};       // the same: a PJRT plugin's path; empty: the installed one that fits the target
  std::string ledger = {};       // the same
  std::string machine_isa = {};  // the best instruction set that counts as this machine's; empty: what it has
  std::string xla_folder = {};   // has the installed plugins, and programs that are kept; empty: no plugin is found
  std::string xla_flags = {};    // what XLA reads from the environment by itself, on which its programs depend
  // An unknown plugin is loaded in a child process first, and may take so many seconds there; 0: never (docs/xla.md).
  int64_t plugin_probe_seconds = 60;
  std::string python = {};   // the interpreter that call_jax loads; empty: that of this process, where it is Python
  size_t max_prepared = 64;  // attentions kept for requests like them; 0 keeps none
  std::optional<int64_t> max_prepared_bytes = {};  // absent: as docs/limits.md says
};
// The one place that reads the environment: TESSERA_LANE, _ISA, _MACHINE_ISA, _PJRT_PLUGIN, _PLUGIN_PROBE_SECONDS,
// _LEDGER, _XLA (or the user's cache folder) and _PYTHON (or VIRTUAL_ENV, or python3 of PATH), XLA_FLAGS and
// LIBTPU_INIT_ARGS.
EngineOptions OptionsFromEnvironment();

// What one call brings beside its tensors.
struct CallOptions {
  void* stream = nullptr;  // of the tensors' device: the call is ordered on it; host lanes take none
  // At least Bound::workspace_bytes(), in the tensors' memory, at a multiple of 64 bytes, and nobody else's until the
  // call's work is done; empty: the engine's.
  std::span<std::byte> workspace = {};
  // What Attention::Image made of a plan, in the tensors' memory: it runs in place of the bound one, and is read in the
  // order of the stream. What is in it is the caller's word. Such a call has no receipt, which would tell of the other.
  std::span<const std::byte> image = {};
  Receipt* receipt = nullptr;  // filled when not null, also when the call fails
  bool digests = false;        // also digests of inputs and outputs, and pairs counted, which takes as long as it takes
  const Batch* batch = nullptr;  // what the plan was made from, for its digest
  std::string input_source = {};
  std::string batch_source = {};
  std::string contract_source = {};
};

struct EngineState;     // behind an Engine
struct AttentionState;  // behind an Attention
struct BoundState;      // behind a Bound

// A lane on a plan. Safe from any number of threads at once, as long as outputs differ.
class Bound {
 public:
  // Writes o, and lse and row_max where they are given.
  Status Forward(const RunTensors& tensors, const CallOptions& call = {}) const;
  // Writes dq, dk, dv and, where given, dsink_logits, from what a forward wrote.
  Status Backward(const RunTensors& tensors, const CallOptions& call = {}) const;

  const std::string& lane() const;    // that was bound
  const std::string& kernel() const;  // and what of it runs
  const std::string& isa() const;
  int64_t workspace_bytes() const;  // what a call takes of the engine's pool, at most
  const Plan& plan() const;
  const Contract& contract() const;  // that was prepared

 private:
  friend struct EngineAccess;
  explicit Bound(std::shared_ptr<const BoundState> state) : state_(std::move(state)) {}
  std::shared_ptr<const BoundState> state_;
};

class Attention {
 public:
  const Contract& contract() const;
  const Target& target() const;
  const ForwardCacheKey& key() const;
  const Selection& selection() const;  // with every lane's decision on the contract
  // "Yes" when some lane that may run this accepted the contract; a refusal before any input is made.
  Status CheckAccepted() const;
  // The first of the lanes that may run this which accepted the contract; empty where none did.
  std::string ExpectedLane() const;

  // TSR-P009 when the contract routes, and q and k are missing.
  Result<PlanResult> Plan(const Batch& batch) const;
  Result<PlanResult> Plan(const Batch& batch, const TensorRef& q, const TensorRef& k) const;
  // Asks the lanes about the plan in their order; the first that accepts is bound, and compiles what it must.
  Result<Bound> Bind(tessera::Plan plan) const;
  // Binds a plan of the same class in place of an earlier one of this attention: what that has on a device is written
  // over, in the order of the stream, and graphs captured from its calls run the new plan from there on. TSR-R007 where
  // the class is another or something else is bound to the earlier plan, TSR-R009 where its room is too small: then
  // Bind, and capture again. `earlier` is kept while its graphs are, and not called any more. On the host this is Bind.
  Result<Bound> Rebind(const Bound& earlier, tessera::Plan plan, void* stream = nullptr) const;
  // The plan as the selected lane's kernels read it in their device's memory, for CallOptions::image of whatever is
  // bound of this attention: who keeps plans on the device binds once. Needs no device. TSR-L002 for a lane without
  // such a form.
  Result<std::vector<std::byte>> Image(const tessera::Plan& plan) const;

 private:
  friend struct EngineAccess;
  explicit Attention(std::shared_ptr<const AttentionState> state) : state_(std::move(state)) {}
  std::shared_ptr<const AttentionState> state_;
};

class Engine {
 public:
  explicit Engine(EngineOptions options = OptionsFromEnvironment());

  // The terms of this engine, which masks that Parse and Read meet may name. Valid as long as a copy of the engine is.
  MaskTerms& mask_terms() const;
  // ParseContract and ReadContract with them.
  Result<Contract> Parse(std::string_view text, const std::string& base_dir = ".") const;
  Result<Contract> Read(const std::string& path) const;

  Result<Attention> Prepare(const Contract& contract, const Target& target, const AttentionOptions& options = {}) const;

  const EngineOptions& options() const;
  std::vector<LaneInfo> Lanes() const;  // in order of preference, `reference` last
  // Which lane the target's table names for this contract, and what every lane says of it.
  Result<Selection> Select(const Contract& contract, const Target& target) const;
  std::vector<PluginReport> Plugins(const std::string& given = {}) const;  // each is loaded and asked
  CacheStats cache_stats() const;
  void ClearCache() const;  // forgets what was prepared; counters stay

 private:
  friend struct EngineAccess;
  std::shared_ptr<EngineState> state_;
};

}  // namespace tessera
#pragma GCC visibility pop
