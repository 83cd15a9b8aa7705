// Random mask expressions of every term kind, in the flattened form the parser gives, for property tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "io/bitmap.h"
#include "support/own_terms.h"
#include "tessera/contract.h"

namespace tessera {

struct RandomMaskOptions {
  int64_t q_len = 16;
  int64_t kv_len = 16;
  int64_t bitmap_heads = 1;  // above 1, some bitmaps are [heads,q,kv]
  int max_depth = 3;         // 0 = always a single term
  int max_children = 3;      // of one `and` / `or`, at least 2
  bool documents = true;     // documents
  bool documents_equal = false;
  bool valid = true;
  bool sink_document = true;
  bool blocks = false;
  bool bitmap = false;      // in memory; `path` is "bitmap_DIGEST.npy" and no file is written
  bool registered = false;  // terms of the tests' own, from own_terms.h
};

// From `low` to `high`, both inclusive. Not std::uniform_int_distribution: its numbers differ between libraries.
inline int64_t RandomInt(std::mt19937_64& rng, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1));
}

inline std::shared_ptr<const Bitmap> RandomBitmap(std::mt19937_64& rng, int64_t heads, int64_t q_len, int64_t kv_len) {
  auto bitmap = std::make_shared<Bitmap>();
  bitmap->heads = heads;
  bitmap->q_len = q_len;
  bitmap->kv_len = kv_len;
  bitmap->cells.resize(static_cast<size_t>(heads * q_len * kv_len));
  // All-zero, all-one and mixed bitmaps each have their own bugs to find.
  const int64_t density = RandomInt(rng, 0, 4);
  for (uint8_t& cell : bitmap->cells) cell = RandomInt(rng, 1, 4) <= density ? 1 : 0;
  bitmap->digest = BitmapDigest(*bitmap);
  return bitmap;
}

inline MaskTerm RandomTerm(std::mt19937_64& rng, const RandomMaskOptions& options) {
  std::vector<TermKind> kinds = {TermKind::kFull,  TermKind::kCausal, TermKind::kWindow,
                                 TermKind::kChunk, TermKind::kPrefix, TermKind::kSink};
  if (options.documents) kinds.push_back(TermKind::kDocuments);
  if (options.documents_equal) kinds.push_back(TermKind::kDocumentsEqual);
  if (options.valid) kinds.push_back(TermKind::kValid);
  if (options.sink_document) kinds.push_back(TermKind::kSinkDocument);
  if (options.blocks) kinds.push_back(TermKind::kBlocks);
  if (options.bitmap) kinds.push_back(TermKind::kBitmap);
  if (options.registered) kinds.push_back(TermKind::kRegistered);

  MaskTerm term;
  term.kind = kinds[static_cast<size_t>(RandomInt(rng, 0, static_cast<int64_t>(kinds.size()) - 1))];
  const int64_t longest = std::max(options.q_len, options.kv_len);
  switch (term.kind) {
    case TermKind::kWindow:
      // -1 (unlimited) and 0 (self only) each come up often.
      term.first = RandomInt(rng, 0, 3) == 0 ? RandomInt(rng, -1, 0) : RandomInt(rng, -1, longest + 1);
      term.second = RandomInt(rng, 0, 1) == 0 ? RandomInt(rng, -1, 0) : RandomInt(rng, -1, longest + 1);
      break;
    case TermKind::kChunk:
      term.first = RandomInt(rng, 1, longest + 1);
      break;
    case TermKind::kPrefix:
    case TermKind::kSink:
      term.first = RandomInt(rng, 0, longest + 1);
      break;
    case TermKind::kSinkDocument:
      // Two values only: a contract may hold at most six distinct run-time terms.
      term.first = RandomInt(rng, 0, 1) == 0 ? 1 : 3;
      break;
    case TermKind::kBitmap: {
      const bool per_head = options.bitmap_heads > 1 && RandomInt(rng, 0, 1) == 0;
      term.bitmap = RandomBitmap(rng, per_head ? options.bitmap_heads : 1, options.q_len, options.kv_len);
      term.path = "bitmap_" + term.bitmap->digest + ".npy";
      break;
    }
    case TermKind::kRegistered: {
      term.registered = OwnTerms()[rng() % OwnTerms().size()];
      for (int64_t n = RandomInt(rng, term.registered->min_parameters, term.registered->max_parameters); n > 0; --n) {
        term.parameters.push_back(RandomInt(rng, 0, longest + 1));
      }
      break;
    }
    default:
      break;
  }
  return term;
}

// Joins in the parser's form: a child with the same operator gives its children to the parent.
inline MaskExpr JoinMasks(MaskExpr::Op op, std::vector<MaskExpr> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  MaskExpr joined;
  joined.op = op;
  for (MaskExpr& part : parts) {
    if (part.op == op) {
      for (MaskExpr& child : part.children) joined.children.push_back(std::move(child));
    } else {
      joined.children.push_back(std::move(part));
    }
  }
  return joined;
}

inline MaskExpr RandomMask(std::mt19937_64& rng, const RandomMaskOptions& options) {
  if (options.max_depth <= 0 || RandomInt(rng, 0, 3) == 0) {
    MaskExpr leaf;
    leaf.term = RandomTerm(rng, options);
    return leaf;
  }
  RandomMaskOptions inner = options;
  --inner.max_depth;
  std::vector<MaskExpr> parts;
  for (int64_t n = RandomInt(rng, 2, std::max(2, options.max_children)); n > 0; --n) {
    parts.push_back(RandomMask(rng, inner));
  }
  return JoinMasks(RandomInt(rng, 0, 1) == 0 ? MaskExpr::Op::kAnd : MaskExpr::Op::kOr, std::move(parts));
}

}  // namespace tessera
