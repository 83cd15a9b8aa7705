// unite: picks per query -> per tile of queries the ascending list of blocks that some query of it picked, and for
// every pick its place in that list. A compact work set, never a dense mask.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "routing/routing.h"

namespace tessera::routing {
namespace {

Status CheckShape(const UniteConfig& config, const PickRows& picks) {
  if (config.query_tile < 1 || config.num_kv_heads < 1 || config.top_n < 1 || config.num_blocks < 1 ||
      config.capacity < 0) {
    return Fail(
        ErrorCode::kPicksShape,
        fmt::format("query_tile {}, KV heads {}, top_n {} and blocks {} must be at least 1, and capacity {} not "
                    "negative",
                    config.query_tile, config.num_kv_heads, config.top_n, config.num_blocks, config.capacity),
        "unite");
  }
  if (picks.num_kv_heads != config.num_kv_heads) {
    return Fail(ErrorCode::kPicksShape,
                fmt::format("the picks are for {} KV heads; expected {}", picks.num_kv_heads, config.num_kv_heads),
                "unite");
  }
  if (picks.top_n != config.top_n) {
    return Fail(ErrorCode::kPicksShape,
                fmt::format("the picks have {} entries per query; expected top_n, {}", picks.top_n, config.top_n),
                "unite");
  }
  if (picks.q_len < 0 || picks.q_len % config.query_tile != 0) {
    return Fail(ErrorCode::kPicksShape,
                fmt::format("the picks are for {} queries; expected a multiple of query_tile, {}: pad them first",
                            picks.q_len, config.query_tile),
                "unite");
  }
  const int64_t expected = picks.batch * picks.q_len * picks.num_kv_heads * picks.top_n;
  if (picks.batch < 0 || static_cast<int64_t>(picks.blocks.size()) != expected) {
    return Fail(ErrorCode::kPicksShape,
                fmt::format("{} picks were given; expected rank 4, [{}, {}, {}, {}], which is {}", picks.blocks.size(),
                            picks.batch, picks.q_len, picks.num_kv_heads, picks.top_n, expected),
                "unite");
  }
  return {};
}

Status CheckPicks(const UniteConfig& config, const PickRows& picks) {
  for (int64_t row = 0; row < picks.batch * picks.q_len * picks.num_kv_heads; ++row) {
    int32_t before = -1;
    const int32_t* entries = picks.blocks.data() + row * picks.top_n;
    for (int64_t n = 0; n < picks.top_n; ++n) {
      const int32_t block = entries[n];
      if (block < 0) continue;
      if (block < config.num_blocks && block > before) {
        before = block;
        continue;
      }
      const std::string where = fmt::format("picks[{}, {}, {}, {}]", row / picks.num_kv_heads / picks.q_len,
                                            row / picks.num_kv_heads % picks.q_len, row % picks.num_kv_heads, n);
      if (block >= config.num_blocks) {
        return Fail(ErrorCode::kPicksInvalid,
                    fmt::format("{} is block {}; expected a block below {}, or a negative number for no pick", where,
                                block, config.num_blocks),
                    "unite");
      }
      if (block == before) {
        return Fail(ErrorCode::kPicksInvalid,
                    fmt::format("{} is block {} again; a query picks a block once", where, block), "unite");
      }
      return Fail(ErrorCode::kPicksInvalid,
                  fmt::format("{} is block {} after block {}; the picks of a query must ascend", where, block, before),
                  "unite");
    }
  }
  return {};
}

// The union of one tile, and the place of a block in it.
class BitmapUnion {
 public:
  explicit BitmapUnion(int64_t num_blocks)
      : words_(static_cast<size_t>((num_blocks + 63) / 64)), before_(words_.size()) {}
  void Clear() { std::fill(words_.begin(), words_.end(), 0); }
  void Add(int32_t block) { words_[static_cast<size_t>(block) / 64] |= uint64_t{1} << (block % 64); }
  void Finish(std::vector<int32_t>& blocks) {
    blocks.clear();
    for (size_t w = 0; w < words_.size(); ++w) {
      before_[w] = static_cast<int32_t>(blocks.size());
      for (uint64_t left = words_[w]; left != 0; left &= left - 1) {
        blocks.push_back(static_cast<int32_t>(w * 64) + std::countr_zero(left));
      }
    }
  }
  int32_t PlaceOf(int32_t block, const std::vector<int32_t>&) const {
    const size_t w = static_cast<size_t>(block) / 64;
    const uint64_t below = words_[w] & ((uint64_t{1} << (block % 64)) - 1);
    return before_[w] + std::popcount(below);
  }

 private:
  std::vector<uint64_t> words_;
  std::vector<int32_t> before_;  // members in earlier words
};

class SortUnion {
 public:
  explicit SortUnion(int64_t) {}
  void Clear() { all_.clear(); }
  void Add(int32_t block) { all_.push_back(block); }
  void Finish(std::vector<int32_t>& blocks) {
    std::sort(all_.begin(), all_.end());
    all_.erase(std::unique(all_.begin(), all_.end()), all_.end());
    blocks = all_;
  }
  int32_t PlaceOf(int32_t block, const std::vector<int32_t>& blocks) const {
    return static_cast<int32_t>(std::lower_bound(blocks.begin(), blocks.end(), block) - blocks.begin());
  }

