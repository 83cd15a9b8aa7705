// Which block of each operand a step sees. See worklist.h.
#include <utility>

#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Element;
using mosaic::Semantics;
using mosaic::Value;
using mosaic::Values;
using mosaic::Window;

Window ScoreWindow(std::string name, int64_t numbers) {
  return {.name = std::move(name),
          .element = Element::kF32,
          .bounds = {1, numbers},
          .index_map =
              [](Builder& b, const Values&, const Values&) {
                return Values{b.I32(0), b.I32(0)};
              },
          .space = mosaic::Space::kSmem};
}

mosaic::KernelSpec CommonSpec(const AttentionSpec& spec, std::string name, Order order) {
  const int64_t rows = spec.list.rows;
  const std::vector<int64_t> by_query = {spec.batch * spec.num_q_heads, rows, spec.chunks()};
  const std::vector<int64_t> by_chunk = {spec.batch * spec.num_kv_heads, spec.chunks(), spec.group() * rows};
  return {.name = std::move(name),
          .grid = order == Order::kByQuery ? by_query : by_chunk,
          .semantics = {Semantics::kParallel, Semantics::kArbitrary, Semantics::kArbitrary},
          .scalars = ScalarsOf(spec),
          .inputs = {ScoreWindow("score", kScoreFields)},
          .outputs = {},
          .scratch = {},
          .version = spec.version};
}

mosaic::Memory Scratch(std::string name, std::vector<int64_t> dims) {
  return {std::move(name), mosaic::MemrefOf(mosaic::Space::kVmem, Element::kF32, std::move(dims))};
}

// Heads of a group share their keys through this: nothing is copied.
Place PlaceOf(Builder& b, const AttentionSpec& spec, Order order, const Values& g) {
  if (order == Order::kByQuery) {
    return {g[0], spec.group() == 1 ? g[0] : b.Div(g[0], b.I32(spec.group())), g[1], g[2]};
  }
  if (spec.group() == 1) return {g[0], g[0], g[2], g[1]};
  const Value rows = b.I32(spec.list.rows);
  const Value first = b.Mul(g[0], b.I32(spec.group()));
  const Value pair = b.Add(first, b.Div(g[2], rows));
  return {pair, g[0], b.Rem(g[2], rows), g[1]};
}

Window Windows::Make(std::string name, Element element, std::vector<int64_t> bounds, Where where) const {
  return {.name = std::move(name),
          .element = element,
          .bounds = std::move(bounds),
          .index_map = [&spec = spec_, order = order_, where = std::move(where)](Builder& b, const Values& g,
                                                                                 const Values& s) {
            const Lists lists(b, spec, s);
            return where(b, PlaceOf(b, spec, order, g), lists);
          }};
}

Window Windows::Queries(std::string name, int64_t dim) const {
  return Make(std::move(name), spec_.element, {1, spec_.list.tile_q, dim},
              [](Builder& b, const Place& at, const Lists&) {
                return Values{at.pair, at.row, b.I32(0)};
              });
}

Window Windows::QueryLanes(std::string name, int64_t dim) const {
  return Make(std::move(name), spec_.element, {1, dim, spec_.list.tile_q},
              [](Builder& b, const Place& at, const Lists&) {
                return Values{at.pair, b.I32(0), at.row};
              });
}

Window Windows::QueryNumbers(std::string name, int64_t dim) const {
  Window window = QueryLanes(std::move(name), dim);
  window.element = Element::kF32;
  return window;
}

Window Windows::ChunkQueries(std::string name, int64_t dim) const {
  return Make(std::move(name), Element::kF32, {1, dim, spec_.list.tile_q},
              [&spec = spec_](Builder& b, const Place& at, const Lists&) {
                const Value first = b.Mul(at.chunk, b.I32(spec.batch * spec.num_q_heads));
                return Values{spec.chunks() == 1 ? at.pair : b.Add(first, at.pair), b.I32(0), at.row};
              });
}

// A chunk without work for the row is not fetched: the one before, or the one after, stays or comes early.
Value Windows::ChunkOf(Builder& b, const Place& at, const Lists& lists) const {
  if (spec_.chunks() == 1) return b.I32(0);
  if (order_ == Order::kByChunk) return at.chunk;
  const Value row = lists.Row(at);
  const Value first = b.Mul(row, b.I32(spec_.chunks()));
  return lists.At("chunk_next", b.Add(first, at.chunk));
}

Window Windows::Keys(std::string name, int64_t dim) const {
  return Make(std::move(name), spec_.element, {1, spec_.chunk_kv, dim},
              [own = *this](Builder& b, const Place& at, const Lists& lists) {
                return Values{at.head, own.ChunkOf(b, at, lists), b.I32(0)};
              });
}

Window Windows::KeyLanes(std::string name, int64_t dim) const {
  return Make(std::move(name), spec_.element, {1, dim, spec_.chunk_kv},
              [own = *this](Builder& b, const Place& at, const Lists& lists) {
                return Values{at.head, b.I32(0), own.ChunkOf(b, at, lists)};
              });
}

void Windows::AddBounds(std::vector<Window>& windows) const {
  if (!spec_.has_range) return;
  const auto add = [&](const char* name, int64_t numbers, mosaic::Value Place::*which) {
    windows.push_back(Make(name, Element::kF32, {1, 1, numbers}, [which](Builder& b, const Place& at, const Lists&) {
      return Values{at.*which, b.I32(0), b.I32(0)};
    }));
    windows.back().space = mosaic::Space::kSmem;
  };
  add("q_bounds", spec_.list.rows, &Place::pair);
  add("k_bounds", spec_.kv_tokens() / spec_.list.tile_kv, &Place::head);
}

void Windows::AddMask(std::vector<Window>& windows) const {
  const auto batch = [&spec = spec_](Builder& b, const Place& at) {
    return spec.num_q_heads == 1 ? at.pair : b.Div(at.pair, b.I32(spec.num_q_heads));
  };
  if (spec_.has_documents) {
    windows.push_back(Make("q_documents", Element::kI32, {1, kSublanes, spec_.list.tile_q},
                           [batch](Builder& b, const Place& at, const Lists&) {
                             return Values{batch(b, at), b.I32(0), at.row};
                           }));
    windows.push_back(Make("kv_documents", Element::kI32, {1, kSublanes, spec_.chunk_kv},
                           [batch, own = *this](Builder& b, const Place& at, const Lists& lists) {
                             const Value of = batch(b, at);
                             return Values{of, b.I32(0), own.ChunkOf(b, at, lists)};
                           }));
  }
  if (spec_.stored_tiles == 0) return;
  windows.push_back({.name = "stored",
                     .element = Element::kI8,
                     .bounds = {spec_.stored_tiles, spec_.list.tile_kv, spec_.list.tile_q},
                     .space = mosaic::Space::kAny});
}

}  // namespace tessera::kernels
