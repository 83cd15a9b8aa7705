// Builder: values, regions and what works element by element. Vectors and memory are in builder_vector.cc.
#include "lanes/xla/mosaic/builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::mosaic {
namespace {

Attribute NoFastMath() { return DialectAttribute("arith.fastmath<none>"); }

// What the operation carries besides its operands, at its defaults.
Attributes DefaultsOf(OpCode code) {
  switch (code) {
    case OpCode::kAddI:
    case OpCode::kSubI:
    case OpCode::kMulI:
    case OpCode::kShlI:
      return {{"overflowFlags", DialectAttribute("arith.overflow<none>")}};
    case OpCode::kReciprocal:
      return {{"approx", BoolAttribute(false)}, {"full_range", BoolAttribute(true)}};
    default:
      break;
  }
  const Form form = FormOf(code);
  if (form == Form::kBinaryFloat || form == Form::kUnaryFloat) return {{"fastmath", NoFastMath()}};
  return {};
}

}  // namespace

Builder::Builder(std::vector<Type> arguments, int64_t version) : version_(version) {
  open_.emplace_back();
  constants_.emplace_back();
  for (const Type& type : arguments) open_.back().arguments.push_back(NewValue(type).id);
}

Value Builder::Argument(size_t at) const {
  const ValueId id = open_.front().arguments[at];
  return {id, function_.TypeOf(id)};
}

void Builder::Mistake(std::string text) {
  if (mistake_.empty()) mistake_ = std::move(text);
}

OpCode Builder::OfKind(const Value& a, OpCode of_floats, OpCode of_integers) {
  return IsFloat(a.type.element) ? of_floats : of_integers;
}

Value Builder::NewValue(const Type& type) {
  function_.values.push_back({type, {}});
  return {static_cast<ValueId>(function_.values.size()) - 1, type};
}

Value Builder::Emit(OpCode code, std::span<const Value> operands, const Type& type, Attributes attributes) {
  Op op{.code = code, .operands = {}, .results = {}, .attributes = std::move(attributes), .regions = {}};
  for (const Value& operand : operands) {
    if (operand.id < 0) Mistake(fmt::format("{} is given a value that does not exist", ToText(code)));
    op.operands.push_back(std::max<ValueId>(operand.id, 0));
  }
  const Value result = NewValue(type);
  op.results.push_back(result.id);
  open_.back().ops.push_back(std::move(op));
  return result;
}

Value Builder::Emit(OpCode code, std::initializer_list<Value> operands, const Type& type, Attributes attributes) {
  return Emit(code, std::span<const Value>(operands.begin(), operands.size()), type, std::move(attributes));
}

void Builder::EmitNone(OpCode code, const Values& operands, Attributes attributes) {
  Op op{.code = code, .operands = {}, .results = {}, .attributes = std::move(attributes), .regions = {}};
  for (const Value& operand : operands) {
    if (operand.id < 0) Mistake(fmt::format("{} is given a value that does not exist", ToText(code)));
    op.operands.push_back(std::max<ValueId>(operand.id, 0));
  }
  open_.back().ops.push_back(std::move(op));
}

Values Builder::EmitRegions(OpCode code, const Values& operands, std::vector<Region> regions,
                            const std::vector<Type>& types) {
  EmitNone(code, operands, {});
  Op& op = open_.back().ops.back();
  op.regions = std::move(regions);
  Values results;
  for (const Type& type : types) {
    results.push_back(NewValue(type));
    op.results.push_back(results.back().id);
  }
  return results;
}

