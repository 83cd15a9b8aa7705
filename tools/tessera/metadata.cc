// See metadata.h.
#include "metadata.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::program {
namespace {

// Tiles are doubled on both sides this often at most: 128 becomes 8192.
constexpr int kMostDoublings = 6;

// "; --tile 256x512 would, with 1,234 bytes".
std::string TileThatFits(const PlanView& plan, const Problem& problem) {
  const Worklist& forward = plan.Of(Direction::kForward);
  TileSize tile{forward.tile_q, forward.tile_kv};
  Problem larger = problem;
  for (int doubling = 0; doubling < kMostDoublings; ++doubling) {
    if (tile.q >= plan.q_len && tile.kv >= plan.kv_len) break;
    tile = {tile.q * 2, tile.kv * 2};
    larger.options.tile = tile;
    const auto made = PlanProblem(larger);
    if (!made || !FitsScalarMemory(made->plan.view(), problem.target)) continue;
    return fmt::format("; --tile {}x{} would, with {}", tile.q, tile.kv, Bytes(MetadataBytes(made->plan.view())));
  }
  return fmt::format("; no tile up to {}x{} would", tile.q, tile.kv);
}

}  // namespace

std::string MetadataLine(const PlanView& plan, const Target& target, const Problem* problem) {
  std::string line = fmt::format("metadata      {} of scalar memory", Bytes(MetadataBytes(plan)));
  if (target.scalar_bytes == 0) return line + fmt::format("; {} sets no limit\n", target.name);
  const bool fits = FitsScalarMemory(plan, target);
  line += fmt::format("; {} has {}: {}", target.name, Bytes(target.scalar_bytes), fits ? "fits" : "does not fit");
  if (!fits && problem != nullptr) line += TileThatFits(plan, *problem);
  return line + "\n";
}

void AddMetadata(JsonObject& object, const PlanView& plan, const Target& target) {
  object.Int("metadata_bytes", MetadataBytes(plan)).Int("scalar_limit", target.scalar_bytes);
  object.Bool("fits_scalar_memory", FitsScalarMemory(plan, target));
}

}  // namespace tessera::program
