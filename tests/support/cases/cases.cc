// The table of cases, and the batches they bring. Numbers come from mt19937_64 by remainder, never from a standard
// distribution: those differ between libraries.
#include "cases/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include "io/bitmap.h"

namespace tessera {
namespace {

enum class Ids : uint8_t { kNone, kPacked, kReappearing };
enum class Valid : uint8_t { kNone, kTokens, kSlots, kSlotsAndTokens };

struct Heads {
  int64_t q = 2;
  int64_t kv = 2;
};
struct Dims {
  int64_t qk = 16;
  int64_t v = 16;
};

struct Spec {
  const char* name;
  const char* about;
  std::vector<const char*> masks;  // one, or one per query head
  int64_t q_len = 0;
  int64_t kv_len = 0;
  DType dtype = DType::kF32;
  int64_t batch = 1;
  Heads heads = {};
  Dims dims = {};
  Ids ids = Ids::kNone;
  Valid valid = Valid::kNone;
  double softcap = 0.0;
  bool sink_logits = false;
  std::optional<int64_t> offset = {};
  int64_t bitmap_heads = 0;  // above 0: `and` a random bitmap to every mask
};

const std::vector<Spec>& Specs() {
  constexpr DType kF32 = DType::kF32;
  constexpr DType kBf16 = DType::kBf16;
  constexpr DType kF16 = DType::kF16;
  static const std::vector<Spec> specs = {
      {.name = "one_token-1-f32", .about = "the smallest problem", .masks = {"causal"}, .q_len = 1, .kv_len = 1},
      {.name = "full-97-f32", .about = "no mask, odd length", .masks = {"full"}, .q_len = 97, .kv_len = 97},
      {.name = "full-130x75-f16",
       .about = "cross attention, more queries than keys",
       .masks = {"full"},
       .q_len = 130,
       .kv_len = 75,
       .dtype = kF16},
      {.name = "causal-1k-f32",
       .about = "plain causal over several tiles",
       .masks = {"causal"},
       .q_len = 1024,
       .kv_len = 1024,
       .heads = {1, 1}},
      {.name = "causal-513-bf16",
       .about = "plain causal, one token past the tiles",
       .masks = {"causal"},
       .q_len = 513,
       .kv_len = 513,
       .dtype = kBf16},
      {.name = "causal_gqa-300-f32",
       .about = "eight query heads on two key heads, dim_qk and dim_v differ",
       .masks = {"causal"},
       .q_len = 300,
       .kv_len = 300,
       .heads = {8, 2},
       .dims = {24, 40}},
      {.name = "causal_offset-200x260-f32",
       .about = "an offset that is not the default",
       .masks = {"causal and window(70, 0)"},
       .q_len = 200,
       .kv_len = 260,
       .offset = 17},
      {.name = "window_self-150-f32",
       .about = "window(0, 0): every token sees itself only",
       .masks = {"window(0, 0)"},
       .q_len = 150,
       .kv_len = 150},
      {.name = "window_two_sided-301-f16",
       .about = "a window on both sides",
       .masks = {"window(17, 33)"},
       .q_len = 301,
       .kv_len = 301,
       .dtype = kF16},
      {.name = "causal_window-700-bf16",
       .about = "sliding window",
       .masks = {"causal and window(127, 0)"},
       .q_len = 700,
       .kv_len = 700,
       .dtype = kBf16},
      {.name = "causal_softcap-257-f32",
       .about = "softcap alone, strong enough to bend",
       .masks = {"causal"},
       .q_len = 257,
       .kv_len = 257,
       .softcap = 1.5},
      {.name = "causal_window_softcap-300-f32",
       .about = "window and softcap",
       .masks = {"causal and window(40, 0)"},
       .q_len = 300,
       .kv_len = 300,
       .softcap = 2.0},
      {.name = "chunk-384-f32",
       .about = "causal inside chunks that no tile divides",
       .masks = {"chunk(100) and causal"},
       .q_len = 384,
       .kv_len = 384},
      {.name = "prefix-259-f32",
       .about = "bidirectional prefix, causal after it",
       .masks = {"causal or prefix(40)"},
       .q_len = 259,
       .kv_len = 259},
      {.name = "sink_window-333-bf16",
       .about = "sliding window that keeps the first tokens",
       .masks = {"causal and (window(63, 0) or sink(4))"},
       .q_len = 333,
       .kv_len = 333,
       .dtype = kBf16},
      {.name = "doc_causal-777-f32",
       .about = "packed documents at any offset",
       .masks = {"causal and documents"},
       .q_len = 777,
       .kv_len = 777,
       .batch = 2,
       .heads = {1, 1},
       .ids = Ids::kPacked},
      {.name = "doc_causal_window_softcap-512-bf16",
       .about = "the training case: documents, window, softcap, grouped heads",
       .masks = {"causal and window(99, 0) and documents"},
       .q_len = 512,
       .kv_len = 512,
       .dtype = kBf16,
       .batch = 2,
       .heads = {4, 2},
       .ids = Ids::kPacked,
       .softcap = 30.0},
      {.name = "doc_full-260-f16",
       .about = "bidirectional documents",
       .masks = {"documents"},
       .q_len = 260,
       .kv_len = 260,
       .dtype = kF16,
       .batch = 3,
       .ids = Ids::kPacked},
      {.name = "doc_equal-300-f32",
       .about = "ids that reappear are one document",
       .masks = {"causal and documents(equal)"},
       .q_len = 300,
       .kv_len = 300,
       .batch = 2,
       .ids = Ids::kReappearing},
      {.name = "doc_sink-290-f32",
       .about = "a window that keeps the first tokens of each document",
       .masks = {"causal and documents and (window(20, 0) or sink(3, document))"},
       .q_len = 290,
       .kv_len = 290,
       .batch = 2,
       .ids = Ids::kPacked},
      {.name = "cross_len-300x517-f16",
       .about = "fewer queries than keys, bottom-right aligned",
       .masks = {"causal"},
       .q_len = 300,
       .kv_len = 517,
       .dtype = kF16},
      {.name = "cross_len_doc-150x407-f32",
       .about = "own ids for queries and keys",
       .masks = {"causal and documents and window(80, 0)"},
       .q_len = 150,
       .kv_len = 407,
       .batch = 2,
       .ids = Ids::kPacked},
      {.name = "empty_rows-220x100-f32",
       .about = "more queries than keys: the first rows see nothing",
       .masks = {"causal and window(30, 0)"},
       .q_len = 220,
       .kv_len = 100},
      {.name = "empty_rows_sinks-180-f32",
       .about = "sink logits on rows that see nothing",
       .masks = {"causal and documents and valid"},
       .q_len = 180,
       .kv_len = 180,
       .batch = 3,
       .ids = Ids::kPacked,
       .valid = Valid::kTokens,
       .sink_logits = true},
      {.name = "valid-260-bf16",
       .about = "a valid prefix: one row empty, one short, one whole",
       .masks = {"causal and valid"},
       .q_len = 260,
       .kv_len = 260,
       .dtype = kBf16,
       .batch = 3,
       .valid = Valid::kTokens},
      {.name = "valid_cross-100x230-f32",
       .about = "own valid counts for queries and keys",
       .masks = {"valid"},
       .q_len = 100,
       .kv_len = 230,
       .batch = 3,
       .valid = Valid::kTokens},
      {.name = "valid_slots-300-f32",
       .about = "valid counts in blocks",
       .masks = {"causal and valid"},
       .q_len = 300,
       .kv_len = 300,
       .batch = 3,
       .valid = Valid::kSlots},
      {.name = "valid_slots_tokens-300-f32",
       .about = "valid counts in blocks and in tokens: the smaller holds",
       .masks = {"causal and valid"},
       .q_len = 300,
       .kv_len = 300,
       .batch = 3,
       .valid = Valid::kSlotsAndTokens},
      {.name = "sinks-257-f32",
       .about = "one learnable logit per head",
       .masks = {"causal and window(50, 0)"},
       .q_len = 257,
       .kv_len = 257,
       .heads = {4, 2},
       .sink_logits = true},
      {.name = "sinks_softcap_doc-240-bf16",
       .about = "sink logits with softcap and documents",
       .masks = {"causal and documents"},
       .q_len = 240,
       .kv_len = 240,
       .dtype = kBf16,
       .batch = 2,
       .heads = {4, 1},
       .ids = Ids::kPacked,
       .softcap = 3.0,
       .sink_logits = true},
      {.name = "per_head-270-f32",
       .about = "a different mask on every head of a group",
       .masks = {"causal", "causal and window(31, 0)", "causal", "prefix(64) or window(0, 0)"},
       .q_len = 270,
       .kv_len = 270,
       .heads = {4, 2}},
      {.name = "bitmap-130x190-f32",
       .about = "cells from a file",
       .masks = {"full"},
       .q_len = 130,
       .kv_len = 190,
       .bitmap_heads = 1},
      {.name = "bitmap_heads-140-bf16",
       .about = "cells per head, under causal documents",
       .masks = {"causal and documents"},
       .q_len = 140,
       .kv_len = 140,
       .dtype = kBf16,
       .batch = 2,
       .ids = Ids::kPacked,
       .bitmap_heads = 2},
      {.name = "nested-310-f32",
       .about = "and / or three levels deep",
       .masks = {"(causal and documents or sink(2)) and (window(50, -1) or prefix(20)) and valid"},
       .q_len = 310,
       .kv_len = 310,
       .dtype = kF32,
       .batch = 2,
       .ids = Ids::kPacked,
       .valid = Valid::kTokens},
  };
  return specs;
}

class Source {
 public:
  explicit Source(uint64_t seed) : rng_(seed) {}
  // Both ends inclusive.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 rng_;
};

// Documents of 1 to about a third of the row, ids in no particular order, padding at the end of every row but the
// first.
std::vector<int32_t> PackedIds(Source& source, int64_t len, bool has_padding, bool reappearing) {
  std::vector<int32_t> ids;
  const int64_t used = has_padding ? len - source.Between(0, len / 8) : len;
  int32_t next = 0;
  while (static_cast<int64_t>(ids.size()) < used) {
    const int64_t left = used - static_cast<int64_t>(ids.size());
    const int64_t count = std::min(left, source.Between(1, std::max<int64_t>(1, len / 3)));
    const int32_t id = reappearing ? static_cast<int32_t>(source.Between(0, 2)) : next;
    ids.insert(ids.end(), static_cast<size_t>(count), id);
    next += static_cast<int32_t>(source.Between(1, 3));
  }
  ids.resize(static_cast<size_t>(len), -1);
  return ids;
}

void AddIds(Source& source, const Spec& spec, Batch& batch) {
  const int64_t longest = std::max(spec.q_len, spec.kv_len);
  IdRows q{spec.batch, spec.q_len, {}};
  IdRows kv{spec.batch, spec.kv_len, {}};
  for (int64_t b = 0; b < spec.batch; ++b) {
    const std::vector<int32_t> row = PackedIds(source, longest, b > 0, spec.ids == Ids::kReappearing);
    // Aligned at the end, as the default offset is.
    q.values.insert(q.values.end(), row.end() - spec.q_len, row.end());
    kv.values.insert(kv.values.end(), row.end() - spec.kv_len, row.end());
  }
  if (spec.q_len == spec.kv_len) {
    batch.doc_ids = std::move(q);
  } else {
    batch.q_doc_ids = std::move(q);
    batch.kv_doc_ids = std::move(kv);
  }
}

// Row 0 is present and zero, row 1 anything, the rest whole.
std::vector<int64_t> Counts(Source& source, int64_t batch, int64_t len) {
  std::vector<int64_t> counts(static_cast<size_t>(batch), len);
  counts[0] = 0;
  if (batch > 1) counts[1] = source.Between(1, len);
  return counts;
}

void AddValid(Source& source, const Spec& spec, Batch& batch) {
  if (spec.valid == Valid::kSlots || spec.valid == Valid::kSlotsAndTokens) {
    batch.base_block_tokens = 48;
    batch.valid_slots = Counts(source, spec.batch, spec.q_len / 48 + 1);
  }
  if (spec.valid == Valid::kSlots) return;
  if (spec.q_len == spec.kv_len) {
    batch.valid_tokens = Counts(source, spec.batch, spec.q_len);
  } else {
    batch.q_valid_tokens = Counts(source, spec.batch, spec.q_len);
    batch.kv_valid_tokens = Counts(source, spec.batch, spec.kv_len);
  }
}

std::shared_ptr<const Bitmap> MakeBitmap(Source& source, const Spec& spec) {
  auto bitmap = std::make_shared<Bitmap>();
  bitmap->heads = spec.bitmap_heads;
  bitmap->q_len = spec.q_len;
  bitmap->kv_len = spec.kv_len;
  // Large squares of zeros and ones, and noise in a third of them: empty, full and mixed tiles all occur.
  constexpr int64_t kSquare = 32;
  for (int64_t h = 0; h < bitmap->heads; ++h) {
    const int64_t columns = spec.kv_len / kSquare + 1;
    std::vector<int64_t> kinds(static_cast<size_t>((spec.q_len / kSquare + 1) * columns));
    for (int64_t& kind : kinds) kind = source.Between(0, 2);
    for (int64_t i = 0; i < spec.q_len; ++i) {
      for (int64_t j = 0; j < spec.kv_len; ++j) {
        const int64_t kind = kinds[static_cast<size_t>(i / kSquare * columns + j / kSquare)];
        bitmap->cells.push_back(static_cast<uint8_t>(kind == 2 ? source.Between(0, 1) : kind));
      }
    }
  }
  bitmap->digest = BitmapDigest(*bitmap);
  return bitmap;
}

Result<MaskExpr> MakeMask(const char* text, const std::shared_ptr<const Bitmap>& bitmap) {
  auto expr = ParseMaskExpr(text);
  if (!expr || bitmap == nullptr) return expr;
  MaskExpr cells;
  cells.term.kind = TermKind::kBitmap;
  cells.term.bitmap = bitmap;
  cells.term.path = "bitmap_" + bitmap->digest + ".npy";
  MaskExpr both;
  both.op = MaskExpr::Op::kAnd;
  if (expr->op == MaskExpr::Op::kAnd) {
    both.children = std::move(expr->children);
  } else {
    both.children.push_back(std::move(*expr));
  }
  both.children.push_back(std::move(cells));
  return both;
}

}  // namespace

const std::vector<CaseInfo>& Cases() {
  static const std::vector<CaseInfo> cases = [] {
    std::vector<CaseInfo> infos;
    for (const Spec& spec : Specs()) infos.push_back({spec.name, spec.about});
    return infos;
  }();
  return cases;
}

Result<Case> BuildCase(std::string_view name, uint64_t seed) {
  const auto& specs = Specs();
  const auto found = std::find_if(specs.begin(), specs.end(), [&](const Spec& spec) { return spec.name == name; });
  if (found == specs.end()) {
    return Fail(ErrorCode::kCaseUnknown, fmt::format("no case is named \"{}\"", name), "case");
  }
  const Spec& spec = *found;
  Source source(seed);
  Case out;
  out.name = spec.name;
  Contract& contract = out.contract;
  contract.shape = {.batch = spec.batch,
                    .q_len = spec.q_len,
                    .kv_len = spec.kv_len,
                    .num_q_heads = spec.heads.q,
                    .num_kv_heads = spec.heads.kv,
                    .dim_qk = spec.dims.qk,
                    .dim_v = spec.dims.v,
                    .dtype = spec.dtype};
  contract.mask.offset = spec.offset.value_or(spec.kv_len - spec.q_len);
  contract.score = {.scale = 1.0 / std::sqrt(static_cast<double>(spec.dims.qk)),
                    .softcap = spec.softcap,
                    .sink_logits = spec.sink_logits};
  const std::shared_ptr<const Bitmap> bitmap = spec.bitmap_heads > 0 ? MakeBitmap(source, spec) : nullptr;
  for (const char* text : spec.masks) {
    auto expr = MakeMask(text, bitmap);
    if (!expr) return tl::unexpected(expr.error());
    contract.mask.heads.push_back(std::move(*expr));
  }
  if (auto violations = Validate(contract); !violations.empty()) {
    return Fail(ErrorCode::kContractInvalid, std::move(violations), spec.name);
  }
  if (spec.ids != Ids::kNone) AddIds(source, spec, out.batch);
  if (spec.valid != Valid::kNone) AddValid(source, spec, out.batch);
  return out;
}

}  // namespace tessera
