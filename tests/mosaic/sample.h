// A kernel that has every operation in it, and means little: for what must hold of any kernel.
#pragma once

#include "lanes/xla/mosaic/kernel.h"

namespace tessera::mosaic {

inline KernelSpec SampleSpec(int64_t version = 13) {
  const auto row = [](Builder& b, const Values& grid, const Values&) { return Values{grid[0], b.I32(0)}; };
  const auto picked = [](Builder& b, const Values& grid, const Values& scalars) {
    return Values{b.Convert(b.LoadScalar(scalars[1], Values{grid[0]}), Element::kI32), b.I32(0)};
  };
  return {.name = "sample",
          .grid = {2, 2},
          .semantics = {Semantics::kParallel, Semantics::kArbitrary},
          .scalars = {{"count", MemrefOf(Space::kSmem, Element::kI32, {2})},
                      {"pick", MemrefOf(Space::kSmem, Element::kI8, {2})}},
          .inputs = {{.name = "x", .bounds = {8, 128}, .index_map = row},
                     {.name = "y", .element = Element::kBf16, .bounds = {16, 128}, .index_map = picked},
                     {.name = "far", .bounds = {16, 128}, .space = Space::kAny}},
          .outputs = {{.name = "o", .bounds = {8, 128}, .index_map = row}},
          .scratch = {{"total", MemrefOf(Space::kVmem, Element::kF32, {8, 128})},
                      {"near", MemrefOf(Space::kVmem, Element::kF32, {2, 8, 128})},
                      {"number", MemrefOf(Space::kSmem, Element::kI32, {2})},
                      {"done", MemrefOf(Space::kSemaphore, Element::kDmaSemaphore, {2})}},
          .version = version};
}

inline void SampleBody(Builder& b, const KernelArguments& args) {
  const Value zero = b.I32(0);
  const Value one = b.I32(1);
  b.When(b.Is(Compare::kEq, args.grid[1], zero), [&] {
    b.StoreAll(b.Constant(VectorOf(Element::kF32, {8, 128}), 0), args["total"]);
  });
  const Value from =
      b.SliceRef(args["far"], Values{b.AssumeMultiple(b.Mul(args.grid[0], b.I32(8)), 8), zero}, {8, 128});
  const Value to = b.SqueezeRef(b.SliceRef(args["near"], Values{one, zero, zero}, {1, 8, 128}), {8, 128});
  const Value done = b.SqueezeRef(b.SliceRef(args["done"], Values{zero}, {1}), {});
  b.StartCopy(from, to, done);

  const Value x = b.LoadAll(args["x"]);
  const Value y = b.LoadAll(args["y"]);
  const Value s = b.Matmul(x, b.Convert(y, Element::kF32), 1, 1, Precision::kFp32);  // [8, 16]
  const Value p =
      b.Convert(b.Exp2(b.Sub(s, b.Broadcast(b.ReduceKeep(Reduction::kMaximumF, s, 1), {8, 16}))), Element::kBf16);
  Value v = b.Matmul(p, y, 1, 0);  // [8, 128]
  v = b.MatmulAdd(p, y, v, DotDims());
  v = b.Add(v, b.Transpose(b.Matmul(y, p, 0, 1), {1, 0}));
  const Value t = b.Tanh(b.Mul(v, b.F32(0.125)));
  const Value u = b.Div(b.Exp(t), b.Add(b.Abs(t), b.F32(1)));
  const Value w = b.Add(b.Log(b.Add(u, b.F32(2))), b.Log2(b.Max(u, b.F32(0.5))));
  const Value roots = b.Add(b.Unary(OpCode::kSqrt, b.Abs(w)), b.Unary(OpCode::kRsqrt, b.Max(u, b.F32(0.25))));
  const Value more = b.Add(b.Unary(OpCode::kLog1p, b.Abs(roots)), b.Unary(OpCode::kNegF, b.Min(roots, w)));
  const Value bits = b.Bitcast(more, Element::kI32);
  const Value place = b.Add(b.Iota({8, 128}, 1), b.Mul(b.Iota({8, 128}, 0), b.I32(128)));
  Value mixed = b.Xor(b.And(bits, b.I32(0x7F)), b.Or(place, b.ShiftLeft(one, b.I32(3))));
  mixed = b.Add(mixed, b.Sub(b.Rem(place, b.I32(7)), b.Div(place, b.I32(5))));
  mixed = b.Add(mixed, b.Add(b.ShiftRight(place, one), b.Binary(OpCode::kShrSI, place, one)));
  mixed = b.Min(b.Max(mixed, b.I32(-9)), b.I32(900));
  const Value near = b.Convert(mixed, Element::kF32);
  const Value small = b.Convert(b.Convert(mixed, Element::kI8), Element::kI32);
  const Value whole = b.Convert(b.Convert(near, Element::kI32), Element::kF32);
  const Value sign = b.Convert(b.Is(Compare::kLt, small, zero), Element::kF32);
  Value sum = b.Select(b.Is(Compare::kGt, near, whole), b.F32(0), b.Add(sign, more));
  sum = b.Add(sum, b.Rotate(sum, args.grid[1], 1));
  sum = b.Add(sum, b.Slice(b.Concatenate({sum, x}, 0), {4, 0}, {8, 128}));
  sum = b.Add(sum, b.Broadcast(b.ShapeCast(b.Reduce(Reduction::kAdd, x, {0}), {1, 128}), {8, 128}));
  sum = b.Mul(sum, b.Reciprocal(b.Add(b.Abs(x), b.F32(1)), false));
  const Value first = b.Extract(sum, {0, 3});
  b.StoreScalar(b.Convert(first, Element::kI32), args["number"], Values{zero});
  const Value seen = b.LoadScalar(args["number"], Values{zero});

  const Value n = b.LoadScalar(args["count"], Values{args.grid[0]});
  const Values summed =
      b.For(zero, n, one, {b.LoadAll(args["total"]), seen}, [&](const Value& at, const Values& carried) {
        return Values{b.Add(carried[0], sum), b.Add(carried[1], at)};
      });
  const Values halved = b.While(
      {summed[0], b.I32(4)}, [&](const Values& carried) { return b.Is(Compare::kGt, carried[1], zero); },
      [&](const Values& carried) {
        return Values{b.Mul(carried[0], b.F32(0.5)), b.Sub(carried[1], one)};
      });
  b.WaitCopy(from, to, done);
  const Value copied = b.ShapeCast(b.Load(args["near"], Values{one, zero, zero}, {1, 8, 128}), {8, 128});
  const Values out = b.If(
      b.Is(Compare::kNe, args.grid[1], zero), [&] { return Values{b.Add(halved[0], copied)}; },
      [&] { return Values{halved[0]}; });
  b.StoreAll(out[0], args["total"]);
  b.StoreAll(out[0], args["o"]);
}

inline Result<Module> SampleKernel(int64_t version = 13) { return BuildKernel(SampleSpec(version), SampleBody); }

}  // namespace tessera::mosaic
