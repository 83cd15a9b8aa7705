// Cut, placement and exchange on one page: the forms that a mask allows are planned, measured and compared.
#include "tessera/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/try.h"
#include "pipeline/pipeline.h"
#include "planner/prepared.h"
#include "planner/settings.h"
#include "planner/stages.h"
#include "shard/cut.h"
#include "shard/exchange.h"
#include "shard/level.h"
#include "shard/placement.h"

namespace tessera {
namespace {

// How placements are tried, until one is level; each is made again with what its shards were found to execute.
constexpr std::array kTrials = {shard::PlacementTrial{.share_parts = 2, .tokens_first = true, .by_cost = false},
                                shard::PlacementTrial{.share_parts = 2, .tokens_first = false, .by_cost = false},
                                shard::PlacementTrial{.share_parts = 4, .tokens_first = false, .by_cost = false},
                                shard::PlacementTrial{.share_parts = 8, .tokens_first = false, .by_cost = false},
                                shard::PlacementTrial{.share_parts = 2, .tokens_first = false, .by_cost = true},
                                shard::PlacementTrial{.share_parts = 8, .tokens_first = false, .by_cost = true}};
constexpr int kCorrections = 5;
constexpr int kLeastCorrections = 2;  // also where the first is level: a later one may carry less
constexpr int64_t kLevelPercent = 5;  // the largest shard above the mean

std::string Names(const std::string_view* begin, const std::string_view* end) {
  std::string out;
  for (const std::string_view* name = begin; name != end; ++name) out += (out.empty() ? "" : ", ") + std::string(*name);
  return out;
}

constexpr std::array<std::string_view, kCutForms.size()> kCutNames = {"contiguous", "zigzag", "reordered"};
constexpr std::array<std::string_view, kExchanges.size()> kExchangeNames = {"allgather", "heads", "ring", "sparse"};
constexpr std::array<std::string_view, kGradientWays.size()> kWayNames = {"returned", "rows"};

double Balance(const std::vector<ShardLoad>& loads, int64_t ShardLoad::*what) {
  int64_t sum = 0;
  int64_t most = 0;
  for (const ShardLoad& load : loads) {
    sum += load.*what;
    most = std::max(most, load.*what);
  }
  return sum == 0 ? 1.0 : static_cast<double>(most) * static_cast<double>(loads.size()) / static_cast<double>(sum);
}

int64_t MostTiles(const std::vector<ShardLoad>& loads) {
  int64_t most = 0;
  for (const ShardLoad& load : loads) most = std::max(most, load.tiles);
  return most;
}

}  // namespace

std::string_view ToText(CutForm form) { return kCutNames[static_cast<size_t>(form)]; }
std::string_view ToText(Exchange exchange) { return kExchangeNames[static_cast<size_t>(exchange)]; }

std::string_view ToText(GradientWay way) { return kWayNames[static_cast<size_t>(way)]; }

Result<CutForm> ParseCutForm(std::string_view text) {
  const auto* found = std::find(kCutNames.begin(), kCutNames.end(), text);
  if (found != kCutNames.end()) return kCutForms[static_cast<size_t>(found - kCutNames.begin())];
  return Fail(ErrorCode::kContextCut,
              fmt::format("expected one of {}, found {}", Names(kCutNames.begin(), kCutNames.end()), text), "cut");
}
Result<Exchange> ParseExchange(std::string_view text) {
  const auto* found = std::find(kExchangeNames.begin(), kExchangeNames.end(), text);
  if (found != kExchangeNames.end()) return kExchanges[static_cast<size_t>(found - kExchangeNames.begin())];
  return Fail(ErrorCode::kContextCut,
              fmt::format("expected one of {}, found {}", Names(kExchangeNames.begin(), kExchangeNames.end()), text),
              "exchange");
}

Result<GradientWay> ParseGradientWay(std::string_view text) {
  const auto* found = std::find(kWayNames.begin(), kWayNames.end(), text);
  if (found != kWayNames.end()) return kGradientWays[static_cast<size_t>(found - kWayNames.begin())];
  return Fail(ErrorCode::kContextCut,
              fmt::format("expected one of {}, found {}", Names(kWayNames.begin(), kWayNames.end()), text),
              "gradients");
}

double ContextPlan::TileBalance() const { return Balance(loads, &ShardLoad::tiles); }
double ContextPlan::PairBalance() const { return Balance(loads, &ShardLoad::pairs); }

namespace {
struct Candidate;
}  // namespace

struct ContextPlanner::State {
  PreparedContract prepared;
  MaskFacts facts;
  Target target;
  ContextOptions options;
  ClassShape shape;
  int64_t tile = 0;

