// A kernel on its arrays, and in its memory. See verify.h.
#include <fmt/format.h>

#include <algorithm>

#include "base/math.h"
#include "base/try.h"
#include "lanes/xla/mosaic/signature.h"
#include "lanes/xla/mosaic/verify.h"
#include "lanes/xla/mosaic/verify_op.h"

namespace tessera::mosaic {
namespace {

constexpr int64_t kLanes = 128;
constexpr int64_t kSublanes = 8;
constexpr int64_t kWordBits = 32;

std::string Shape(const ArrayType& type) {
  return fmt::format("{}[{}]", ToText(type.element), fmt::join(type.dims, ", "));
}

// How many of a narrow element lie in one word, one above the other.
int64_t Packing(Element element) { return kWordBits / std::min(BitsOf(element), kWordBits); }

// What is known of the blocks that an index map names, from the grid alone.
std::vector<Fact> BlocksOf(const Function& map, const std::vector<int64_t>& grid) {
  Facts facts(map);
  for (size_t at = 0; at < grid.size(); ++at) {
    if (grid[at] != kDynamicBound) facts.Set(map.body.arguments[at], {0, grid[at] - 1, true, 1});
  }
  for (const Op& op : map.body.ops) facts.Learn(map, op);
  std::vector<Fact> blocks;
  for (const ValueId value : map.body.ops.back().operands) blocks.push_back(facts.Of(value));
  return blocks;
}

// A block's last two axes are whole tiles, or the array's own.
std::string CheckTiling(const Type& block, const std::vector<int64_t>& array) {
  if (block.space != Space::kVmem) return {};
  const int64_t rank = block.rank();
  const auto fits = [&](int64_t axis, int64_t tile) {
    const auto at = static_cast<size_t>(axis);
    return block.dims[at] % tile == 0 || block.dims[at] == array[at];
  };
  if (rank == 1) {
    const int64_t least = kLanes * Packing(block.element);
    if (fits(0, least * kSublanes)) return {};
    return (block.dims[0] & (block.dims[0] - 1)) == 0 && block.dims[0] >= least
               ? ""
               : "a block of one axis that is no whole tile";
  }
  if (rank == 0) return {};
  const int64_t rows = kSublanes * Packing(block.element);
  if (!fits(rank - 1, kLanes))
    return fmt::format("a last axis of {} that is neither a multiple of {} nor the array's", block.dims.back(), kLanes);
  if (!fits(rank - 2, rows)) {
    return fmt::format("rows of {} that are neither a multiple of {} nor the array's",
                       block.dims[static_cast<size_t>(rank - 2)], rows);
  }
  return {};
}

struct Misfits {
  std::vector<Violation> list;
  void Add(const std::string& field, std::string expected) { list.push_back({field, std::move(expected)}); }
};

void CheckWindow(const Signature& signature, size_t at, const ArrayType& array, bool is_result, Misfits& misfits) {
  const WindowInfo& window = signature.windows[at];
  const Type& block = window.memref;
  const std::string name = fmt::format("{} (window {})", is_result ? "result" : "input", at);
  if (array.element != block.element)
    return misfits.Add(name, fmt::format("elements of {}; it is {}", ToText(block.element), Shape(array)));
  if (static_cast<int64_t>(array.dims.size()) != block.rank()) {
    return misfits.Add(name, fmt::format("{} axes; it is {}", block.rank(), Shape(array)));
  }
  if (std::ranges::any_of(array.dims, [](int64_t dim) { return dim < 1; }))
    return misfits.Add(name, "axes of at least 1");
  if (window.index_map == nullptr) {
    if (array.dims != block.dims)
      misfits.Add(name, fmt::format("the shape of {}; it is {}", ToText(block), Shape(array)));
    return;
  }
  if (std::string wrong = CheckTiling(block, array.dims); !wrong.empty()) {
    misfits.Add(name, fmt::format("whole tiles; {} has {}", ToText(block), wrong));
  }
  const std::vector<Fact> blocks = BlocksOf(*window.index_map, signature.grid);
  for (size_t axis = 0; axis < blocks.size(); ++axis) {
    const Fact& fact = blocks[axis];
    if (!fact.is_known) continue;
    const int64_t count = CeilDiv(array.dims[axis], block.dims[axis]);
    if (fact.low < 0 || fact.high >= count) {
      misfits.Add(name, fmt::format("more than {} along axis {}: the grid goes to block {} of {}", array.dims[axis],
                                    axis, fact.high, block.dims[axis]));
    } else if (is_result && fact.high - fact.low + 1 < count) {
      misfits.Add(name, fmt::format("at most {} along axis {}; it is {}, and the rest would never be written",
                                    (fact.high + 1) * block.dims[axis], axis, array.dims[axis]));
    }
  }
}

int64_t PaddedBytes(const Type& type) {
  std::vector<int64_t> dims = type.dims;
  if (dims.empty()) dims = {1};
  const int64_t packing = Packing(type.element);
  if (dims.size() == 1) {
    dims[0] = RoundUp(dims[0], kLanes * packing);
  } else {
    dims[dims.size() - 1] = RoundUp(dims[dims.size() - 1], kLanes);
    dims[dims.size() - 2] = RoundUp(dims[dims.size() - 2], kSublanes * packing);
  }
  const int64_t count = NumElements(VectorOf(type.element, dims));
  return count > (int64_t{1} << 50) ? int64_t{1} << 50 : count * BitsOf(type.element) / 8;
}

}  // namespace

Status VerifyOperands(const Module& module, std::span<const ArrayType> given, std::span<const ArrayType> results) {
  const Signature signature = TESSERA_TRY(ReadSignature(module));
  const size_t num_scalars = signature.scalars.size();
  const size_t num_before = signature.num_dynamic + num_scalars;
  if (given.size() + results.size() != num_before + signature.windows.size() || given.size() < num_before) {
    return Fail(ErrorCode::kKernelOperands,
                fmt::format("{} operands and {} results for a kernel of {} scalars and {} windows", given.size(),
                            results.size(), num_before, signature.windows.size()));
  }
  Misfits misfits;
  for (size_t at = 0; at < signature.num_dynamic; ++at) {
    if (given[at] != ArrayType{Element::kI32, {}}) {
      misfits.Add(fmt::format("grid bound {}", at), fmt::format("one i32; it is {}", Shape(given[at])));
    }
  }
  const std::span<const ArrayType> operands = given.subspan(signature.num_dynamic);
  for (size_t at = 0; at < num_scalars; ++at) {
    const Type& type = signature.scalars[at];
    if (operands[at].element != type.element || operands[at].dims != type.dims) {
      misfits.Add(fmt::format("scalars {}", at),
                  fmt::format("the shape of {}; it is {}", ToText(type), Shape(operands[at])));
    }
  }
  const size_t num_inputs = operands.size() - num_scalars;
  for (size_t at = 0; at < signature.windows.size(); ++at) {
    const bool is_result = at >= num_inputs;
    CheckWindow(signature, at, is_result ? results[at - num_inputs] : operands[num_scalars + at], is_result, misfits);
  }
  if (!misfits.list.empty()) return Fail(ErrorCode::kKernelOperands, std::move(misfits.list));
  return {};
}

Result<KernelMemory> MeasureMemory(const Module& module) {
  const Signature signature = TESSERA_TRY(ReadSignature(module));
  KernelMemory memory;
  const auto add = [&](const Type& type, int64_t times) {
    if (type.space == Space::kVmem) memory.vmem_bytes += times * PaddedBytes(type);
    if (type.space == Space::kSmem) {
      memory.smem_bytes += times * RoundUp(NumElements(type) * BitsOf(type.element) / 8, kWordBits / 8);
    }
  };
  for (const Type& type : signature.scalars) add(type, 1);
  for (const Type& type : signature.scratch) add(type, 1);
  for (const WindowInfo& window : signature.windows) {
    add(window.memref, window.index_map == nullptr || window.is_synchronous ? 1 : 2);
  }
  return memory;
}

Status VerifyMemory(const Module& module, const KernelMemory& limits) {
  const KernelMemory memory = TESSERA_TRY(MeasureMemory(module));
  if (memory.vmem_bytes > limits.vmem_bytes) {
    return Fail(ErrorCode::kKernelMemory,
                fmt::format("{} bytes of vector memory, and the limit is {}", memory.vmem_bytes, limits.vmem_bytes));
  }
  if (memory.smem_bytes > limits.smem_bytes) {
    return Fail(ErrorCode::kKernelMemory,
                fmt::format("{} bytes of scalar memory, and the limit is {}", memory.smem_bytes, limits.smem_bytes));
  }
  return {};
}

}  // namespace tessera::mosaic
