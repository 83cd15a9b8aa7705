// See splash_parts.h.
#include "lanes/xla/kernels/splash_parts.h"

#include <algorithm>

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Compare;
using mosaic::Element;
using mosaic::Value;
using mosaic::Values;

SplashLists::SplashLists(Builder& b, const SplashSpec& spec, const Values& scalars, const SplashStep& at)
    : b_(b), scalars_(scalars), at_({spec.mask_heads == 1 ? b.Index(0) : at.head, at.row, at.column}) {}

Value SplashLists::Read(size_t list) const {
  const Value entry = b_.LoadScalar(scalars_[list], at_);
  return entry.type.element == Element::kI32 ? entry : b_.Convert(entry, Element::kI32);
}

Value TileLanes(Builder& b, const Value& x, int64_t width) {
  const int64_t rows = x.type.dims[0];
  const int64_t copies = (width + x.type.dims[1] - 1) / x.type.dims[1];
  const Value tiled = copies == 1 ? x : b.Concatenate(Values(static_cast<size_t>(copies), x), 1);
  return tiled.type.dims[1] == width ? tiled : b.Slice(tiled, {0, 0}, {rows, width});
}

Value LoadTokens(Builder& b, const Value& memref, const Value& begin, int64_t tokens) {
  const int64_t dim = memref.type.dims.back();
  if (memref.type.rank() == 2) {
    const Value at[] = {begin, b.Index(0)};
    return b.Load(memref, at, {tokens, dim});
  }
  const Value at[] = {b.Index(0), begin, b.Index(0)};
  return b.ShapeCast(b.Load(memref, at, {1, tokens, dim}), {tokens, dim});
}

Value LoadBlock(Builder& b, const Value& memref) {
  return LoadTokens(b, memref, b.Index(0), memref.type.dims[static_cast<size_t>(memref.type.rank() - 2)]);
}

void StoreBlock(Builder& b, const Value& value, const Value& memref) {
  b.StoreAll(value.type.dims == memref.type.dims ? value : b.ShapeCast(value, memref.type.dims), memref);
}

void SplashWhen(Builder& b, const Value& condition, const std::function<void()>& then) {
  const Value wide = b.Convert(condition, Element::kI32);
  b.When(b.Is(Compare::kNe, wide, b.I32(0)), then);
}

void VisitSplashTile(Builder& b, const SplashSpec& spec, const mosaic::KernelArguments& args, SplashPass pass,
                     const std::function<void(const SplashVisit&)>& body) {
  const Values scalars = {args["data_next"], args["block_mask"]};
  const Values& g = args.grid;
  const bool is_dkv = pass == SplashPass::kDkv;
  const SplashLists lists(b, spec, scalars, is_dkv ? SplashStep{g[1], g[2], g[0]} : SplashStep{g[0], g[1], g[2]});
  const Value kind = lists.Kind();
  const Value is_visited = b.Is(Compare::kGt, kind, b.I32(0));
  SplashVisit visit;
  if (spec.mask.kind == SplashMaskKind::kStored) visit.is_full = b.Is(Compare::kNe, kind, b.I32(1));
  visit.kv_tile = is_dkv ? g[0] : lists.Data();
  SplashWhen(b, is_visited, [&] { body(visit); });
}

void Fill(Builder& b, const Value& memref, double value) {
  b.StoreAll(b.Broadcast(b.Constant(mosaic::ScalarOf(memref.type.element), value), memref.type.dims), memref);
}

