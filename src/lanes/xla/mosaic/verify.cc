// The module: values before their uses, terminators, functions against what the kernel says of them. See verify.h; the
// rules of single operations are in verify_op.cc and its siblings.
#include "lanes/xla/mosaic/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/try.h"
#include "lanes/xla/mosaic/print.h"
#include "lanes/xla/mosaic/signature.h"
#include "lanes/xla/mosaic/verify_op.h"

namespace tessera::mosaic {
namespace {

constexpr int64_t kLastVersion = 18;                       // that libtpu 0.0.51 takes
constexpr int64_t kMostVectorElements = int64_t{1} << 25;  // all of the largest vector memory, in words

std::string WrongType(const Type& type) {
  for (const int64_t dim : type.dims) {
    if (dim < 1) return "an axis of nothing";
  }
  if (type.element == Element::kI64) return "integers of 64 bits, which a TPU core has not";
  const bool is_semaphore = type.element == Element::kSemaphore || type.element == Element::kDmaSemaphore;
  if (type.IsMemref()) {
    if (type.element == Element::kIndex || type.element == Element::kI1) return "memory of index or i1";
    if (is_semaphore != (type.space == Space::kSemaphore))
      return "semaphores in another memory, or another thing in theirs";
    return {};
  }
  if (is_semaphore) return "a semaphore that is no memref";
  if (type.IsVector() && type.element == Element::kIndex) return "a vector of index";
  if (type.IsVector() && type.dims.empty()) return "a vector without axes";
  if (NumElements(type) > kMostVectorElements) return "a vector larger than vector memory";
  return {};
}

class FunctionVerifier {
 public:
  FunctionVerifier(const Module& module, const Function& function, const std::vector<int64_t>& grid)
      : module_(module),
        function_(function),
        facts_(function),
        is_defined_(function.values.size(), false),
        grid_(grid) {}

  Status Run() {
    for (const ValueInfo& value : function_.values) {
      if (std::string wrong = WrongType(value.type); !wrong.empty()) {
        return Fail(ErrorCode::kKernelInvalid, fmt::format("{}: {}", ToText(value.type), wrong), Where());
      }
    }
    for (size_t at = 0; at < grid_.size() && at < function_.body.arguments.size(); ++at) {
      if (grid_[at] == kDynamicBound) continue;
      if (IsValue(function_.body.arguments[at])) facts_.Set(function_.body.arguments[at], {0, grid_[at] - 1, true, 1});
    }
    return OneRegion(function_.body, OpCode::kReturn);
  }

 private:
  std::string Where() const { return fmt::format("function {}", function_.Name()); }

  tl::unexpected<Error> Invalid(const Op& op, const std::string& wrong) const {
    return Fail(ErrorCode::kKernelInvalid, fmt::format("{}, in {}", wrong, Print(function_, op)), Where());
  }

  bool IsValue(ValueId value) const { return value >= 0 && static_cast<size_t>(value) < is_defined_.size(); }

  bool Define(ValueId value) {
    if (!IsValue(value) || !ever_.insert(value).second) return false;
    is_defined_[static_cast<size_t>(value)] = true;
    return true;
  }

  static OpCode TerminatorOf(const Op& op, size_t region) {
    return op.code == OpCode::kWhile && region == 0 ? OpCode::kCondition : OpCode::kYield;
  }

  Status OneRegion(const Region& region, OpCode terminator) {
    std::vector<ValueId> defined;
    for (const ValueId argument : region.arguments) {
      if (!Define(argument)) return Fail(ErrorCode::kKernelInvalid, "an argument is defined twice", Where());
      defined.push_back(argument);
    }
    if (region.ops.empty()) return Fail(ErrorCode::kKernelInvalid, "a region without a terminator", Where());
    for (const Op& op : region.ops) {
      for (const ValueId operand : op.operands) {
        if (!IsValue(operand)) return Fail(ErrorCode::kKernelInvalid, "an operand that is no value", Where());
        if (!is_defined_[static_cast<size_t>(operand)]) return Invalid(op, "a value is used where it is not defined");
      }
      for (const ValueId result : op.results) {
        if (!IsValue(result)) return Fail(ErrorCode::kKernelInvalid, "a result that is no value", Where());
      }
      if ((op.code == terminator) != (&op == &region.ops.back()))
        return Invalid(op, "a terminator that is not the last, or another");
      if (FormOf(op.code) == Form::kTerminator && op.code != terminator)
        return Invalid(op, "a terminator of another region");
      if (std::string wrong = CheckOp({function_, facts_, module_.version}, op); !wrong.empty())
        return Invalid(op, wrong);
      if (op.code == OpCode::kFor) LearnRounds(op);
      for (size_t at = 0; at < op.regions.size(); ++at) TESSERA_TRY(OneRegion(op.regions[at], TerminatorOf(op, at)));
      for (const ValueId result : op.results) {
        if (!Define(result)) return Invalid(op, "a value is defined twice");
        defined.push_back(result);
      }
      facts_.Learn(function_, op);
    }
    for (const ValueId value : defined) is_defined_[static_cast<size_t>(value)] = false;
    return {};
  }