Value Builder::Constant(const Type& type, double value) {
  Attribute attribute;
  if (!type.IsScalar()) {
    attribute = SplatAttribute(value, type);
  } else if (IsFloat(type.element)) {
    attribute = RealAttribute(value, type.element);
  } else if (type.element == Element::kI1) {
    attribute = BoolAttribute(value != 0);
  } else {
    attribute = IntegerAttribute(static_cast<int64_t>(value), type.element);
  }
  const std::string text = ToText(attribute);
  for (const auto& known : constants_) {
    if (const auto it = known.find(text); it != known.end()) return it->second;
  }
  const Value constant = Emit(OpCode::kConstant, {}, type, {{"value", std::move(attribute)}});
  constants_.back().emplace(text, constant);
  return constant;
}

Value Builder::Unary(OpCode code, const Value& x) { return Emit(code, {x}, x.type, DefaultsOf(code)); }

bool Builder::Spread(Value& a, Value& b) {
  if (a.type == b.type) return true;
  const bool fits = a.type.element == b.type.element && !a.type.IsMemref() && !b.type.IsMemref();
  if (fits && a.type.IsScalar() && b.type.IsVector()) {
    a = Broadcast(a, b.type.dims);
  } else if (fits && b.type.IsScalar() && a.type.IsVector()) {
    b = Broadcast(b, a.type.dims);
  } else {
    Mistake(fmt::format("{} and {} do not fit together", ToText(a.type), ToText(b.type)));
    return false;
  }
  return true;
}

Value Builder::Binary(OpCode code, const Value& a, const Value& b) {
  Value lhs = a;
  Value rhs = b;
  if (!Spread(lhs, rhs)) return a;
  return Emit(code, {lhs, rhs}, lhs.type, DefaultsOf(code));
}

Value Builder::Reciprocal(const Value& x, bool is_approximate) {
  return Emit(OpCode::kReciprocal, {x}, x.type,
              {{"approx", BoolAttribute(is_approximate)}, {"full_range", BoolAttribute(true)}});
}

Value Builder::Is(Compare how, const Value& a, const Value& b) {
  Value lhs = a;
  Value rhs = b;
  if (!Spread(lhs, rhs)) return a;
  const Type type = WithElement(lhs.type, Element::kI1);
  if (!IsFloat(lhs.type.element)) {
    return Emit(OpCode::kCmpI, {lhs, rhs}, type,
                {{"predicate", IntegerAttribute(static_cast<int64_t>(how), Element::kI64)}});
  }
  // Of floats: oeq, une, olt, ole, ogt, oge, by MLIR's numbers.
  static constexpr int64_t kPredicates[] = {1, 13, 4, 5, 2, 3};
  return Emit(OpCode::kCmpF, {lhs, rhs}, type,
              {{"fastmath", NoFastMath()},
               {"predicate", IntegerAttribute(kPredicates[static_cast<size_t>(how)], Element::kI64)}});
}

Value Builder::Select(const Value& condition, const Value& then, const Value& otherwise) {
  Value a = then;
  Value b = otherwise;
  if (!Spread(a, b)) return then;
  if (condition.type.IsVector() && a.type.IsScalar()) {
    a = Broadcast(a, condition.type.dims);
    b = Broadcast(b, condition.type.dims);
  }
  return Emit(OpCode::kSelect, {condition, a, b}, a.type);
}

Value Builder::Convert(const Value& x, Element to) {
  const Element from = x.type.element;
  if (from == to) return x;
  const Type type = WithElement(x.type, to);
  if (from == Element::kIndex || to == Element::kIndex) return Emit(OpCode::kIndexCast, {x}, type);
  if (IsFloat(from) && IsFloat(to)) {
    return Emit(to == Element::kF32 ? OpCode::kExtF : OpCode::kTruncF, {x}, type);
  }
  if (IsFloat(to)) {
    const Value wide = from == Element::kI32 ? x : Convert(x, Element::kI32);
    return Emit(OpCode::kSIToFP, {wide}, type);
  }
  if (IsFloat(from)) return Emit(OpCode::kFPToSI, {x}, type);
  if (from == Element::kI1) return Emit(OpCode::kExtUI, {x}, type);
  // To a boolean: trunci would keep the lowest bit only.
  if (to == Element::kI1) return Is(Compare::kNe, x, Constant(ScalarOf(from), 0));
  return Emit(BitsOf(to) > BitsOf(from) ? OpCode::kExtSI : OpCode::kTruncI, {x}, type);
}

