// See builder.h.
#include "lanes/xla/stablehlo/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lanes/xla/stablehlo/builder_text.h"

namespace tessera::stablehlo {
namespace {

std::string_view Spelled(Element element) {
  switch (element) {
    case Element::kI1:
      return "i1";
    case Element::kI8:
      return "i8";
    case Element::kI16:
      return "i16";
    case Element::kI32:
      return "i32";
    case Element::kUi32:
      return "ui32";
    case Element::kF32:
      return "f32";
    case Element::kBf16:
      return "bf16";
    case Element::kF16:
      return "f16";
  }
  return "";
}

std::string_view Spelled(Compare how) {
  switch (how) {
    case Compare::kEq:
      return "EQ";
    case Compare::kNe:
      return "NE";
    case Compare::kLt:
      return "LT";
    case Compare::kLe:
      return "LE";
    case Compare::kGt:
      return "GT";
    case Compare::kGe:
      return "GE";
  }
  return "";
}

std::string_view KindOf(Element element) {
  if (IsFloat(element)) return "FLOAT";
  return element == Element::kI32 ? "SIGNED" : "UNSIGNED";
}

// The bits of an infinity or a NaN, which the text form has no other way to write.
std::string_view NonFiniteBits(Element element, double value) {
  const int which = std::isnan(value) ? 0 : value > 0 ? 1 : 2;
  static constexpr std::string_view kF32[] = {"0x7FC00000", "0x7F800000", "0xFF800000"};
  static constexpr std::string_view kBf16[] = {"0x7FC0", "0x7F80", "0xFF80"};
  static constexpr std::string_view kF16[] = {"0x7E00", "0x7C00", "0xFC00"};
  return element == Element::kF32 ? kF32[which] : element == Element::kBf16 ? kBf16[which] : kF16[which];
}

std::string Literal(Element element, double value) {
  if (element == Element::kI1) return value != 0.0 ? "true" : "false";
  if (!IsFloat(element)) return fmt::format("{}", static_cast<int64_t>(value));
  return std::isfinite(value) ? fmt::format("{:.9e}", value) : std::string(NonFiniteBits(element, value));
}

}  // namespace

std::string Names(const Values& values) {
  std::string text;
  for (const Value& value : values) text += (text.empty() ? "" : ", ") + value.name;
  return text;
}

std::string Types(const Values& values) {
  std::string text;
  for (const Value& value : values) text += (text.empty() ? "" : ", ") + ToText(value.type);
  return text;
}

std::string List(std::span<const int64_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

bool IsFloat(Element element) {
  return element == Element::kF32 || element == Element::kBf16 || element == Element::kF16;
}

std::string ToText(const Type& type) {
  std::string text = "tensor<";
  for (const int64_t dim : type.dims) text += fmt::format("{}x", dim);
  return text + std::string(Spelled(type.element)) + ">";
}

int64_t NumElements(const Type& type) {
  return std::accumulate(type.dims.begin(), type.dims.end(), int64_t{1}, std::multiplies<>());
}

Builder::Builder(std::string module_name, std::vector<ModuleAttribute> attributes, const std::vector<NamedType>& inputs)
    : module_name_(std::move(module_name)), attributes_(std::move(attributes)) {
  Open();
  for (const NamedType& input : inputs) {
    inputs_.emplace_back(input.name, Value{"%" + input.name, input.type, regions_.back()});
  }
}

const Value& Builder::Input(std::string_view name) const {
  static const Value kNone{};
  const auto it = std::find_if(inputs_.begin(), inputs_.end(), [&](const auto& input) { return input.first == name; });
  return it == inputs_.end() ? kNone : it->second;
}

void Builder::Open() {
  regions_.push_back(next_region_++);
  constants_.emplace_back();
}

void Builder::Close() {
  regions_.pop_back();
  constants_.pop_back();
}

void Builder::Line(const std::string& text) {
  body_.append(2 * (regions_.size() + 1), ' ');
  body_ += text;
  body_ += '\n';
}

void Builder::Mistake(std::string text) {
  if (mistake_.empty()) mistake_ = std::move(text);
}

bool Builder::Uses(std::initializer_list<const Value*> values, std::string_view op) {
  for (const Value* value : values) {
    if (std::find(regions_.begin(), regions_.end(), value->region) == regions_.end()) {
      Mistake(fmt::format("{}: {} is not a value of this place", op, value->name.empty() ? "nothing" : value->name));
      return false;
    }
  }
  return true;
}

Value Builder::Emit(const Type& type, std::string text) {
  Value value{NewName(), type, regions_.back()};
  Line(value.name + " = stablehlo." + text);
  return value;
}

Value Builder::Constant(const Type& type, double value) {
  std::string text = fmt::format("constant dense<{}> : {}", Literal(type.element, value), ToText(type));
  for (const auto& known : constants_) {
    if (const auto it = known.find(text); it != known.end()) return it->second;
  }
  return constants_.back()[text] = Emit(type, text);
}

Value Builder::Iota(const Type& type, int64_t axis) {
  if (axis < 0 || axis >= static_cast<int64_t>(type.dims.size())) Mistake(fmt::format("iota: no axis {}", axis));
  return Emit(type, fmt::format("iota dim = {} : {}", axis, ToText(type)));
}

Value Builder::Unary(std::string_view op, const Value& x) {
  Uses({&x}, op);
  return Emit(x.type, fmt::format("{} {} : {}", op, x.name, ToText(x.type)));
}

Value Builder::IsFinite(const Value& x) {
  Uses({&x}, "is_finite");
  if (!IsFloat(x.type.element)) Mistake("is_finite: not of floats");
  const Type type{Element::kI1, x.type.dims};
  return Emit(type, fmt::format("is_finite {} : ({}) -> {}", x.name, ToText(x.type), ToText(type)));
}

Value Builder::At(const Value& x, const Value& like) {
  return x.type.dims.empty() && !like.type.dims.empty() ? Spread(x, like.type.dims, {}) : x;
}

Value Builder::Binary(std::string_view op, const Value& a, const Value& b) {
  Uses({&a, &b}, op);
  const Value x = At(a, b);
  const Value y = At(b, a);
  if (!(x.type == y.type)) Mistake(fmt::format("{}: {} beside {}", op, ToText(x.type), ToText(y.type)));
  return Emit(x.type, fmt::format("{} {}, {} : {}", op, x.name, y.name, ToText(x.type)));
}

Value Builder::Is(Compare how, const Value& a, const Value& b) {
  Uses({&a, &b}, "compare");
  const Value x = At(a, b);
  const Value y = At(b, a);
  if (!(x.type == y.type)) Mistake(fmt::format("compare: {} beside {}", ToText(x.type), ToText(y.type)));
  const Type type{Element::kI1, x.type.dims};
  return Emit(type, fmt::format("compare {}, {}, {}, {} : ({}, {}) -> {}", Spelled(how), x.name, y.name,
                                KindOf(x.type.element), ToText(x.type), ToText(y.type), ToText(type)));
}

Value Builder::Select(const Value& condition, const Value& then, const Value& otherwise) {
  Uses({&condition, &then, &otherwise}, "select");
  const Value x = At(At(then, otherwise), condition);
  const Value y = At(At(otherwise, then), condition);
  const Value c = At(condition, x);
  if (!(x.type == y.type) || !(c.type == Type{Element::kI1, x.type.dims})) {
    Mistake(fmt::format("select: {} ? {} : {}", ToText(c.type), ToText(x.type), ToText(y.type)));
  }
  return Emit(x.type,
              fmt::format("select {}, {}, {} : {}, {}", c.name, x.name, y.name, ToText(c.type), ToText(x.type)));
}

Value Builder::Convert(const Value& x, Element to) {
  if (x.type.element == to) return x;
  Uses({&x}, "convert");
  const Type type{to, x.type.dims};
  return Emit(type, fmt::format("convert {} : ({}) -> {}", x.name, ToText(x.type), ToText(type)));
}

Value Builder::Reshape(const Value& x, std::vector<int64_t> dims) {
  if (x.type.dims == dims) return x;
  Uses({&x}, "reshape");
  const Type type{x.type.element, std::move(dims)};
  if (NumElements(type) != NumElements(x.type)) {
    Mistake(fmt::format("reshape: {} to {}", ToText(x.type), ToText(type)));
  }
  return Emit(type, fmt::format("reshape {} : ({}) -> {}", x.name, ToText(x.type), ToText(type)));
}

Value Builder::Spread(const Value& x, std::vector<int64_t> dims, std::vector<int64_t> axes) {
  Uses({&x}, "broadcast_in_dim");
  const Type type{x.type.element, std::move(dims)};
  bool fits = axes.size() == x.type.dims.size();
  for (size_t i = 0; fits && i < axes.size(); ++i) {
    fits = axes[i] >= 0 && axes[i] < static_cast<int64_t>(type.dims.size()) &&
           (x.type.dims[i] == 1 || x.type.dims[i] == type.dims[static_cast<size_t>(axes[i])]);
  }
  if (!fits) Mistake(fmt::format("broadcast_in_dim: {} to {} by {}", ToText(x.type), ToText(type), List(axes)));
  return Emit(type, fmt::format("broadcast_in_dim {}, dims = {} : ({}) -> {}", x.name, List(axes), ToText(x.type),
                                ToText(type)));
}

Value Builder::Slice(const Value& x, std::span<const int64_t> begin, std::span<const int64_t> end) {
  Uses({&x}, "slice");
  Type type{x.type.element, {}};
  std::string ranges;
  bool fits = begin.size() == x.type.dims.size() && end.size() == begin.size();
  for (size_t i = 0; fits && i < begin.size(); ++i) {
    fits = begin[i] >= 0 && begin[i] < end[i] && end[i] <= x.type.dims[i];
    type.dims.push_back(end[i] - begin[i]);
    ranges += fmt::format("{}{}:{}", i == 0 ? "" : ", ", begin[i], end[i]);
  }
  if (!fits) Mistake(fmt::format("slice: {} from {} to {}", ToText(x.type), List(begin), List(end)));
  if (type.dims == x.type.dims) return x;
  return Emit(type, fmt::format("slice {} [{}] : ({}) -> {}", x.name, ranges, ToText(x.type), ToText(type)));
}

Value Builder::Concatenate(const Values& parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  const auto along = static_cast<size_t>(axis);
  Type type = parts[0].type;
  std::string names, types;
  int64_t sum = 0;
  for (const Value& part : parts) {
    Uses({&part}, "concatenate");
    Type other = part.type;
    if (along >= other.dims.size() || along >= type.dims.size()) {
      Mistake(fmt::format("concatenate: {} has no axis {}", ToText(part.type), axis));
      return parts[0];
    }
    sum += other.dims[along];
    other.dims[along] = type.dims[along];
    if (other != type) Mistake(fmt::format("concatenate: {} beside {}", ToText(part.type), ToText(parts[0].type)));
    names += (names.empty() ? "" : ", ") + part.name;
    types += (types.empty() ? "" : ", ") + ToText(part.type);
  }
  type.dims[along] = sum;
  return Emit(type, fmt::format("concatenate {}, dim = {} : ({}) -> {}", names, axis, types, ToText(type)));
}

Value Builder::PadEnd(const Value& x, std::vector<int64_t> dims) {
  if (x.type.dims == dims) return x;
  Uses({&x}, "pad");
  const Type type{x.type.element, std::move(dims)};
  const std::vector<int64_t> none(x.type.dims.size(), 0);
  std::vector<int64_t> high(none);
  bool fits = type.dims.size() == x.type.dims.size();
  for (size_t i = 0; fits && i < high.size(); ++i) {
    high[i] = type.dims[i] - x.type.dims[i];
    fits = high[i] >= 0;
  }
  if (!fits) Mistake(fmt::format("pad: {} to {}", ToText(x.type), ToText(type)));
  const Value zero = Constant({x.type.element, {}}, 0.0);
  return Emit(type, fmt::format("pad {}, {}, low = {}, high = {}, interior = {} : ({}, {}) -> {}", x.name, zero.name,
                                List(none), List(high), List(none), ToText(x.type), ToText(zero.type), ToText(type)));
}

Value Builder::Reduce(Reduction how, const Value& x, std::vector<int64_t> axes) {
  Uses({&x}, "reduce");
  Type type{x.type.element, {}};
  for (int64_t i = 0; i < static_cast<int64_t>(x.type.dims.size()); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) type.dims.push_back(x.type.dims[static_cast<size_t>(i)]);
  }
  if (type.dims.size() + axes.size() != x.type.dims.size()) Mistake(fmt::format("reduce: no such axes {}", List(axes)));
  const bool is_max = how == Reduction::kMax;
  const std::string_view op = how == Reduction::kAdd ? "add" : is_max ? "maximum" : "or";
  const Value init = Constant({x.type.element, {}}, is_max ? -INFINITY : 0.0);
  return Emit(type, fmt::format("reduce({} init: {}) applies stablehlo.{} across dimensions = {} : ({}, {}) -> {}",
                                x.name, init.name, op, List(axes), ToText(x.type), ToText(init.type), ToText(type)));
}

Value Builder::Dot(const Value& a, const Value& b, Contract2 axes) {
  if (a.type.dims.size() != 2) Mistake(fmt::format("dot_general: {} is no matrix", ToText(a.type)));
  return BatchDot(a, b, axes);
}

Value Builder::BatchDot(const Value& a, const Value& b, Contract2 axes) {
  Uses({&a, &b}, "dot_general");
  const std::vector<int64_t>& left = a.type.dims;
  const std::vector<int64_t>& right = b.type.dims;
  const size_t rank = left.size();
  const size_t first = rank - 2;  // the matrices' axes
  const auto at = [&](int64_t axis) { return first + static_cast<size_t>(axis); };
  Type type{Element::kF32, {}};
  if (rank < 2 || right.size() != rank || a.type.element != b.type.element ||
      !std::equal(left.begin(), left.end() - 2, right.begin()) || left[at(axes.lhs)] != right[at(axes.rhs)]) {
    Mistake(fmt::format("dot_general: {} and {} over {} x {}", ToText(a.type), ToText(b.type), axes.lhs, axes.rhs));
    return Emit(type, "mistake");
  }
  type.dims.assign(left.begin(), left.end() - 2);
  type.dims.push_back(left[at(1 - axes.lhs)]);
  type.dims.push_back(right[at(1 - axes.rhs)]);
  std::vector<int64_t> kept(first);
  std::iota(kept.begin(), kept.end(), 0);
  const std::string batching = kept.empty() ? "" : fmt::format("batching_dims = {0} x {0}, ", List(kept));
  return Emit(type, fmt::format("dot_general {}, {}, {}contracting_dims = [{}] x [{}], precision = [HIGHEST, HIGHEST] "
                                ": ({}, {}) -> {}",
                                a.name, b.name, batching, at(axes.lhs), at(axes.rhs), ToText(a.type), ToText(b.type),
                                ToText(type)));
}

namespace {

bool AreScalarInts(std::span<const Value> at) {
  return std::all_of(at.begin(), at.end(), [](const Value& i) { return i.type == Type{Element::kI32, {}}; });
}

}  // namespace

Value Builder::SliceAt(const Value& x, std::span<const Value> at, std::vector<int64_t> sizes) {
  const Values starts(at.begin(), at.end());
  Uses({&x}, "dynamic_slice");
  for (const Value& start : starts) Uses({&start}, "dynamic_slice");
  const Type type{x.type.element, std::move(sizes)};
  bool fits = AreScalarInts(at) && at.size() == x.type.dims.size() && type.dims.size() == at.size();
  for (size_t i = 0; fits && i < at.size(); ++i) fits = type.dims[i] >= 1 && type.dims[i] <= x.type.dims[i];
  if (!fits) Mistake(fmt::format("dynamic_slice: {} out of {}", ToText(type), ToText(x.type)));
  return Emit(type, fmt::format("dynamic_slice {}, {}, sizes = {} : ({}, {}) -> {}", x.name, Names(starts),
                                List(type.dims), ToText(x.type), Types(starts), ToText(type)));
}

Value Builder::UpdateAt(const Value& x, const Value& update, std::span<const Value> at) {
  const Values starts(at.begin(), at.end());
  Uses({&x, &update}, "dynamic_update_slice");
  for (const Value& start : starts) Uses({&start}, "dynamic_update_slice");
  bool fits = AreScalarInts(at) && at.size() == x.type.dims.size() && update.type.dims.size() == at.size() &&
              update.type.element == x.type.element;
  for (size_t i = 0; fits && i < at.size(); ++i) fits = update.type.dims[i] <= x.type.dims[i];
  if (!fits) Mistake(fmt::format("dynamic_update_slice: {} into {}", ToText(update.type), ToText(x.type)));
  return Emit(x.type, fmt::format("dynamic_update_slice {}, {}, {} : ({}, {}, {}) -> {}", x.name, update.name,
                                  Names(starts), ToText(x.type), ToText(update.type), Types(starts), ToText(x.type)));
}

void Builder::Return(const Values& values) {
  for (const Value& value : values) Uses({&value}, "return");
  Line(fmt::format("stablehlo.return {} : {}", Names(values), Types(values)));
}

Values Builder::While(const Values& init, const Condition& condition, const Body& body) {
  for (const Value& value : init) Uses({&value}, "while");
  if (init.empty()) Mistake("while: carries nothing");
  const std::string result = NewName();
  Values carried;
  std::string header;
  const int32_t region = next_region_;
  for (const Value& value : init) {
    carried.push_back({NewName(), value.type, region});
    header += (header.empty() ? "" : ", ") + carried.back().name + " = " + value.name;
  }
  const std::string count = init.size() == 1 ? "" : fmt::format(":{}", init.size());
  Line(fmt::format("{}{} = stablehlo.while({}) : {}", result, count, header, Types(init)));
  Line("cond {");
  Open();
  const Value go_on = condition(carried);
  if (!(go_on.type == Type{Element::kI1, {}})) Mistake("while: the condition is no scalar of i1");
  Return({go_on});
  Close();
  Line("} do {");
  for (Value& value : carried) value.region = next_region_;
  Open();
  const Values next = body(carried);
  bool fits = next.size() == init.size();
  for (size_t i = 0; fits && i < next.size(); ++i) fits = next[i].type == init[i].type;
  if (!fits) Mistake(fmt::format("while: carries {} but its body returns {}", Types(init), Types(next)));
  Return(next);
  Close();
  Line("}");
  Values out;
  for (size_t i = 0; i < init.size(); ++i) {
    out.push_back({init.size() == 1 ? result : fmt::format("{}#{}", result, i), init[i].type, regions_.back()});
  }
  return out;
}

Values Builder::For(const Value& begin, const Value& end, const Values& init,
                    const std::function<Values(const Value&, const Values&)>& body) {
  Values carried = {begin};
  carried.insert(carried.end(), init.begin(), init.end());
  Values out = While(
      carried, [&](const Values& now) { return Is(Compare::kLt, now[0], end); },
      [&](const Values& now) {
        Values next = body(now[0], {now.begin() + 1, now.end()});
        next.insert(next.begin(), Add(now[0], Int(1)));
        return next;
      });
  out.erase(out.begin());
  return out;
}

Values Builder::If(const Value& condition, const Branch& then, const Branch& otherwise) {
  Uses({&condition}, "if");
  if (!(condition.type == Type{Element::kI1, {}})) Mistake("if: the condition is no scalar of i1");
  const std::string result = NewName();
  // The number of results stands before the regions, so the regions are printed aside first.
  std::string outer;
  outer.swap(body_);
  Open();
  const Values a = then();
  Return(a);
  Close();
  Line("}, {");
  Open();
  const Values b = otherwise();
  Return(b);
  Close();
  bool fits = a.size() == b.size() && !a.empty();
  for (size_t i = 0; fits && i < a.size(); ++i) fits = a[i].type == b[i].type;
  if (!fits) Mistake(fmt::format("if: one branch returns {}, the other {}", Types(a), Types(b)));
  Line(fmt::format("}}) : ({}) -> ({})", ToText(condition.type), Types(a)));
  outer.swap(body_);
  const std::string count = a.size() == 1 ? "" : fmt::format(":{}", a.size());
  Line(fmt::format("{}{} = \"stablehlo.if\"({}) ({{", result, count, condition.name));
  body_ += outer;
  Values out;
  for (size_t i = 0; i < a.size(); ++i) {
    out.push_back({a.size() == 1 ? result : fmt::format("{}#{}", result, i), a[i].type, regions_.back()});
  }
  return out;
}

Status Builder::CheckOutputs(const Values& outputs) {
  for (const Value& value : outputs) Uses({&value}, "return");
  if (outputs.empty()) Mistake("the program gives nothing");
  if (!mistake_.empty()) {
    return Fail(ErrorCode::kProgramMismatch, fmt::format("building {}: {}", module_name_, mistake_));
  }
  return {};
}

std::string Builder::Attributes(int64_t num_partitions) const {
  std::string frontend;
  for (const ModuleAttribute& attribute : attributes_) {
    frontend += fmt::format("{}{} = \"{}\"", frontend.empty() ? "" : ", ", attribute.name, attribute.value);
  }
  return fmt::format(
      "{{mhlo.frontend_attributes = {{{}}}, mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}}", frontend,
      num_partitions);
}

// The attribute of an input whose memory an output takes; empty for the others.
Result<std::string> Builder::Donation(const std::string& input, const Type& type, const Values& outputs) const {
  const auto donated = donated_.find(input);
  if (donated == donated_.end()) return std::string();
  const auto output = static_cast<size_t>(donated->second);
  if (output >= outputs.size() || !(outputs[output].type == type)) {
    return Fail(ErrorCode::kProgramMismatch,
                fmt::format("building {}: {} cannot be output {}", module_name_, input, output));
  }
  return fmt::format("tf.aliasing_output = {} : i32", output);
}

Result<std::string> Builder::Finish(const Values& outputs) {
  if (const Status ok = CheckOutputs(outputs); !ok) return tl::unexpected(ok.error());
  std::string arguments;
  for (const auto& [name, value] : inputs_) {
    arguments += fmt::format("{}{}: {}", arguments.empty() ? "" : ", ", value.name, ToText(value.type));
    const Result<std::string> donation = Donation(name, value.type, outputs);
    if (!donation) return tl::unexpected(donation.error());
    if (!donation->empty()) arguments += fmt::format(" {{{}}}", *donation);
  }
  return fmt::format(
      "module @{} attributes {} {{\n  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n  }}\n{}}}\n",
      module_name_, Attributes(1), arguments, Types(outputs), body_, Names(outputs), Types(outputs), functions_);
}

}  // namespace tessera::stablehlo
