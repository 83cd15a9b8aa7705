// See sharing.h.
#include "model/sharing.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "shard/context_program.h"
#include "shard/exchange.h"

namespace tessera::model {
namespace {

using stablehlo::ContextKind;
using stablehlo::ContextSpec;

// Cleanup items that a plan of a model's masks may have at most: a few for each tile that is partly visible, of which
// each row of tiles has a handful.
constexpr int64_t kItemsPerRow = 64;
constexpr int64_t kLeastItems = 4096;

// A tile that rows are whole multiples of, and shards have some of.
constexpr int64_t kMostTile = 256;
Result<int64_t> TileFor(int64_t row_tokens, int64_t shards) {
  int64_t tile = 1;
  while (tile < kMostTile && row_tokens % (2 * tile) == 0 && 2 * tile * shards <= row_tokens) tile *= 2;
  constexpr int64_t kLeastTile = 4;
  if (tile >= kLeastTile) return tile;
  return Fail(ErrorCode::kContextCut,
              fmt::format("rows of {} tokens have no tile of {} tokens or more for each of {} devices", row_tokens,
                          kLeastTile, shards),
              "row_tokens");
}

Result<ContextKind> KindOf(Exchange exchange) {
  switch (exchange) {
    case Exchange::kAllGather:
      return ContextKind::kGather;
    case Exchange::kHeads:
      return ContextKind::kHeads;
    case Exchange::kSparse:
      return ContextKind::kSparse;
    case Exchange::kRing:
      break;
  }
  return Fail(ErrorCode::kContextCut, "a ring's hops are compiled, and the next batch of a model may need others",
              "exchange");
}

// Plans of every mask with one cut of whole rows.
struct CutMasks {
  std::vector<ContextPlanner> planners;
  std::vector<ContextPlan> plans;
  int64_t Tiles(size_t mask) const {
    int64_t most = 0;
    for (const ShardLoad& load : plans[mask].loads) most = std::max(most, load.tiles);
    return most;
  }
  int64_t Bytes(Exchange exchange) const {
    int64_t bytes = 0;
    for (const ContextPlan& plan : plans) bytes += plan.BytesOf(exchange).total;
    return bytes;
  }
};

class Sharer {
 public:
  Sharer(const LayerAttention& layers, const Target& target, const TokenShards& tokens)
      : layers_(layers), target_(target), tokens_(tokens) {}

  Result<Sharing> Share() {
    TESSERA_TRY(CheckMasks());
    options_.shards = tokens_.shards;
    options_.count_pairs = false;
    const int64_t tile = TESSERA_TRY(TileFor(layers_.spec.row_tokens, tokens_.shards));
    options_.plan.tile = TileSize{tile, tile};
    options_.form = tokens_.cut;
    options_.exchange = tokens_.exchange;
    ChooseHeads();
    CutMasks cut = TESSERA_TRY(ChooseForm());
    if (!options_.exchange) {
      ChooseExchange(cut);
      cut = TESSERA_TRY(CutAll());
    }
    return Made(std::move(cut));
  }

 private:
  Status CheckMasks() const {
    for (const MaskFacts& facts : layers_.facts) {
      if (!facts.needs_valid) continue;
      return Fail(ErrorCode::kContextCut,
                  "a model over a context axis has no form for valid counts: give the tokens past them no document",
                  "mask");
    }
    if (tokens_.exchange == Exchange::kHeads && layers_.spec.sink_logits) {
      return Fail(ErrorCode::kContextCut, "a model's sink logits are not traded with its heads", "exchange");
    }
    return {};
  }

  // Trading heads carries (1 + g) / N of what gathering keys does, for g query heads of each key head on N devices and
  // any mask, leaves every sum as on one device, and every device as much to do.
  void ChooseHeads() {
    const ModelSpec& s = layers_.spec;
    const int64_t group = s.num_q_heads / s.num_kv_heads;
    const bool may = s.num_kv_heads % tokens_.shards == 0 && !s.sink_logits;
    if (!options_.exchange && may && 1 + group < tokens_.shards) {
      options_.exchange = Exchange::kHeads;
      why_exchange_ = fmt::format("heads: {:.4f} of an all-gather's bytes for any mask",
                                  static_cast<double>(1 + group) / static_cast<double>(tokens_.shards));
    } else if (options_.exchange) {
      why_exchange_ = fmt::format("{}: asked for", ToText(*options_.exchange));
    }
    if (options_.exchange == Exchange::kHeads && !options_.form) {
      options_.form = CutForm::kContiguous;
      why_cut_ = "contiguous: every device has all tokens of its heads";
    }
  }

  // Documents may change places: each batch is cut in the form that costs it least, of those that need no more room
  // than tokens in order. Else one form for the run, by what whole rows leave the largest shard to do.
  Result<CutMasks> ChooseForm() {
    if (options_.form) {
      if (why_cut_.empty()) why_cut_ = fmt::format("{}: asked for", ToText(*options_.form));
      is_by_batch_ = *options_.form == CutForm::kReordered;
      return CutAll();
    }
    options_.form = CutForm::kReordered;
    const Result<CutMasks> reordered = CutAll();
    if (reordered) {
      options_.form.reset();
      options_.tiles_per_shard = reordered->plans.front().tiles_per_shard;
      why_cut_ = "by batch: the least cost";
      is_by_batch_ = true;
      return CutAll();
    }
    options_.form = CutForm::kContiguous;
    CutMasks contiguous = TESSERA_TRY(CutAll());
    options_.form = CutForm::kZigzag;
    CutMasks zigzag = TESSERA_TRY(CutAll());
    int64_t tiles = 0;
    for (size_t i = 0; i < zigzag.plans.size(); ++i) tiles += zigzag.Tiles(i) - contiguous.Tiles(i);
    if (tiles >= 0) options_.form = CutForm::kContiguous;
    why_cut_ = fmt::format("{}: least to do for the largest shard of whole rows", ToText(*options_.form));
    return tiles < 0 ? std::move(zigzag) : std::move(contiguous);
  }

