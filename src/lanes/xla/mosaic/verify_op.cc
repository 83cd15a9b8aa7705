// The rules of what works element by element.
#include "lanes/xla/mosaic/verify_op.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::mosaic {
namespace {

constexpr int64_t kNumIntPredicates = 10;
constexpr int64_t kNumFloatPredicates = 16;

std::string CheckConstant(const OpContext& context, const Op& op) {
  const Type& type = context.function.TypeOf(op.results[0]);
  const Attribute* value = Find(op.attributes, "value");
  if (value == nullptr) return "a constant without a value";
  if (type.IsMemref()) return "a constant in memory";
  if (type.IsVector()) {
    return FirstOf({Unless(value->kind == AttributeKind::kSplat && value->types.size() == 1 && value->types[0] == type,
                           "a value that is not of the result's type")});
  }
  const AttributeKind kind = IsFloat(type.element)          ? AttributeKind::kReal
                             : type.element == Element::kI1 ? AttributeKind::kBool
                                                            : AttributeKind::kInteger;
  return FirstOf({Unless(value->kind == kind && !value->is_signed, "a value that is not of the result's type"),
                  Unless(kind == AttributeKind::kBool || value->element == type.element,
                         "a value that is not of the result's type")});
}

std::string CheckCompare(const OpContext& context, const Op& op, bool of_floats) {
  const Type& type = context.function.TypeOf(op.operands[0]);
  const Attribute* predicate = Find(op.attributes, "predicate");
  const int64_t most = of_floats ? kNumFloatPredicates : kNumIntPredicates;
  return FirstOf({Unless(context.function.TypeOf(op.operands[1]) == type, "operands of two types"),
                  Unless(of_floats ? IsFloat(type.element) : IsInteger(type.element), "operands of another kind"),
                  Unless(context.function.TypeOf(op.results[0]) == WithElement(type, Element::kI1),
                         "a result that is not i1 of the operands' shape"),
                  Unless(predicate != nullptr && predicate->kind == AttributeKind::kInteger &&
                             predicate->integer >= 0 && predicate->integer < most,
                         "a predicate that is not there")});
}

std::string CheckSelect(const OpContext& context, const Op& op) {
  const Type& condition = context.function.TypeOf(op.operands[0]);
  const Type& type = context.function.TypeOf(op.results[0]);
  return FirstOf(
      {Unless(condition.element == Element::kI1 && !condition.IsMemref(), "a condition that is not i1"),
       Unless(condition.IsScalar() || condition == WithElement(type, Element::kI1),
              "a condition of another shape than the result"),
       Unless(context.function.TypeOf(op.operands[1]) == type && context.function.TypeOf(op.operands[2]) == type,
              "operands that are not of the result's type")});
}

bool Converts(OpCode code, Element from, Element to) {
  const bool narrows = BitsOf(to) < BitsOf(from) || to == Element::kI1;
  switch (code) {
    case OpCode::kExtF:
      return from == Element::kBf16 && to == Element::kF32;
    case OpCode::kTruncF:
      return from == Element::kF32 && to == Element::kBf16;
    case OpCode::kExtSI:
    case OpCode::kExtUI:
      return IsInteger(from) && IsInteger(to) && from != to && to != Element::kI1 && to != Element::kIndex &&
             from != Element::kIndex && (BitsOf(to) > BitsOf(from) || from == Element::kI1);
    case OpCode::kTruncI:
      return IsInteger(from) && IsInteger(to) && from != to && from != Element::kIndex && to != Element::kIndex &&
             narrows;
    case OpCode::kSIToFP:
      return IsInteger(from) && from != Element::kIndex && from != Element::kI1 && IsFloat(to);
    case OpCode::kFPToSI:
      return IsFloat(from) && IsInteger(to) && to != Element::kIndex && to != Element::kI1;
    default:  // kIndexCast
      return IsInteger(from) && IsInteger(to) && (from == Element::kIndex) != (to == Element::kIndex);
  }
}

std::string CheckElementwise(const OpContext& context, const Op& op, bool of_floats) {
  const Type& type = context.function.TypeOf(op.results[0]);
  for (const ValueId operand : op.operands) {
    if (context.function.TypeOf(operand) != type) return "operands and result of different types";
  }
  return FirstOf({Unless(!type.IsMemref(), "arithmetic on a memref"),
                  Unless(of_floats ? IsFloat(type.element) : IsInteger(type.element), "operands of another kind")});
}

struct Arity {
  size_t operands;
  size_t results;
};

std::optional<Arity> ArityOf(Form form) {
  switch (form) {
    case Form::kConstant:
    case Form::kIota:
      return Arity{0, 1};
    case Form::kUnaryFloat:
    case Form::kConvert:
    case Form::kBitcast:
    case Form::kShapeCast:
    case Form::kBroadcast:
    case Form::kExtractStridedSlice:
    case Form::kExtract:
    case Form::kTranspose:
    case Form::kAssumeMultiple:
    case Form::kMemrefSqueeze:
      return Arity{1, 1};
    case Form::kBinaryFloat:
    case Form::kBinaryInt:
    case Form::kCompareInt:
    case Form::kCompareFloat:
    case Form::kMultiReduction:
    case Form::kDynamicRotate:
      return Arity{2, 1};
    case Form::kSelect:
    case Form::kMatmul:
      return Arity{3, 1};
    case Form::kEnqueueDma:
    case Form::kWaitDma:
      return Arity{3, 0};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string CheckOp(const OpContext& context, const Op& op) {
  const Form form = FormOf(op.code);
  if (const std::optional<Arity> arity = ArityOf(form)) {
    if (op.operands.size() != arity->operands || op.results.size() != arity->results) {
      return fmt::format("{} operands and {} results", op.operands.size(), op.results.size());
    }
  }
  const bool has_regions = form == Form::kIf || form == Form::kFor || form == Form::kWhile;
  if (!has_regions && !op.regions.empty()) return "a region where there is none";
  switch (form) {
    case Form::kConstant:
      return CheckConstant(context, op);
    case Form::kBinaryFloat:
    case Form::kUnaryFloat:
      return CheckElementwise(context, op, true);
    case Form::kBinaryInt:
      return CheckElementwise(context, op, false);
    case Form::kCompareInt:
    case Form::kCompareFloat:
      return CheckCompare(context, op, form == Form::kCompareFloat);
    case Form::kSelect:
      return CheckSelect(context, op);
    case Form::kConvert: {
      const Type& from = context.function.TypeOf(op.operands[0]);
      const Type& to = context.function.TypeOf(op.results[0]);
      return FirstOf(
          {Unless(!from.IsMemref() && WithElement(from, to.element) == to, "another shape than its operand's"),
           Unless(Converts(op.code, from.element, to.element), "a conversion between these types")});
    }
    case Form::kBitcast: {
      const Type& from = context.function.TypeOf(op.operands[0]);
      const Type& to = context.function.TypeOf(op.results[0]);
      const auto is_word = [](Element element) { return element == Element::kF32 || element == Element::kI32; };
      return FirstOf(
          {Unless(!from.IsMemref() && WithElement(from, to.element) == to, "another shape than its operand's"),
           Unless(is_word(from.element) && is_word(to.element), "a bitcast of other than 32 bits")});
    }
    case Form::kAssumeMultiple: {
      const Type& type = context.function.TypeOf(op.operands[0]);
      const Attribute* multiple = Find(op.attributes, "multiple");
      return FirstOf(
          {Unless(type.IsScalar() && IsInteger(type.element) && context.function.TypeOf(op.results[0]) == type,
                  "a multiple of what is no integer"),
           Unless(multiple != nullptr && multiple->kind == AttributeKind::kInteger && multiple->integer > 0 &&
                      multiple->integer < (int64_t{1} << 20),
                  "a multiple that is not there")});
    }
    case Form::kVectorLoad:
    case Form::kVectorStore:
    case Form::kScalarLoad:
    case Form::kScalarStore:
    case Form::kMemrefSlice:
    case Form::kMemrefSqueeze:
    case Form::kEnqueueDma:
    case Form::kWaitDma:
      return CheckMemoryOp(context, op);
    case Form::kIf:
    case Form::kFor:
    case Form::kWhile:
    case Form::kTerminator:
      return CheckControlOp(context, op);
    default:
      return CheckVectorOp(context, op);
  }
}

}  // namespace tessera::mosaic
