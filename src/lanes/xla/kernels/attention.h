// Our own TPU kernels: they walk the plan. Worklists, cleanups, documents and valid counts are operands, so a kernel is
// a function of the class; every mask is data, and full tiles do no mask work. docs/tpu.md explains them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes/xla/mosaic/ir.h"
#include "tessera/error.h"

namespace tessera::kernels {

// A worklist and the tile it counts in.
struct ListSpec {
  int64_t tile_q = 0;
  int64_t tile_kv = 0;
  int64_t rows = 0;         // of each mask
  int64_t width = 0;        // slots of a row
  int64_t sub_tile_kv = 0;  // keys that a stock kernel takes at once; divides tile_kv
};

// How a tile is taken apart: at most so many queries by so many keys at once, and how many such blocks are under way.
struct Blocking {
  int64_t q = 0, keys = 0;
  size_t ahead = 0;   // blocks whose scores are there before the first weights
  size_t behind = 0;  // blocks whose weights wait for what they are multiplied with
};

// The gradients that a kernel gives: its results "dq", or "dk" and "dv", or all three. None of a forward's.
struct Gradients {
  bool of_queries = false;
  bool of_keys = false;
};

struct AttentionSpec {
  int64_t batch = 1;
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t dim_qk = 128;
  int64_t dim_v = 128;
  mosaic::Element element = mosaic::Element::kBf16;
  ListSpec list;
  // Chosen by the compiler's schedule for v6e at head dim 128 (docs/tpu.md).
  Blocking online = {256, 512, 3, 1};    // of a forward, for any scores
  Blocking bounded = {512, 256, 1, 1};   // of one whose scores are in range or capped
  Blocking backward = {256, 256, 1, 1};  // products of a block are written before the weights of the one before it
  int64_t chunk_kv = 0;                  // keys that are in vector memory at once: whole tiles of them
  int64_t masks = 1;                     // capacities
  int64_t cleanups = 1;
  int64_t items = 1;
  int64_t stored_tiles = 0;                       // 0: no cleanup has stored bits
  mosaic::Element index = mosaic::Element::kI32;  // of the worklists: as narrow as the class's bounds allow
  bool has_softcap = false;
  bool has_sink_logits = false;
  bool has_documents = false;
  bool has_valid = false;
  bool is_wide = false;    // a forward's output is f32, whatever the operands are: for callers who merge several
  bool has_range = false;  // full tiles of one document may take the body for scores in range
  bool has_stats = true;   // of the forward: log-sum-exp and maximum are results
  Gradients gives = {};
  int64_t version = 13;

  int64_t q_tokens() const { return (q_len + list.tile_q - 1) / list.tile_q * list.tile_q; }
  int64_t chunks() const { return (kv_len + chunk_kv - 1) / chunk_kv; }
  int64_t kv_tokens() const { return chunks() * chunk_kv; }
  int64_t group() const { return num_q_heads / num_kv_heads; }
  mosaic::Element cleanup_index() const;
};

// What a slot's tile is.
enum class TileKind : int64_t {
  kNone,     // padding of the list
  kGeneral,  // any cleanup
  kFull,     // no mask
  kSpan,     // the cleanup's only item lets each query see one run of keys
  kRange,    // full, and of one document without padding: in range if its bounds say so, else as kFull
};

// One i32 each, in scalar memory.
enum class ItemField : int64_t {
  kQBegin,
  kQEnd,
  kKvBegin,
  kKvEnd,
  kDiagBegin,
  kDiagEnd,
  kNeeds,      // kNeedsDocuments | kNeedsValid
  kSinkCount,  // leading tokens of the document that pass
  kPlane,      // the bit of the stored tile's cells that belongs to the item; 0: none
};
inline constexpr int64_t kItemFields = 9;
inline constexpr int32_t kNeedsDocuments = 1;
inline constexpr int32_t kNeedsValid = 2;
// What is known of each token of a document, one row each.
enum class QueryFact : int64_t { kDocument, kSpanBegin, kSpanEnd };
enum class KeyFact : int64_t { kDocument, kRank };
// Numbers of the score: scores are `factor` times what the softmax compares, which is tanh(product * inner) with a
// softcap and the product without; `exponent` is the factor for exp2.
enum class ScoreField : int64_t { kInner, kExponent, kFactor };
inline constexpr int64_t kScoreFields = 3;

// Scores of at most this size, of any sign, have weights, and sums of them, that f32 holds when measured against a
// score of 0 (in nats): e^60 is 2^86.6. With values of these sizes, or 0, their products are there too: no sum of fewer
// than 2^20 is too large, none too small to be a normal number.
inline constexpr double kMostInRange = 60.0;
inline constexpr double kLeastValueInRange = 0x1p-36;
inline constexpr double kMostValueInRange = 0x1p20;
// What a sum of squares is raised by, each of which was rounded to bf16 before: no less than the true sum.
inline constexpr double kSquareSlack = 1 + 0x1p-8;

// Operands in order: mask_of [batch * heads], columns, kinds, cleanups, [stored_at], each [masks * rows, width] and
// padded with the last entry of its row; begins [masks * rows * (chunks + 1)], where a row's slots of each chunk of
// keys begin; [chunk_next [masks * rows * chunks], for more than one chunk: the chunk to have in memory];
// cleanup_offsets, items, [q_valid, kv_valid]; score [1, 3], [sink_logits [1, heads]], [q_bounds [pairs, 1, rows],
// k_bounds [heads, 1, tiles of keys], f32], q, k, and v as [heads, dim, tokens], [q_documents, kv_documents, each batch
// x 8 facts x tokens], [stored, tiles of [keys, queries]]. Bounds: scale^2 times the largest square of a query's length
// in the tile, as kSquareSlack has it; the largest of a key's, and infinity where a value is not in range. Their
// product bounds the square of every score of the tile. Results: o, and, where asked for, stats [pairs, 8, tokens],
// whose first 4 rows are the log-sum-exp and the others the maximum.
Result<mosaic::Module> AttentionForward(const AttentionSpec& spec);
// As forward without sink logits; q, k, v [heads, tokens, dim], do, q and do as [pairs, dim, tokens], lse and delta
// [pairs, 8, tokens]. An empty row's lse is +inf, a large one leans (lanes/weights.h). Results, all f32: dq [chunks *
// pairs, dim, tokens], to be added up over the chunks, dk and dv [heads, dim, tokens]; dq and dk lack the scale.
Result<mosaic::Module> AttentionBackward(const AttentionSpec& spec);
// The same in two kernels, which walk the same rows. That of dq takes no lanes, and gives [pairs, dim, tokens] with
// nothing left to add up.
Result<mosaic::Module> AttentionDq(const AttentionSpec& spec);
Result<mosaic::Module> AttentionDkv(const AttentionSpec& spec);

}  // namespace tessera::kernels
