#include "routing/picks.h"

#include <algorithm>

namespace tessera::routing {
namespace {

// Calls visit(query, list) with the blocks that the unions still hold for each query of a batch row and KV head.
template <class Visit>
void ForEachList(const UnionMaps& maps, int64_t batch_row, int64_t kv_head, int64_t q_len, const Visit& visit) {
  std::vector<int32_t> list;
  for (int64_t q = 0; q < q_len; ++q) {
    const int64_t tile = (batch_row * maps.num_query_tiles + q / maps.query_tile) * maps.num_kv_heads + kv_head;
    const int64_t first = ((batch_row * maps.q_len + q) * maps.num_kv_heads + kv_head) * maps.top_n;
    list.clear();
    for (int64_t n = first; n < first + maps.top_n; ++n) {
      if (maps.query_union_valid[static_cast<size_t>(n)] == 0) continue;
      const int64_t place = tile * maps.capacity + maps.query_union_indices[static_cast<size_t>(n)];
      list.push_back(maps.union_block_indices[static_cast<size_t>(place)]);
    }
    visit(q, list);
  }
}

std::string SourceOf(const Contract& contract, const Batch& batch) {
  if (contract.routing) return "routing";
  return batch.picks && batch.picks->shape[3] == 0 ? kRerouted : "caller";
}

}  // namespace

PickRows ToPickRows(const Contract& contract, const Picks& picks) {
  const Shape& shape = contract.shape;
  PickRows out;
  out.batch = shape.batch;
  out.q_len = shape.q_len;
  out.num_kv_heads = shape.num_kv_heads;
  if (picks.shape[3] == 0) {
    out.top_n = 1;
    out.block_tokens = shape.kv_len;
    out.blocks.assign(static_cast<size_t>(shape.batch * shape.q_len * shape.num_kv_heads), 0);
    return out;
  }
  out.top_n = picks.shape[3];
  out.block_tokens = picks.block_tokens;
  out.blocks.reserve(static_cast<size_t>(out.batch * out.q_len * out.num_kv_heads * out.top_n));
  const bool per_query = picks.shape[1] == shape.q_len;
  const int64_t per_row = out.num_kv_heads * out.top_n;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t q = 0; q < shape.q_len; ++q) {
      const int64_t row = b * picks.shape[1] + (per_query ? q : q / contract.tiles.q);
      const auto from = picks.blocks.begin() + row * per_row;
      out.blocks.insert(out.blocks.end(), from, from + per_row);
      for (auto list = out.blocks.end() - per_row; list != out.blocks.end(); list += out.top_n) {
        std::sort(list, list + out.top_n);
      }
    }
  }
  return out;
}

UniteConfig UniteConfigOf(const Contract& contract, const PickRows& picks, bool widen) {
  UniteConfig config;
  config.query_tile = contract.routing ? contract.routing->query_tile : contract.tiles.q;
  config.num_kv_heads = contract.shape.num_kv_heads;
  config.top_n = picks.top_n;
  config.num_blocks = (contract.shape.kv_len + picks.block_tokens - 1) / picks.block_tokens;
  config.capacity = contract.routing ? contract.routing->union_capacity : 0;
  config.widen = widen || config.capacity == 0;
  return config;
}

plan::BatchPicks ToBatchPicks(const UnionMaps& maps, int64_t q_len) {
  plan::BatchPicks out{.block_tokens = maps.block_tokens, .num_kv_heads = maps.num_kv_heads, .lists = {}};
  for (int64_t b = 0; b < maps.batch; ++b) {
    for (int64_t head = 0; head < maps.num_kv_heads; ++head) {
      plan::QueryPicks lists;
      lists.offsets.reserve(static_cast<size_t>(q_len) + 1);
      ForEachList(maps, b, head, q_len, [&](int64_t, const std::vector<int32_t>& list) {
        lists.blocks.insert(lists.blocks.end(), list.begin(), list.end());
        lists.offsets.push_back(static_cast<uint32_t>(lists.blocks.size()));
      });
      out.lists.push_back(std::move(lists));
    }
  }
  return out;
}

Picks ToPicks(const UnionMaps& maps, int64_t q_len) {
  Picks out{
      .block_tokens = maps.block_tokens, .shape = {maps.batch, q_len, maps.num_kv_heads, maps.top_n}, .blocks = {}};
  out.blocks.assign(static_cast<size_t>(maps.batch * q_len * maps.num_kv_heads * maps.top_n), -1);
  for (int64_t b = 0; b < maps.batch; ++b) {
    for (int64_t head = 0; head < maps.num_kv_heads; ++head) {
      ForEachList(maps, b, head, q_len, [&](int64_t q, const std::vector<int32_t>& list) {
        std::copy(list.begin(), list.end(),
                  out.blocks.begin() + ((b * q_len + q) * maps.num_kv_heads + head) * maps.top_n);
      });
    }
  }
  return out;
}

UnionSizes SizesOf(const UnionMaps& maps) {
  UnionSizes out;
  int64_t total = 0;
  for (const int32_t size : maps.union_sizes) {
    total += size;
    out.widest = std::max<int64_t>(out.widest, size);
  }
  if (!maps.union_sizes.empty()) out.mean = static_cast<double>(total) / static_cast<double>(maps.union_sizes.size());
  return out;
}

PicksReport ReportOf(const Contract& contract, const Batch& batch, const Picked& picked) {
  const Legalised& legalised = picked.legalised;
  const LegaliseReport& from = legalised.report;
  PicksReport out;
  out.source = SourceOf(contract, batch);
  out.nan_scores = picked.raw.nan_scores;
  out.picks = from.picks;
  out.kept = from.kept;
  out.padding = from.padding;
  out.documents = from.documents;
  out.causality = from.causality;
  out.window = from.window;
  out.other = from.other;
  out.union_capacity = legalised.maps.capacity;
  const UnionSizes sizes = SizesOf(legalised.maps);
  out.widest_union = sizes.widest;
  out.mean_union = sizes.mean;
  return out;
}

Status VerifyUnion(const UniteConfig& config, const PickRows& picks, const UnionMaps& maps) {
  UniteConfig other = config;
  other.mode = config.mode == UniteMode::kBitmap ? UniteMode::kSort : UniteMode::kBitmap;
  const Result<UnionMaps> again = Unite(other, picks);
  if (!again) return tl::unexpected(again.error());
  if (*again == maps) return {};
  return Fail(ErrorCode::kStageInvariant, "bitmap and sort give different unions", "unite");
}

}  // namespace tessera::routing
