// Builder: vectors, memory and copies.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "lanes/xla/mosaic/builder.h"

namespace tessera::mosaic {
namespace {

Attribute Segments(std::vector<int64_t> sizes) { return IntegersAttribute(std::move(sizes), Element::kI32); }

Attribute IntegerList(const std::vector<int64_t>& values) {
  std::vector<Attribute> items;
  items.reserve(values.size());
  for (const int64_t value : values) items.push_back(IntegerAttribute(value, Element::kI64));
  return ListAttribute(std::move(items));
}

bool IsAxis(int64_t axis, const Type& type) { return axis >= 0 && axis < type.rank(); }

}  // namespace

Values Builder::Zeros(const Type& memref) { return Values(memref.dims.size(), Index(0)); }

Values Builder::Indices(std::span<const Value> at, const Type& memref, bool as_i32) {
  const Element to = as_i32 ? Element::kI32 : Element::kIndex;
  if (at.size() != memref.dims.size()) {
    Mistake(fmt::format("{} indices into {}", at.size(), ToText(memref)));
    return {};
  }
  Values indices;
  for (const Value& index : at) indices.push_back(Convert(index, to));
  return indices;
}

Value Builder::Load(const Value& memref, std::span<const Value> at, std::vector<int64_t> dims) {
  Values operands = Indices(at, memref.type, false);
  operands.insert(operands.begin(), memref);
  return Emit(OpCode::kVectorLoad, operands, VectorOf(memref.type.element, std::move(dims)), {});
}

Value Builder::LoadAll(const Value& memref) { return Load(memref, Zeros(memref.type), memref.type.dims); }

void Builder::Store(const Value& value, const Value& memref, std::span<const Value> at) {
  Values operands = Indices(at, memref.type, false);
  const auto count = static_cast<int64_t>(operands.size());
  operands.insert(operands.begin(), {value, memref});
  EmitNone(OpCode::kVectorStore, operands,
           {{"add", BoolAttribute(false)},
            {"operandSegmentSizes", Segments({1, 1, count, 0})},
            {"strides", IntegersAttribute({}, Element::kI32)}});
}

void Builder::StoreAll(const Value& value, const Value& memref) { Store(value, memref, Zeros(memref.type)); }

Value Builder::LoadScalar(const Value& memref, std::span<const Value> at) {
  Values operands = Indices(at, memref.type, false);
  operands.insert(operands.begin(), memref);
  return Emit(OpCode::kScalarLoad, operands, ScalarOf(memref.type.element), {});
}

void Builder::StoreScalar(const Value& value, const Value& memref, std::span<const Value> at) {
  Values operands = Indices(at, memref.type, false);
  operands.insert(operands.begin(), {value, memref});
  EmitNone(OpCode::kScalarStore, operands, {});
}

Value Builder::AssumeMultiple(const Value& x, int64_t multiple) {
  return Emit(OpCode::kAssumeMultiple, {x}, x.type, {{"multiple", IntegerAttribute(multiple, Element::kI32)}});
}

Value Builder::ShapeCast(const Value& x, std::vector<int64_t> dims) {
  if (x.type.dims == dims) return x;
  return Emit(OpCode::kShapeCast, {x}, VectorOf(x.type.element, std::move(dims)));
}

Value Builder::Broadcast(const Value& x, std::vector<int64_t> dims) {
  if (x.type.IsVector() && x.type.dims == dims) return x;
  return Emit(OpCode::kBroadcast, {x}, VectorOf(x.type.element, std::move(dims)));
}

Value Builder::Reduce(Reduction how, const Value& x, std::vector<int64_t> axes) {
  static constexpr std::string_view kKinds[] = {"add", "maximumf", "minimumf"};
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kNeutral[] = {0, -kInfinity, kInfinity};
  std::vector<int64_t> kept;
  for (int64_t axis = 0; axis < x.type.rank(); ++axis) {
    if (std::ranges::find(axes, axis) == axes.end()) kept.push_back(x.type.dims[static_cast<size_t>(axis)]);
  }
  if (kept.empty()) Mistake("a reduction over every axis: keep one, and extract its element");
  const Type type = VectorOf(x.type.element, std::move(kept));
  const Value start = Constant(type, kNeutral[static_cast<size_t>(how)]);
  return Emit(OpCode::kMultiReduction, {x, start}, type,
              {{"kind", DialectAttribute(fmt::format("vector.kind<{}>", kKinds[static_cast<size_t>(how)]))},
               {"reduction_dims", IntegersAttribute(std::move(axes), Element::kI64)}});
}

Value Builder::ReduceKeep(Reduction how, const Value& x, int64_t axis) {
  if (!IsAxis(axis, x.type)) {
    Mistake(fmt::format("axis {} of {}", axis, ToText(x.type)));
    return x;
  }
  std::vector<int64_t> dims = x.type.dims;
  dims[static_cast<size_t>(axis)] = 1;
  return ShapeCast(Reduce(how, x, {axis}), std::move(dims));
}

Value Builder::Slice(const Value& x, std::vector<int64_t> offsets, std::vector<int64_t> sizes) {
  const Type type = VectorOf(x.type.element, sizes);
  return Emit(OpCode::kExtractStridedSlice, {x}, type,
              {{"offsets", IntegerList(offsets)},
               {"sizes", IntegerList(sizes)},
               {"strides", IntegerList(std::vector<int64_t>(sizes.size(), 1))}});
}

Value Builder::Extract(const Value& x, std::vector<int64_t> position) {
  return Emit(OpCode::kExtract, {x}, ScalarOf(x.type.element),
              {{"static_position", IntegersAttribute(std::move(position), Element::kI64)}});
}

Value Builder::Iota(std::vector<int64_t> dims, int64_t axis) {
  return Emit(OpCode::kIota, {}, VectorOf(Element::kI32, std::move(dims)),
              {{"dimensions", IntegersAttribute({axis}, Element::kI32)}});
}

Value Builder::Concatenate(const Values& parts, int64_t axis) {
  if (parts.empty() || !IsAxis(axis, parts.front().type)) {
    Mistake("a concatenation of nothing, or along an axis that is not there");
    return {};
  }
  Type type = parts.front().type;
  type.dims[static_cast<size_t>(axis)] = 0;
  for (const Value& part : parts) {
    if (IsAxis(axis, part.type)) type.dims[static_cast<size_t>(axis)] += part.type.dims[static_cast<size_t>(axis)];
  }
  return Emit(OpCode::kConcatenate, parts, type, {{"dimension", IntegerAttribute(axis, Element::kI32)}});
}

Value Builder::Transpose(const Value& x, std::vector<int64_t> permutation) {
  Type type = x.type;
  for (size_t at = 0; at < permutation.size() && at < type.dims.size(); ++at) {
    if (IsAxis(permutation[at], x.type)) type.dims[at] = x.type.dims[static_cast<size_t>(permutation[at])];
  }
  return Emit(OpCode::kTranspose, {x}, type,
              {{"permutation", IntegersAttribute(std::move(permutation), Element::kI64)}});
}

Value Builder::Rotate(const Value& x, const Value& amount, int64_t axis) {
  Attribute dimension = IntegerAttribute(axis, Element::kI32);
  dimension.is_signed = true;
  return Emit(OpCode::kDynamicRotate, {x, amount}, x.type, {{"dimension", std::move(dimension)}});
}

Value Builder::Matmul(const Value& lhs, const Value& rhs, int64_t lhs_axis, int64_t rhs_axis, Precision precision) {
  const auto is_side = [](int64_t axis) { return axis == 0 || axis == 1; };
  if (lhs.type.rank() != 2 || rhs.type.rank() != 2 || !is_side(lhs_axis) || !is_side(rhs_axis)) {
    Mistake(fmt::format("a matmul of {} and {} over axes {} and {}", ToText(lhs.type), ToText(rhs.type), lhs_axis,
                        rhs_axis));
    return lhs;
  }
  const int64_t m = lhs.type.dims[static_cast<size_t>(1 - lhs_axis)];
  const int64_t n = rhs.type.dims[static_cast<size_t>(1 - rhs_axis)];
  const DotDims dims{.lhs_contract = {lhs_axis},
                     .rhs_contract = {rhs_axis},
                     .lhs_free = {1 - lhs_axis},
                     .rhs_free = {1 - rhs_axis},
                     .output = {0, 1 - lhs_axis, 1, 1 - rhs_axis}};
  return MatmulAdd(lhs, rhs, Constant(VectorOf(Element::kF32, {m, n}), 0), dims, precision);
}

Value Builder::MatmulAdd(const Value& lhs, const Value& rhs, const Value& accumulator, const DotDims& dims,
                         Precision precision) {
  Attributes attributes = {{"dimension_numbers", DialectAttribute(ToText(dims))},
                           {"transpose_lhs", BoolAttribute(false)},
                           {"transpose_rhs", BoolAttribute(false)}};
  if (precision == Precision::kFp32) Set(attributes, "precision", DialectAttribute("tpu.contract_precision<fp32>"));
  if (version_ >= kFirstHintVersion) Set(attributes, "transpose_lhs_hint", BoolAttribute(false));
  return Emit(OpCode::kMatmul, {lhs, rhs, accumulator}, accumulator.type, std::move(attributes));
}

Value Builder::SliceRef(const Value& memref, std::span<const Value> at, std::vector<int64_t> dims) {
  Values operands = Indices(at, memref.type, true);
  const auto count = static_cast<int64_t>(operands.size());
  operands.insert(operands.begin(), memref);
  return Emit(OpCode::kMemrefSlice, operands, MemrefOf(memref.type.space, memref.type.element, std::move(dims)),
              {{"operandSegmentSizes", Segments({1, count, 0})}});
}

Value Builder::SqueezeRef(const Value& memref, std::vector<int64_t> dims) {
  return Emit(OpCode::kMemrefSqueeze, {memref}, MemrefOf(memref.type.space, memref.type.element, std::move(dims)));
}

void Builder::StartCopy(const Value& from, const Value& to, const Value& semaphore) {
  EmitNone(OpCode::kEnqueueDma, {from, to, semaphore},
           {{"operandSegmentSizes", Segments({1, 0, 1, 1, 0, 0})},
            {"priority", IntegerAttribute(0, Element::kI32)},
            {"strict_ordering", BoolAttribute(false)}});
}

void Builder::WaitCopy(const Value& from, const Value& to, const Value& semaphore) {
  EmitNone(OpCode::kWaitDma, {semaphore, from, to},
           {{"operandSegmentSizes", Segments({1, 1, 1, 0, 0})}, {"strict_ordering", BoolAttribute(false)}});
}

}  // namespace tessera::mosaic
