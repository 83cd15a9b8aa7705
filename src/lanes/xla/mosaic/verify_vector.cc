// The rules of vectors: shapes that follow from other shapes.
#include <algorithm>
#include <numeric>

#include "lanes/xla/mosaic/verify_op.h"

namespace tessera::mosaic {
namespace {

// Integers of an attribute `array<..>`; empty where there is none, or another.
std::vector<int64_t> IntegersOf(const Op& op, std::string_view name) {
  const Attribute* attribute = Find(op.attributes, name);
  if (attribute == nullptr || attribute->kind != AttributeKind::kIntegers) return {};
  return attribute->integers;
}

// Of an attribute `[..]`.
std::vector<int64_t> ListOf(const Op& op, std::string_view name) {
  const Attribute* attribute = Find(op.attributes, name);
  std::vector<int64_t> list;
  if (attribute == nullptr || attribute->kind != AttributeKind::kList) return list;
  for (const Attribute& item : attribute->items) {
    if (item.kind == AttributeKind::kInteger) list.push_back(item.integer);
  }
  return list;
}

bool IsFalse(const Op& op, std::string_view name) {
  const Attribute* attribute = Find(op.attributes, name);
  return attribute != nullptr && attribute->kind == AttributeKind::kBool && attribute->integer == 0;
}

std::string CheckBroadcast(const Type& from, const Type& to) {
  if (from.IsMemref() || !to.IsVector() || from.element != to.element) return "a broadcast between these types";
  if (from.rank() > to.rank()) return "a broadcast to fewer axes";
  const size_t missing = to.dims.size() - from.dims.size();
  for (size_t axis = 0; axis < from.dims.size(); ++axis) {
    const int64_t dim = from.dims[axis];
    if (dim != 1 && dim != to.dims[missing + axis]) return "a broadcast along an axis that is not 1";
  }
  return {};
}

std::string CheckReduction(const OpContext& context, const Op& op) {
  const Type& from = context.function.TypeOf(op.operands[0]);
  const Type& to = context.function.TypeOf(op.results[0]);
  const std::vector<int64_t> axes = IntegersOf(op, "reduction_dims");
  const Attribute* kind = Find(op.attributes, "kind");
  if (!from.IsVector() || from.rank() < 2) return "a reduction of a vector with fewer than two axes";
  if (!IsFloat(from.element)) return "a reduction of integers";
  if (kind == nullptr || (kind->text != "vector.kind<add>" && kind->text != "vector.kind<maximumf>" &&
                          kind->text != "vector.kind<minimumf>")) {
    return "a kind of reduction that is not add, maximumf or minimumf";
  }
  if (axes.empty() || !std::ranges::is_sorted(axes, std::less_equal<>()) || axes.front() < 0 ||
      axes.back() >= from.rank()) {
    return "axes to reduce that are not there, or not in order";
  }
  std::vector<int64_t> kept;
  for (int64_t axis = 0; axis < from.rank(); ++axis) {
    if (!std::ranges::binary_search(axes, axis)) kept.push_back(from.dims[static_cast<size_t>(axis)]);
  }
  return FirstOf(
      {Unless(!kept.empty(), "a reduction over every axis"),
       Unless(to == VectorOf(from.element, kept), "a result that has not the axes that are kept"),
       Unless(context.function.TypeOf(op.operands[1]) == to, "an accumulator that is not of the result's type")});
}

std::string CheckSlice(const OpContext& context, const Op& op) {
  const Type& from = context.function.TypeOf(op.operands[0]);
  const Type& to = context.function.TypeOf(op.results[0]);
  const std::vector<int64_t> offsets = ListOf(op, "offsets");
  const std::vector<int64_t> sizes = ListOf(op, "sizes");
  const std::vector<int64_t> strides = ListOf(op, "strides");
  if (!from.IsVector() || to != VectorOf(from.element, sizes)) return "a result that is not of the slice's sizes";
  if (offsets.size() != from.dims.size() || sizes.size() != from.dims.size() || strides.size() != from.dims.size()) {
    return "offsets, sizes and strides that are not one per axis";
  }
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (strides[axis] != 1) return "a slice with strides";
    if (offsets[axis] < 0 || offsets[axis] > from.dims[axis] - sizes[axis]) return "a slice outside its vector";
  }
  return {};
}

std::string CheckExtract(const OpContext& context, const Op& op) {
  const Type& from = context.function.TypeOf(op.operands[0]);
  const std::vector<int64_t> position = IntegersOf(op, "static_position");
  if (!from.IsVector() || position.size() != from.dims.size()) return "a position that is not one index per axis";
  for (size_t axis = 0; axis < position.size(); ++axis) {
    if (position[axis] < 0 || position[axis] >= from.dims[axis]) return "a position outside its vector";
  }
  return FirstOf({Unless(context.function.TypeOf(op.results[0]) == ScalarOf(from.element),
                         "a result that is no element of the vector")});
}

std::string CheckMatmul(const OpContext& context, const Op& op) {
  const Type& lhs = context.function.TypeOf(op.operands[0]);
  const Type& rhs = context.function.TypeOf(op.operands[1]);
  const Type& to = context.function.TypeOf(op.results[0]);
  const Attribute* numbers = Find(op.attributes, "dimension_numbers");
  const std::optional<DotDims> dims = numbers == nullptr ? std::nullopt : ParseDotDims(numbers->text);
  if (!dims) return "dimension numbers that do not read";
  if (!lhs.IsVector() || !rhs.IsVector() || lhs.rank() != 2 || rhs.rank() != 2) return "operands that are no matrices";
  const auto is_side = [](const std::vector<int64_t>& axes) {
    return axes.size() == 1 && (axes[0] == 0 || axes[0] == 1);
  };
  if (!is_side(dims->lhs_contract) || !is_side(dims->rhs_contract) || !dims->lhs_batch.empty() ||
      !dims->rhs_batch.empty()) {
    return "dimension numbers of other than two matrices";
  }
  const int64_t l = dims->lhs_contract[0];
  const int64_t r = dims->rhs_contract[0];
  if (dims->lhs_free != std::vector<int64_t>{1 - l} || dims->rhs_free != std::vector<int64_t>{1 - r} ||
      dims->output != std::vector<int64_t>{0, 1 - l, 1, 1 - r}) {
    return "dimension numbers that do not go together";
  }
  const Attribute* precision = Find(op.attributes, "precision");
  const bool has_hint = Find(op.attributes, "transpose_lhs_hint") != nullptr;
  return FirstOf(
      {Unless(IsFloat(lhs.element) && IsFloat(rhs.element), "operands that are no floats"),
       Unless(lhs.dims[static_cast<size_t>(l)] == rhs.dims[static_cast<size_t>(r)], "sides that do not meet"),
       Unless(
           to == VectorOf(Element::kF32, {lhs.dims[static_cast<size_t>(1 - l)], rhs.dims[static_cast<size_t>(1 - r)]}),
           "a result that is not f32 of the sides' own axes"),
       Unless(context.function.TypeOf(op.operands[2]) == to, "an accumulator that is not of the result's type"),
       Unless(IsFalse(op, "transpose_lhs") && IsFalse(op, "transpose_rhs"), "transposition by attribute"),
       Unless(has_hint == (context.version >= kFirstHintVersion),
              "transpose_lhs_hint, which versions from 13 on have and older ones have not"),
       Unless(!has_hint || IsFalse(op, "transpose_lhs_hint"), "a transposition hint"),
       Unless(precision == nullptr || precision->text == "tpu.contract_precision<fp32>" ||
                  precision->text == "tpu.contract_precision<bf16>",
              "a precision that is neither bf16 nor fp32"),
       Unless(precision == nullptr || (lhs.element == Element::kF32 && rhs.element == Element::kF32),
              "a precision for operands of bf16")});
}

std::string CheckConcatenate(const OpContext& context, const Op& op) {
  const Attribute* dimension = Find(op.attributes, "dimension");
  if (op.operands.empty() || op.results.size() != 1) return "nothing to concatenate";
  Type sum = context.function.TypeOf(op.operands[0]);
  if (dimension == nullptr || dimension->kind != AttributeKind::kInteger || !sum.IsVector() || dimension->integer < 0 ||
      dimension->integer >= sum.rank()) {
    return "a concatenation along an axis that is not there";
  }
  const auto axis = static_cast<size_t>(dimension->integer);
  for (size_t at = 1; at < op.operands.size(); ++at) {
    Type part = context.function.TypeOf(op.operands[at]);
    if (part.rank() != sum.rank()) return "parts that do not fit together";
    sum.dims[axis] += part.dims[axis];
    part.dims[axis] = sum.dims[axis];
    if (part != sum) return "parts that do not fit together";
  }
  return FirstOf({Unless(context.function.TypeOf(op.results[0]) == sum, "a result that is not the sum of its parts")});
}

std::string CheckTranspose(const OpContext& context, const Op& op) {
  const Type& from = context.function.TypeOf(op.operands[0]);
  std::vector<int64_t> axes = IntegersOf(op, "permutation");
  if (!from.IsVector() || axes.size() != from.dims.size()) return "a permutation of other than the vector's axes";
  Type to = from;
  for (size_t at = 0; at < axes.size(); ++at) {
    if (axes[at] < 0 || axes[at] >= from.rank()) return "a permutation of other than the vector's axes";
    to.dims[at] = from.dims[static_cast<size_t>(axes[at])];
  }
  std::ranges::sort(axes);
  for (size_t at = 0; at < axes.size(); ++at) {
    if (axes[at] != static_cast<int64_t>(at)) return "a permutation that names an axis twice";
  }
  return FirstOf({Unless(context.function.TypeOf(op.results[0]) == to, "a result that is not the vector transposed")});
}

std::string CheckRotate(const OpContext& context, const Op& op) {
  const Type& from = context.function.TypeOf(op.operands[0]);
  const Attribute* dimension = Find(op.attributes, "dimension");
  return FirstOf(
      {Unless(from.IsVector() && context.function.TypeOf(op.results[0]) == from, "a result of another type"),
       Unless(context.function.TypeOf(op.operands[1]) == ScalarOf(Element::kI32), "an amount that is not i32"),
       Unless(dimension != nullptr && dimension->kind == AttributeKind::kInteger && dimension->is_signed &&
                  dimension->integer >= 0 && dimension->integer < from.rank(),
              "an axis that is not there, or not si32")});
}

}  // namespace

