// A builder's calls: of TPU kernels, of functions of this process, of other programs; and rows of tables.
#include <fmt/format.h>

#include <algorithm>

#include "lanes/xla/stablehlo/builder.h"
#include "lanes/xla/stablehlo/builder_text.h"

namespace tessera::stablehlo {
namespace {

// Row-major for each of them: a compiler left alone may lie some the other way round.
std::string LayoutsOf(const std::vector<Type>& types) {
  std::string text;
  for (const Type& type : types) {
    std::string axes;
    for (size_t i = type.dims.size(); i-- > 0;) axes += fmt::format("{}{}", axes.empty() ? "" : ", ", i);
    text += fmt::format("{}dense<[{}]> : tensor<{}xindex>", text.empty() ? "" : ", ", axes, type.dims.size());
  }
  return text;
}

// As the text form writes a string: quotes by their number.
std::string Quoted(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '"' ? std::string("\\22") : std::string(1, c);
  return out;
}

std::vector<Type> TypesOf(const Values& values) {
  std::vector<Type> types;
  for (const Value& value : values) types.push_back(value.type);
  return types;
}

std::string List(const std::vector<Type>& types) {
  std::string text;
  for (const Type& type : types) text += (text.empty() ? "" : ", ") + ToText(type);
  return text;
}

// "(a, b) -> c", or "(a, b) -> (c, d)".
std::string Signature(const Values& operands, const std::vector<Type>& results) {
  const std::string out = List(results);
  return fmt::format("({}) -> {}", Types(operands), results.size() == 1 ? out : "(" + out + ")");
}

// The main function of a module, as Finish writes it.
constexpr std::string_view kMain = "  func.func public @main(";

}  // namespace

Values Builder::EmitMany(const std::string& text, const std::vector<Type>& results) {
  const std::string name = NewName();
  Line(fmt::format("{}{} = {}", name, results.size() == 1 ? "" : fmt::format(":{}", results.size()), text));
  Values out;
  for (size_t i = 0; i < results.size(); ++i) {
    out.push_back({results.size() == 1 ? name : fmt::format("{}#{}", name, i), results[i], regions_.back()});
  }
  return out;
}

Values Builder::CallKernel(const Kernel& kernel, const Values& operands, const std::vector<Type>& results) {
  for (const Value& operand : operands) Uses({&operand}, "custom_call");
  return EmitMany(
      fmt::format("stablehlo.custom_call @tpu_custom_call({}) {{backend_config = \"{}\", kernel_name = \"{}\", "
                  "operand_layouts = [{}], result_layouts = [{}]}} : {}",
                  Names(operands), Quoted(kernel.config), kernel.name, LayoutsOf(TypesOf(operands)), LayoutsOf(results),
                  Signature(operands, results)),
      results);
}

Values Builder::CallHost(const HostCall& call, const Values& operands, const std::vector<Type>& results) {
  for (const Value& operand : operands) Uses({&operand}, "custom_call");
  std::string numbers;
  for (const auto& [name, number] : call.numbers) {
    numbers += fmt::format("{}{} = {} : i64", numbers.empty() ? "" : ", ", name, number);
  }
  return EmitMany(fmt::format("stablehlo.custom_call @{}({}) {{api_version = 4 : i32, backend_config = {{{}}}, "
                              "operand_layouts = [{}], result_layouts = [{}]}} : {}",
                              call.name, Names(operands), numbers, LayoutsOf(TypesOf(operands)), LayoutsOf(results),
                              Signature(operands, results)),
                  results);
}

void Builder::AddFunction(const std::string& name, const std::string& text) {
  const size_t begin = text.find(kMain);
  const size_t end = text.rfind('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    Mistake(fmt::format("function {}: not a program of a builder", name));
    return;
  }
  functions_ +=
      fmt::format("  func.func private @{}({}", name, text.substr(begin + kMain.size(), end - begin - kMain.size()));
}

Values Builder::CallFunction(const std::string& name, const Values& operands, const std::vector<Type>& results) {
  for (const Value& operand : operands) Uses({&operand}, "call");
  return EmitMany(fmt::format("func.call @{}({}) : {}", name, Names(operands), Signature(operands, results)), results);
}

Value Builder::Transpose(const Value& x, const std::vector<int64_t>& axes) {
  Uses({&x}, "transpose");
  std::vector<int64_t> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  Type type{x.type.element, {}};
  bool fits = axes.size() == x.type.dims.size();
  for (size_t i = 0; fits && i < sorted.size(); ++i) fits = sorted[i] == static_cast<int64_t>(i);
  for (size_t i = 0; fits && i < axes.size(); ++i) type.dims.push_back(x.type.dims[static_cast<size_t>(axes[i])]);
  if (!fits) Mistake(fmt::format("transpose: {} by {}", ToText(x.type), stablehlo::List(axes)));
  return Emit(type, fmt::format("transpose {}, dims = {} : ({}) -> {}", x.name, stablehlo::List(axes), ToText(x.type),
                                ToText(type)));
}

Value Builder::Reverse(const Value& x, int64_t axis) {
  Uses({&x}, "reverse");
  if (axis < 0 || axis >= static_cast<int64_t>(x.type.dims.size())) Mistake(fmt::format("reverse: no axis {}", axis));
  return Emit(x.type, fmt::format("reverse {}, dims = [{}] : {}", x.name, axis, ToText(x.type)));
}

Value Builder::Barrier(const Value& x) {
  Uses({&x}, "optimization_barrier");
  return Emit(x.type, fmt::format("optimization_barrier {} : {}", x.name, ToText(x.type)));
}

Value Builder::TakeRows(const Value& table, const Value& numbers) {
  Uses({&table, &numbers}, "gather");
  if (table.type.dims.size() != 2 || numbers.type.dims.size() != 1 || numbers.type.element != Element::kI32) {
    Mistake(fmt::format("gather: rows of {} by {}", ToText(table.type), ToText(numbers.type)));
    return table;
  }
  const Type type{table.type.element, {numbers.type.dims[0], table.type.dims[1]}};
  const Value result{NewName(), type, regions_.back()};
  Line(fmt::format(
      "{} = \"stablehlo.gather\"({}, {}) {{dimension_numbers = #stablehlo.gather<offset_dims = [1], "
      "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, "
      "slice_sizes = array<i64: 1, {}>}} : ({}, {}) -> {}",
      result.name, table.name, numbers.name, type.dims[1], ToText(table.type), ToText(numbers.type), ToText(type)));
  return result;
}

// A product with the one-hot matrix of the numbers: the same sum in the same order on every machine, where a scatter
// is in whatever order its threads come.
Value Builder::SumRows(const Value& values, const Value& numbers, int64_t rows, int64_t most) {
  if (values.type.dims.size() != 2 || numbers.type.dims.size() != 1) {
    Mistake(fmt::format("sum of rows: {} by {}", ToText(values.type), ToText(numbers.type)));
    return values;
  }
  const auto sum = [&](const Value& some, const Value& at) {
    const std::vector<int64_t> dims = {at.type.dims[0], rows};
    const Value is_one = Is(Compare::kEq, Iota({Element::kI32, dims}, 1), Spread(at, dims, {0}));
    return Dot(Convert(is_one, some.type.element), some, {0, 0});
  };
  const int64_t count = numbers.type.dims[0];
  const int64_t width = values.type.dims[1];
  const int64_t piece = std::max<int64_t>(most / rows, 1);
  if (count <= piece) return sum(values, numbers);
  // Piece by piece; what fills the last one up is zero.
  const int64_t pieces = (count + piece - 1) / piece;
  const Value all = PadEnd(values, {pieces * piece, width});
  const Value at = PadEnd(numbers, {pieces * piece});
  const Values init = {Constant({Element::kF32, {rows, width}}, 0.0)};
  return For(Int(0), Int(pieces), init, [&](const Value& i, const Values& carried) {
    const Value first = Mul(i, Int(piece));
    const Value from[] = {first, Int(0)};
    return Values{Add(carried[0], sum(SliceAt(all, from, {piece, width}), SliceAt(at, std::span(&first, 1), {piece})))};
  })[0];
}

}  // namespace tessera::stablehlo
