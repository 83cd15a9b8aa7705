#include "planner/settings.h"

#include <fmt/format.h>

#include <bit>

namespace tessera::planner {

std::array<TileSize, kNumDirections> PickTiles(const Contract& contract, const Target& target,
                                               const PlanOptions& options) {
  const auto pick = [&](TileSize preferred) {
    if (options.tile) return *options.tile;
    return TileSize{preferred.q > 0 ? preferred.q : contract.tiles.q,
                    preferred.kv > 0 ? preferred.kv : contract.tiles.kv};
  };
  for (const DimTiles& tiles : target.tiles_by_dim) {
    if (contract.shape.dim_qk <= tiles.max_dim_qk) return {pick(tiles.forward), pick(tiles.dq), pick(tiles.dkv)};
  }
  return {pick(target.forward), pick(target.dq), pick(target.dkv)};
}

Status FitClass(ClassShape& shape, const TiledRows& rows, const CompactColumns* columns, bool widen) {
  const auto fit = [&](int64_t& capacity, int64_t needed, std::string_view what) -> Status {
    if (needed <= capacity) return {};
    if (!widen) {
      return Fail(ErrorCode::kCapacityExceeded,
                  fmt::format("this batch needs {} {}, the class holds {}; raise capacity, or ask for a wider class",
                              needed, what, capacity),
                  "class");
    }
    capacity = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(needed)));
    return {};
  };
  Status ok = fit(shape.width[0], rows.Of(Direction::kForward).widest, "slots per row (capacity.width)");
  if (ok) ok = fit(shape.width[1], rows.Of(Direction::kDq).widest, "slots per row (capacity.width)");
  if (ok && columns != nullptr) {
    ok = fit(shape.width[2], columns->widest, "slots per column (capacity.width_transposed)");
  }
  if (ok) ok = fit(shape.cleanups, rows.cleanups.Size(), "cleanups (capacity.cleanups)");
  return ok;
}

}  // namespace tessera::planner