 private:
  std::vector<int32_t> all_;
};

// Calls visit(index of the first entry of a query's picks) for each query of tile `row`, [batch, tiles, heads].
template <class Visit>
void ForEachQuery(const UnionMaps& maps, int64_t row, Visit visit) {
  const int64_t head = row % maps.num_kv_heads;
  const int64_t tile = row / maps.num_kv_heads;  // of all batch rows
  for (int64_t q = tile * maps.query_tile; q < (tile + 1) * maps.query_tile; ++q) {
    visit((q * maps.num_kv_heads + head) * maps.top_n);
  }
}

template <class Union>
void FillMaps(const UniteConfig& config, const PickRows& picks, UnionMaps& out, std::vector<int32_t>& all_blocks) {
  Union tile(config.num_blocks);
  std::vector<int32_t> blocks;
  for (int64_t row = 0; row < static_cast<int64_t>(out.union_sizes.size()); ++row) {
    tile.Clear();
    ForEachQuery(out, row, [&](int64_t first) {
      for (int64_t n = first; n < first + out.top_n; ++n) {
        if (picks.blocks[static_cast<size_t>(n)] >= 0) tile.Add(picks.blocks[static_cast<size_t>(n)]);
      }
    });
    tile.Finish(blocks);
    ForEachQuery(out, row, [&](int64_t first) {
      for (int64_t n = first; n < first + out.top_n; ++n) {
        const int32_t block = picks.blocks[static_cast<size_t>(n)];
        if (block < 0) continue;
        out.query_union_indices[static_cast<size_t>(n)] = tile.PlaceOf(block, blocks);
        out.query_union_valid[static_cast<size_t>(n)] = 1;
      }
    });
    out.union_sizes[static_cast<size_t>(row)] = static_cast<int32_t>(blocks.size());
    all_blocks.insert(all_blocks.end(), blocks.begin(), blocks.end());
  }
}

}  // namespace

Result<UnionMaps> Unite(const UniteConfig& config, const PickRows& picks) {
  if (Status checked = CheckShape(config, picks); !checked) return tl::unexpected(std::move(checked.error()));
  if (Status checked = CheckPicks(config, picks); !checked) return tl::unexpected(std::move(checked.error()));
  UnionMaps out{.batch = picks.batch,
                .q_len = picks.q_len,
                .num_kv_heads = picks.num_kv_heads,
                .top_n = picks.top_n,
                .query_tile = config.query_tile,
                .num_query_tiles = picks.q_len / config.query_tile,
                .block_tokens = picks.block_tokens,
                .num_blocks = config.num_blocks};
  out.union_sizes.assign(static_cast<size_t>(out.batch * out.num_query_tiles * out.num_kv_heads), 0);
  out.query_union_indices.assign(picks.blocks.size(), -1);
  out.query_union_valid.assign(picks.blocks.size(), 0);
  std::vector<int32_t> blocks;  // of all unions, one after another
  if (config.mode == UniteMode::kBitmap) {
    FillMaps<BitmapUnion>(config, picks, out, blocks);
  } else {
    FillMaps<SortUnion>(config, picks, out, blocks);
  }

  const auto widest = std::max_element(out.union_sizes.begin(), out.union_sizes.end());
  const int64_t needed = widest == out.union_sizes.end() ? 0 : *widest;
  out.capacity = config.capacity > 0 ? config.capacity
                 : config.widen      ? std::max<int64_t>(needed, 1)
                                     : config.num_blocks;
  if (needed > out.capacity) {
    if (!config.widen) {
      const int64_t row = widest - out.union_sizes.begin();
      return Fail(
          ErrorCode::kCapacityExceeded,
          fmt::format("query tile {} of batch row {}, KV head {}, needs {} blocks; union_capacity is {}",
                      row / out.num_kv_heads % out.num_query_tiles, row / out.num_kv_heads / out.num_query_tiles,
                      row % out.num_kv_heads, needed, out.capacity),
          "unite");
    }
    out.capacity = needed;
  }
  out.union_block_indices.assign(out.union_sizes.size() * static_cast<size_t>(out.capacity), -1);
  auto from = blocks.begin();
  for (size_t row = 0; row < out.union_sizes.size(); ++row) {
    std::copy(from, from + out.union_sizes[row],
              out.union_block_indices.begin() + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(out.capacity)));
    from += out.union_sizes[row];
  }
  return out;
}

PickRows PadToTile(const PickRows& picks, int64_t query_tile) {
  PickRows out = picks;
  out.q_len = (picks.q_len + query_tile - 1) / query_tile * query_tile;
  if (out.q_len == picks.q_len) return out;
  const int64_t from = picks.q_len * picks.num_kv_heads * picks.top_n;
  const int64_t to = out.q_len * out.num_kv_heads * out.top_n;
  out.blocks.assign(static_cast<size_t>(out.batch * to), -1);
  for (int64_t b = 0; b < out.batch; ++b) {
    std::copy_n(picks.blocks.begin() + b * from, from, out.blocks.begin() + b * to);
  }
  return out;
}

std::vector<uint8_t> ToDenseLegality(const UnionMaps& maps, int64_t batch_row, int64_t kv_head) {
  std::vector<uint8_t> out(static_cast<size_t>(maps.q_len * maps.num_blocks), 0);
  for (int64_t q = 0; q < maps.q_len; ++q) {
    const int64_t first = ((batch_row * maps.q_len + q) * maps.num_kv_heads + kv_head) * maps.top_n;
    const int64_t tile = (batch_row * maps.num_query_tiles + q / maps.query_tile) * maps.num_kv_heads + kv_head;
    for (int64_t n = first; n < first + maps.top_n; ++n) {
      if (maps.query_union_valid[static_cast<size_t>(n)] == 0) continue;
      const int64_t place = tile * maps.capacity + maps.query_union_indices[static_cast<size_t>(n)];
      out[static_cast<size_t>(q * maps.num_blocks + maps.union_block_indices[static_cast<size_t>(place)])] = 1;
    }
  }
  return out;
}

}  // namespace tessera::routing
