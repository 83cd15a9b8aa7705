// Which block of each operand a step sees. See worklist.h.
#include "lanes/xla/kernels/worklist.h"

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Element;
using mosaic::Value;
using mosaic::Values;
using mosaic::Window;

Window ScoreWindow() {
  return {.name = "score",
          .element = Element::kF32,
          .bounds = {1, 2},
          .index_map =
              [](Builder& b, const Values&, const Values&) {
                return Values{b.I32(0), b.I32(0)};
              },
          .space = mosaic::Space::kSmem};
}

mosaic::KernelSpec CommonSpec(const AttentionSpec& spec, std::string name, int64_t pairs, int64_t steps) {
  return {.name = std::move(name),
          .grid = {pairs, spec.list.rows, steps},
          .semantics = {mosaic::Semantics::kParallel, mosaic::Semantics::kArbitrary, mosaic::Semantics::kArbitrary},
          .scalars = ScalarsOf(spec),
          .inputs = {ScoreWindow()},
          .outputs = {},
          .scratch = {},
          .version = spec.version};
}

mosaic::Memory Scratch(std::string name, std::vector<int64_t> dims) {
  return {std::move(name), mosaic::MemrefOf(mosaic::Space::kVmem, Element::kF32, std::move(dims))};
}

namespace {

Value BatchOf(Builder& b, const AttentionSpec& spec, const Value& pair) {
  return spec.num_q_heads == 1 ? pair : b.Div(pair, b.I32(spec.num_q_heads));
}

template <class Windows>
void AddBackwardOf(const Windows& from, const AttentionSpec& spec, std::vector<Window>& windows) {
  windows.push_back(from.Queries("q", spec.dim_qk));
  windows.push_back(from.Keys("k", spec.dim_qk));
  windows.push_back(from.Keys("v", spec.dim_v));
  windows.push_back(from.Queries("do", spec.dim_v));
  windows.push_back(from.Stat("lse"));
  windows.push_back(from.Stat("delta"));
  from.AddMask(windows);
}

}  // namespace

// ---- forward and dQ

Window RowWindows::Queries(std::string name, int64_t dim) const {
  return {.name = std::move(name),
          .element = spec_.element,
          .bounds = {1, spec_.list.tile_q, dim},
          .index_map = [](Builder& b, const Values& g, const Values&) {
            return Values{g[0], g[1], b.I32(0)};
          }};
}

// Heads of a group share their keys through this map: nothing is copied.
Window RowWindows::Keys(std::string name, int64_t dim) const {
  const AttentionSpec& spec = spec_;
  return {.name = std::move(name),
          .element = spec.element,
          .bounds = {1, spec.list.tile_kv, dim},
          .index_map = [&spec](Builder& b, const Values& g, const Values& s) {
            const Value head = spec.group() == 1 ? g[0] : b.Div(g[0], b.I32(spec.group()));
            return Values{head, Lists(b, spec, s).Entry("columns", {g[0], g[1], g[2]}), b.I32(0)};
          }};
}

Window RowWindows::Stat(std::string name) const {
  return {.name = std::move(name),
          .element = Element::kF32,
          .bounds = {1, 1, spec_.list.tile_q},
          .index_map = [](Builder& b, const Values& g, const Values&) {
            return Values{g[0], b.I32(0), g[1]};
          }};
}

void RowWindows::AddBackward(std::vector<Window>& windows) const { AddBackwardOf(*this, spec_, windows); }

void RowWindows::AddMask(std::vector<Window>& windows) const {
  const AttentionSpec& spec = spec_;
  if (spec.has_documents) {
    windows.push_back({.name = "q_documents",
                       .element = Element::kI32,
                       .bounds = {1, spec.list.tile_q, kLanes},
                       .index_map = [&spec](Builder& b, const Values& g, const Values&) {
                         return Values{BatchOf(b, spec, g[0]), g[1], b.I32(0)};
                       }});
    for (const char* name : {"kv_documents", "kv_ranks"}) {
      windows.push_back({.name = name,
                         .element = Element::kI32,
                         .bounds = {1, kSublanes, spec.list.tile_kv},
                         .index_map = [&spec](Builder& b, const Values& g, const Values& s) {
                           const Value tile = Lists(b, spec, s).Entry("document_next", {g[0], g[1], g[2]});
                           return Values{BatchOf(b, spec, g[0]), b.I32(0), tile};
                         }});
    }
  }
  if (spec.stored_tiles == 0) return;
  windows.push_back({.name = "stored",
                     .element = Element::kI8,
                     .bounds = {1, spec.list.tile_q, spec.list.tile_kv},
                     .index_map = [&spec](Builder& b, const Values& g, const Values& s) {
                       const Value tile = Lists(b, spec, s).Entry("stored_next", {g[0], g[1], g[2]});
                       return Values{tile, b.I32(0), b.I32(0)};
                     }});
}