  Result<PlanResult> PlanOf(const Batch& batch) const {
    return MakePlan(prepared, batch, target, options.plan, nullptr, options.plan.widen_class ? nullptr : &shape);
  }
  // With the exchange, and what there is to say of it.
  Result<ContextPlan> Finish(Candidate made, const std::string& why,
                             std::vector<ContextPlan::Considered> considered) const;
};

namespace {

// One way to cut a batch, measured.
struct Candidate {
  CutForm form = CutForm::kContiguous;
  Batch batch;
  std::shared_ptr<const Plan> plan;
  std::vector<RowCut> rows;
  shard::CutFacts facts;
  std::vector<ExchangeBytes> exchanges;
  shard::ExchangeChoice choice;
  int64_t tiles_each = 0;
  int64_t cost = 0;
};

class Cutter {
 public:
  using PlanOf = std::function<Result<PlanResult>(const Batch&)>;
  Cutter(const Contract& contract, const ContextOptions& options, int64_t tile, PlanOf plan_of)
      : contract_(contract),
        options_(options),
        tile_(tile),
        tokens_(contract.shape.q_len),
        plan_of_(std::move(plan_of)) {}

  Status Begin(const Batch& batch) {
    batch_ = &batch;
    given_ = std::make_shared<const Plan>(std::move(TESSERA_TRY(plan_of_(batch)).plan));
    return {};
  }

  // Why a form cannot be had of this batch; empty: it can.
  std::string WhyNot(CutForm form) const {
    const int64_t each = shard::PaddedTiles(tokens_, tile_, options_.shards, form) / options_.shards;
    if (options_.tiles_per_shard == 0 || each <= options_.tiles_per_shard) return "";
    return fmt::format("it needs {} tiles on each shard, and there is room for {}", each, options_.tiles_per_shard);
  }

  Candidate InOrder(CutForm form) const {
    const int64_t tiles = shard::PaddedTiles(tokens_, tile_, options_.shards, form);
    RowCut row;
    row.order = {{0, tokens_, 0}};
    row.shard_of = form == CutForm::kZigzag ? shard::ZigzagShards(tiles, options_.shards)
                                            : shard::ContiguousShards(tiles, options_.shards);
    row.rows = shard::ShardRows(row.shard_of, options_.shards, tokens_, tile_);
    Candidate out;
    out.form = form;
    out.batch = *batch_;
    out.plan = given_;
    out.rows.assign(static_cast<size_t>(contract_.shape.batch), row);
    Measure(out);
    return out;
  }

  // Placed by what the given order executes, and again by what the new one does: a tile that several documents share is
  // counted for what it is only when it is there.
  Result<Candidate> Reordered() const {
    const std::vector<BatchRow> facts = TESSERA_TRY(ResolveBatch(contract_, *batch_));
    std::optional<Candidate> best;
    for (const shard::PlacementTrial& trial : kTrials) {
      std::vector<std::vector<int64_t>> bias(facts.size(),
                                             std::vector<int64_t>(static_cast<size_t>(options_.shards), 0));
      for (int round = 0; round < kCorrections; ++round) {
        Candidate next = TESSERA_TRY(Placed(facts, trial, bias));
        for (size_t b = 0; b < facts.size(); ++b) Correct(next, b, bias[b]);
        if (!best || IsBetter(next, *best)) best = std::move(next);
        if (round >= kLeastCorrections && IsLevel(best->facts.loads)) break;
      }
      if (IsLevel(best->facts.loads)) break;
    }
    if (!IsLevel(best->facts.loads)) {
      shard::LevelShards(best->plan->view(), {options_.shards, tile_, tokens_, kLevelPercent}, best->rows);
      Measure(*best);
    }
    return std::move(*best);
  }

