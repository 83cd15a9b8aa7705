// Engine and Attention: what is prepared once, and planning and binding from it.
#include "tessera/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/try.h"
#include "dispatch/limits.h"
#include "dispatch/select.h"
#include "engine/state.h"
#include "lanes/workers.h"
#include "ledger/ledger.h"
#include "pipeline/pipeline.h"

namespace tessera {
namespace {

CacheUse UseOf(const CachedPrepared& got) {
  return {.outcome = got.is_hit ? "hit" : "miss",
          .key = got.prepared->key_digest,
          .hits = got.stats.hits,
          .misses = got.stats.misses,
          .builds = got.stats.builds,
          .evictions = got.stats.evictions};
}

LaneContext ContextOf(const EngineState& engine, const AttentionOptions& options, int64_t threads) {
  return {.isa = options.isa,
          .machine_isa = engine.options.machine_isa,
          .threads = threads,
          .xla = options.xla,
          .xla_state = engine.xla,
          .memory = options.memory,
          .cuda_state = engine.cuda,
          .python = engine.options.python};
}

// What stands before preparing: names, threads, passes.
Status CheckRequest(const PrepareRequest& request) {
  TESSERA_TRY(CheckNames(request));
  if (const int64_t threads = request.options.threads.value_or(1); threads < 1 || threads > kMaxThreads) {
    return Fail(ErrorCode::kBadArgument,
                fmt::format("threads must be 1 to {}, got {}; not given, they are as many as the target has workers",
                            kMaxThreads, threads));
  }
  if (!request.options.forward && !request.options.backward) {
    return Fail(ErrorCode::kBadArgument, "a run needs a forward, a backward or both, got neither");
  }
  return {};
}

Failure At(std::string step, Error error) { return {std::move(step), std::move(error)}; }

// What a TPU's kernels are, chunks and vector memory too, follows from the plan's tiles; other ones than this attention
// plans with are another machine's, or were asked for by name when the plan was made and not here.
Status CheckTilesOf(const AttentionState& attention, const PlanView& plan) {
  const Target& target = attention.prepared->target;
  if (target.kind != TargetKind::kTpu) return {};
  const auto text = [](TileSize tile) { return fmt::format("{}x{}", tile.q, tile.kv); };
  std::vector<Violation> violations;
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    const Worklist& list = plan.Of(direction);
    const TileSize own{list.tile_q, list.tile_kv};
    const TileSize expected = attention.prepared->key.tiles[static_cast<size_t>(direction)];
    if (list.rows_per_mask == 0 || own == expected) continue;
    violations.push_back({fmt::format("tiles.{}", ToText(direction)),
                          fmt::format("{} expected of a plan for {}, found {}; a plan of another target is made anew, "
                                      "and a tile that was asked for is asked for here too",
                                      text(expected), target.name, text(own))});
  }
  if (violations.empty()) return {};
  return Fail(ErrorCode::kPlanMismatch, std::move(violations), "plan");
}

// A plan says which contract it was made for; running it for another would compute something nobody asked for.
Status CheckPlanOf(const AttentionState& attention, const Plan& plan) {
  if (plan.bytes().empty()) return Fail(ErrorCode::kPlanMismatch, "a plan expected, got an empty one");
  const std::string& key = attention.prepared->key.contract_key;
  const std::string plan_key = ToHex(plan.view().contract_key);
  if (plan_key == key) return CheckTilesOf(attention, plan.view());
  return Fail(ErrorCode::kPlanMismatch,
              fmt::format("the plan was made for contract {}, but this contract is {}", plan_key, key));
}

// Whether whatever is bound of this attention has room for what the plan's rows are cut into. Targets that differ in
// workers alone give one class key, and other parts.
bool IsOfClass(const AttentionState& attention, const PlanView& plan) {
  const std::optional<ClassShape>& shape = attention.prepared->shape;
  if (!shape || ToHex(plan.class_key) != attention.prepared->key.class_key) return false;
  for (size_t d = 0; d < kNumDirections; ++d) {
    const Worklist& list = plan.worklists[d];
    if (list.part_slots != shape->part_slots[d] || list.width_capacity != shape->width[d]) return false;
  }
  return true;
}

}  // namespace

