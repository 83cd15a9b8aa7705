// The planner on one page: contract, facts of a batch, picks and target -> plan. The order of its stages lives here and
// nowhere else; src/routing/routing.cc has that of the stages that make picks.
#include <algorithm>

#include "plan/layout.h"
#include "plan/runner.h"
#include "planner/prepared.h"
#include "planner/settings.h"
#include "planner/stage_text.h"
#include "planner/stages.h"

namespace tessera {
namespace {

using namespace planner;  // NOLINT(google-build-using-namespace): this file is the planner itself
using plan::Runner;

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

Result<PlanResult> planner::PlanBatch(PlanRequest request, plan::Runner& runner) {
  const Contract& contract = request.prepared->contract;
  const MaskSets& sets = request.prepared->sets;
  const Target& target = *request.target;
  const PlanOptions& options = *request.options;

  Result<Resolved> resolved = runner.Run(
      "resolve", [&] { return Resolve(contract, sets, *request.rows, std::move(request.picks)); },
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

  ClassShape shape = request.shape != nullptr
                         ? *request.shape
                         : MakeShape({&contract, &*resolved, tiles, &target, rows->cleanups.Size()});
  Status fits = FitClass(shape, *rows, has_columns ? &*columns : nullptr, options.widen_class);
  if (!fits) return tl::unexpected(std::move(fits.error()));
  if (options.widen_class) SetParts(shape, contract, target);

  PackInput input;
  for (const Direction direction : {Direction::kForward, Direction::kDq, Direction::kDkv}) {
    const bool is_dkv = direction == Direction::kDkv;
    if (is_dkv && !has_columns) continue;
    if (direction == Direction::kDq && rows->of[0] == rows->of[1]) continue;  // shares the forward rows and parts
    Result<std::vector<Part>> parts = MakeParts(is_dkv ? columns->row_offsets : rows->Of(direction).row_offsets,
                                                shape.part_slots[static_cast<size_t>(direction)], runner);
    if (!parts) return tl::unexpected(std::move(parts.error()));
    input.parts[static_cast<size_t>(direction)] = std::move(*parts);
  }

  input.resolved = &*resolved;
  input.cleanups = &rows->cleanups;
  input.forward = &rows->Of(Direction::kForward);
  input.dq = &rows->Of(Direction::kDq);
  input.columns = has_columns ? &*columns : nullptr;
  input.shape = shape;
  input.contract_key = FromHex(request.prepared->key);
  input.class_key = FromHex(ClassKeyOf(contract, sets, shape));
  Result<Plan> plan = runner.Run(
      "pack", [&] { return plan::Trust(Pack(input)); },
      [](const Plan& value) { return VerifyPlan(value.bytes()).map([](const PlanView&) {}); });
  if (!plan) return tl::unexpected(std::move(plan.error()));
  return PlanResult{std::move(*plan), shape, runner.TakeReports(), {}, {}};
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
  return MakeShape({&contract, &*resolved, tiles, &target, rows->cleanups.Size()});
}

}  // namespace tessera