  // As another contract's plan has it.
  Result<Candidate> As(const ContextPlan& cut) const {
    Candidate out;
    out.form = cut.form;
    out.batch = *batch_;
    out.plan = given_;
    out.rows = cut.rows;
    if (cut.form == CutForm::kReordered) {
      out.batch = Batch();
      out.batch.doc_ids = TESSERA_TRY(IdsInOrder(cut.rows));
      out.plan = std::make_shared<const Plan>(std::move(TESSERA_TRY(plan_of_(out.batch)).plan));
    }
    Measure(out);
    return out;
  }

 private:
  Result<IdRows> IdsInOrder(const std::vector<RowCut>& rows) const {
    const std::vector<BatchRow> facts = TESSERA_TRY(ResolveBatch(contract_, *batch_));
    IdRows ids{.rows = contract_.shape.batch, .len = tokens_, .values = {}};
    for (size_t b = 0; b < facts.size(); ++b) {
      std::vector<int32_t> given(static_cast<size_t>(tokens_), -1);
      for (const Segment& segment : facts[b].q_segments) {
        std::fill(given.begin() + segment.begin, given.begin() + segment.end, segment.doc);
      }
      for (const Piece& piece : rows[b].order) {
        ids.values.insert(ids.values.end(), given.begin() + piece.start, given.begin() + piece.start + piece.count);
      }
    }
    return ids;
  }

  static bool IsLevel(const std::vector<ShardLoad>& loads) {
    int64_t sum = 0;
    for (const ShardLoad& load : loads) sum += load.tiles;
    return MostTiles(loads) * static_cast<int64_t>(loads.size()) * 100 <= sum * (100 + kLevelPercent);
  }
  // Level first, then with few bytes.
  static bool IsBetter(const Candidate& a, const Candidate& b) {
    const bool a_is_level = IsLevel(a.facts.loads);
    const bool b_is_level = IsLevel(b.facts.loads);
    if (a_is_level != b_is_level) return a_is_level;
    const int64_t a_bytes = a.exchanges[static_cast<size_t>(Exchange::kSparse)].total;
    const int64_t b_bytes = b.exchanges[static_cast<size_t>(Exchange::kSparse)].total;
    if (a_is_level && a_bytes != b_bytes) return a_bytes < b_bytes;
    return MostTiles(a.facts.loads) < MostTiles(b.facts.loads);
  }

  Result<Candidate> Placed(const std::vector<BatchRow>& facts, const shard::PlacementTrial& trial,
                           const std::vector<std::vector<int64_t>>& bias) const {
    const int64_t tiles = shard::PaddedTiles(tokens_, tile_, options_.shards, CutForm::kReordered);
    Candidate out;
    out.form = CutForm::kReordered;
    IdRows ids{.rows = contract_.shape.batch, .len = tokens_, .values = {}};
    for (size_t b = 0; b < facts.size(); ++b) {
      const shard::PlacementInput input{
          .segments = facts[b].q_segments,
          .tile_costs = shard::TileCosts(given_->view(), static_cast<int64_t>(b), tile_, tiles),
          .tokens = tokens_,
          .tile = tile_,
          .shards = options_.shards};
      const shard::Placement placement = shard::PlaceDocuments(input, trial, bias[b]);
      RowCut& row = out.rows.emplace_back();
      int64_t offset = 0;
      for (const shard::PlacedItem& item : placement.order) {
        row.order.push_back({item.begin, item.end - item.begin, offset});
        ids.values.insert(ids.values.end(), static_cast<size_t>(item.end - item.begin), item.doc);
        offset += item.end - item.begin;
      }
      row.shard_of = placement.shard_of;
      row.rows = shard::ShardRows(row.shard_of, options_.shards, tokens_, tile_);
    }
    out.batch.doc_ids = std::move(ids);
    out.plan = std::make_shared<const Plan>(std::move(TESSERA_TRY(plan_of_(out.batch)).plan));
    Measure(out);
    return out;
  }

