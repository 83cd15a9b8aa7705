// See worklist.h.
#include "lanes/xla/kernels/worklist.h"

#include <algorithm>
#include <utility>

namespace tessera::kernels {

using mosaic::Builder;
using mosaic::Element;
using mosaic::KernelArguments;
using mosaic::Value;
using mosaic::Values;

mosaic::Element AttentionSpec::cleanup_index() const {
  return cleanups <= 127 ? Element::kI8 : cleanups <= 32767 ? Element::kI16 : Element::kI32;
}

std::vector<mosaic::Memory> ScalarsOf(const AttentionSpec& spec) {
  const auto smem = [](Element element, std::vector<int64_t> dims) {
    return mosaic::MemrefOf(mosaic::Space::kSmem, element, std::move(dims));
  };
  const int64_t rows = spec.masks * spec.list.rows;
  const std::vector<int64_t> list = {rows, spec.list.width};
  std::vector<mosaic::Memory> scalars = {{"mask_of", smem(Element::kI32, {spec.batch * spec.num_q_heads})},
                                         {"columns", smem(spec.index, list)},
                                         {"kinds", smem(Element::kI8, list)},
                                         {"cleanups", smem(spec.cleanup_index(), list)}};
  if (spec.stored_tiles > 0) scalars.push_back({"stored_at", smem(Element::kI32, list)});
  scalars.push_back({"begins", smem(Element::kI32, {rows * (spec.chunks() + 1)})});
  if (spec.chunks() > 1) scalars.push_back({"chunk_next", smem(Element::kI32, {rows * spec.chunks()})});
  scalars.push_back({"cleanup_offsets", smem(Element::kI32, {spec.cleanups + 1})});
  scalars.push_back({"items", smem(Element::kI32, {spec.items * kItemFields})});
  if (spec.has_valid) {
    scalars.push_back({"q_valid", smem(Element::kI32, {spec.batch})});
    scalars.push_back({"kv_valid", smem(Element::kI32, {spec.batch})});
  }
  return scalars;
}

Values ScalarValues(const AttentionSpec& spec, const KernelArguments& args) {
  Values values;
  for (const mosaic::Memory& scalar : ScalarsOf(spec)) values.push_back(args[scalar.name]);
  return values;
}

Lists::Lists(Builder& b, const AttentionSpec& spec, const Values& scalars)
    : b_(b), spec_(spec), scalars_(scalars), names_(ScalarsOf(spec)) {}

const Value& Lists::Find(std::string_view name) const {
  size_t i = 0;
  while (names_[i].name != name) ++i;
  return scalars_[i];
}

Value Lists::Row(const Place& at) const {
  const Value mask = At("mask_of", at.pair);
  const Value first = b_.Mul(mask, b_.I32(spec_.list.rows));
  return b_.Add(first, at.row);
}

Value Lists::Entry(std::string_view list, const Value& row, const Value& slot) const {
  const Value where[] = {row, slot};
  const Value entry = b_.LoadScalar(Find(list), where);
  return entry.type.element == Element::kI32 ? entry : b_.Convert(entry, Element::kI32);
}

Value Lists::At(std::string_view list, const Value& index) const {
  const Value where[] = {index};
  return b_.LoadScalar(Find(list), where);
}

Value Masked(Builder& b, const std::optional<Value>& mask, const Value& x, double otherwise) {
  if (!mask) return x;
  const Value rows = b.ShapeCast(x, mask->type.dims);
  return b.ShapeCast(b.Select(*mask, rows, b.F32(otherwise)), x.type.dims);
}

std::vector<Block> BlocksOf(const AttentionSpec& spec, int64_t num_keys, const Blocking& by) {
  const auto part = [](int64_t all, int64_t most) {
    int64_t size = std::min(all, most);
    while (all % size != 0) size -= kLanes;
    return size;
  };
  const int64_t tile_q = spec.list.tile_q;
  const int64_t num_q = part(tile_q, by.q);
  const int64_t keys = part(num_keys, by.keys);
  std::vector<Block> blocks;
  for (int64_t key = 0; key < num_keys; key += keys) {
    for (int64_t q = 0; q < tile_q; q += num_q) blocks.push_back({q, num_q, key, keys});
  }
  return blocks;
}

mosaic::Precision PrecisionOf(const AttentionSpec& spec) {
  return spec.element == Element::kF32 ? mosaic::Precision::kFp32 : mosaic::Precision::kDefault;
}

Value AsOperand(Builder& b, const AttentionSpec& spec, const Value& x) {
  return spec.element == Element::kF32 ? x : b.Convert(x, spec.element);
}

Value ScoreNumber(Builder& b, const KernelArguments& args, ScoreField field) {
  const Value at[] = {b.Index(0), b.Index(static_cast<int64_t>(field))};
  return b.LoadScalar(args["score"], at);
}

Value Compared(Builder& b, const AttentionSpec& spec, const KernelArguments& args, const Value& product) {
  if (!spec.has_softcap) return product;
  return b.Tanh(b.Mul(product, ScoreNumber(b, args, ScoreField::kInner)));
}

Value Along(Builder& b, const Value& first, int64_t offset) {
  return b.AssumeMultiple(offset == 0 ? first : b.Add(first, b.I32(offset)), kLanes);
}

Value KeysAt(Builder& b, const TileKeys& keys, const Block& block) {
  const int64_t half = keys.count / 2;
  const bool is_later = keys.second && block.key >= half;
  return is_later ? Along(b, *keys.second, block.key - half) : Along(b, keys.first, block.key);
}

Value LoadRows(Builder& b, const Value& memref, const Value& first, int64_t count) {
  const int64_t dim = memref.type.dims[2];
  const Value at[] = {b.Index(0), first, b.Index(0)};
  return b.ShapeCast(b.Load(memref, at, {1, count, dim}), {count, dim});
}

Value LoadLanes(Builder& b, const Value& memref, const Value& first, int64_t count) {
  const int64_t dim = memref.type.dims[1];
  const Value at[] = {b.Index(0), b.Index(0), first};
  return b.ShapeCast(b.Load(memref, at, {1, dim, count}), {dim, count});
}

}  // namespace tessera::kernels