  // What whole rows need bounds what any batch's documents do.
  void ChooseExchange(const CutMasks& cut) {
    const auto all = static_cast<double>(cut.Bytes(Exchange::kAllGather));
    const double share = all == 0.0 ? 0.0 : static_cast<double>(cut.Bytes(Exchange::kSparse)) / all;
    if (is_by_batch_) {
      options_.exchange = Exchange::kSparse;
      why_exchange_ = fmt::format(
          "sparse: what a batch's documents need; one document of a whole row {:.4f} of an "
          "all-gather's bytes",
          share);
    } else if (share <= shard::kSmallShare) {
      options_.exchange = Exchange::kSparse;
      why_exchange_ = fmt::format("sparse: at most {:.4f} of an all-gather's bytes", share);
    } else {
      options_.exchange = Exchange::kAllGather;
      why_exchange_ = fmt::format("allgather: whole rows need {:.4f} of its bytes", share);
    }
  }

  Result<CutMasks> CutAll() const {
    CutMasks cut;
    const RowBatch rows = WholeRows(layers_.spec);
    for (size_t i = 0; i < layers_.attentions.size(); ++i) {
      const Contract& contract = layers_.attentions[i].contract();
      cut.planners.push_back(TESSERA_TRY(ContextPlanner::Make(contract, target_, options_)));
      const Batch batch = BatchFor(layers_.facts[i], rows);
      const ContextPlanner& planner = cut.planners.back();
      cut.plans.push_back(TESSERA_TRY(i == 0 ? planner.Plan(batch) : planner.PlanAs(batch, cut.plans.front())));
    }
    return cut;
  }

  Result<Sharing> Made(CutMasks cut) const {
    Sharing sharing;
    sharing.shards = tokens_;
    sharing.kind = TESSERA_TRY(KindOf(*options_.exchange));
    sharing.reason = why_cut_ + "; " + why_exchange_;
    for (size_t i = 0; i < cut.plans.size(); ++i) {
      if (cut.Tiles(i) > cut.Tiles(sharing.leader)) sharing.leader = i;
      ContextSpec& spec = sharing.specs.emplace_back(TESSERA_TRY(shard::ContextSpecOf(cut.plans[i])));
      MakeRoom(spec.local);
      // Devices of several groups take as many rounds of a step as the group that needs most: a step never needs more
      // than one device's tiles.
      spec.rounds = static_cast<int64_t>(spec.steps.size()) * cut.plans[i].tiles_per_shard * layers_.spec.rows;
      ContextSpec& lowered = sharing.lowered.emplace_back(spec);
      for (stablehlo::DevicePairs& pairs : lowered.steps) pairs = OverMesh(pairs);
    }
    sharing.row_tokens = sharing.specs.front().tokens;
    sharing.planners = std::move(cut.planners);
    return sharing;
  }

  stablehlo::DevicePairs OverMesh(const stablehlo::DevicePairs& pairs) const {
    stablehlo::DevicePairs out;
    for (const std::vector<int64_t>& group : tokens_.groups) {
      for (const auto& [source, target] : pairs) {
        out.emplace_back(static_cast<int32_t>(group[static_cast<size_t>(source)]),
                         static_cast<int32_t>(group[static_cast<size_t>(target)]));
      }
    }
    return out;
  }

  const LayerAttention& layers_;
  const Target& target_;
  const TokenShards& tokens_;
  ContextOptions options_;
  std::string why_cut_;
  std::string why_exchange_;
  bool is_by_batch_ = false;
};

}  // namespace

RowBatch WholeRows(const ModelSpec& spec) {
  RowBatch rows;
  rows.rows = spec.rows;
  rows.row_tokens = spec.row_tokens;
  rows.doc_ids.assign(static_cast<size_t>(spec.rows * spec.row_tokens), 1);
  rows.valid_token_count.assign(static_cast<size_t>(spec.rows), static_cast<int32_t>(spec.row_tokens));
  return rows;
}

void MakeRoom(stablehlo::ProgramSpec& spec) {
  int64_t rows = 0;
  for (const stablehlo::ListShape& list : spec.lists) rows += list.rows;
  int64_t items = kLeastItems;
  while (items < kItemsPerRow * rows * spec.masks && items < (int64_t{1} << 20)) items *= 2;
  spec.items = std::max(spec.items, items);
}

Result<Sharing> MakeSharing(const LayerAttention& layers, const Target& target, const TokenShards& tokens) {
  return Sharer(layers, target, tokens).Share();
}

Result<std::vector<ContextPlan>> PlanAll(const Sharing& sharing, const LayerAttention& layers, const RowBatch& rows) {
  const auto batch_of = [&](size_t mask) { return BatchFor(layers.facts[mask], rows); };
  std::vector<ContextPlan> plans(sharing.planners.size());
  ContextPlan& leads = plans[sharing.leader];
  leads = TESSERA_TRY(sharing.planners[sharing.leader].Plan(batch_of(sharing.leader)));
  for (size_t i = 0; i < plans.size(); ++i) {
    if (i != sharing.leader) plans[i] = TESSERA_TRY(sharing.planners[i].PlanAs(batch_of(i), leads));
  }
  return plans;
}

}  // namespace tessera::model