  void Correct(const Candidate& made, size_t b, std::vector<int64_t>& bias) const {
    const auto tiles = static_cast<int64_t>(made.rows[b].shard_of.size());
    const std::vector<int64_t> costs = shard::TileCosts(made.plan->view(), static_cast<int64_t>(b), tile_, tiles);
    std::vector<int64_t> loads(bias.size(), 0);
    for (size_t t = 0; t < costs.size(); ++t) loads[made.rows[b].shard_of[t]] += costs[t];
    const int64_t mean = std::accumulate(loads.begin(), loads.end(), int64_t{0}) / static_cast<int64_t>(loads.size());
    for (size_t s = 0; s < loads.size(); ++s) bias[s] += loads[s] - mean;
  }

  void Measure(Candidate& out) const {
    out.facts = shard::MeasureCut(out.plan->view(), out.rows, tile_, options_.shards);
    out.tiles_each = static_cast<int64_t>(out.rows.front().shard_of.size()) / options_.shards;
    out.exchanges = shard::CountExchanges(contract_.shape, {options_.shards, tile_, out.tiles_each}, out.facts.needs,
                                          out.facts.row_needs);
    out.choice = shard::ChooseExchange(out.exchanges);
    const int64_t received = out.exchanges[static_cast<size_t>(out.choice.exchange)].largest;
    out.cost = MostTiles(out.facts.loads) + received / shard::KeyTileBytes(contract_.shape, tile_) * options_.move_cost;
  }

