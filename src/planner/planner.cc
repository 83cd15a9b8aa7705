// The planner on one page: contract + batch + target -> plan. The order of the stages lives here and nowhere else.
#include <algorithm>

#include "contract/batch_resolve.h"
#include "planner/picks.h"
#include "planner/prepared.h"
#include "planner/runner.h"
#include "planner/settings.h"
#include "planner/stages.h"

namespace tessera {
namespace {

using namespace planner;  // NOLINT(google-build-using-namespace): this file is the pipeline itself

// Each distinct tile size is classified and shrunk once, whichever directions use it.
Result<TiledRows> TileAll(const Resolved& resolved, const std::array<TileSize, kNumDirections>& tiles, Runner& runner) {
  TiledRows out;
  const bool share = !runner.IsDisabled("shrink");
  for (size_t d = 0; d < kNumDirections; ++d) {
    const auto same = std::find_if(out.built.begin(), out.built.end(),
                                   [&](const CompactRows& rows) { return rows.tile == tiles[d]; });
    out.of[d] = static_cast<size_t>(same - out.built.begin());
    if (same != out.built.end()) continue;
    Result<Classified> classified = runner.Run(
        "classify", [&] { return Classify(resolved, tiles[d]); },
        [&](const Classified& value) { return VerifyClassified(resolved, value); });
    if (!classified) return tl::unexpected(std::move(classified.error()));
    Result<CompactRows> rows = runner.Run(
        "shrink", [&] { return Shrink(*classified, out.cleanups, share); },
        [&](const CompactRows& value) { return VerifyCompactRows(*classified, value, out.cleanups); });
    if (!rows) return tl::unexpected(std::move(rows.error()));
    out.built.push_back(std::move(*rows));
  }
  return out;
}

Result<std::vector<Part>> MakeParts(const std::vector<uint64_t>& row_offsets, int64_t part_slots, Runner& runner) {
  if (runner.IsDisabled("balance")) return RowOrder(row_offsets);
  return runner.Run(
      "balance", [&] { return Balance(row_offsets, part_slots); },
      [&](const std::vector<Part>& value) { return VerifyParts(row_offsets, value); });
}

}  // namespace

// Which blocks of keys each query may attend. Nothing in here has a gradient.
Result<planner::Picked> planner::PickBlocks(const PickRequest& request, Runner& runner) {
  const Contract& contract = *request.contract;
  const Result<std::vector<RowSet>> legal = LegalPairs(contract, *request.sets, *request.rows);
  if (!legal) return tl::unexpected(legal.error());
  RoutingInput input;
  input.contract = &contract;
  input.rows = request.rows;
  input.legal = &*legal;
  const auto anything = [](const auto&) { return Status(); };

  Picked out;
  if (contract.routing) {
    if (request.route == nullptr) {
      return Fail(ErrorCode::kRouteInputs, "the contract has [routing]: give the queries and keys too", "routing");
    }
    input.q = request.route->q;
    input.k = request.route->k;
    input.parallel = request.route->parallel;
    const Result<Scored> scored = runner.Run(
        "score", [&] { return Score(input); }, anything);
    if (!scored) return tl::unexpected(scored.error());
    Result<PickRows> picks = runner.Run(
        "expand", [&] { return Expand(input, *scored); }, anything);
    if (!picks) return tl::unexpected(std::move(picks.error()));
    out.raw = std::move(*picks);
  } else {
    out.raw = ToPickRows(contract, *request.batch->picks);
  }
  const UniteConfig config = UniteConfigOf(contract, out.raw, request.widen);
  const PickRows padded = PadToTile(out.raw, config.query_tile);
  const Result<UnionMaps> maps = runner.Run(
      "unite", [&] { return Unite(config, padded); },
      [&](const UnionMaps& value) { return VerifyUnion(config, padded, value); });
  if (!maps) return tl::unexpected(maps.error());
  Result<Legalised> legalised = runner.Run(
      "legalise", [&] { return Legalise(input, *maps); }, anything);
  if (!legalised) return tl::unexpected(std::move(legalised.error()));
  out.legalised = std::move(*legalised);
  return out;
}

Result<PlanResult> MakePlan(const PreparedContract& prepared, const Batch& batch, const Target& target,
                            const PlanOptions& options, const RouteInputs* route) {
  const Contract& contract = prepared.contract;
  const MaskSets& sets = prepared.sets;
  if (Status ok = CheckOptions(options); !ok) return tl::unexpected(std::move(ok.error()));
  Runner runner(options);

  const MaskFacts needs = NeedsOf(sets);
  const Result<std::vector<BatchRow>> batch_rows = ResolveBatchWith(contract, needs, batch);
  if (!batch_rows) return tl::unexpected(batch_rows.error());

  std::optional<Picked> picked;
  if (needs.needs_blocks) {
    Result<Picked> picks = PickBlocks({.contract = &contract,
                                       .sets = &sets,
                                       .rows = &*batch_rows,
                                       .batch = &batch,
                                       .route = route,
                                       .widen = options.widen_class},
                                      runner);
    if (!picks) return tl::unexpected(std::move(picks.error()));
    picked = std::move(*picks);
  }

  Result<Resolved> resolved = runner.Run(
      "resolve",
      [&] {
        std::optional<BatchPicks> picks;
        if (picked) picks = ToBatchPicks(picked->legalised.maps, contract.shape.q_len);
        return Resolve(contract, sets, *batch_rows, std::move(picks));
      },
      [](const Resolved&) { return Status(); });
  if (!resolved) return tl::unexpected(std::move(resolved.error()));

  const std::array<TileSize, kNumDirections> tiles = PickTiles(contract, target, options);
  Result<TiledRows> rows = TileAll(*resolved, tiles, runner);
  if (!rows) return tl::unexpected(std::move(rows.error()));

  const CompactRows& dkv_rows = rows->Of(Direction::kDkv);
  const auto num_masks = static_cast<int64_t>(resolved->masks.size());
  const bool has_columns = !runner.IsDisabled("transpose");
  Result<CompactColumns> columns;
  if (has_columns) {
    columns = runner.Run(
        "transpose", [&] { return Transpose(dkv_rows, num_masks); },
        [&](const CompactColumns& value) { return VerifyTransposed(dkv_rows, value, num_masks); });
    if (!columns) return tl::unexpected(std::move(columns.error()));
  }

  ClassShape shape = MakeShape({&contract, &*resolved, tiles, target.workers, rows->cleanups.Size()});
  Status fits = FitClass(shape, *rows, has_columns ? &*columns : nullptr, options.widen_class);
  if (!fits) return tl::unexpected(std::move(fits.error()));

  PackInput input;
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    const bool is_dkv = direction == Direction::kDkv;
    if (is_dkv && !has_columns) continue;
    if (direction == Direction::kDq && rows->of[0] == rows->of[1]) continue;  // shares the forward rows and parts
    Result<std::vector<Part>> parts = MakeParts(is_dkv ? columns->row_offsets : rows->Of(direction).row_offsets,
                                                PartSlots(shape, direction, target.workers), runner);
    if (!parts) return tl::unexpected(std::move(parts.error()));
    input.parts[static_cast<size_t>(direction)] = std::move(*parts);
  }

