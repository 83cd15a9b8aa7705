// Routing without a plan, with measures of what the picks keep.
#include "tessera/route.h"

#include <algorithm>
#include <limits>

#include "contract/batch_resolve.h"
#include "plan/mask_pairs.h"
#include "routing/picks.h"

namespace tessera {
namespace {

using namespace routing;  // NOLINT(google-build-using-namespace): these are routing's own stages

std::vector<int64_t> EvenlySpread(int64_t count, int64_t q_len) {
  count = std::clamp<int64_t>(count, 0, q_len);
  std::vector<int64_t> queries;
  for (int64_t i = 0; i < count; ++i) queries.push_back(q_len - 1 - i * q_len / count);
  std::ranges::reverse(queries);
  return queries;
}

PickRows RowsOf(const Picks& picks) {
  PickRows rows;
  rows.batch = picks.shape[0];
  rows.q_len = picks.shape[1];
  rows.num_kv_heads = picks.shape[2];
  rows.top_n = picks.shape[3];
  rows.block_tokens = picks.block_tokens;
  rows.blocks = picks.blocks;
  return rows;
}

// The scores of the picks that are left, out of those of all.
std::vector<float> ScoresOf(const Picks& left, const PickRows& all) {
  std::vector<float> out;
  if (all.scores.empty()) return out;
  out.assign(left.blocks.size(), -std::numeric_limits<float>::infinity());
  const auto top_n = static_cast<size_t>(all.top_n);
  for (size_t n = 0; n < left.blocks.size(); ++n) {
    if (left.blocks[n] < 0) continue;
    const auto first = all.blocks.begin() + static_cast<std::ptrdiff_t>(n / top_n * top_n);
    const auto found = std::find(first, first + all.top_n, left.blocks[n]);
    if (found != first + all.top_n) out[n] = all.scores[static_cast<size_t>(found - all.blocks.begin())];
  }
  return out;
}

}  // namespace

Result<RouteResult> Route(const Contract& contract, const Batch& batch, const RouteInputs& inputs,
                          const RouteOptions& options) {
  if (std::vector<Violation> violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations), "contract");
  }
  const Result<MaskSets> sets = BuildMaskSets(contract);
  if (!sets) return tl::unexpected(sets.error());
  if (Status ok = plan::CheckOptions(options.plan); !ok) return tl::unexpected(std::move(ok.error()));
  const MaskFacts needs = NeedsOf(*sets);
  if (!needs.needs_blocks) {
    return Fail(ErrorCode::kBadArgument, "the mask does not depend on `blocks`: there is nothing to route", "mask");
  }
  const Result<std::vector<BatchRow>> rows = ResolveBatchWith(contract, needs, batch);
  if (!rows) return tl::unexpected(rows.error());

  plan::Runner runner(options.plan);
  Result<Picked> picked = PickBlocks({.contract = &contract,
                                      .sets = &*sets,
                                      .rows = &*rows,
                                      .batch = &batch,
                                      .route = inputs.q.data == nullptr ? nullptr : &inputs,
                                      .widen = options.plan.widen_class,
                                      .keep_scores = options.keep_scores},
                                     runner);
  if (!picked) return tl::unexpected(std::move(picked.error()));
  RouteResult out;
  out.picks = ToPicks(picked->legalised.maps, contract.shape.q_len);
  out.scores = ScoresOf(out.picks, picked->raw);
  out.report = ReportOf(contract, batch, *picked);
  out.stages = runner.TakeReports();
  if (!contract.routing || (!options.compare && options.mass_queries == 0)) return out;

  const Result<std::vector<RowSet>> legal = plan::LegalPairs(contract, *sets, *rows);
  if (!legal) return tl::unexpected(legal.error());
  RoutingInput input;
  input.contract = &contract;
  input.rows = &*rows;
  input.legal = &*legal;
  input.q = inputs.q;
  input.k = inputs.k;
  input.parallel = inputs.parallel;
  const std::vector<int64_t> queries = EvenlySpread(options.mass_queries, contract.shape.q_len);
  const PickRows kept = RowsOf(out.picks);
  const auto measure = [&](const PickRows& picks, std::optional<double>& to) -> Status {
    if (queries.empty()) return {};
    return MassKept(input, picks, queries).map([&](double mass) { to = mass; });
  };
  if (Status ok = measure(kept, out.mass_kept); !ok) return tl::unexpected(std::move(ok.error()));
  if (!options.compare) return out;
  Contract exhaustive = contract;
  exhaustive.routing->hierarchical = false;
  input.contract = &exhaustive;
  const Result<Scored> all = routing::Score(input);
  if (!all) return tl::unexpected(all.error());
  out.recall = Recall(kept, all->picks);
  if (Status ok = measure(all->picks, out.exhaustive_mass_kept); !ok) return tl::unexpected(std::move(ok.error()));
  return out;
}

}  // namespace tessera
