// Makes one function of a kernel, operation by operation. Every call computes its result's type from its operands; a
// mistake is kept, and reported by BuildKernel (kernel.h) in place of a module. What the types cannot say (bounds,
// layouts, memory, values used outside their region) is verify.h's to find: BuildKernel asks it too.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lanes/xla/mosaic/ir.h"

namespace tessera::mosaic {

struct Value {
  ValueId id = -1;
  Type type;
};
using Values = std::vector<Value>;

// Numbers as the text writes them; kEq to kGe of signed integers, and of floats that are ordered.
enum class Compare : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };
enum class Reduction : uint8_t { kAdd, kMaximumF, kMinimumF };
// How a matmul of f32 operands multiplies: in one pass of bf16 (what absent means to a TPU), or as f32.
enum class Precision : uint8_t { kDefault, kFp32 };

class Builder {
 public:
  Builder(std::vector<Type> arguments, int64_t version);

  Value Argument(size_t at) const;

  // Scalars, and vectors of which every element is the same.
  Value Constant(const Type& type, double value);
  Value I32(int64_t value) { return Constant(ScalarOf(Element::kI32), static_cast<double>(value)); }
  Value Index(int64_t value) { return Constant(ScalarOf(Element::kIndex), static_cast<double>(value)); }
  Value F32(double value) { return Constant(ScalarOf(Element::kF32), value); }
  Value Bool(bool value) { return Constant(ScalarOf(Element::kI1), value ? 1 : 0); }

  // Element by element, on scalars or vectors. In Binary, Is and Select a scalar beside a vector is spread over it.
  Value Unary(OpCode code, const Value& x);
  Value Binary(OpCode code, const Value& a, const Value& b);
  Value Add(const Value& a, const Value& b) { return Binary(OfKind(a, OpCode::kAddF, OpCode::kAddI), a, b); }
  Value Sub(const Value& a, const Value& b) { return Binary(OfKind(a, OpCode::kSubF, OpCode::kSubI), a, b); }
  Value Mul(const Value& a, const Value& b) { return Binary(OfKind(a, OpCode::kMulF, OpCode::kMulI), a, b); }
  Value Div(const Value& a, const Value& b) { return Binary(OfKind(a, OpCode::kDivF, OpCode::kDivSI), a, b); }
  Value Max(const Value& a, const Value& b) { return Binary(OfKind(a, OpCode::kMaximumF, OpCode::kMaxSI), a, b); }
  Value Min(const Value& a, const Value& b) { return Binary(OfKind(a, OpCode::kMinimumF, OpCode::kMinSI), a, b); }
  Value Rem(const Value& a, const Value& b) { return Binary(OpCode::kRemSI, a, b); }
  Value And(const Value& a, const Value& b) { return Binary(OpCode::kAndI, a, b); }
  Value Or(const Value& a, const Value& b) { return Binary(OpCode::kOrI, a, b); }
  Value Xor(const Value& a, const Value& b) { return Binary(OpCode::kXorI, a, b); }
  Value ShiftLeft(const Value& a, const Value& b) { return Binary(OpCode::kShlI, a, b); }
  Value ShiftRight(const Value& a, const Value& b) { return Binary(OpCode::kShrUI, a, b); }
  Value Exp(const Value& x) { return Unary(OpCode::kExp, x); }
  Value Exp2(const Value& x) { return Unary(OpCode::kExp2, x); }
  Value Log(const Value& x) { return Unary(OpCode::kLog, x); }
  Value Log2(const Value& x) { return Unary(OpCode::kLog2, x); }
  Value Tanh(const Value& x) { return Unary(OpCode::kTanh, x); }
  Value Abs(const Value& x) { return Unary(OpCode::kAbsF, x); }
  Value Reciprocal(const Value& x, bool is_approximate);
  Value Is(Compare how, const Value& a, const Value& b);
  Value Select(const Value& condition, const Value& then, const Value& otherwise);
  // By the operation that the two elements call for: extf, truncf, extsi (extui from i1), trunci, sitofp, fptosi,
  // index_cast.
  Value Convert(const Value& x, Element to);
  Value Bitcast(const Value& x, Element to);  // of equal width

