// A Mosaic kernel as a value: the operations of one TPU kernel and of its index maps, in the form that libtpu takes as
// text (docs/tpu.md). Kernels are made with builder.h, written by print.h, read by parse.h, checked by verify.h and run
// on the host by interpret.h. Only the operations of ops.def exist: this is no MLIR, and needs none.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/mosaic/attribute.h"
#include "lanes/xla/mosaic/type.h"

namespace tessera::mosaic {

enum class OpCode : uint8_t {
#define TESSERA_MOSAIC_OP(name, text, form) name,
#include "lanes/xla/mosaic/ops.def"
#undef TESSERA_MOSAIC_OP
};

// What an operation's operands and results have to do with each other: verify.cc has the rule of each.
enum class Form : uint8_t {
  kConstant,
  kBinaryFloat,
  kBinaryInt,
  kUnaryFloat,
  kCompareInt,
  kCompareFloat,
  kSelect,
  kConvert,
  kBitcast,
  kVectorLoad,
  kVectorStore,
  kScalarLoad,
  kScalarStore,
  kShapeCast,
  kBroadcast,
  kMultiReduction,
  kExtractStridedSlice,
  kExtract,
  kMatmul,
  kIota,
  kConcatenate,
  kTranspose,
  kDynamicRotate,
  kAssumeMultiple,
  kMemrefSlice,
  kMemrefSqueeze,
  kEnqueueDma,
  kWaitDma,
  kIf,
  kFor,
  kWhile,
  kTerminator,
};

std::string_view ToText(OpCode code);  // "arith.addf"
Form FormOf(OpCode code);
std::optional<OpCode> FindOp(std::string_view text);

// A value of one function: an index into Function::values.
using ValueId = int32_t;

struct Op;

// One block: its arguments, and operations of which the last is a terminator.
struct Region {
  std::vector<ValueId> arguments;
  std::vector<Op> ops;
};

struct Op {
  OpCode code = OpCode::kConstant;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Attributes attributes;
  std::vector<Region> regions;
};

struct ValueInfo {
  Type type;
  std::string name;  // as the text had it, "arg3" or "41#1"; empty for what a builder made: the printer numbers it
};

// The kernel, or the index map of one window.
struct Function {
  Attributes attributes;  // sym_name, function_type, and a kernel's iteration_bounds, window_params, ...
  Region body;
  std::vector<ValueInfo> values;

  const Type& TypeOf(ValueId value) const { return values[static_cast<size_t>(value)].type; }
  std::string_view Name() const;
};

// A grid axis of which only a run knows how many steps it has: an i32 operand before all others says so.
inline constexpr int64_t kDynamicBound = std::numeric_limits<int64_t>::min();

inline constexpr int64_t kFirstHintVersion = 13;  // see Module::version

// functions[0] is the kernel, the others are the index maps that its window_params name.
struct Module {
  int64_t version = 13;  // of the serialised dialect; matmul has a `transpose_lhs_hint` from 13 on, and must not before
  std::vector<Function> functions;

  const Function* FindFunction(std::string_view name) const;
};

// The same kernel as another version of the dialect writes it.
void SetVersion(Module& module, int64_t version);

// Which axes of a matmul are summed, kept and where they go. Indices count axes of each side.
struct DotDims {
  std::vector<int64_t> lhs_contract = {1}, rhs_contract = {0};
  std::vector<int64_t> lhs_free = {0}, rhs_free = {1};
  std::vector<int64_t> output = {0, 0, 1, 1};  // (side, axis) of each result axis
  std::vector<int64_t> lhs_batch = {}, rhs_batch = {};
  bool operator==(const DotDims&) const = default;
};
std::string ToText(const DotDims& dims);  // "tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>"
std::optional<DotDims> ParseDotDims(std::string_view text);

}  // namespace tessera::mosaic