EngineState::EngineState(EngineOptions options_in, std::span<const LaneRow> table_in)
    : options(std::move(options_in)),
      table(table_in),
      xla(MakeXlaState(
          {.folder = options.xla_folder, .flags = options.xla_flags, .probe_seconds = options.plugin_probe_seconds})),
      cuda(MakeCudaState()),
      cache(options.max_prepared, options.max_prepared_bytes.value_or(kMaxCachedRunBytes)) {}

Engine EngineAccess::Make(EngineOptions options, std::span<const LaneRow> table) {
  Engine engine(EngineOptions{});
  engine.state_ = std::make_shared<EngineState>(std::move(options), table);
  return engine;
}

AttentionOptions Settle(const EngineOptions& engine, AttentionOptions options) {
  if (options.lane == "auto") options.lane = engine.lane;
  if (options.isa == "auto") options.isa = engine.isa;
  if (options.xla.plugin.empty()) options.xla.plugin = engine.plugin;
  if (options.ledger.empty()) options.ledger = engine.ledger;
  return options;
}

BindAsk AttentionState::Ask() const {
  return {.lanes = lanes,
          .options = options,
          .contract = contract,
          .target = prepared->target,
          .selection = prepared->selection,
          .selected = selected,
          .over = ledger.over,
          .compile_only = compile_only};
}

Attempt<std::shared_ptr<const AttentionState>> PrepareAttention(const std::shared_ptr<EngineState>& engine,
                                                                const Contract& contract, const Target& target,
                                                                const AttentionOptions& options,
                                                                const PrepareUse& use) {
  const Clock clock;
  const bool compile_only = use.compile_only;
  auto state = std::make_shared<AttentionState>();
  state->engine = engine;
  state->options = Settle(engine->options, options);
  state->compile_only = compile_only;
  state->emit_only = use.emit_only;
  state->may_copy = use.may_copy && target.kind == TargetKind::kGpu && state->options.memory.kind == MemoryKind::kHost;
  state->contract = contract;
  state->threads = std::max<int64_t>(options.threads.value_or(target.workers), 1);
  LaneContext context = ContextOf(*engine, state->options, state->threads);
  context.compile_only = compile_only;
  context.emit_only = use.emit_only;
  state->lanes = MakeLanes(engine->table, context);
  const PrepareRequest request{.table = engine->table,
                               .lanes = state->lanes,
                               .contract = state->contract,
                               .target = target,
                               .options = state->options,
                               .compile_only = compile_only,
                               .may_copy = state->may_copy};
  if (Status ok = CheckRequest(request); !ok) return tl::unexpected(At("request", std::move(ok.error())));
  if (compile_only) {  // decisions on compiling are kept nowhere
    Result<std::shared_ptr<const Prepared>> made = Prepare(request);
    if (!made) return tl::unexpected(At("contract", std::move(made.error())));
    state->prepared = std::move(*made);
    state->cache = {.outcome = "off", .key = state->prepared->key_digest};
  } else {
    Result<CachedPrepared> got = engine->cache.Get(request);
    if (!got) return tl::unexpected(At("contract", std::move(got.error())));
    state->prepared = got->prepared;
    state->is_same_spelling = got->is_same_spelling;
    state->cache = UseOf(*got);
    if (engine->options.max_prepared == 0) state->cache = {.outcome = "off", .key = state->prepared->key_digest};
  }
  // Selection and every lane's decision on the contract are two records, neither made from the other. Only a ledger
  // looks at both, and it chooses between lanes that accepted.
  const Selection& selection = state->prepared->selection;
  state->ledger = ConsultLedger({.contract = state->contract,
                                 .target = target,
                                 .file = state->options.ledger,
                                 .requested = state->options.lane,
                                 .backward = state->options.backward,
                                 .experimental = state->options.experimental,
                                 .table_lane = selection.lane,
                                 .decisions = selection.decisions});
  state->selected = state->ledger.chose.empty() ? selection.lane : state->ledger.chose;
  state->selection_rule = RuleWithLedger(selection.rule, state->ledger);
  state->prepare_ns = clock.Ns();
  return state;
}

