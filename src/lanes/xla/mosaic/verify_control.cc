// The rules of control: regions, what they are given and what they give.
#include <span>

#include "lanes/xla/mosaic/verify_op.h"

namespace tessera::mosaic {
namespace {

std::vector<Type> TypesOf(const Function& function, std::span<const ValueId> values) {
  std::vector<Type> types;
  types.reserve(values.size());
  for (const ValueId value : values) types.push_back(function.TypeOf(value));
  return types;
}

const Op* Terminator(const Region& region, OpCode code) {
  return region.ops.empty() || region.ops.back().code != code ? nullptr : &region.ops.back();
}

std::string CheckIf(const OpContext& context, const Op& op) {
  if (op.operands.size() != 1 || context.function.TypeOf(op.operands[0]) != ScalarOf(Element::kI1)) {
    return "a condition that is not one i1";
  }
  if (op.regions.size() != 2) return "other than two regions";
  const std::vector<Type> types = TypesOf(context.function, op.results);
  for (const Region& region : op.regions) {
    const Op* yield = Terminator(region, OpCode::kYield);
    if (!region.arguments.empty()) return "a branch with arguments";
    if (yield == nullptr) return "a branch that does not end in scf.yield";
    if (TypesOf(context.function, yield->operands) != types) return "a branch that gives other types than the results";
  }
  return {};
}

std::string CheckFor(const OpContext& context, const Op& op) {
  if (op.operands.size() < 3 || op.regions.size() != 1) return "no bounds, or no body";
  const std::vector<Type> operands = TypesOf(context.function, op.operands);
  const std::vector<Type> carried(operands.begin() + 3, operands.end());
  if (operands[0] != ScalarOf(Element::kI32) || operands[1] != operands[0] || operands[2] != operands[0]) {
    return "bounds that are not i32";
  }
  std::vector<Type> arguments = carried;
  arguments.insert(arguments.begin(), operands[0]);
  const Region& body = op.regions[0];
  const Op* yield = Terminator(body, OpCode::kYield);
  if (yield == nullptr) return "a body that does not end in scf.yield";
  return FirstOf(
      {Unless(TypesOf(context.function, body.arguments) == arguments, "a body with other arguments than are carried"),
       Unless(TypesOf(context.function, yield->operands) == carried, "a body that gives other types than are carried"),
       Unless(TypesOf(context.function, op.results) == carried, "results of other types than are carried")});
}

std::string CheckWhile(const OpContext& context, const Op& op) {
  if (op.regions.size() != 2) return "other than two regions";
  const std::vector<Type> carried = TypesOf(context.function, op.operands);
  const std::vector<Type> results = TypesOf(context.function, op.results);
  const Op* condition = Terminator(op.regions[0], OpCode::kCondition);
  const Op* yield = Terminator(op.regions[1], OpCode::kYield);
  if (condition == nullptr || yield == nullptr) return "regions that do not end in scf.condition and scf.yield";
  const std::vector<Type> given = TypesOf(context.function, condition->operands);
  if (given.empty() || given[0] != ScalarOf(Element::kI1)) return "a condition that is not i1";
  return FirstOf(
      {Unless(TypesOf(context.function, op.regions[0].arguments) == carried, "other arguments than are carried"),
       Unless(std::vector<Type>(given.begin() + 1, given.end()) == results, "a condition that gives other types"),
       Unless(TypesOf(context.function, op.regions[1].arguments) == results, "a body with other arguments"),
       Unless(TypesOf(context.function, yield->operands) == carried, "a body that gives other types")});
}

}  // namespace

std::string CheckControlOp(const OpContext& context, const Op& op) {
  switch (FormOf(op.code)) {
    case Form::kIf:
      return CheckIf(context, op);
    case Form::kFor:
      return CheckFor(context, op);
    case Form::kWhile:
      return CheckWhile(context, op);
    default:
      return FirstOf({Unless(op.results.empty(), "a terminator with results")});
  }
}

}  // namespace tessera::mosaic