  void LearnRounds(const Op& op) {
    const Fact& begin = facts_.Of(op.operands[0]);
    const Fact& end = facts_.Of(op.operands[1]);
    const Fact& step = facts_.Of(op.operands[2]);
    facts_.Set(op.regions[0].arguments[0], {.low = begin.low,
                                            .high = std::max(begin.low, end.high - 1),
                                            .is_known = begin.is_known && end.is_known && step.is_known && step.low > 0,
                                            .multiple = std::gcd(begin.multiple, step.multiple)});
  }

  const Module& module_;
  const Function& function_;
  Facts facts_;
  std::vector<bool> is_defined_;  // here and now
  std::set<ValueId> ever_;
  const std::vector<int64_t>& grid_;
};

// The type that a function says it has, against what it is.
Status CheckFunctionType(const Function& function) {
  const Attribute* type = Find(function.attributes, "function_type");
  const auto invalid = [&](const char* wrong) {
    return Fail(ErrorCode::kKernelInvalid, wrong, fmt::format("function {}", function.Name()));
  };
  if (type == nullptr || type->kind != AttributeKind::kFunctionType) return invalid("no function_type");
  std::vector<Type> arguments;
  std::vector<Type> results;
  for (const ValueId argument : function.body.arguments) arguments.push_back(function.TypeOf(argument));
  for (const ValueId result : function.body.ops.back().operands) results.push_back(function.TypeOf(result));
  if (type->types != arguments) return invalid("a function_type with other arguments");
  if (type->results != results) return invalid("a function_type with other results");
  return {};
}

Status CheckIndexMap(const Signature& signature, const WindowInfo& window, size_t at) {
  const Function& map = *window.index_map;
  std::vector<Type> expected(signature.grid.size(), ScalarOf(Element::kI32));
  expected.insert(expected.end(), signature.scalars.begin(), signature.scalars.end());
  std::vector<Type> arguments;
  for (const ValueId argument : map.body.arguments) arguments.push_back(map.TypeOf(argument));
  const std::string where = fmt::format("function {}", map.Name());
  if (arguments != expected) {
    return Fail(ErrorCode::kKernelInvalid,
                fmt::format("the index map of window {} takes other arguments than the grid and the scalars", at),
                where);
  }
  const std::vector<ValueId>& given = map.body.ops.back().operands;
  if (static_cast<int64_t>(given.size()) != window.memref.rank()) {
    return Fail(
        ErrorCode::kKernelInvalid,
        fmt::format("the index map of window {} gives {} indices for {}", at, given.size(), ToText(window.memref)),
        where);
  }
  for (const ValueId index : given) {
    if (map.TypeOf(index) != ScalarOf(Element::kI32))
      return Fail(ErrorCode::kKernelInvalid, "an index map gives other than i32", where);
  }
  return {};
}

Status CheckSemantics(const Function& kernel, size_t num_axes) {
  const Attribute* semantics = Find(kernel.attributes, "dimension_semantics");
  if (semantics == nullptr) return {};
  bool is_right = semantics->kind == AttributeKind::kList && semantics->items.size() == num_axes;
  for (const Attribute& item : semantics->items) {
    is_right &= item.text == "tpu.dimension_semantics<parallel>" || item.text == "tpu.dimension_semantics<arbitrary>";
  }
  if (!is_right)
    return Fail(ErrorCode::kKernelInvalid, "dimension_semantics is not one of parallel and arbitrary per grid axis",
                "kernel");
  return {};
}

}  // namespace

Status VerifyModule(const Module& module) {
  if (module.version < 1 || module.version > kLastVersion) {
    return Fail(ErrorCode::kKernelInvalid,
                fmt::format("version {} of the dialect: 1 to {} are known", module.version, kLastVersion));
  }
  std::set<std::string_view> names;
  for (const Function& function : module.functions) {
    if (function.Name().empty() || !names.insert(function.Name()).second) {
      return Fail(ErrorCode::kKernelInvalid,
                  fmt::format("two functions are called '{}', or one is called nothing", function.Name()));
    }
  }
  const Signature signature = TESSERA_TRY(ReadSignature(module));
  for (const Function& function : module.functions) {
    TESSERA_TRY(FunctionVerifier(module, function, signature.grid).Run());
    TESSERA_TRY(CheckFunctionType(function));
  }
  if (!module.functions.front().body.ops.back().operands.empty()) {
    return Fail(ErrorCode::kKernelInvalid, "a kernel that returns something", "kernel");
  }
  for (size_t at = 0; at < signature.windows.size(); ++at) {
    const WindowInfo& window = signature.windows[at];
    if (window.index_map != nullptr) TESSERA_TRY(CheckIndexMap(signature, window, at));
    const bool is_copied = window.memref.space == Space::kHbm || window.memref.space == Space::kAny;
    if (!signature.grid.empty() && is_copied && window.index_map != nullptr) {
      return Fail(ErrorCode::kKernelInvalid,
                  fmt::format("window {} moves over {}, which only copies may touch", at, ToText(window.memref)),
                  "kernel");
    }
  }
  return CheckSemantics(module.functions.front(), signature.grid.size());
}

}  // namespace tessera::mosaic
