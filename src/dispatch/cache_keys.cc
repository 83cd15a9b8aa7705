// The keys of prepared runs. Two of meaning, which decide what is shared, and one of spelling, which finds a request
// that was made before without asking what it means.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "base/hash.h"
#include "dispatch/prepare.h"
#include "planner/settings.h"
#include "tessera/mask_term.h"

namespace tessera {
namespace {

// ---- spelling

// Structs are taken apart member by member, so that one with a new member does not compile here until that is hashed.

void AddInts(Hasher& hasher, std::initializer_list<int64_t> values) {
  for (const int64_t value : values) hasher.Int(value);
}

void AddBitmap(Hasher& hasher, const Bitmap& bitmap) {
  const auto& [heads, q_len, kv_len, cells, digest] = bitmap;
  AddInts(hasher, {heads, q_len, kv_len, static_cast<int64_t>(cells.size())});
  // The cells themselves: a digest is what somebody said of them.
  hasher.Bytes(cells.data(), cells.size());
  hasher.Text(digest);
}

void AddTerm(Hasher& hasher, const MaskTerm& term) {
  const auto& [kind, first, second, path, bitmap, parameters, registered] = term;
  AddInts(hasher, {static_cast<int64_t>(kind), first, second, bitmap != nullptr ? 1 : 0});
  hasher.Text(path);
  if (bitmap != nullptr) AddBitmap(hasher, *bitmap);
  hasher.Int(static_cast<int64_t>(parameters.size()));
  for (const int64_t value : parameters) hasher.Int(value);
  // Not its name, which may mean something else in another MaskTerms, nor its address, which is used again.
  hasher.Int(registered == nullptr ? 0 : registered->id());
}

void AddExpr(Hasher& hasher, const MaskExpr& expr) {
  const auto& [op, term, children] = expr;
  hasher.Int(static_cast<int64_t>(op));
  if (op == MaskExpr::Op::kTerm) AddTerm(hasher, term);
  hasher.Int(static_cast<int64_t>(children.size()));
  for (const MaskExpr& child : children) AddExpr(hasher, child);
}

void AddTile(Hasher& hasher, TileSize tile) { AddInts(hasher, {tile.q, tile.kv}); }

void AddRouting(Hasher& hasher, const Routing& routing) {
  const auto& [query_tile, kv_tile, selected_block, block_stride, compression_block, top_n, first_blocks, hierarchical,
               meta_ratio, meta_keep, union_capacity] = routing;
  AddInts(hasher, {query_tile, kv_tile, selected_block, block_stride, compression_block, top_n, first_blocks,
                   hierarchical ? 1 : 0, meta_ratio, meta_keep, union_capacity});
}

void AddContract(Hasher& hasher, const Contract& contract) {
  const auto& [version, shape, mask, score, tiles, tiles_reason, capacity, routing] = contract;
  const auto& [batch, q_len, kv_len, num_q_heads, num_kv_heads, dim_qk, dim_v, dtype] = shape;
  AddInts(hasher,
          {version, batch, q_len, kv_len, num_q_heads, num_kv_heads, dim_qk, dim_v, static_cast<int64_t>(dtype)});
  const auto& [heads, offset] = mask;
  AddInts(hasher, {offset, static_cast<int64_t>(heads.size())});
  for (const MaskExpr& expr : heads) AddExpr(hasher, expr);
  const auto& [scale, softcap, sink_logits] = score;
  hasher.Real(scale);
  hasher.Real(softcap);
  hasher.Int(sink_logits ? 1 : 0);
  AddTile(hasher, tiles);
  hasher.Text(tiles_reason);
  const auto& [width, width_transposed, cleanups] = capacity;
  for (const Limit* limit : {&width, &width_transposed, &cleanups}) {
    AddInts(hasher, {static_cast<int64_t>(limit->kind), limit->number});
  }
  hasher.Int(routing.has_value() ? 1 : 0);
  if (routing.has_value()) AddRouting(hasher, *routing);
}

void AddTarget(Hasher& hasher, const Target& target) {
  const auto& [name, kind, description, forward, dq, dkv, workers, fast_bytes, scalar_bytes, vector_bytes, topology,
               by_dim, heads_apart] = target;
  hasher.Text(name);
  hasher.Text(description);
  hasher.Text(topology);
  for (const TileSize* tile : {&forward, &dq, &dkv}) AddTile(hasher, *tile);
  AddInts(hasher, {static_cast<int64_t>(kind), workers, fast_bytes, scalar_bytes, vector_bytes});
  for (const DimTiles& tiles : by_dim) {
    AddInts(hasher, {tiles.max_dim_qk});
    for (const TileSize* tile : {&tiles.forward, &tiles.dq, &tiles.dkv}) AddTile(hasher, *tile);
  }
  AddInts(hasher, {heads_apart ? 1 : 0});
}

// ---- the exact mask

// The window that a static set is for these lengths, with rows counted to the end of the keys. Each side is read where
// it shows, and is unlimited where it shows nowhere; then the window itself is the judge.
std::optional<std::array<int64_t, 2>> WindowOf(const Shape& shape, const RowSet& set) {
  Contract plain;
  plain.shape = shape;
  plain.mask.offset = shape.kv_len - shape.q_len;
  MaskTerm window;
  window.kind = TermKind::kWindow;
  window.first = window.second = -1;
  for (const Slab& slab : set.slabs()) {
    const std::span<const Interval> intervals = set.Intervals(slab);
    if (intervals.size() != 1) return std::nullopt;
    const int64_t last = slab.q_end - 1;
    if (const int64_t lo = intervals[0].lo.At(last); lo > 0) window.first = last + plain.mask.offset - lo;
    const int64_t first = slab.q_begin;
    if (const int64_t hi = intervals[0].hi.At(first); hi < shape.kv_len) {
      window.second = hi - 1 - first - plain.mask.offset;
    }
  }
  if (window.first < -1 || window.second < -1) return std::nullopt;
  if (TermSet(plain, window, 0) != set) return std::nullopt;
  return std::array{window.first, window.second};
}

// The static part of "window and documents and valid", with either of the two left out; nothing for any other mask.
const RowSet* StaticPart(const MaskSets& sets) {
  const auto is_plain = [](const MaskCondition& condition) {
    return condition.kind == TermKind::kDocuments || condition.kind == TermKind::kValid;
  };
  if (sets.classes.size() != 1 || sets.documents_may_reappear || !sets.registered.empty()) return nullptr;
  if (!std::all_of(sets.conditions.begin(), sets.conditions.end(), is_plain)) return nullptr;
  const auto all = static_cast<ConditionSet>((size_t{1} << sets.conditions.size()) - 1);
  const std::vector<RowSet>& holding = sets.classes[0].holding;
  for (const ConditionSet set : sets.consistent) {
    if (set != all && !holding[set].IsEmpty()) return nullptr;
  }
  return &holding[all];
}

std::string TileText(TileSize tile) { return fmt::format("{}x{}", tile.q, tile.kv); }

std::string LimitText(const Limit& limit) {
  switch (limit.kind) {
    case Limit::Kind::kExact:
      return "exact";
    case Limit::Kind::kPow2:
      return "pow2";
    case Limit::Kind::kNumber:
      return fmt::format("{}", limit.number);
  }
  return "";
}

std::string RoutingText(const std::optional<Routing>& routing) {
  if (!routing) return "none";
  const Routing& r = *routing;
  return fmt::format(
      "query_tile {}, kv_tile {}, selected_block {}, block_stride {}, compression_block {}, top_n {}, first_blocks {}, "
      "hierarchical {}, meta_ratio {}, meta_keep {}, union_capacity {}",
      r.query_tile, r.kv_tile, r.selected_block, r.block_stride, r.compression_block, r.top_n, r.first_blocks,
      r.hierarchical, r.meta_ratio, r.meta_keep, r.union_capacity);
}

std::string TargetText(const Target& t) {
  std::string text =
      fmt::format("{} ({}), tiles {} {} {}, workers {}, fast bytes {}, scalar bytes {}, vector bytes {}, {}{}{}",
                  t.name, ToText(t.kind), TileText(t.forward), TileText(t.dq), TileText(t.dkv), t.workers, t.fast_bytes,
                  t.scalar_bytes, t.vector_bytes, t.description, t.topology.empty() ? "" : ", ", t.topology);
  for (const DimTiles& tiles : t.tiles_by_dim) {
    text += fmt::format(", to dim {} {} {} {}", tiles.max_dim_qk, TileText(tiles.forward), TileText(tiles.dq),
                        TileText(tiles.dkv));
  }
  return t.heads_apart ? text + ", heads apart" : text;
}

}  // namespace

Hash128 SpellingOf(const PrepareRequest& request) {
  Hasher hasher;
  AddContract(hasher, request.contract);
  AddTarget(hasher, request.target);
  VisitOptions(request.options, [&](std::string_view, const auto& value, OptionUse use) {
    if (use != OptionUse::kRuns) hasher.Text(OptionText(value));
  });
  hasher.Int(request.may_copy ? 1 : 0);
  return hasher.Finish();
}

ExactMaskKey ExactMaskKeyOf(const Contract& contract, const MaskSets& sets) {
  ExactMaskKey key;
  key.has_doc_ids = sets.Needs(TermKind::kDocuments);
  key.has_valid_token_counts = sets.Needs(TermKind::kValid);
  std::optional<std::array<int64_t, 2>> window;
  if (const RowSet* part = StaticPart(sets)) window = WindowOf(contract.shape, *part);
  if (window) {
    key.window_size = *window;
    const auto [left, right] = *window;
    if (left >= 0 && right == 0) key.local_window = left + 1;
    return key;
  }
  Hasher hasher;
  hasher.Text("tessera mask 1");
  hasher.Int(contract.shape.q_len);
  hasher.Int(contract.shape.kv_len);
  AddMask(hasher, sets);
  key.mask_digest = Hex(hasher.Finish());
  return key;
}

Result<ExactMaskKey> MakeExactMaskKey(const Contract& contract) {
  return PrepareContract(contract).map(
      [](const PreparedContract& prepared) { return ExactMaskKeyOf(prepared.contract, prepared.sets); });
}

std::string ToText(const ExactMaskKey& key) {
  std::string text = key.mask_digest.empty() ? fmt::format("window ({}, {})", key.window_size[0], key.window_size[1])
                                             : "mask " + key.mask_digest;
  if (key.local_window > 0) text += fmt::format(", local window {}", key.local_window);
  if (key.has_doc_ids) text += ", documents";
  if (key.has_valid_token_counts) text += ", valid counts";
  return text;
}

std::string FormDigest(const MaskSets& sets, const MaskFacts& facts) {
  Hasher hasher;
  hasher.Text("tessera form 1");
  for (const bool flag : {sets.names_documents, sets.names_valid, sets.names_blocks, facts.is_full, facts.is_causal,
                          facts.has_window, facts.has_bitmap}) {
    hasher.Int(flag ? 1 : 0);
  }
  for (const HeadClass& head : sets.classes) {
    for (const bool flag : {head.uses_conditions, head.has_bitmap, head.has_registered}) hasher.Int(flag ? 1 : 0);
  }
  return Hex(hasher.Finish());
}

ForwardCacheKey ForwardKeyOf(const PrepareRequest& request, const PreparedContract& prepared) {
  const Contract& contract = prepared.contract;
  ForwardCacheKey key;
  key.mask = ExactMaskKeyOf(contract, prepared.sets);
  key.use_fused_scoring = contract.routing.has_value();
  key.q_len = contract.shape.q_len;
  key.kv_len = contract.shape.kv_len;
  key.routing = contract.routing;
  key.tiles = planner::PickTiles(contract, request.target, request.options.plan);
  key.capacity = contract.capacity;
  key.contract_key = prepared.key;
  key.target = request.target;
  VisitOptions(request.options, [&](std::string_view name, const auto& value, OptionUse use) {
    if (use == OptionUse::kDecides) key.options.emplace_back(name, OptionText(value));
  });
  if (request.may_copy) key.options.emplace_back("may_copy", "true");  // only there where it is true
  return key;
}

std::vector<std::pair<std::string, std::string>> FieldsOf(const ForwardCacheKey& key) {
  const Capacity& c = key.capacity;
  std::vector<std::pair<std::string, std::string>> fields = {
      {"mask", ToText(key.mask)},
      {"use_fused_scoring", key.use_fused_scoring ? "true" : "false"},
      {"use_pallas", key.use_pallas ? "true" : "false"},
      {"q_len", fmt::format("{}", key.q_len)},
      {"kv_len", fmt::format("{}", key.kv_len)},
      {"routing", RoutingText(key.routing)},
      {"tiles", fmt::format("{} {} {}", TileText(key.tiles[0]), TileText(key.tiles[1]), TileText(key.tiles[2]))},
      {"capacity", fmt::format("{} {} {}", LimitText(c.width), LimitText(c.width_transposed), LimitText(c.cleanups))},
      {"contract_key", key.contract_key},
      {"class_key", key.class_key},
      {"form_digest", key.form_digest},
      {"target", TargetText(key.target)},
  };
  fields.insert(fields.end(), key.options.begin(), key.options.end());
  return fields;
}

std::string ToText(const ForwardCacheKey& key) {
  std::string text;
  for (const auto& [name, value] : FieldsOf(key)) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, value.empty() ? "none" : value);
  }
  return text;
}

std::string Digest(const ForwardCacheKey& key) {
  Hasher hasher;
  hasher.Text("tessera forward 1");
  for (const auto& [name, value] : FieldsOf(key)) hasher.Text(value);
  return Hex(hasher.Finish());
}

size_t HashOf(const ForwardCacheKey& key) {
  const Hash128 digest = FromHex(Digest(key));
  size_t value = 0;
  std::memcpy(&value, digest.data(), sizeof(value));
  return value;
}

}  // namespace tessera