  input.resolved = &*resolved;
  input.cleanups = &rows->cleanups;
  input.forward = &rows->Of(Direction::kForward);
  input.dq = &rows->Of(Direction::kDq);
  input.columns = has_columns ? &*columns : nullptr;
  input.shape = shape;
  input.contract_key = FromHex(prepared.key);
  input.class_key = FromHex(ClassKeyOf(contract, sets, shape));
  Result<Plan> plan = runner.Run(
      "pack", [&] { return plan::Trust(Pack(input)); },
      [](const Plan& value) { return VerifyPlan(value.bytes()).map([](const PlanView&) {}); });
  if (!plan) return tl::unexpected(std::move(plan.error()));
  PlanResult result{std::move(*plan), shape, runner.TakeReports(), {}, {}};
  if (picked) {
    result.picks = ToPicks(picked->legalised.maps, contract.shape.q_len);
    result.picks_report = ReportOf(picked->legalised);
    result.picks_report->nan_scores = picked->raw.nan_scores;
    result.picks_report->source = SourceOf(contract, batch);
  }
  return result;
}

Result<ClassShape> MakeClassShape(const PreparedContract& prepared, const Target& target, const PlanOptions& options) {
  const Contract& contract = prepared.contract;
  // Rows without facts stand in for a batch: the class looks only at what no batch changes.
  const std::vector<BatchRow> no_facts(static_cast<size_t>(contract.shape.batch));
  Result<Resolved> resolved = Resolve(contract, prepared.sets, no_facts);
  if (!resolved) return tl::unexpected(std::move(resolved.error()));
  const std::array<TileSize, kNumDirections> tiles = PickTiles(contract, target, options);
  Runner runner(options);
  Result<TiledRows> rows = TileAll(*resolved, tiles, runner);
  if (!rows) return tl::unexpected(std::move(rows.error()));
  return MakeShape({&contract, &*resolved, tiles, target.workers, rows->cleanups.Size()});
}

}  // namespace tessera
