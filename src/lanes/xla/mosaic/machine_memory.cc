// Machine: memory and copies.
#include <fmt/format.h>

#include <cstring>

#include "lanes/xla/mosaic/node.h"

namespace tessera::mosaic {

bool Machine::Part(const Node& node, size_t first_index, std::span<const int64_t> dims, Memref& part) {
  const Op& op = *node.op;
  const Memref& whole = At(op.operands[first_index - 1]).memref;
  part.element = whole.element;
  part.dims.assign(dims.begin(), dims.end());
  part.strides = whole.strides;
  int64_t offset = 0;
  for (size_t axis = 0; axis < whole.dims.size(); ++axis) {
    const int64_t begin = Scalar(op.operands[first_index + axis]);
    const int64_t step = op.code == OpCode::kStridedLoad ? node.strides[axis] : 1;
    const int64_t count = axis < dims.size() ? dims[axis] : 1;
    if (begin < 0 || begin + (count - 1) * step >= whole.dims[axis]) {
      return Fault(node, fmt::format("{} elements from {} along axis {} of {}", count, begin, axis, whole.dims[axis]));
    }
    offset += begin * whole.strides[axis];
    part.strides[axis] *= step;
  }
  part.words = whole.words + offset * kWordBytes;
  return true;
}

bool Machine::RunMemory(const Node& node) {
  const Op& op = *node.op;
  Memref part;
  switch (op.code) {
    case OpCode::kVectorLoad:
    case OpCode::kStridedLoad:
      if (!Part(node, 1, node.type.dims, part)) return false;
      Gather(part.words, part.strides, part.dims, NewResult(node));
      return true;
    case OpCode::kVectorStore:
      if (!Part(node, 2, node.operand.dims, part)) return false;
      Scatter(Data(op.operands[0]), part.dims, part.words, part.strides);
      return true;
    case OpCode::kScalarLoad:
      if (!Part(node, 1, {}, part)) return false;
      std::memcpy(NewResult(node), part.words, kWordBytes);
      return true;
    case OpCode::kScalarStore:
      if (!Part(node, 2, {}, part)) return false;
      std::memcpy(part.words, Data(op.operands[0]), kWordBytes);
      return true;
    case OpCode::kMemrefSlice:
      if (!Part(node, 1, node.type.dims, part)) return false;
      At(op.results[0]).memref = std::move(part);
      return true;
    default: {  // kMemrefSqueeze: axes of 1 that the result has not
      const Memref& whole = At(op.operands[0]).memref;
      part = {whole.words, whole.element, node.type.dims, {}};
      size_t next = 0;
      for (size_t axis = 0; axis < whole.dims.size(); ++axis) {
        if (next < part.dims.size() && whole.dims[axis] == part.dims[next]) {
          part.strides.push_back(whole.strides[axis]);
          ++next;
        }
      }
      At(op.results[0]).memref = std::move(part);
      return true;
    }
  }
}

// A copy is read when it starts and lands when it is waited for: what reads the destination before finds nothing.
bool Machine::RunCopy(const Node& node) {
  const Op& op = *node.op;
  const bool starts = op.code == OpCode::kEnqueueDma;
  const Memref& from = At(op.operands[starts ? 0 : 1]).memref;
  const Memref& to = At(op.operands[starts ? 1 : 2]).memref;
  auto& copies = state_.copies[At(op.operands[starts ? 2 : 0]).memref.words];
  const int64_t count = NumElements(MemrefOf(Space::kVmem, to.element, to.dims));
  if (starts) {
    Words words = state_.pool.Take(count);
    Poison(words.get(), count, to.element);
    Scatter(words.get(), to.dims, to.words, to.strides);
    Gather(from.words, from.strides, from.dims, words.get());
    copies.push_back({to, std::move(words)});
    return true;
  }
  if (copies.empty()) return Fault(node, "a wait for a copy that nobody started");
  const RunState::Copy& copy = copies.front();
  if (copy.to.dims != to.dims) return Fault(node, "a wait for a copy of another size");
  Scatter(copy.words.get(), copy.to.dims, copy.to.words, copy.to.strides);
  copies.pop_front();
  return true;
}

}  // namespace tessera::mosaic