  const Contract& contract_;
  const ContextOptions& options_;
  const int64_t tile_;
  const int64_t tokens_;
  const PlanOf plan_of_;
  const Batch* batch_ = nullptr;
  std::shared_ptr<const Plan> given_;
};

Status CheckOptions(const Contract& contract, const ContextOptions& options) {
  if (options.shards < 1 || options.shards > kMaxShards) {
    return Fail(ErrorCode::kContextCut, fmt::format("expected 1 to {} shards, found {}", kMaxShards, options.shards),
                "shards");
  }
  if (options.move_cost < 0 || options.move_cost > 1'000'000) {
    return Fail(ErrorCode::kContextCut, fmt::format("expected a cost from 0 to 1000000, found {}", options.move_cost),
                "move_cost");
  }
  if (contract.shape.q_len != contract.shape.kv_len) {
    return Fail(ErrorCode::kContextCut,
                fmt::format("queries and keys must be the same tokens, found q_len {} and kv_len {}",
                            contract.shape.q_len, contract.shape.kv_len),
                "shape");
  }
  if (contract.routing) {
    return Fail(ErrorCode::kContextCut,
                "picks that are made from q and k are not there when tokens are cut: give them in the batch",
                "routing");
  }
  return {};
}

}  // namespace

Result<ContextPlanner> ContextPlanner::Make(const Contract& contract, const Target& target,
                                            const ContextOptions& options) {
  TESSERA_TRY(CheckOptions(contract, options));
  auto state = std::make_shared<State>();
  state->prepared = TESSERA_TRY(PrepareContract(contract));
  state->facts = TESSERA_TRY(DescribeMaskWith(contract, state->prepared.sets));
  state->target = target;
  state->options = options;
  state->shape = TESSERA_TRY(MakeClassShape(state->prepared, target, options.plan));
  state->tile = TESSERA_TRY(shard::CommonTile(state->shape.tiles[static_cast<size_t>(Direction::kForward)]));
  const std::string why_not = shard::WhyNotReorder(contract, state->facts);
  if (options.form == CutForm::kReordered && !why_not.empty()) {
    return Fail(ErrorCode::kContextCut, "documents cannot change places: " + why_not, "cut");
  }
  ContextPlanner planner;
  planner.state_ = std::move(state);
  return planner;
}

Result<ContextPlan> ContextPlanner::State::Finish(Candidate made, const std::string& why,
                                                  std::vector<ContextPlan::Considered> considered) const {
  const Contract& contract = prepared.contract;
  ContextPlan out;
  out.considered = std::move(considered);
  const auto asked = options.exchange;
  if (asked && !made.exchanges[static_cast<size_t>(*asked)].is_possible) {
    return Fail(ErrorCode::kContextCut, made.exchanges[static_cast<size_t>(*asked)].why, "exchange");
  }
  out.contract = contract;
  out.form = made.form;
  out.exchange = asked.value_or(made.choice.exchange);
  out.reason = fmt::format("{}: {}; {}", ToText(made.form), why,
                           asked ? fmt::format("{}: asked for", ToText(*asked)) : made.choice.reason);
  out.shards = options.shards;
  out.tile = tile;
  out.tiles_per_shard = made.tiles_each;
  out.loads = std::move(made.facts.loads);
  out.needs = std::move(made.facts.needs);
  out.row_needs = std::move(made.facts.row_needs);
  out.exchanges = std::move(made.exchanges);
  shard::GradientChoice gradients = TESSERA_TRY(shard::ChooseGradients(out.BytesOf(out.exchange), options.gradients));
  out.gradients = gradients.way;
  out.gradients_reason = std::move(gradients.reason);
  out.batch = std::move(made.batch);
  out.plan = std::move(made.plan);
  out.rows = std::move(made.rows);
  if (options.count_pairs && !facts.needs_blocks) {
    const std::vector<BatchRow> resolved = TESSERA_TRY(ResolveBatch(contract, out.batch));
    shard::CountShardPairs(TESSERA_TRY(planner::Resolve(contract, prepared.sets, resolved)), out.rows, out.loads);
  }
  return out;
}

Result<ContextPlan> ContextPlanner::Plan(const Batch& batch) const {
  const ContextOptions& options = state_->options;
  const Contract& contract = state_->prepared.contract;
  Cutter cutter(contract, options, state_->tile, [&](const Batch& one) { return state_->PlanOf(one); });
  TESSERA_TRY(cutter.Begin(batch));
  std::vector<ContextPlan::Considered> considered;
  std::optional<Candidate> best;
  for (const CutForm form : kCutForms) {
    if (options.form && *options.form != form) continue;
    std::string why = form == CutForm::kReordered ? shard::WhyNotReorder(contract, state_->facts) : "";
    if (why.empty()) why = cutter.WhyNot(form);
    if (!why.empty()) {
      considered.push_back({.form = form, .is_possible = false, .cost = 0, .why = why});
      continue;
    }
    Candidate made = form == CutForm::kReordered ? TESSERA_TRY(cutter.Reordered()) : cutter.InOrder(form);
    considered.push_back({.form = form, .is_possible = true, .cost = made.cost, .why = {}});
    if (!best || made.cost < best->cost) best = std::move(made);
  }
  if (!best) return Fail(ErrorCode::kContextCut, considered.back().why, "cut");
  const std::string why = options.form ? "asked for" : fmt::format("least cost, {}", best->cost);
  return state_->Finish(std::move(*best), why, std::move(considered));
}

Result<ContextPlan> ContextPlanner::PlanAs(const Batch& batch, const ContextPlan& cut) const {
  const Contract& contract = state_->prepared.contract;
  if (cut.shards != state_->options.shards || cut.tile != state_->tile ||
      cut.contract.shape.q_len != contract.shape.q_len || cut.contract.shape.batch != contract.shape.batch) {
    return Fail(ErrorCode::kContextMismatch, "the cut is of other tokens, tiles or shards", "cut");
  }
  if (cut.form == CutForm::kReordered) {
    if (const std::string why = shard::WhyNotReorder(contract, state_->facts); !why.empty()) {
      return Fail(ErrorCode::kContextCut, "documents cannot change places: " + why, "cut");
    }
  }
  Cutter cutter(contract, state_->options, state_->tile, [&](const Batch& one) { return state_->PlanOf(one); });
  TESSERA_TRY(cutter.Begin(batch));
  return state_->Finish(TESSERA_TRY(cutter.As(cut)), "another mask's", {});
}

Result<ContextPlan> PlanContext(const Contract& contract, const Batch& batch, const Target& target,
                                const ContextOptions& options) {
  return TESSERA_TRY(ContextPlanner::Make(contract, target, options)).Plan(batch);
}

}  // namespace tessera
