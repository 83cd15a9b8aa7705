// A typed builder that can only print well-formed StableHLO text. Every operation computes its result's type from its
// operands; a mistake (a type that does not fit, a value used outside its region) is kept and reported by Finish, and
// no text comes out. The text keeps to old syntax that every StableHLO since 1.0 reads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/error.h"

namespace tessera::stablehlo {

enum class Element : uint8_t { kI1, kI8, kI16, kI32, kUi32, kF32, kBf16, kF16 };
bool IsFloat(Element element);

struct Type {
  Element element = Element::kF32;
  std::vector<int64_t> dims = {};
  bool operator==(const Type&) const = default;
};
std::string ToText(const Type& type);  // "tensor<2x3xf32>"
int64_t NumElements(const Type& type);

// A value of a program: its name, its type, and the region it lives in.
struct Value {
  std::string name;
  Type type;
  int32_t region = -1;
};
using Values = std::vector<Value>;

enum class Compare : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };
enum class Reduction : uint8_t { kAdd, kMax, kOr };

// Which axis of each side a product sums over.
struct Contract2 {
  int64_t lhs = 1;
  int64_t rhs = 0;
};

struct NamedType {
  std::string name;  // for the reader of the text, and of an error
  Type type;
};

// Devices along one axis, each running the program on what it has: for every input and output the axis of it that is
// cut, or kWhole where every device has all of it.
struct DeviceAxis {
  std::string name;
  int64_t size = 1;
  std::vector<int64_t> inputs = {};
  std::vector<int64_t> outputs = {};
};
inline constexpr int64_t kWhole = -1;
using DevicePairs = std::vector<std::pair<int32_t, int32_t>>;  // source, target
using DeviceGroups = std::vector<std::vector<int64_t>>;        // each device in one of them, all as large
DeviceGroups OneGroup(int64_t devices);

// The same along several axes, the last of which runs fastest: for every input and output, and every dimension of it,
// the axes that it is cut along.
struct DeviceMesh {
  struct Axis {
    std::string name;
    int64_t size = 1;
  };
  using Cut = std::vector<std::vector<std::string>>;
  std::vector<Axis> axes;
  std::vector<Cut> inputs = {};
  std::vector<Cut> outputs = {};
};

struct ModuleAttribute {
  std::string name;
  std::string value;
};

// As all devices together have it, from what each has.
Type WholeType(const Type& own, int64_t axis, int64_t devices);
Type WholeType(const Type& own, const DeviceMesh::Cut& cut, const DeviceMesh& mesh);

class Builder {
 public:
  // The attributes travel with the program: XLA keeps them in the compiled module.
  Builder(std::string module_name, std::vector<ModuleAttribute> attributes, const std::vector<NamedType>& inputs);

  const Value& Input(std::string_view name) const;

  Value Constant(const Type& type, double value);  // every element the same
  Value Int(int64_t value) { return Constant({Element::kI32, {}}, static_cast<double>(value)); }
  Value Iota(const Type& type, int64_t axis);

  // One operand, same type out.
  Value Unary(std::string_view op, const Value& x);
  Value Exp(const Value& x) { return Unary("exponential", x); }
  Value Log(const Value& x) { return Unary("log", x); }
  Value Tanh(const Value& x) { return Unary("tanh", x); }
  Value Neg(const Value& x) { return Unary("negate", x); }
  Value Not(const Value& x) { return Unary("not", x); }
  Value IsFinite(const Value& x);

  // Two operands of one type; a scalar beside a tensor is spread over it.
  Value Binary(std::string_view op, const Value& a, const Value& b);
  Value Add(const Value& a, const Value& b) { return Binary("add", a, b); }
  Value Sub(const Value& a, const Value& b) { return Binary("subtract", a, b); }
  Value Mul(const Value& a, const Value& b) { return Binary("multiply", a, b); }
  Value Div(const Value& a, const Value& b) { return Binary("divide", a, b); }
  Value Rem(const Value& a, const Value& b) { return Binary("remainder", a, b); }
  Value Max(const Value& a, const Value& b) { return Binary("maximum", a, b); }
  Value Min(const Value& a, const Value& b) { return Binary("minimum", a, b); }
  Value And(const Value& a, const Value& b) { return Binary("and", a, b); }
  Value Or(const Value& a, const Value& b) { return Binary("or", a, b); }
  Value ShiftRight(const Value& a, const Value& b) { return Binary("shift_right_logical", a, b); }
  Value Is(Compare how, const Value& a, const Value& b);
  Value Select(const Value& condition, const Value& then, const Value& otherwise);

  Value Convert(const Value& x, Element to);
  Value Bitcast(const Value& x, Element to);  // the same bits, of an element as wide
  Value Reshape(const Value& x, std::vector<int64_t> dims);
  // Axis i of x becomes axis axes[i] of a tensor of these dims.
  Value Spread(const Value& x, std::vector<int64_t> dims, std::vector<int64_t> axes);
  Value Slice(const Value& x, std::span<const int64_t> begin, std::span<const int64_t> end);
  Value Concatenate(const Values& parts, int64_t axis);
  // Zeros after the last element of each axis.
  Value PadEnd(const Value& x, std::vector<int64_t> dims);
  Value Reduce(Reduction how, const Value& x, std::vector<int64_t> axes);
  // Of two matrices, summed in f32 at full precision whatever the operands' type.
  Value Dot(const Value& a, const Value& b, Contract2 axes);
  // The same of every pair of matrices: leading axes are equal and kept, `axes` count among the last two.
  Value BatchDot(const Value& a, const Value& b, Contract2 axes);

