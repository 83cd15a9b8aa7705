// The export on one page: check, decide what stays at run time, plan, write in the library's form.
#include "tessera/export.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "contract/batch_resolve.h"
#include "contract/mask_sets.h"
#include "export/arrays.h"
#include "plan/count_tiles.h"
#include "tessera/planner.h"

namespace tessera {
namespace {

using namespace exports;  // NOLINT(google-build-using-namespace): this file is the pipeline itself

Status CheckOptions(const ExportOptions& options) {
  const auto only = [&](bool used, std::string_view what, std::string_view who) -> Status {
    if (!used) return {};
    return Fail(ErrorCode::kBadArgument, fmt::format("{} has no meaning for {}: {}", what, ToText(options.to), who));
  };
  if (options.head_shards < 1 || options.q_shards < 1 || options.kv_shards < 1) {
    return Fail(ErrorCode::kBadArgument, "expected shard counts of 1 or more", "shards");
  }
  if (options.direction == Direction::kDq) {
    return Fail(ErrorCode::kBadArgument, "expected direction forward or dkv; dq uses the forward arrays", "direction");
  }
  const bool splash = options.to == Library::kSplash;
  const bool tokamax = options.to == Library::kTokamax;
  const bool both_ways = !splash && !tokamax;
  if (options.store_tiles && options.segments == Segments::kSkip) {
    return Fail(ErrorCode::kBadArgument, "tiles are to be stored, and segments that skip tiles store none", "segments");
  }
  if (options.widen_class && !options.fixed_shapes) {
    return Fail(ErrorCode::kBadArgument, "widen_class has no meaning without fixed shapes: only they have a class",
                "widen_class");
  }
  for (const Status& status :
       {only(!splash && options.head_shards != 1, "head shards", "only Splash has masks per head shard"),
        only(both_ways && options.q_shards != 1, "q shards", "its arrays are not made per shard"),
        only(!tokamax && options.kv_shards != 1, "kv shards", "only Tokamax splits keys"),
        only(!splash && !options.shrink, "no-shrink", "only Splash shrinks its grid"),
        only(!tokamax && options.dynamic_grid, "dynamic-grid", "only Tokamax has one")}) {
    if (!status) return status;
  }
  return {};
}

// Splash and Tokamax have no tails: what they insist on, in the order they do.
Status CheckDivides(const Shape& shape, TileSize tile, const ExportOptions& options) {
  struct Rule {
    int64_t part;
    int64_t whole;
    const char* part_name;
    const char* whole_name;
  };
  const Rule rules[] = {{tile.q, shape.q_len, "tile q", "q_len"},
                        {tile.kv, shape.kv_len, "tile kv", "kv_len"},
                        {options.q_shards, shape.q_len, "q shards", "q_len"},
                        {tile.q, shape.q_len / options.q_shards, "tile q", "the q_len of a shard"},
                        {options.kv_shards, shape.kv_len, "kv shards", "kv_len"},
                        {tile.kv, shape.kv_len / options.kv_shards, "tile kv", "the kv_len of a shard"},
                        {options.head_shards, shape.num_q_heads, "head shards", "num_q_heads"}};
  for (const Rule& rule : rules) {
    if (rule.whole % rule.part == 0 && rule.whole > 0) continue;
    return Fail(ErrorCode::kExportShape,
                fmt::format("{} needs {} to divide {}, and {} does not divide {}", ToText(options.to), rule.part_name,
                            rule.whole_name, rule.part, rule.whole),
                std::string(ToText(options.to)));
  }
  return {};
}

Tensor SpreadIds(const std::vector<BatchRow>& rows, int64_t len, bool is_q) {
  // Negative ids are padding and must match nothing, so the two sides get different ones.
  const int32_t padding = is_q ? -1 : -2;
  Tensor ids = Tensor::Zeros(ElementType::kI32, {static_cast<int64_t>(rows.size()), len});
  for (size_t r = 0; r < rows.size(); ++r) {
    int32_t* row = reinterpret_cast<int32_t*>(ids.bytes.data()) + static_cast<int64_t>(r) * len;
    for (const Segment& segment : is_q ? rows[r].q_segments : rows[r].kv_segments) {
      std::fill(row + segment.begin, row + segment.end, segment.doc < 0 ? padding : segment.doc);
    }
    const std::optional<int64_t> valid = is_q ? rows[r].q_valid : rows[r].kv_valid;
    if (valid) std::fill(row + std::min(*valid, len), row + len, padding);
  }
  return ids;
}

bool HasFacts(const Batch& batch) { return !(batch == Batch()); }

// The row to export, where a library has no batch axis.
Result<int64_t> PickRow(const PlanView& plan, const ExportOptions& options) {
  if (options.batch_row) {
    if (*options.batch_row >= 0 && *options.batch_row < plan.batch) return *options.batch_row;
    return Fail(ErrorCode::kBadArgument,
                fmt::format("expected a batch row from 0 to {}, found {}", plan.batch - 1, *options.batch_row),
                "batch-row");
  }
  const auto heads = static_cast<size_t>(plan.num_q_heads);
  for (int64_t row = 1; row < plan.batch; ++row) {
    const auto mine = plan.mask_of.subspan(static_cast<size_t>(row) * heads, heads);
    if (std::equal(mine.begin(), mine.end(), plan.mask_of.begin())) continue;
    return Fail(ErrorCode::kExportMask,
                fmt::format("{} has one mask for the whole batch, and batch row {} differs from row 0; choose a row",
                            ToText(options.to), row),
                "batch-row");
  }
  return 0;
}

}  // namespace

Result<Export> MakeExport(const Contract& contract, const Batch& batch, const ExportOptions& options) {
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations), "contract");
  }
  if (Status ok = CheckOptions(options); !ok) return tl::unexpected(std::move(ok.error()));
  const TileSize tile = options.tile.value_or(contract.tiles);
  if (tile.q < 1 || tile.kv < 1) {
    return Fail(ErrorCode::kTileInvalid, fmt::format("expected a tile of 1 or more, found {}x{}", tile.q, tile.kv));
  }
  if (options.to == Library::kSplash || options.to == Library::kTokamax) {
    if (Status ok = CheckDivides(contract.shape, tile, options); !ok) return tl::unexpected(std::move(ok.error()));
  }
  const Result<MaskSets> sets = BuildMaskSets(contract);
  if (!sets) return tl::unexpected(sets.error());
  const MaskFacts facts = NeedsOf(*sets);
  if (contract.routing || facts.needs_blocks) {
    return Fail(ErrorCode::kExportMask, "run-time picks and routing have no form in that library", "mask");
  }

  // What a batch decides is left to segment ids, baked into the arrays, or both: it picks the tiles, and segment ids do
  // the rest inside of them.
  const bool has_runtime = facts.needs_documents || facts.needs_valid;
  const bool is_baked = has_runtime && options.segments == Segments::kBaked;
  const bool skips = options.segments == Segments::kSkip;
  const bool plans_batch = has_runtime && options.segments != Segments::kRuntime;
  Export out;
  out.library = options.to;
  out.direction = options.direction;
  out.tile = tile;
  out.needs_segment_ids = has_runtime && !is_baked;
  Contract planned = contract;
  if (!is_baked) {
    Result<Contract> widest = LeaveSegmentsToRuntime(contract, *sets);
    if (!widest) return tl::unexpected(std::move(widest.error()));
    if (!plans_batch) planned = std::move(*widest);
  }

  const PlanOptions plan_options{.tile = tile, .widen_class = true, .disable = {"transpose", "balance"}};
  Source source{.contract = &planned, .options = &options, .tile = tile};
  source.is_baked = is_baked;
  source.per_row = options.segments != Segments::kRuntime && (facts.names_documents || facts.names_valid);
  source.stores_no_tiles = skips;
  if (skips) source.function = TESSERA_TRY(FunctionByMeaning(contract, *sets));
  if (options.fixed_shapes) {
    source.class_shape = TESSERA_TRY(MakeClassShape(planned, Target(), plan_options));
    if (is_baked && options.to != Library::kFlex) TESSERA_TRY(CheckRoom(source, source.class_shape->cleanups));
  }

  // From here on the batch is read and arrays are made.
  if (!is_baked && HasFacts(batch)) {
    Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, facts, batch);
    if (!rows) return tl::unexpected(std::move(rows.error()));
    if (has_runtime) {
      out.segment_ids =
          SegmentPair{SpreadIds(*rows, contract.shape.q_len, true), SpreadIds(*rows, contract.shape.kv_len, false)};
    }
  }
  const Batch no_facts;
  Result<PlanResult> made = MakePlan(planned, plans_batch ? batch : no_facts, Target(), plan_options);
  if (!made) return tl::unexpected(std::move(made.error()));
  const PlanView& plan = made->plan.view();
  source.plan = &plan;
  Status written;
  if (options.to == Library::kFlex) {
    written = WriteFlex(source, out);
    out.tiles = plan::CountTilesOfRows(plan, Direction::kForward, 0, source.per_row ? plan.batch : 1);
  } else {
    Result<int64_t> row = PickRow(plan, options);
    if (!row) return tl::unexpected(std::move(row.error()));
    source.batch_row = *row;
    out.tiles = plan::CountTilesOfRows(plan, Direction::kForward, *row, 1);
    written = options.to == Library::kSplash    ? WriteSplash(source, out)
              : options.to == Library::kTokamax ? WriteTokamax(source, out)
                                                : WritePallas(source, out);
  }
  if (!written) return tl::unexpected(std::move(written.error()));
  return out;
}

}  // namespace tessera