  // Memory. Indices are i32 or index scalars, one per axis of the memref; i32 ones are cast.
  Value Load(const Value& memref, std::span<const Value> at, std::vector<int64_t> dims);
  Value LoadAll(const Value& memref);
  void Store(const Value& value, const Value& memref, std::span<const Value> at);
  void StoreAll(const Value& value, const Value& memref);
  Value LoadScalar(const Value& memref, std::span<const Value> at);  // of scalar memory
  void StoreScalar(const Value& value, const Value& memref, std::span<const Value> at);
  // Says that a dynamic i32 index is a multiple, which loads along a tiled axis need.
  Value AssumeMultiple(const Value& x, int64_t multiple);

  // Vectors.
  Value ShapeCast(const Value& x, std::vector<int64_t> dims);
  Value Broadcast(const Value& x,
                  std::vector<int64_t> dims);  // of a scalar, or along axes that are 1 or missing in front
  Value Reduce(Reduction how, const Value& x, std::vector<int64_t> axes);  // the axes are gone
  Value ReduceKeep(Reduction how, const Value& x, int64_t axis);           // the axis is 1
  Value Slice(const Value& x, std::vector<int64_t> offsets, std::vector<int64_t> sizes);
  Value Extract(const Value& x, std::vector<int64_t> position);  // one element, as a scalar
  Value Iota(std::vector<int64_t> dims, int64_t axis);           // i32
  Value Concatenate(const Values& parts, int64_t axis);
  Value Transpose(const Value& x, std::vector<int64_t> permutation);
  Value Rotate(const Value& x, const Value& amount, int64_t axis);  // element i moves to i + amount, and round
  // Of two matrices, summed in f32. Each side's axis to sum over: lhs [m, k] is 1 and [k, m] is 0; rhs [k, n] is 0 and
  // [n, k] is 1. The accumulator is zero where none is given.
  Value Matmul(const Value& lhs, const Value& rhs, int64_t lhs_axis, int64_t rhs_axis,
               Precision precision = Precision::kDefault);
  Value MatmulAdd(const Value& lhs, const Value& rhs, const Value& accumulator, const DotDims& dims,
                  Precision precision = Precision::kDefault);

  // Copies between memories: a view of part of a memref, the same without axes of 1, and the copy itself.
  Value SliceRef(const Value& memref, std::span<const Value> at, std::vector<int64_t> dims);
  Value SqueezeRef(const Value& memref, std::vector<int64_t> dims);
  void StartCopy(const Value& from, const Value& to, const Value& semaphore);
  void WaitCopy(const Value& from, const Value& to, const Value& semaphore);

  // Control. Every branch of If gives as many values, of the same types.
  using Branch = std::function<Values()>;
  using LoopBody = std::function<Values(const Value& at, const Values& carried)>;
  using Body = std::function<Values(const Values& carried)>;
  Values If(const Value& condition, const Branch& then, const Branch& otherwise);
  void When(const Value& condition, const std::function<void()>& then);
  // `at` from begin to end by step, i32. Gives what the last round left of the carried values.
  Values For(const Value& begin, const Value& end, const Value& step, const Values& init, const LoopBody& body);
  // While condition(carried), an i1, holds.
  Values While(const Values& init, const std::function<Value(const Values&)>& condition, const Body& body);

  // Ends the function. `name` and `attributes` become its own; the builder is empty afterwards.
  Function Finish(std::string name, const Values& results, Attributes attributes);
  const std::string& mistake() const { return mistake_; }  // the first; empty when there was none

 private:
  static OpCode OfKind(const Value& a, OpCode of_floats, OpCode of_integers);
  Value NewValue(const Type& type);
  Value Emit(OpCode code, std::span<const Value> operands, const Type& type, Attributes attributes);
  Value Emit(OpCode code, std::initializer_list<Value> operands, const Type& type, Attributes attributes = {});
  void EmitNone(OpCode code, const Values& operands, Attributes attributes);
  Values EmitRegions(OpCode code, const Values& operands, std::vector<Region> regions, const std::vector<Type>& types);
  void Mistake(std::string text);
  bool Spread(Value& a, Value& b);  // a scalar beside a vector; false and a mistake when they do not fit
  Values Indices(std::span<const Value> at, const Type& memref, bool as_i32);
  Values Zeros(const Type& memref);
  Region InRegion(std::span<const Type> arguments, const std::function<Values(const Values&)>& body, OpCode terminator);

  int64_t version_;
  Function function_;
  std::vector<Region> open_;                             // innermost last
  std::vector<std::map<std::string, Value>> constants_;  // of each open region: text -> value, so each is written once
  std::string mistake_;
};

}  // namespace tessera::mosaic