Result<PlanResult> PlanFor(const AttentionState& attention, const Batch& batch, const RouteInputs* route) {
  RouteInputs with_threads;
  if (route != nullptr && attention.contract.routing) {
    for (const auto& [name, ref] : {std::pair("q", &route->q), std::pair("k", &route->k)}) {
      if (ref->data == nullptr || ref->space.kind == MemoryKind::kHost) continue;
      return Fail(ErrorCode::kTensorMismatch,
                  {{name, fmt::format("memory of host expected, which routing reads, got {}", ToText(ref->space))}});
    }
  }
  if (route != nullptr) {
    with_threads = *route;
    with_threads.parallel = [threads = attention.threads](int64_t count, const std::function<void(int64_t)>& work) {
      lanes::RunUnits(threads, count, [&](int64_t unit, int64_t) { work(unit); });
    };
  }
  return MakePlan(*attention.prepared->planning, batch, attention.prepared->target, attention.options.plan,
                  route == nullptr ? nullptr : &with_threads,
                  attention.prepared->shape ? &*attention.prepared->shape : nullptr);
}

BindOutcome BindPlan(const std::shared_ptr<const AttentionState>& attention, Plan plan, const BindEarlier& earlier) {
  BindOutcome outcome;
  if (Status ok = CheckPlanOf(*attention, plan); !ok) {
    outcome.failure = At("plan", std::move(ok.error()));
    return outcome;
  }
  const Clock clock;
  auto state = std::make_shared<BoundState>();
  state->attention = attention;
  state->plan = std::move(plan);
  state->is_of_class = IsOfClass(*attention, state->plan.view());
  BindResult bound = BindLane(attention->Ask(), state->plan.view(), earlier);
  outcome.decisions = bound.decisions;
  outcome.fallback_reason = bound.fallback_reason;
  outcome.failure = std::move(bound.failure);
  if (outcome.failure) return outcome;
  const BoundLane::Facts facts = bound.lane->Describe();
  state->decisions = std::move(bound.decisions);
  state->fallback_reason = std::move(bound.fallback_reason);
  state->row = bound.row;
  state->lane = std::move(bound.lane);
  state->kernel = facts.kernel;
  state->isa = facts.isa;
  state->lane_name = bound.row->name;
  state->bind_ns = clock.Ns();
  for (const ProgramUse& program : facts.programs) state->bind_ns -= program.compile_ns;  // which has its own time
  outcome.bound = std::move(state);
  return outcome;
}

// ---- the public values

Engine::Engine(EngineOptions options) : state_(std::make_shared<EngineState>(std::move(options), LaneTable())) {}

Result<Attention> Engine::Prepare(const Contract& contract, const Target& target,
                                  const AttentionOptions& options) const {
  Attempt<std::shared_ptr<const AttentionState>> made = PrepareAttention(state_, contract, target, options, {});
  if (!made) return tl::unexpected(std::move(made.error().error));
  return EngineAccess::Wrap(std::move(*made));
}

MaskTerms& Engine::mask_terms() const { return state_->mask_terms; }

Result<Contract> Engine::Parse(std::string_view text, const std::string& base_dir) const {
  return ParseContract(text, base_dir, &state_->mask_terms);
}

Result<Contract> Engine::Read(const std::string& path) const { return ReadContract(path, &state_->mask_terms); }

const EngineOptions& Engine::options() const { return state_->options; }

std::vector<LaneInfo> Engine::Lanes() const { return InfosOf(MakeLanes(state_->table, ContextOf(*state_, {}, 1))); }

