// Runs a kernel on the host, as a proof of its numbers: the grid with its windows, scalar memory, copies, and every
// operation on whole vectors. It is not fast as kernels go and knows no time; it is strict where a TPU is silent:
// memory that nobody wrote is NaN (or a number no index survives), what a window shows beyond its array too, every
// index is checked, and a copy that was started must be waited for.
//
// Numbers are a TPU's where it matters: bf16 results are rounded to nearest even, one operation at a time; matmuls sum
// in f32, and round f32 operands to bf16 unless they ask for fp32. Where it does not reach: docs/tpu.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes/xla/mosaic/ir.h"
#include "tessera/error.h"

namespace tessera::mosaic {

// An operand: dense, row-major, elements in their own width (i1 as one byte).
struct ArrayView {
  Element element = Element::kF32;
  std::vector<int64_t> dims;
  std::span<const std::byte> bytes;
};
// A result, or its type before there is one.
struct ArrayType {
  Element element = Element::kF32;
  std::vector<int64_t> dims;
  bool operator==(const ArrayType&) const = default;
};
int64_t BytesOf(const ArrayType& type);

struct InterpretOptions {
  // f32 operands of a matmul without a precision are multiplied as they are, which no TPU does and JAX's interpreter
  // does.
  bool exact_f32_matmul = false;
  int64_t most_rounds = int64_t{1} << 32;  // of all loops together
};

struct Interpreted {
  std::vector<std::vector<std::byte>> results;
  int64_t num_steps = 0;
  // Of each window, inputs first: blocks that were fetched, or written back.
  std::vector<int64_t> num_moved;
};

// Operands are the grid's dynamic bounds, the scalars, then the inputs, in the order of the kernel's arguments.
// TSR-M002 and TSR-M003 from the verifier; TSR-M005 with the operation and the grid step.
Result<Interpreted> Interpret(const Module& module, std::span<const ArrayView> operands,
                              std::span<const ArrayType> results, const InterpretOptions& options = {});

}  // namespace tessera::mosaic
