// The contracts that the tests of both TPU lanes share: in the interpreter, as programs on the CPU plugin, and as texts
// that are held against what Google's compiler made of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "io/bitmap.h"
#include "tessera/tessera.h"

namespace tessera {

// ---- of xla_pallas

struct LaneCase {
  const char* name;
  const char* mask;
  Shape shape;  // batch, q_len, kv_len, query heads, key heads, dims, dtype
  double softcap = 0;
  bool sink_logits = false;
  bool has_bitmap = false;
  bool has_routing = false;
};

// Every kind of cleanup, each dim and dtype, grouped heads, lengths that fill no tile, and rows without keys.
inline const LaneCase kLaneCases[] = {
    {"causal_f32", "causal", {1, 200, 200, 2, 2, 64, 64, DType::kF32}},
    {"causal_bf16", "causal", {1, 300, 300, 1, 1, 128, 128, DType::kBf16}},
    {"full_cross", "full", {2, 140, 260, 1, 1, 64, 128, DType::kF32}},
    {"window_softcap_grouped", "causal and window(70, 0)", {1, 290, 290, 4, 2, 64, 64, DType::kF32}, 2.0},
    {"documents", "causal and documents", {2, 256, 256, 2, 1, 64, 64, DType::kF32}},
    {"documents_valid_sinks",
     "causal and documents and valid and (window(30, 0) or sink(4, document))",
     {2, 210, 210, 2, 1, 64, 64, DType::kBf16},
     5.0,
     true},
    {"documents_reappear", "causal and documents(equal)", {1, 200, 200, 1, 1, 64, 64, DType::kF32}},
    {"several_chunks", "window(60, 0) or sink(40)", {1, 130, 3200, 1, 1, 256, 256, DType::kF32}},
    {"sink_logits", "causal", {1, 140, 140, 2, 2, 64, 64, DType::kF32}, 0, true},
    {"rows_without_keys", "causal", {1, 200, 130, 2, 1, 64, 64, DType::kF32}, 0, true},
    {"dims_192_128", "causal", {1, 130, 130, 1, 1, 192, 128, DType::kBf16}},
    {"dim_256_f32", "window(40, 40)", {1, 150, 150, 1, 1, 256, 256, DType::kF32}},
    {"mqa_chunk", "causal and chunk(96)", {1, 260, 260, 3, 1, 64, 64, DType::kF32}},
    {"short_cross", "causal", {2, 24, 75, 2, 1, 64, 64, DType::kF32}, 2.0, true},
    {.name = "bitmap_short", .mask = "full", .shape = {1, 70, 90, 2, 1, 64, 64, DType::kF32}, .has_bitmap = true},
    {.name = "bitmap", .mask = "full", .shape = {1, 200, 200, 2, 1, 64, 64, DType::kF32}, .has_bitmap = true},
    {.name = "bitmap_bf16", .mask = "full", .shape = {1, 301, 259, 2, 1, 64, 64, DType::kBf16}, .has_bitmap = true},
    {"window_mqa_odd", "causal and window(90, 0)", {1, 301, 415, 4, 1, 128, 128, DType::kBf16}},
    {"documents_grouped_odd", "causal and documents", {2, 333, 333, 4, 2, 64, 64, DType::kBf16}},
    {"rows_without_keys_bf16", "causal", {1, 259, 131, 2, 1, 64, 64, DType::kBf16}, 0, true},
    {.name = "routed",
     .mask = "causal and blocks",
     .shape = {1, 512, 512, 2, 1, 64, 64, DType::kF32},
     .has_routing = true},
};

inline Contract ContractOf(const LaneCase& wish) {
  const Shape& s = wish.shape;
  Contract contract;
  contract.shape = s;
  contract.mask.heads = {ParseMaskExpr(wish.mask).value()};
  contract.mask.offset = s.kv_len - s.q_len;
  contract.score = {.scale = 1.0 / std::sqrt(static_cast<double>(s.dim_qk)),
                    .softcap = wish.softcap,
                    .sink_logits = wish.sink_logits};
  if (wish.has_routing) contract.routing = Routing{.top_n = 2};
  if (wish.has_bitmap) {
    Bitmap bitmap{.heads = s.num_q_heads, .q_len = s.q_len, .kv_len = s.kv_len, .cells = {}, .digest = {}};
    for (int64_t i = 0; i < bitmap.heads * s.q_len * s.kv_len; ++i) bitmap.cells.push_back(i * 7 % 11 < 3 ? 1 : 0);
    bitmap.digest = BitmapDigest(bitmap);
    MaskTerm& term = contract.mask.heads[0].term;
    term.kind = TermKind::kBitmap;
    term.path = "no_file.npy";
    term.bitmap = std::make_shared<const Bitmap>(std::move(bitmap));
  }
  return contract;
}

// Where the mask asks for them: documents of uneven lengths and padding, and the last tokens are no tokens.
inline Batch BatchOf(const LaneCase& wish) {
  const std::string_view mask = wish.mask;
  const int64_t len = wish.shape.q_len;
  Batch batch;
  if (mask.find("documents") != std::string_view::npos || mask.find("document)") != std::string_view::npos) {
    IdRows ids{.rows = wish.shape.batch, .len = len, .values = {}};
    for (int64_t row = 0; row < ids.rows; ++row) {
      for (int64_t t = 0; t < len; ++t) {
        const bool may_reappear = mask.find("(equal)") != std::string_view::npos;
        const int32_t in_order = t < 37 + row ? 0 : t < 150 ? 1 : t < len - 20 ? 2 : -1;
        ids.values.push_back(may_reappear ? static_cast<int32_t>(t / 45 % 2) : in_order);
      }
    }
    batch.doc_ids = std::move(ids);
  }
  if (mask.find("valid") != std::string_view::npos) {
    batch.valid_tokens = std::vector<int64_t>(static_cast<size_t>(wish.shape.batch), len - 33);
  }
  return batch;
}

// ---- of splash

struct SplashCase {
  const char* name;
  const char* mask;
  Shape shape;
  double scale = 0.125;
  int64_t more_offset = 0;  // beside kv_len - q_len
};

// Lengths that fill no tile, with padding that the mask hides and padding that it shows; grouped heads, rows of a
// batch, every dim; bands of each kind, and keys that nobody sees.
inline const SplashCase kSplashCases[] = {
    {"splash_causal", "causal", {1, 300, 300, 2, 2, 64, 64, DType::kBf16}},
    {"splash_causal_grouped", "causal", {2, 256, 256, 4, 2, 128, 128, DType::kBf16}},
    {"splash_causal_short", "causal", {1, 40, 75, 2, 1, 64, 64, DType::kBf16}, 0.25},
    {"splash_causal_ahead", "causal", {1, 140, 200, 1, 1, 64, 64, DType::kBf16}, 0.125, 17},
    {"splash_unseen_keys", "causal", {1, 140, 300, 1, 1, 64, 64, DType::kBf16}, 0.125, -100},
    {"splash_full", "full", {1, 256, 128, 2, 1, 64, 128, DType::kBf16}},
    {"splash_full_padded", "full", {2, 140, 260, 1, 1, 192, 128, DType::kBf16}, 0.0625},
    {"splash_local", "causal and window(70, 0)", {1, 290, 290, 2, 1, 64, 64, DType::kBf16}},
    {"splash_local_both", "window(40, 30)", {1, 300, 300, 1, 1, 256, 256, DType::kBf16}, 0.0625},
    {"splash_local_right", "window(-1, 9)", {1, 150, 150, 3, 1, 64, 64, DType::kBf16}},
};

inline Contract SplashContract(const SplashCase& wish) {
  const Shape& s = wish.shape;
  Contract contract;
  contract.shape = s;
  contract.mask.heads = {ParseMaskExpr(wish.mask).value()};
  contract.mask.offset = s.kv_len - s.q_len + wish.more_offset;
  contract.score = {.scale = wish.scale};
  return contract;
}

}  // namespace tessera