Result<Selection> Engine::Select(const Contract& contract, const Target& target) const {
  const MaskFacts facts = TESSERA_TRY(DescribeMask(contract));
  const SelectionRule& rule = SelectRule(contract, facts, target);
  Selection selection{.lane = std::string(rule.lane), .rule = ToText(rule), .decisions = {}};
  for (const MadeLane& made : MakeLanes(state_->table, ContextOf(*state_, Settle(state_->options, {}), 1))) {
    const bool is_unasked = made.row->IsOnlyByName() && made.lane != nullptr;
    selection.decisions.push_back(
        {std::string(made.row->name), "contract",
         is_unasked ? Decision::No(ReasonCode::kOnlyByName) : DecideContract(made, contract, facts, target)});
  }
  return selection;
}

std::vector<PluginReport> Engine::Plugins(const std::string& given) const {
  return ReportPlugins(*state_->xla, given.empty() ? state_->options.plugin : given);
}

CacheStats Engine::cache_stats() const { return state_->cache.stats(); }
void Engine::ClearCache() const { state_->cache.Clear(); }

const Contract& Attention::contract() const { return state_->contract; }
const Target& Attention::target() const { return state_->prepared->target; }
const ForwardCacheKey& Attention::key() const { return state_->prepared->key; }
const Selection& Attention::selection() const { return state_->prepared->selection; }

Status Attention::CheckAccepted() const {
  if (std::optional<Failure> failure = tessera::CheckAccepted(state_->Ask())) {
    return tl::unexpected(std::move(failure->error));
  }
  return {};
}

std::string Attention::ExpectedLane() const { return std::string(tessera::ExpectedLane(state_->Ask())); }

Result<PlanResult> Attention::Plan(const Batch& batch) const { return PlanFor(*state_, batch, nullptr); }

Result<PlanResult> Attention::Plan(const Batch& batch, const TensorRef& q, const TensorRef& k) const {
  const RouteInputs route{.q = q, .k = k};
  return PlanFor(*state_, batch, &route);
}

Result<Bound> Attention::Bind(tessera::Plan plan) const {
  BindOutcome outcome = BindPlan(state_, std::move(plan));
  if (outcome.failure) return tl::unexpected(std::move(outcome.failure->error));
  return EngineAccess::Wrap(std::move(outcome.bound));
}

Result<std::vector<std::byte>> Attention::Image(const tessera::Plan& plan) const {
  TESSERA_TRY(CheckPlanOf(*state_, plan));
  if (!IsOfClass(*state_, plan.view())) {
    return Fail(ErrorCode::kPlanMismatch,
                "the plan is of another class than this attention's: made for another target, or with other options");
  }
  const BindAsk ask = state_->Ask();
  const std::vector<Pass> passes = PassesOf(ask.options);
  for (const MadeLane& made : state_->lanes) {
    if (made.row->name != state_->selected) continue;
    if (made.lane != nullptr) {
      return made.lane->Image({.contract = ask.contract, .plan = plan.view(), .target = ask.target, .passes = passes});
    }
    return Fail(ErrorCode::kLaneRefused, fmt::format("{}: {}", made.row->name, ReasonText(made.row->not_built)));
  }
  return Fail(ErrorCode::kLaneRefused, "no lane is selected");
}

Result<Bound> Attention::Rebind(const Bound& earlier, tessera::Plan plan, void* stream) const {
  const BoundState& before = *EngineAccess::Of(earlier);
  if (before.attention != state_) return Fail(ErrorCode::kBadArgument, "the earlier plan is another attention's");
  if (plan.bytes().empty()) return Bind(std::move(plan));  // which says so
  if (plan.view().class_key != before.plan.view().class_key) {
    return Fail(ErrorCode::kBadArgument,
                fmt::format("the plan is of class {}, and the earlier one of {}", ToHex(plan.view().class_key),
                            ToHex(before.plan.view().class_key)));
  }
  BindOutcome outcome = BindPlan(state_, std::move(plan), {before.row, before.lane.get(), stream});
  if (outcome.failure) return tl::unexpected(std::move(outcome.failure->error));
  return EngineAccess::Wrap(std::move(outcome.bound));
}

}  // namespace tessera
