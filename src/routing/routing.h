// The routing stages: score -> expand -> unite -> legalise. From queries and keys to the blocks of keys that each query
// may attend, as compact lists. Each stage is a pure function of the previous one's struct; none of them is ever
// differentiated, and none holds a score for every (query, block) pair. One file per stage, named like it.
//
// Words: a selected block is `selected_block` keys, the unit of a pick. A compression block c covers keys
// [c * block_stride, c * block_stride + compression_block), cut at the end; neighbours overlap when the stride is
// smaller. A mean is the mean of the keys of one document in one compression block. A meta-block is `meta_ratio`
// compression blocks. The group of a KV head is the query heads that share it; picks are made per query and KV head.
// Query i stands at position p = i + mask.offset.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "contract/row_set.h"
#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/stages.h"
#include "tessera/tensor.h"

namespace tessera::routing {

// What the stages know of the request; nothing here is owned.
struct RoutingInput {
  const Contract* contract = nullptr;           // valid, with routing
  const std::vector<BatchRow>* rows = nullptr;  // [batch]
  const std::vector<RowSet>* legal = nullptr;   // [batch * num_kv_heads]: the pairs that some head of the group may
                                                // attend, were every block picked
  TensorRef q;                                  // [batch, num_q_heads, q_len, dim_qk]; unused by legalise
  TensorRef k;                                  // [batch, num_kv_heads, kv_len, dim_qk]; unused by legalise
  ParallelFor parallel;
  bool keep_scores = false;  // picks with what each of them scored
  bool prune = true;  // off: every mean of a document is scored for every query of it, to prove that pruning is exact
};

// ---- compress: keys -> means

struct Mean {
  int32_t block = 0;        // the selected block that holds the first key: the one this mean speaks for
  int32_t compression = 0;  // c
  int32_t first = 0;        // first and last key of the document in the compression block, both inclusive; with
  int32_t last = 0;         // documents(equal) other documents may lie between them
};

// `count` means of one document, neighbours in the list, whose compression blocks are in one meta-block.
struct MetaBlock {
  int32_t index = 0;  // meta-block number: compression / meta_ratio
  int32_t mean_begin = 0;
  int32_t mean_end = 0;
};

struct DocumentMeans {
  int32_t mean_begin = 0;  // ascending by compression block, hence by first key, last key and selected block
  int32_t mean_end = 0;
  int32_t meta_begin = 0;  // hierarchical only
  int32_t meta_end = 0;
};

// Queries [begin, end) of one document; `document` is -1 for queries that score nothing: padding, past the valid
// length, or of a document without keys.
struct QueryStretch {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t document = -1;
};

// One batch row. The lists are the same for every KV head; the values are not.
struct CompressedRow {
  std::vector<Mean> means;  // by document, then by compression block
  std::vector<MetaBlock> metas;
  std::vector<DocumentMeans> documents;
  std::vector<QueryStretch> stretches;  // cover [0, q_len) in order
  std::vector<float> values;            // [num_kv_heads, means, dim], zero past dim_qk
  std::vector<float> representatives;   // [num_kv_heads, metas, dim], zero past dim_qk
};

struct CompressedKeys {
  int64_t dim = 0;  // dim_qk rounded up to whole rounds of 16 lanes
  std::vector<CompressedRow> rows;
};

// Keys of padding (a negative document id, or at or past kv_valid) enter no mean. Without segments a row is one
// document. A sum runs in key order in f32, and is divided by the count once. The representative of a meta-block is
// a weighted mean of its means: each weighs its squared distance from their plain mean, all the same where these are
// all zero or not finite.
Result<CompressedKeys> Compress(const RoutingInput& input);

// ---- score, expand: means -> picks

// Per query the picked blocks, ascending and each once, then -1.
struct PickRows {
  int64_t batch = 0;
  int64_t q_len = 0;
  int64_t num_kv_heads = 0;
  int64_t top_n = 0;
  int64_t block_tokens = 0;
  std::vector<int32_t> blocks = {};  // [batch, q_len, num_kv_heads, top_n]
  std::vector<float> scores = {};    // beside them where they are kept: NaN is kept whatever it scores, -inf has none
  int64_t nan_scores = 0;            // scores that were NaN and counted as -inf
  std::span<const int32_t> Of(int64_t b, int64_t q, int64_t head) const {
    return std::span<const int32_t>(blocks).subspan(
        static_cast<size_t>(((b * q_len + q) * num_kv_heads + head) * top_n), static_cast<size_t>(top_n));
  }
  bool operator==(const PickRows&) const = default;
};

struct Scored {
  CompressedKeys keys;
  bool is_final = false;  // exhaustive: `picks` are done. Hierarchical: `metas` are, and expand makes the picks.
  PickRows picks;
  int64_t meta_keep = 0;
  std::vector<int32_t> metas;  // [batch, q_len, num_kv_heads, meta_keep]: places in CompressedRow::metas, ascending,
                               // then -1
  int64_t nan_scores = 0;
};

// Score of a selected block for a query = the maximum, over the block's means that the query may score, of
// scale * dot(sum of the group's queries, mean). A query scores a mean of its own document that lies wholly at or
// before its horizon: its own position, or the last key that `legal` lets it see if that is later (a mask that is not
// causal). So under a causal mask nothing of the future, of another document or of padding reaches a pick.
//
// Ranked are the blocks with at least one legal key for the query: by score, highest first, equal scores by lower
// block. NaN counts as -inf; so does a legal block without a mean that the query may score. First is kept the block of
// the query's own position, then the first `first_blocks` blocks, each where legal, then the best until top_n.
//
// Group queries are added in head order in f32; a dot product runs in one order of 16 lanes (dots.h). Picks are
// the same bits on every instruction set, compiler and number of threads.
//
// Hierarchical routing scores meta-blocks by their representatives first and keeps `meta_keep` of them per query, of
// those that speak for a legal block: those that hold the query's own block, the one that the horizon cuts (its
// representative holds keys that the query may not see, so it has no score), those that hold the first blocks, then the
// best. Expand scores the means of the kept ones as above; the same blocks are ranked by these scores only. With
// meta_keep of at least the number of meta-blocks the picks are those of exhaustive routing, bit for bit.
Result<Scored> Score(const RoutingInput& input);
Result<PickRows> Expand(const RoutingInput& input, const Scored& scored);

// Queries scored at a time. A chunk holds its own queries, a few means' scores and the best blocks so far, so what one
// thread holds does not depend on q_len, and no array has an entry per (query, block).
inline constexpr int64_t kScoreChunk = 64;
inline constexpr int64_t kMeanTile = 32;
// Bytes of scratch that one thread of score or expand needs at most.
int64_t ScoreScratchBytes(const Contract& contract);

// The causal-window predicate: means are visited in order, and the first compression block that starts after the last
// horizon of the chunk ends the scan.
constexpr bool IsScoreable(int64_t compression, int64_t block_stride, int64_t chunk_end) {
  return compression * block_stride <= chunk_end;
}

// ---- unite: picks per query -> the blocks that each tile of queries needs, and each pick's place among them

struct UnionMaps {
  int64_t batch = 0;
  int64_t q_len = 0;  // a multiple of query_tile
  int64_t num_kv_heads = 0;
  int64_t top_n = 0;
  int64_t query_tile = 0;
  int64_t num_query_tiles = 0;
  int64_t block_tokens = 0;
  int64_t num_blocks = 0;
  int64_t capacity = 0;                           // blocks that one tile's union can hold
  std::vector<int32_t> union_block_indices = {};  // [batch, tiles, num_kv_heads, capacity], ascending, -1 past the size
  std::vector<int32_t> union_sizes = {};          // [batch, tiles, num_kv_heads]
  std::vector<int32_t> query_union_indices =
      {};                                       // [batch, q_len, num_kv_heads, top_n]: place in the tile's union, or -1
  std::vector<uint8_t> query_union_valid = {};  // the same shape: 1 where there is a pick
  bool operator==(const UnionMaps&) const = default;
};

enum class UniteMode : uint8_t { kBitmap, kSort };

struct UniteConfig {
  int64_t query_tile = 0;
  int64_t num_kv_heads = 0;
  int64_t top_n = 0;
  int64_t num_blocks = 0;
  int64_t capacity = 0;  // 0: the number of blocks, or with `widen` as many as the largest union needs
  bool widen = false;    // a union that exceeds the capacity makes it grow; otherwise it is an error. Never a drop.
  UniteMode mode = UniteMode::kBitmap;
};

// Both modes give equal results. The picks of a query must ascend; negative entries are no picks, wherever they stand.
Result<UnionMaps> Unite(const UniteConfig& config, const PickRows& picks);

// The same picks with queries that pick nothing added, up to whole tiles.
PickRows PadToTile(const PickRows& picks, int64_t query_tile);

// For tests: 1 where a query picked a block, [q_len, num_blocks].
std::vector<uint8_t> ToDenseLegality(const UnionMaps& maps, int64_t batch_row, int64_t kv_head);

// ---- legalise: picks without a legal key disappear, each for one counted reason

// Reasons in the order in which they are tried, for the pick of a block by a query.
struct LegaliseReport {
  int64_t picks = 0;
  int64_t kept = 0;
  int64_t padding = 0;    // the query or every key of the block is padding, or past the valid length
  int64_t documents = 0;  // no other key of the block is of the query's document
  int64_t causality = 0;  // all of those lie after the query
  int64_t window = 0;     // some do not, and the mask has a window or chunk term
  int64_t other = 0;      // some do not, and it has neither: a bitmap, a prefix, a term of the user's own
  bool operator==(const LegaliseReport&) const = default;
};

struct Legalised {
  UnionMaps maps = {};  // the capacity is kept; unions hold what is still used
  LegaliseReport report = {};
};

// Reads contract, rows and legal sets, no tensors.
Result<Legalised> Legalise(const RoutingInput& input, const UnionMaps& maps);

// ---- how good the picks are

// The share of exhaustive's picks that `picks` has too; 1 where there are none.
double Recall(const PickRows& picks, const PickRows& exhaustive);

// The mean, over the given queries of every batch row and all query heads, of the softmax mass that falls into picked
// blocks: of softcap(scale * q.k) over the legal keys of the head's group, learned sink logits left out. Queries
// without a legal key, and heads whose scores are not finite, do not count; 1 where nothing does.
Result<double> MassKept(const RoutingInput& input, const PickRows& picks, std::span<const int64_t> queries);

}  // namespace tessera::routing
