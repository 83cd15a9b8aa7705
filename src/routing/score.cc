// score: which blocks matter to each query, by the means of their keys. Exhaustive routing is done here; hierarchical
// routing keeps the best meta-blocks, and expand goes on from them.
#include <algorithm>

#include "routing/routing.h"
#include "routing/scan.h"

namespace tessera::routing {
namespace {

// One past the last mean to score for queries [begin, end) of a chunk.
int32_t ScanEnd(const RoutingInput& input, const QueryChunk& chunk, const DocumentMeans& document, int64_t begin,
                int64_t end) {
  if (!input.prune) return document.mean_end;
  const std::vector<Mean>& means = chunk.row().means;
  const int64_t horizon = chunk.LastHorizon(begin, end);
  const int64_t stride = input.contract->routing->block_stride;
  const auto found =
      std::partition_point(means.begin() + document.mean_begin, means.begin() + document.mean_end,
                           [&](const Mean& mean) { return IsScoreable(mean.compression, stride, horizon); });
  return static_cast<int32_t>(found - means.begin());
}

// One step of the scan takes the means of `kv_tile` keys: the queries that may attend some of their blocks score them
// all. Each score is by itself, so picks do not depend on the step.
void ScoreBlocks(const RoutingInput& input, QueryChunk& chunk, PickRows& out) {
  constexpr auto kTile = static_cast<int32_t>(kMeanTile);
  const Routing& routing = *input.contract->routing;
  const int64_t step = std::max<int64_t>(routing.kv_tile / routing.block_stride, 1);
  chunk.ForceBlocks();
  chunk.ForEachStretch([&](const DocumentMeans& document, int64_t begin, int64_t end) {
    const std::vector<Mean>& means = chunk.row().means;
    const int32_t scan_end = ScanEnd(input, chunk, document, begin, end);
    for (int32_t m = document.mean_begin; m < scan_end;) {
      const auto step_end = static_cast<int32_t>(std::min<int64_t>(m + step, scan_end));
      const int64_t first_block = means[static_cast<size_t>(m)].block;
      const int64_t last_block = means[static_cast<size_t>(step_end) - 1].block;
      chunk.ClearActive();
      for (int64_t i = begin; i < end; ++i) {
        const bool can_count = chunk.query(i).mean_end > m && chunk.IsAnyLegal(i, first_block, last_block);
        if (can_count || !input.prune) chunk.Activate(i);
      }
      if (!chunk.HasActive()) m = step_end;
      for (; m < step_end; m = std::min(m + kTile, step_end)) chunk.ScoreMeans(m, std::min(m + kTile, step_end));
    }
  });
  chunk.FinishBlocks(out);
}

// The meta-blocks of a document that hold a mean of blocks [first_block, end_block).
std::pair<int32_t, int32_t> MetasOf(const CompressedRow& row, const DocumentMeans& document, int64_t first_block,
                                    int64_t end_block) {
  const auto begin = row.metas.begin() + document.meta_begin;
  const auto end = row.metas.begin() + document.meta_end;
  const auto block_of = [&](int32_t mean) { return row.means[static_cast<size_t>(mean)].block; };
  const auto first = std::partition_point(
      begin, end, [&](const MetaBlock& meta) { return block_of(meta.mean_end - 1) < first_block; });
  const auto last =
      std::partition_point(first, end, [&](const MetaBlock& meta) { return block_of(meta.mean_begin) < end_block; });
  return {static_cast<int32_t>(first - row.metas.begin()), static_cast<int32_t>(last - row.metas.begin())};
}

void ForceMetas(const Routing& routing, QueryChunk& chunk, const DocumentMeans& document, int64_t i) {
  const CompressedRow& row = chunk.row();
  Selection& kept = chunk.selection(i);
  const int32_t mean_end = chunk.query(i).mean_end;
  const auto force = [&](int32_t g) {
    const MetaBlock& meta = row.metas[static_cast<size_t>(g)];
    if (meta.mean_begin < mean_end && chunk.IsMetaLegal(i, meta)) kept.Force(g);
  };
  const int64_t own = chunk.query(i).own_block;
  if (own >= 0) {
    const std::pair<int32_t, int32_t> range = MetasOf(row, document, own, own + 1);
    for (int32_t g = range.first; g < range.second; ++g) force(g);
  }
  const auto cut = std::partition_point(row.metas.begin() + document.meta_begin, row.metas.begin() + document.meta_end,
                                        [&](const MetaBlock& meta) { return meta.mean_end <= mean_end; });
  if (cut != row.metas.begin() + document.meta_end) force(static_cast<int32_t>(cut - row.metas.begin()));
  const std::pair<int32_t, int32_t> range = MetasOf(row, document, 0, routing.first_blocks);
  for (int32_t g = range.first; g < range.second; ++g) force(g);
}

void ScoreMetas(const RoutingInput& input, QueryChunk& chunk, Scored& out) {
  constexpr auto kTile = static_cast<int32_t>(kMeanTile);
  const CompressedRow& row = chunk.row();
  chunk.ForEachStretch([&](const DocumentMeans& document, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ForceMetas(*input.contract->routing, chunk, document, i);
    const int32_t mean_end = ScanEnd(input, chunk, document, begin, end);
    const auto scan_end =
        std::partition_point(row.metas.begin() + document.meta_begin, row.metas.begin() + document.meta_end,
                             [&](const MetaBlock& meta) { return meta.mean_end <= mean_end; });
    const auto meta_end = static_cast<int32_t>(scan_end - row.metas.begin());
    for (int32_t g = document.meta_begin; g < meta_end; g += kTile) {
      const int32_t tile_end = std::min(g + kTile, meta_end);
      const MetaBlock& first = row.metas[static_cast<size_t>(g)];
      const MetaBlock& last = row.metas[static_cast<size_t>(tile_end) - 1];
      const int64_t first_block = row.means[static_cast<size_t>(first.mean_begin)].block;
      const int64_t last_block = row.means[static_cast<size_t>(last.mean_end) - 1].block;
      chunk.ClearActive();
      for (int64_t i = begin; i < end; ++i) {
        const bool can_count =
            chunk.query(i).mean_end >= first.mean_end && chunk.IsAnyLegal(i, first_block, last_block);
        if (can_count || !input.prune) chunk.Activate(i);
      }
      if (chunk.HasActive()) chunk.ScoreRepresentatives(g, tile_end);
    }
    // Meta-blocks whose score is NaN or -inf take what room is left, as blocks do.
    for (int64_t i = begin; i < end; ++i) {
      Selection& kept = chunk.selection(i);
      for (int32_t g = document.meta_begin; g < document.meta_end && kept.Size() < kept.Capacity(); ++g) {
        const MetaBlock& meta = row.metas[static_cast<size_t>(g)];
        if (meta.mean_begin >= chunk.query(i).mean_end) break;
        if (chunk.IsMetaLegal(i, meta)) kept.Fill(g);
      }
    }
  });
  const QueryChunk::Place& place = chunk.place();
  const Shape& shape = input.contract->shape;
  for (int64_t q = place.begin; q < place.end; ++q) {
    const int64_t at = ((place.b * shape.q_len + q) * shape.num_kv_heads + place.head) * out.meta_keep;
    chunk.selection(q - place.begin)
        .Write(std::span(out.metas).subspan(static_cast<size_t>(at), static_cast<size_t>(out.meta_keep)));
  }
}

// More meta-blocks than there are cannot be kept, so room for more is not made.
int64_t MetaKeep(const Contract& contract) {
  const Routing& routing = *contract.routing;
  const int64_t compression_blocks = (contract.shape.kv_len + routing.block_stride - 1) / routing.block_stride;
  return std::min(routing.meta_keep, (compression_blocks + routing.meta_ratio - 1) / routing.meta_ratio);
}

}  // namespace

Result<Scored> Score(const RoutingInput& input) {
  Result<CompressedKeys> keys = Compress(input);
  if (!keys) return tl::unexpected(std::move(keys.error()));
  const Contract& contract = *input.contract;
  Scored out;
  out.keys = std::move(*keys);
  out.is_final = !contract.routing->hierarchical;
  if (out.is_final) {
    out.picks = MakePickRows(input);
    out.nan_scores = ForEachChunk(input, out.keys, out.picks.top_n,
                                  [&](QueryChunk& chunk) { ScoreBlocks(input, chunk, out.picks); });
    out.picks.nan_scores = out.nan_scores;
    return out;
  }
  out.meta_keep = MetaKeep(contract);
  const Shape& shape = contract.shape;
  out.metas.assign(static_cast<size_t>(shape.batch * shape.q_len * shape.num_kv_heads * out.meta_keep), -1);
  out.nan_scores =
      ForEachChunk(input, out.keys, out.meta_keep, [&](QueryChunk& chunk) { ScoreMetas(input, chunk, out); });
  return out;
}

int64_t ScoreScratchBytes(const Contract& contract) {
  const Routing& routing = *contract.routing;
  return QueryChunk::Bytes(contract,
                           routing.hierarchical ? std::max(routing.top_n, MetaKeep(contract)) : routing.top_n);
}

}  // namespace tessera::routing
