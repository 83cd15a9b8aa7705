// Routing on one page: q and k, or a caller's picks -> which blocks of keys each query may attend. The order of its
// stages lives here and nowhere else. Nothing in here has a gradient.
#include "plan/mask_pairs.h"
#include "routing/picks.h"
#include "routing/text.h"

namespace tessera::routing {

Result<Picked> PickBlocks(const PickRequest& request, plan::Runner& runner) {
  const Contract& contract = *request.contract;
  const Result<std::vector<RowSet>> legal = plan::LegalPairs(contract, *request.sets, *request.rows);
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
    input.keep_scores = request.keep_scores;
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

}  // namespace tessera::routing
