// The interpreter's arithmetic: one operation on whole arrays of words (words.h). A scalar is an array of one.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lanes/xla/mosaic/ir.h"

namespace tessera::mosaic {

// out[i] = op(x[i]); results of bf16 are rounded.
void ComputeUnary(OpCode code, Element element, const std::byte* x, std::byte* out, int64_t count);
// Empty, or what is wrong (a division by zero).
std::string ComputeBinary(OpCode code, Element element, std::span<const std::byte* const> operands, std::byte* out,
                          int64_t count);
void ComputeCompare(OpCode code, int64_t predicate, std::span<const std::byte* const> operands, std::byte* out,
                    int64_t count);
// condition, then, otherwise; a single condition decides for all.
void ComputeSelect(std::span<const std::byte* const> operands, bool is_single, std::byte* out, int64_t count);
struct Conversion {
  OpCode code;
  Element from;
  Element to;
};
void ComputeConvert(const Conversion& conversion, const std::byte* x, std::byte* out, int64_t count);

// out has the shape without the reduced axes, and begins as the accumulator. `kind` is "add", "maximumf" or "minimumf".
struct ReduceShape {
  std::span<const int64_t> dims;
  std::span<const int64_t> out_strides;  // one per axis of dims, 0 along those that are reduced
};
void ComputeReduce(std::string_view kind, Element element, const ReduceShape& shape, const std::byte* x,
                   std::byte* out);

// out[m][n] += sum over k of lhs * rhs. Sides lie [m, k] or [k, m], and [k, n] or [n, k].
struct MatmulShape {
  int64_t m = 0, n = 0, k = 0;
  bool lhs_is_transposed = false;  // [k, m]
  bool rhs_is_transposed = false;  // [n, k]
  bool rounds = false;             // operands to bf16 first
};
void ComputeMatmul(const MatmulShape& shape, const float* lhs, const float* rhs, float* out);

}  // namespace tessera::mosaic