namespace {

// The numbers of the tile's queries and keys, spread over it.
struct Tokens {
  Value query, key;
};

Tokens TokensOf(Builder& b, const mosaic::KernelArguments& args, const SplashTile& tile) {
  const std::vector<int64_t>& dims = tile.scores.type.dims;
  const Value number = b.Iota(dims, tile.keys_in_lanes ? 1 : 0);
  const Value key = b.Add(b.Broadcast(tile.first_key, dims), number);
  if (tile.keys_in_lanes) return {TileLanes(b, b.LoadAll(args["q_sequence"]), dims[1]), key};
  const Value at[] = {b.Index(0), b.Index(0)};
  return {b.Broadcast(b.Load(args["q_sequence"], at, {1, dims[1]}), dims), key};
}

Value ComputedMask(Builder& b, const SplashMask& mask, const Tokens& tokens) {
  const Value query = mask.offset == 0 ? tokens.query : b.Add(tokens.query, b.I32(mask.offset));
  if (mask.kind == SplashMaskKind::kCausal) return b.Is(Compare::kGe, query, tokens.key);
  Value allowed;
  if (mask.left) allowed = b.Is(Compare::kLe, b.Sub(query, b.I32(*mask.left)), tokens.key);
  if (mask.right) {
    const Value last = *mask.right == 0 ? query : b.Add(query, b.I32(*mask.right));
    const Value before = b.Is(Compare::kGe, last, tokens.key);
    allowed = mask.left ? b.And(allowed, before) : before;
  }
  return allowed;
}

Value StoredMask(Builder& b, const mosaic::KernelArguments& args, const SplashTile& tile) {
  const std::vector<int64_t>& dims = tile.scores.type.dims;
  const Value zero = b.Index(0);
  const Values in_lanes = {zero, zero, tile.slice_begin};
  const Values in_rows = {zero, tile.slice_begin, zero};
  const Value cells = b.Load(args["mask"], tile.keys_in_lanes ? in_lanes : in_rows, {1, dims[0], dims[1]});
  const Value flat = b.ShapeCast(cells, dims);
  const Value set = b.Is(Compare::kNe, flat, b.I32(0));
  return b.Or(set, b.Broadcast(tile.should_mask, dims));
}

Value SameSegment(Builder& b, const mosaic::KernelArguments& args, const SplashTile& tile) {
  const std::vector<int64_t>& dims = tile.scores.type.dims;
  if (tile.keys_in_lanes) {
    const Value at[] = {b.Index(0), tile.slice_begin};
    const Value kv = b.Load(args["kv_segment_ids"], at, {1, dims[1]});
    const Value q = TileLanes(b, b.LoadAll(args["q_segment_ids"]), dims[1]);
    return b.Is(Compare::kEq, q, b.Broadcast(kv, dims));
  }
  const Value at[] = {tile.slice_begin, b.Index(0)};
  const Value kv = TileLanes(b, b.Load(args["kv_segment_ids"], at, {dims[0], kLanes}), dims[1]);
  const Value first[] = {b.Index(0), b.Index(0)};
  const Value q = b.Load(args["q_segment_ids"], first, {1, dims[1]});
  return b.Is(Compare::kEq, b.Broadcast(q, dims), kv);
}

}  // namespace

Value CapAndMask(Builder& b, const SplashSpec& spec, const mosaic::KernelArguments& args, const SplashTile& tile) {
  Values masks;
  if (spec.mask.kind == SplashMaskKind::kStored) masks.push_back(StoredMask(b, args, tile));
  if (spec.mask.IsComputed()) masks.push_back(ComputedMask(b, spec.mask, TokensOf(b, args, tile)));
  if (spec.has_segments) masks.push_back(SameSegment(b, args, tile));
  for (size_t i = 1; i < masks.size(); ++i) masks[0] = b.And(masks[0], masks[i]);
  Value scores = tile.scores;
  if (spec.softcap > 0) {
    const Value cap = b.F32(spec.softcap);
    scores = b.Mul(b.Tanh(b.Div(scores, cap)), cap);
  }
  if (masks.empty()) return scores;
  return b.Select(masks[0], scores, b.F32(kSplashMaskValue));
}

Value CapGradient(Builder& b, const SplashSpec& spec, const Value& scores, const Value& ds) {
  if (spec.softcap <= 0) return ds;
  const Value tanh = b.Tanh(b.Div(scores, b.F32(spec.softcap)));
  const Value g = b.Mul(ds, b.Sub(b.Broadcast(b.F32(1.0), tanh.type.dims), tanh));
  return b.Add(g, b.Mul(g, tanh));
}

}  // namespace tessera::kernels
