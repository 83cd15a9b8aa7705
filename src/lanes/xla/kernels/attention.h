// Our own TPU kernels: they walk the plan. Worklists, cleanups, documents and valid counts are operands, so a kernel is
// a function of the class; every mask is data, and full tiles do no mask work. docs/tpu.md explains them.
#pragma once

#include <cstdint>

#include "lanes/xla/mosaic/ir.h"
#include "tessera/error.h"

namespace tessera::kernels {

// The worklist of one direction and the tile it counts in.
struct ListSpec {
  int64_t tile_q = 0;
  int64_t tile_kv = 0;
  int64_t rows = 0;         // of each mask
  int64_t width = 0;        // slots of a row
  int64_t sub_tile_kv = 0;  // keys taken at once; divides tile_kv
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
  ListSpec list;      // of the kernel's own direction
  int64_t masks = 1;  // capacities
  int64_t cleanups = 1;
  int64_t items = 1;
  int64_t stored_tiles = 0;                       // 0: no cleanup has stored bits
  mosaic::Element index = mosaic::Element::kI32;  // of the worklists: as narrow as the class's bounds allow
  bool has_softcap = false;
  bool has_sink_logits = false;
  bool has_documents = false;
  bool has_valid = false;
  int64_t version = 13;

  int64_t q_tokens() const { return (q_len + list.tile_q - 1) / list.tile_q * list.tile_q; }
  int64_t kv_tokens() const { return (kv_len + list.tile_kv - 1) / list.tile_kv * list.tile_kv; }
  int64_t group() const { return num_q_heads / num_kv_heads; }
  mosaic::Element cleanup_index() const;
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

// Operands in order: mask_of [batch * heads], columns, kinds (0 none, 1 partial, 2 full), cleanups, [document_next],
// [stored_next], each [masks * rows, width] and padded with the last entry of its row; cleanup_offsets, items,
// [q_valid, kv_valid]; score [1, 2] (scale, softcap), [sink_logits [1, heads]], q, k, v, [q_documents, kv_documents,
// kv_ranks], [stored]. Results: o, and stats, whose first 64 lanes are the log-sum-exp and the others the row maximum.
Result<mosaic::Module> AttentionForward(const AttentionSpec& spec);
// As forward without sink logits; after v: do, lse, delta [pairs, 1, tokens]. An empty row's lse is +inf, a large one
// leans (lanes/weights.h). Result: dq.
Result<mosaic::Module> AttentionDq(const AttentionSpec& spec);
// Grid over key tiles; lse and delta are [pairs, 8, tokens], documents lie the other way round, and stored tiles are
// [keys, queries]. Results: dk, dv.
Result<mosaic::Module> AttentionDkv(const AttentionSpec& spec);

}  // namespace tessera::kernels