std::string CheckVectorOp(const OpContext& context, const Op& op) {
  switch (FormOf(op.code)) {
    case Form::kShapeCast: {
      const Type& from = context.function.TypeOf(op.operands[0]);
      const Type& to = context.function.TypeOf(op.results[0]);
      return FirstOf(
          {Unless(from.IsVector() && to.IsVector() && from.element == to.element, "a cast between these types"),
           Unless(NumElements(from) == NumElements(to), "a cast to another number of elements")});
    }
    case Form::kBroadcast:
      return CheckBroadcast(context.function.TypeOf(op.operands[0]), context.function.TypeOf(op.results[0]));
    case Form::kMultiReduction:
      return CheckReduction(context, op);
    case Form::kExtractStridedSlice:
      return CheckSlice(context, op);
    case Form::kExtract:
      return CheckExtract(context, op);
    case Form::kMatmul:
      return CheckMatmul(context, op);
    case Form::kConcatenate:
      return CheckConcatenate(context, op);
    case Form::kTranspose:
      return CheckTranspose(context, op);
    case Form::kDynamicRotate:
      return CheckRotate(context, op);
    default: {  // kIota
      const Type& type = context.function.TypeOf(op.results[0]);
      const std::vector<int64_t> axes = IntegersOf(op, "dimensions");
      return FirstOf({Unless(type.IsVector() && type.element == Element::kI32, "a result that is not i32"),
                      Unless(type.rank() >= 2, "a vector with fewer than two axes"),
                      Unless(axes.size() == 1 && axes[0] >= 0 && axes[0] < type.rank(), "an axis that is not there")});
    }
  }
}

}  // namespace tessera::mosaic
