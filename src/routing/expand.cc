// expand: the meta-blocks that score kept -> their means, scored one by one -> the picks.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "routing/routing.h"
#include "routing/scan.h"

namespace tessera::routing {
namespace {

// Queries that kept the same meta-block score its means together: neighbours mostly keep the same ones.
void ExpandChunk(const Scored& scored, QueryChunk& chunk, PickRows& out) {
  const QueryChunk::Place& place = chunk.place();
  const auto kept = [&](int64_t i, int64_t n) -> int32_t {
    if (n >= scored.meta_keep) return -1;
    const int64_t at = ((place.b * out.q_len + place.begin + i) * out.num_kv_heads + place.head) * scored.meta_keep;
    return scored.metas[static_cast<size_t>(at + n)];
  };
  chunk.ForceBlocks();
  std::array<int64_t, kScoreChunk> next{};  // in each query's list
  chunk.ForEachStretch([&](const DocumentMeans&, int64_t begin, int64_t end) {
    for (;;) {
      int32_t lowest = -1;
      for (int64_t i = begin; i < end; ++i) {
        const int32_t meta = kept(i, next[static_cast<size_t>(i)]);
        if (meta >= 0 && (lowest < 0 || meta < lowest)) lowest = meta;
      }
      if (lowest < 0) break;
      chunk.ClearActive();
      for (int64_t i = begin; i < end; ++i) {
        if (kept(i, next[static_cast<size_t>(i)]) != lowest) continue;
        ++next[static_cast<size_t>(i)];
        chunk.Activate(i);
      }
      const MetaBlock& meta = chunk.row().metas[static_cast<size_t>(lowest)];
      for (int32_t m = meta.mean_begin; m < meta.mean_end; m += static_cast<int32_t>(kMeanTile)) {
        chunk.ScoreMeans(m, std::min(m + static_cast<int32_t>(kMeanTile), meta.mean_end));
      }
    }
  });
  chunk.FinishBlocks(out);
}

}  // namespace

Result<PickRows> Expand(const RoutingInput& input, const Scored& scored) {
  if (Status checked = CheckRoutingInput(input, NeedsTensors::kYes, "expand"); !checked) {
    return tl::unexpected(std::move(checked.error()));
  }
  if (scored.is_final) return scored.picks;
  const Shape& shape = input.contract->shape;
  const int64_t expected = shape.batch * shape.q_len * shape.num_kv_heads * scored.meta_keep;
  if (static_cast<int64_t>(scored.metas.size()) != expected ||
      static_cast<int64_t>(scored.keys.rows.size()) != shape.batch) {
    return Fail(ErrorCode::kStageInvariant,
                fmt::format("scores of {} kept meta-blocks in {} rows; the contract needs {} in {}",
                            scored.metas.size(), scored.keys.rows.size(), expected, shape.batch),
                "expand");
  }
  PickRows out = MakePickRows(input);
  out.nan_scores = scored.nan_scores + ForEachChunk(input, scored.keys, out.top_n,
                                                    [&](QueryChunk& chunk) { ExpandChunk(scored, chunk, out); });
  return out;
}

}  // namespace tessera::routing