// ---- dK and dV

Place ColumnWindows::PlaceOf(Builder& b, const AttentionSpec& spec, const Values& g) {
  if (spec.group() == 1) return {g[0], g[1], g[2], true};
  const Value width = b.I32(spec.list.width);
  const Value first = b.Mul(g[0], b.I32(spec.group()));
  const Value pair = b.Add(first, b.Div(g[2], width));
  return {pair, g[1], b.Rem(g[2], width), true};
}

Window ColumnWindows::Queries(std::string name, int64_t dim) const {
  const AttentionSpec& spec = spec_;
  return {.name = std::move(name),
          .element = spec.element,
          .bounds = {1, spec.list.tile_q, dim},
          .index_map = [&spec](Builder& b, const Values& g, const Values& s) {
            const Place at = PlaceOf(b, spec, g);
            return Values{at.pair, Lists(b, spec, s).Entry("columns", at), b.I32(0)};
          }};
}

Window ColumnWindows::Keys(std::string name, int64_t dim) const {
  return {.name = std::move(name),
          .element = spec_.element,
          .bounds = {1, spec_.list.tile_kv, dim},
          .index_map = [](Builder& b, const Values& g, const Values&) {
            return Values{g[0], g[1], b.I32(0)};
          }};
}

Window ColumnWindows::Stat(std::string name) const {
  const AttentionSpec& spec = spec_;
  return {.name = std::move(name),
          .element = Element::kF32,
          .bounds = {1, kSublanes, spec.list.tile_q},
          .index_map = [&spec](Builder& b, const Values& g, const Values& s) {
            const Place at = PlaceOf(b, spec, g);
            return Values{at.pair, b.I32(0), Lists(b, spec, s).Entry("columns", at)};
          }};
}

void ColumnWindows::AddBackward(std::vector<Window>& windows) const { AddBackwardOf(*this, spec_, windows); }

void ColumnWindows::AddMask(std::vector<Window>& windows) const {
  const AttentionSpec& spec = spec_;
  if (spec.has_documents) {
    windows.push_back({.name = "q_documents",
                       .element = Element::kI32,
                       .bounds = {1, kSublanes, spec.list.tile_q},
                       .index_map = [&spec](Builder& b, const Values& g, const Values& s) {
                         const Place at = PlaceOf(b, spec, g);
                         const Value tile = Lists(b, spec, s).Entry("document_next", at);
                         return Values{BatchOf(b, spec, at.pair), b.I32(0), tile};
                       }});
    for (const char* name : {"kv_documents", "kv_ranks"}) {
      windows.push_back({.name = name,
                         .element = Element::kI32,
                         .bounds = {1, spec.list.tile_kv, kLanes},
                         .index_map = [&spec](Builder& b, const Values& g, const Values&) {
                           const Value batch = spec.num_kv_heads == 1 ? g[0] : b.Div(g[0], b.I32(spec.num_kv_heads));
                           return Values{batch, g[1], b.I32(0)};
                         }});
    }
  }
  if (spec.stored_tiles == 0) return;
  windows.push_back({.name = "stored",
                     .element = Element::kI8,
                     .bounds = {1, spec.list.tile_kv, spec.list.tile_q},
                     .index_map = [&spec](Builder& b, const Values& g, const Values& s) {
                       const Place at = PlaceOf(b, spec, g);
                       return Values{Lists(b, spec, s).Entry("stored_next", at), b.I32(0), b.I32(0)};
                     }});
}

}  // namespace tessera::kernels
