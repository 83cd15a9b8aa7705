// Picks as data: what routing, or the caller, lets the `blocks` term pass. Routing makes them and the planner reads
// them; neither knows the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::plan {

// The key blocks each query of one batch row and KV head picked: ascending, none twice.
struct QueryPicks {
  std::vector<uint32_t> offsets{0};  // [q_len + 1]
  std::vector<int32_t> blocks;
  std::span<const int32_t> Of(int64_t query) const {
    return std::span(blocks).subspan(offsets[query], offsets[query + 1] - offsets[query]);
  }
};
struct BatchPicks {
  int64_t block_tokens = 0;
  int64_t num_kv_heads = 0;
  std::vector<QueryPicks> lists;  // [batch * num_kv_heads]
};

}  // namespace tessera::plan
