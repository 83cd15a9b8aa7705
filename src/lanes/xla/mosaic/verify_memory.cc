// The rules of memory: which kind is read how, and where.
#include <fmt/format.h>

#include <span>

#include "lanes/xla/mosaic/verify_op.h"

namespace tessera::mosaic {
namespace {

constexpr int64_t kLanes = 128;

bool HasSegments(const Op& op, std::vector<int64_t> sizes) {
  const Attribute* segments = Find(op.attributes, "operandSegmentSizes");
  return segments != nullptr && segments->kind == AttributeKind::kIntegers && segments->element == Element::kI32 &&
         segments->integers == sizes;
}

// The part of a memref that an access covers: operands from `first` on are its indices.
struct Access {
  const Type& memref;
  std::span<const ValueId> indices;
  std::span<const int64_t> dims;  // what is read or written along each axis; empty is one element
  std::span<const int64_t> steps = {};
  bool is_tiled = false;  // of vectors: places along the last axis are known multiples
};

std::string CheckAccess(const OpContext& context, const Access& access, Element index) {
  const std::vector<int64_t>& whole = access.memref.dims;
  if (access.indices.size() != whole.size()) return "indices that are not one per axis";
  if (!access.dims.empty() && access.dims.size() != whole.size()) return "another number of axes than its memref's";
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    if (context.function.TypeOf(access.indices[axis]) != ScalarOf(index)) {
      return fmt::format("an index that is not {}", ToText(index));
    }
    const Fact& at = context.facts.Of(access.indices[axis]);
    const int64_t count = access.dims.empty() ? 1 : access.dims[axis];
    const int64_t step = access.steps.empty() ? 1 : access.steps[axis];
    if (count < 1 || step < 1 || (count - 1) >= (whole[axis] + step - 1) / step) {
      return fmt::format("{} elements of an axis of {}", count, whole[axis]);
    }
    const int64_t last = (count - 1) * step;
    if (at.is_known && (at.low > whole[axis] - 1 - last || at.high < 0)) {
      return fmt::format("{} elements from {} on, of an axis of {}", count, at.low, whole[axis]);
    }
    const bool is_constant = at.is_known && at.low == at.high;
    const bool is_last = axis + 1 == whole.size();
    if (access.is_tiled && is_last && !is_constant && at.multiple % kLanes != 0) {
      return "a place along the last axis that is not known to be a multiple of 128 (assume_multiple says so)";
    }
  }
  return {};
}

std::string CheckLoad(const OpContext& context, const Op& op) {
  if (op.operands.empty() || op.results.size() != 1) return "no memref, or no result";
  const Type& memref = context.function.TypeOf(op.operands[0]);
  const Type& to = context.function.TypeOf(op.results[0]);
  if (!memref.IsMemref() || memref.space != Space::kVmem) return "a vector from other than vector memory";
  if (!to.IsVector() || to.element != memref.element) return "a result that is not of the memref's elements";
  std::vector<int64_t> steps;
  if (op.code == OpCode::kStridedLoad) {
    const Attribute* strides = Find(op.attributes, "strides");
    if (strides == nullptr || strides->kind != AttributeKind::kIntegers ||
        strides->integers.size() != memref.dims.size()) {
      return "strides that are not one per axis";
    }
    steps = strides->integers;
  }
  return CheckAccess(context,
                     {.memref = memref,
                      .indices = std::span(op.operands).subspan(1),
                      .dims = to.dims,
                      .steps = steps,
                      .is_tiled = memref.rank() >= 2},
                     Element::kIndex);
}

std::string CheckStore(const OpContext& context, const Op& op) {
  if (op.operands.size() < 2 || !op.results.empty()) return "no value or no memref";
  const Type& from = context.function.TypeOf(op.operands[0]);
  const Type& memref = context.function.TypeOf(op.operands[1]);
  if (!memref.IsMemref() || memref.space != Space::kVmem) return "a vector to other than vector memory";
  if (!from.IsVector() || from.element != memref.element) return "a value that is not of the memref's elements";
  const Attribute* add = Find(op.attributes, "add");
  const Attribute* strides = Find(op.attributes, "strides");
  if (add != nullptr && (add->kind != AttributeKind::kBool || add->integer != 0)) return "a store that adds";
  if (strides == nullptr || strides->kind != AttributeKind::kIntegers || !strides->integers.empty()) {
    return "a store without strides = array<i32>";
  }
  if (!HasSegments(op, {1, 1, memref.rank(), 0})) return "segment sizes that are not those of a store without a mask";
  return CheckAccess(context,
                     {.memref = memref,
                      .indices = std::span(op.operands).subspan(2),
                      .dims = from.dims,
                      .is_tiled = memref.rank() >= 2},
                     Element::kIndex);
}

std::string CheckScalar(const OpContext& context, const Op& op, bool is_load) {
  const size_t first = is_load ? 1 : 2;
  if (op.operands.size() < first || op.results.size() != (is_load ? 1U : 0U)) return "no value or no memref";
  const Type& memref = context.function.TypeOf(op.operands[first - 1]);
  const Type& scalar = context.function.TypeOf(is_load ? op.results[0] : op.operands[0]);
  if (!memref.IsMemref() || memref.space != Space::kSmem) return "a scalar in other than scalar memory";
  if (scalar != ScalarOf(memref.element)) return "a scalar that is not of the memref's elements";
  return CheckAccess(context, {.memref = memref, .indices = std::span(op.operands).subspan(first), .dims = {}},
                     Element::kIndex);
}

std::string CheckSliceOf(const OpContext& context, const Op& op) {
  if (op.operands.empty() || op.results.size() != 1) return "no memref, or no result";
  const Type& memref = context.function.TypeOf(op.operands[0]);
  const Type& to = context.function.TypeOf(op.results[0]);
  if (!memref.IsMemref() || to != MemrefOf(memref.space, memref.element, to.dims)) return "a result of another kind";
  if (!HasSegments(op, {1, memref.rank(), 0})) return "segment sizes that are not those of its operands";
  return CheckAccess(context, {.memref = memref, .indices = std::span(op.operands).subspan(1), .dims = to.dims},
                     Element::kI32);
}

std::string CheckSqueeze(const OpContext& context, const Op& op) {
  const Type& memref = context.function.TypeOf(op.operands[0]);
  const Type& to = context.function.TypeOf(op.results[0]);
  if (!memref.IsMemref() || to != MemrefOf(memref.space, memref.element, to.dims)) return "a result of another kind";
  size_t next = 0;
  for (const int64_t dim : memref.dims) {
    if (next < to.dims.size() && to.dims[next] == dim) {
      ++next;
    } else if (dim != 1) {
      return "a result without an axis that is not 1";
    }
  }
  return FirstOf({Unless(next == to.dims.size(), "a result with axes that the memref has not")});
}

std::string CheckCopy(const OpContext& context, const Op& op, bool starts) {
  const Type& from = context.function.TypeOf(op.operands[starts ? 0 : 1]);
  const Type& to = context.function.TypeOf(op.operands[starts ? 1 : 2]);
  const Type& semaphore = context.function.TypeOf(op.operands[starts ? 2 : 0]);
  return FirstOf(
      {Unless(from.IsMemref() && to.IsMemref() && from.element == to.element && from.dims == to.dims,
              "a copy between memrefs that are not alike"),
       Unless(from.space != Space::kSemaphore && to.space != Space::kSemaphore, "a copy of semaphores"),
       Unless(semaphore.IsMemref() && semaphore.element == Element::kDmaSemaphore && semaphore.dims.empty(),
              "no single semaphore of copies"),
       Unless(HasSegments(op, starts ? std::vector<int64_t>{1, 0, 1, 1, 0, 0} : std::vector<int64_t>{1, 1, 1, 0, 0}),
              "segment sizes that are not those of a copy on one chip")});
}

}  // namespace

std::string CheckMemoryOp(const OpContext& context, const Op& op) {
  switch (FormOf(op.code)) {
    case Form::kVectorLoad:
      return CheckLoad(context, op);
    case Form::kVectorStore:
      return CheckStore(context, op);
    case Form::kScalarLoad:
      return CheckScalar(context, op, true);
    case Form::kScalarStore:
      return CheckScalar(context, op, false);
    case Form::kMemrefSlice:
      return CheckSliceOf(context, op);
    case Form::kMemrefSqueeze:
      return CheckSqueeze(context, op);
    default:
      return CheckCopy(context, op, op.code == OpCode::kEnqueueDma);
  }
}

}  // namespace tessera::mosaic
