// Machine: arithmetic and vectors.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "lanes/xla/mosaic/node.h"

namespace tessera::mosaic {
namespace {

void Constant(const Attribute& value, Element element, std::byte* out, int64_t count) {
  if (IsFloat(element)) {
    std::fill_n(Floats(out), count, static_cast<float>(value.real));
  } else {
    std::fill_n(Ints(out), count, static_cast<int32_t>(value.integer));
  }
}

void Iota(const Type& type, int64_t axis, std::byte* out) {
  int64_t inner = 1;
  for (int64_t at = axis + 1; at < type.rank(); ++at) inner *= type.dims[static_cast<size_t>(at)];
  const int64_t size = type.dims[static_cast<size_t>(axis)];
  const int64_t count = NumElements(type);
  for (int64_t at = 0; at < count; ++at) Ints(out)[at] = static_cast<int32_t>(at / inner % size);
}

}  // namespace

bool Machine::RunArithmetic(const Node& node) {
  const Op& op = *node.op;
  std::array<const std::byte*, 3> operands = {};
  for (size_t at = 0; at < op.operands.size() && at < operands.size(); ++at) operands[at] = Data(op.operands[at]);
  const std::span<const std::byte* const> given(operands.data(), op.operands.size());
  // A result of its own, while the operands are still there to be read.
  Slot& slot = At(op.results[0]);
  if (op.code == OpCode::kExtF || op.code == OpCode::kIndexCast || op.code == OpCode::kAssumeMultiple) {
    // The words are the same: bf16 is kept as f32, an index as i32.
    if (op.code == OpCode::kAssumeMultiple && Scalar(op.operands[0]) % node.number != 0) {
      return Fault(node, fmt::format("{} is no multiple of {}", Scalar(op.operands[0]), node.number));
    }
    const Words words = At(op.operands[0]).words;
    std::memcpy(slot.word, At(op.operands[0]).word, kWordBytes);
    slot.words = words;
    return true;
  }
  std::byte* const out = NewResult(node);
  switch (FormOf(op.code)) {
    case Form::kConstant:
      Constant(Find(op.attributes, "value")[0], node.type.element, out, node.count);
      return true;
    case Form::kUnaryFloat:
      ComputeUnary(op.code, node.type.element, given[0], out, node.count);
      return true;
    case Form::kCompareInt:
    case Form::kCompareFloat:
      ComputeCompare(op.code, node.number, given, out, node.count);
      return true;
    case Form::kSelect:
      ComputeSelect(given, !node.operand.IsVector(), out, node.count);
      return true;
    case Form::kBitcast:
      std::memcpy(out, given[0], static_cast<size_t>(node.count * kWordBytes));
      return true;
    case Form::kConvert:
      ComputeConvert({op.code, node.operand.element, node.type.element}, given[0], out, node.count);
      return true;
    default: {
      std::string wrong = ComputeBinary(op.code, node.type.element, given, out, node.count);
      return wrong.empty() || Fault(node, std::move(wrong));
    }
  }
}

bool Machine::RunVector(const Node& node) {
  const Op& op = *node.op;
  if (op.code == OpCode::kShapeCast) {
    At(op.results[0]).words = At(op.operands[0]).words;
    return true;
  }
  std::byte* const out = NewResult(node);
  const auto bytes = static_cast<size_t>(node.count * kWordBytes);
  switch (op.code) {
    case OpCode::kBroadcast:
      if (!node.operand.IsVector()) {
        const std::byte* word = Data(op.operands[0]);
        for (int64_t at = 0; at < node.count; ++at) std::memcpy(out + at * kWordBytes, word, kWordBytes);
        return true;
      }
      [[fallthrough]];
    case OpCode::kTranspose:
    case OpCode::kExtractStridedSlice:
      Gather(Data(op.operands[0]) + node.offset * kWordBytes, node.strides, node.type.dims, out);
      return true;
    case OpCode::kExtract:
      std::memcpy(out, Data(op.operands[0]) + node.offset * kWordBytes, kWordBytes);
      return true;
    case OpCode::kMultiReduction:
      std::memcpy(out, Data(op.operands[1]), bytes);
      ComputeReduce(node.kind, node.type.element, {node.operand.dims, node.strides}, Data(op.operands[0]), out);
      return true;
    case OpCode::kMatmul: {
      MatmulShape shape = node.matmul;
      if (state_.options.exact_f32_matmul) shape.rounds = false;
      std::memcpy(out, Data(op.operands[2]), bytes);
      ComputeMatmul(shape, Floats(Data(op.operands[0])), Floats(Data(op.operands[1])), Floats(out));
      return true;
    }
    case OpCode::kIota:
      Iota(node.type, node.number, out);
      return true;
    case OpCode::kConcatenate: {
      const std::vector<int64_t> strides = RowMajor(node.type.dims);
      int64_t offset = 0;
      for (const ValueId part : op.operands) {
        const Type& type = function_.TypeOf(part);
        Scatter(Data(part), type.dims, out + offset * kWordBytes, strides);
        offset += type.dims[static_cast<size_t>(node.number)] * strides[static_cast<size_t>(node.number)];
      }
      return true;
    }
    default: {  // kDynamicRotate: two parts that change places
      const auto axis = static_cast<size_t>(node.number);
      const int64_t size = node.type.dims[axis];
      const int64_t shift = ((Scalar(op.operands[1]) % size) + size) % size;
      const std::vector<int64_t> strides = RowMajor(node.type.dims);
      std::vector<int64_t> dims = node.type.dims;
      const std::byte* const from = Data(op.operands[0]);
      const Words part = state_.pool.Take(node.count);
      const auto move = [&](int64_t begin, int64_t count, int64_t to) {
        dims[axis] = count;
        Gather(from + begin * strides[axis] * kWordBytes, strides, dims, part.get());
        Scatter(part.get(), dims, out + to * strides[axis] * kWordBytes, strides);
      };
      move(0, size - shift, shift);
      move(size - shift, shift, 0);
      return true;
    }
  }
}

}  // namespace tessera::mosaic