  // Axis i of the result is axis axes[i] of x.
  Value Transpose(const Value& x, const std::vector<int64_t>& axes);
  Value Reverse(const Value& x, int64_t axis);
  // x, of which a compiler may move nothing across: what comes before and what comes after are scheduled apart.
  Value Barrier(const Value& x);
  // Rows [n, width] of a table [rows, width] by i32 numbers [n]; and the sum of rows by where they came from. Numbers
  // are below `rows`, which callers see to.
  Value TakeRows(const Value& table, const Value& numbers);
  // A sum makes a one-hot matrix of at most `most` elements at a time.
  Value SumRows(const Value& values, const Value& numbers, int64_t rows, int64_t most = int64_t{1} << 24);

  // `at` has one scalar per axis. Out-of-range starts are moved inside by XLA, so callers keep them inside.
  Value SliceAt(const Value& x, std::span<const Value> at, std::vector<int64_t> sizes);
  Value UpdateAt(const Value& x, const Value& update, std::span<const Value> at);

  using Condition = std::function<Value(const Values&)>;
  using Body = std::function<Values(const Values&)>;
  using Branch = std::function<Values()>;
  Values While(const Values& init, const Condition& condition, const Body& body);
  // body(i, carried) for i from begin to end.
  Values For(const Value& begin, const Value& end, const Values& init,
             const std::function<Values(const Value&, const Values&)>& body);
  Values If(const Value& condition, const Branch& then, const Branch& otherwise);

  // One call of a TPU kernel: its operands as they lie, its results by type, and what the compiler is told, as JSON.
  struct Kernel {
    std::string name;
    std::string config;
  };
  Values CallKernel(const Kernel& kernel, const Values& operands, const std::vector<Type>& results);

  // One call of a function of this process, by the name it was registered with (pjrt/ffi.h). It depends on its operands
  // alone. `numbers` are what it is told beside them.
  struct HostCall {
    std::string name;
    std::vector<std::pair<std::string, int64_t>> numbers;
  };
  Values CallHost(const HostCall& call, const Values& operands, const std::vector<Type>& results);

  // The program that another builder's Finish gave, as a function of this one; and a call of it.
  void AddFunction(const std::string& name, const std::string& text);
  Values CallFunction(const std::string& name, const Values& operands, const std::vector<Type>& results);

  // Output `output` takes the memory of an input of the same type, which is gone after a run.
  void Donate(std::string_view input, int64_t output) { donated_.emplace(input, output); }

  // What a device has of a value goes to others of its group. Permute: to the targets of its pairs; a device that is
  // none gets zeros. Gather: everybody gets all, one after the other along `axis`. Trade: along `split` it is cut into
  // as many pieces as there are devices, and those that come are put together along `join`. Sum: everybody gets the sum
  // of all. SumPiece: of that sum its own piece along `axis`.
  Value Permute(const Value& x, const DevicePairs& pairs);
  Value Gather(const Value& x, int64_t axis, const DeviceGroups& groups);
  struct Axes {
    int64_t split = 0;
    int64_t join = 0;
  };
  Value Trade(const Value& x, Axes axes, const DeviceGroups& groups);
  // Ragged: rows of x to each device, as many as `trade` says, put into rows of `into` on that device. Each of
  // `trade`'s has one entry for each device of the group. CPUs have no such thing.
  struct Ragged {
    Value from;      // i32 [devices]: the first row that goes to each
    Value counts;    // how many
    Value at;        // where they lie there
    Value received;  // how many come from each
  };
  Value TradeRows(const Value& x, const Value& into, const Ragged& trade, const DeviceGroups& groups);
  Value Sum(const Value& x, const DeviceGroups& groups);
  Value SumPiece(const Value& x, int64_t axis, const DeviceGroups& groups);

  // The whole text. TSR-L010 with the first mistake when there was one.
  Result<std::string> Finish(const Values& outputs);
  // The same as one region that every device runs on its own share (Shardy's manual computation): what was built is of
  // one device, and the program takes and gives the tensors of all.
  Result<std::string> FinishOver(const DeviceMesh& mesh, const Values& outputs);
  Result<std::string> FinishOver(const DeviceAxis& devices, const Values& outputs);

 private:
  Value Emit(const Type& type, std::string text);
  std::string NewName() { return "%" + std::to_string(next_++); }
  void Line(const std::string& text);
  Status CheckOutputs(const Values& outputs);  // the first mistake
  std::string Attributes(int64_t num_partitions) const;
  void Mistake(std::string text);
  bool Uses(std::initializer_list<const Value*> values, std::string_view op);
  void Open();
  void Close();
  void Return(const Values& values);
  std::string Channel();
  static bool IsHalf(const Value& x);
  Result<std::string> Donation(const std::string& input, const Type& type, const Values& outputs) const;
  Value At(const Value& x, const Value& like);  // a scalar spread over another's shape
  Values EmitMany(const std::string& text, const std::vector<Type>& results);

  std::string module_name_;
  std::vector<ModuleAttribute> attributes_;
  std::vector<std::pair<std::string, Value>> inputs_;
  std::string body_;
  std::vector<int32_t> regions_;                         // those open now, outermost first
  std::vector<std::map<std::string, Value>> constants_;  // of each: text -> value, so that each is written once
  int32_t next_region_ = 0;
  int64_t next_ = 0;
  int64_t next_channel_ = 1;
  std::string mistake_;
  std::string functions_;
  std::map<std::string, int64_t, std::less<>> donated_;
};

}  // namespace tessera::stablehlo