Value Builder::Bitcast(const Value& x, Element to) {
  return Emit(x.type.IsVector() ? OpCode::kBitcast : OpCode::kArithBitcast, {x}, WithElement(x.type, to));
}

Region Builder::InRegion(std::span<const Type> arguments, const std::function<Values(const Values&)>& body,
                         OpCode terminator) {
  open_.emplace_back();
  constants_.emplace_back();
  Values values;
  for (const Type& type : arguments) {
    values.push_back(NewValue(type));
    open_.back().arguments.push_back(values.back().id);
  }
  const Values results = body(values);
  EmitNone(terminator, results, {});
  Region region = std::move(open_.back());
  open_.pop_back();
  constants_.pop_back();
  return region;
}

Values Builder::If(const Value& condition, const Branch& then, const Branch& otherwise) {
  std::vector<Type> types;
  const auto branch = [&](const Branch& body, bool is_first) {
    return InRegion(
        {},
        [&](const Values&) {
          Values results = body();
          std::vector<Type> own;
          for (const Value& result : results) own.push_back(result.type);
          if (is_first) {
            types = own;
          } else if (types != own) {
            Mistake("the branches of scf.if give values of different types");
          }
          return results;
        },
        OpCode::kYield);
  };
  std::vector<Region> regions;
  regions.push_back(branch(then, true));
  regions.push_back(branch(otherwise, false));
  return EmitRegions(OpCode::kIf, {condition}, std::move(regions), types);
}

void Builder::When(const Value& condition, const std::function<void()>& then) {
  If(
      condition,
      [&] {
        then();
        return Values();
      },
      [] { return Values(); });
}

Values Builder::For(const Value& begin, const Value& end, const Value& step, const Values& init, const LoopBody& body) {
  std::vector<Type> carried;
  for (const Value& value : init) carried.push_back(value.type);
  std::vector<Type> arguments = carried;
  arguments.insert(arguments.begin(), begin.type);
  std::vector<Region> regions;
  regions.push_back(InRegion(
      arguments, [&](const Values& values) { return body(values[0], Values(values.begin() + 1, values.end())); },
      OpCode::kYield));
  Values operands = {begin, end, step};
  operands.insert(operands.end(), init.begin(), init.end());
  return EmitRegions(OpCode::kFor, operands, std::move(regions), carried);
}

Values Builder::While(const Values& init, const std::function<Value(const Values&)>& condition, const Body& body) {
  std::vector<Type> carried;
  for (const Value& value : init) carried.push_back(value.type);
  std::vector<Region> regions;
  regions.push_back(InRegion(
      carried,
      [&](const Values& values) {
        Values operands = {condition(values)};
        operands.insert(operands.end(), values.begin(), values.end());
        return operands;
      },
      OpCode::kCondition));
  regions.push_back(InRegion(carried, body, OpCode::kYield));
  return EmitRegions(OpCode::kWhile, init, std::move(regions), carried);
}

Function Builder::Finish(std::string name, const Values& results, Attributes attributes) {
  EmitNone(OpCode::kReturn, results, {});
  std::vector<Type> types;
  std::vector<Type> result_types;
  for (const ValueId argument : open_.front().arguments) types.push_back(function_.TypeOf(argument));
  for (const Value& result : results) result_types.push_back(result.type);
  function_.attributes = std::move(attributes);
  Set(function_.attributes, "sym_name", TextAttribute(std::move(name)));
  Set(function_.attributes, "function_type", FunctionTypeAttribute(std::move(types), std::move(result_types)));
  function_.body = std::move(open_.front());
  return std::move(function_);
}

}  // namespace tessera::mosaic
