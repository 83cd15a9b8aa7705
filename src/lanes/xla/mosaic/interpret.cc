// The grid: which block each window shows, what is fetched, what is written back. See interpret.h.
#include "lanes/xla/mosaic/interpret.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/try.h"
#include "lanes/xla/mosaic/machine.h"
#include "lanes/xla/mosaic/signature.h"
#include "lanes/xla/mosaic/verify.h"

namespace tessera::mosaic {
namespace {

int64_t Count(std::span<const int64_t> dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

// An operand or a result in its own memory.
struct Whole {
  Element element = Element::kF32;
  std::vector<int64_t> dims;
  Words words;
};

Whole MakeWhole(WordPool& pool, Element element, const std::vector<int64_t>& dims) {
  const int64_t count = Count(dims);
  Whole whole{element, dims, pool.Take(count)};
  Poison(whole.words.get(), count, element);
  return whole;
}

// What a step sees of an array, and which block it is.
struct View {
  WindowInfo info;
  bool is_result = false;
  Whole* array = nullptr;
  Words block;                 // none where the array itself is seen
  std::vector<int64_t> index;  // of the block that is there now; empty before the first step
  int64_t num_moved = 0;
};

// The part of the array that the view's block covers: its first word, and how many elements of each axis are inside.
std::vector<int64_t> Inside(const View& view, int64_t* offset) {
  const std::vector<int64_t> strides = RowMajor(view.array->dims);
  std::vector<int64_t> dims = view.info.memref.dims;
  *offset = 0;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const int64_t begin = view.index[axis] * dims[axis];
    *offset += begin * strides[axis];
    dims[axis] = std::min(dims[axis], view.array->dims[axis] - begin);
  }
  return dims;
}

void Fetch(WordPool& pool, View& view) {
  const Type& type = view.info.memref;
  Poison(view.block.get(), NumElements(type), type.element);
  int64_t offset = 0;
  const std::vector<int64_t> inside = Inside(view, &offset);
  const Words part = pool.Take(Count(inside));
  Gather(view.array->words.get() + offset * kWordBytes, RowMajor(view.array->dims), inside, part.get());
  Scatter(part.get(), inside, view.block.get(), RowMajor(type.dims));
  ++view.num_moved;
}

void WriteBack(WordPool& pool, View& view) {
  int64_t offset = 0;
  const std::vector<int64_t> inside = Inside(view, &offset);
  const Words part = pool.Take(Count(inside));
  Gather(view.block.get(), RowMajor(view.info.memref.dims), inside, part.get());
  Scatter(part.get(), inside, view.array->words.get() + offset * kWordBytes, RowMajor(view.array->dims));
  ++view.num_moved;
}

class Run {
 public:
  Run(const Module& module, const Signature& signature, const InterpretOptions& options)
      : signature_(signature),
        kernel_(module.functions.front(), state_),
        grid_(signature.grid),
        step_(signature.grid.size(), 0) {
    state_.options = options;
  }

  Result<Interpreted> Go(std::span<const ArrayView> given, std::span<const ArrayType> results) {
    for (int64_t& bound : grid_) {
      if (bound != kDynamicBound) continue;
      int32_t value = 0;
      std::memcpy(&value, given.front().bytes.data(), sizeof(value));
      if (value < 0) return Fail(ErrorCode::kKernelFault, fmt::format("a grid of {} steps", value), "grid");
      bound = value;
      given = given.subspan(1);
    }
    BindMemory(given, results);
    const int64_t num_steps = Count(grid_);
    for (int64_t step = 0; step < num_steps; ++step) {
      if (!OneStep())
        return Fail(ErrorCode::kKernelFault, state_.fault, fmt::format("step ({})", fmt::join(step_, ", ")));
      for (size_t axis = step_.size(); axis-- > 0;) {
        if (++step_[axis] < grid_[axis]) break;
        step_[axis] = 0;
      }
    }
    for (View& view : views_) {
      if (view.is_result && view.block && !view.index.empty()) WriteBack(state_.pool, view);
    }
    for (const auto& [semaphore, copies] : state_.copies) {
      if (!copies.empty()) return Fail(ErrorCode::kKernelFault, "a copy was started and nobody waited for it", "end");
    }
    return Collect(results, num_steps);
  }

 private:
  void BindMemory(std::span<const ArrayView> operands, std::span<const ArrayType> results) {
    WordPool& pool = state_.pool;
    for (const ArrayView& operand : operands) {
      arrays_.push_back(MakeWhole(pool, operand.element, operand.dims));
      ToWords(operand.bytes.data(), operand.element, Count(operand.dims), arrays_.back().words.get());
    }
    for (const ArrayType& result : results) arrays_.push_back(MakeWhole(pool, result.element, result.dims));

    const size_t num_scalars = signature_.scalars.size();
    for (size_t at = 0; at < num_scalars; ++at) {
      kernel_.SetMemref(signature_.FirstScalar() + at, Seen(arrays_[at], signature_.scalars[at]));
    }
    for (size_t at = 0; at < signature_.windows.size(); ++at) {
      View& view = views_.emplace_back();
      view.info = signature_.windows[at];
      view.array = &arrays_[num_scalars + at];
      view.is_result = num_scalars + at >= operands.size();
      Memref memref = Seen(*view.array, view.info.memref);
      if (view.info.index_map != nullptr) {
        view.block = pool.Take(NumElements(view.info.memref));
        memref = DenseMemref(view.block.get(), view.info.memref.element, view.info.memref.dims);
        Machine& map = maps_.emplace_back(*view.info.index_map, state_);
        for (size_t scalar = 0; scalar < num_scalars; ++scalar) {
          map.SetMemref(signature_.grid.size() + scalar, Seen(arrays_[scalar], signature_.scalars[scalar]));
        }
      }
      kernel_.SetMemref(signature_.FirstWindow() + at, std::move(memref));
    }
    for (size_t at = 0; at < signature_.scratch.size(); ++at) {
      const Type& type = signature_.scratch[at];
      scratch_.push_back(MakeWhole(pool, type.element, type.dims));
      kernel_.SetMemref(signature_.FirstScratch() + at, Seen(scratch_.back(), type));
    }
  }

  static Memref Seen(const Whole& whole, const Type& type) {
    return DenseMemref(whole.words.get(), type.element, type.dims);
  }

  bool OneStep() {
    size_t next_map = 0;
    for (size_t at = 0; at < views_.size(); ++at) {
      View& view = views_[at];
      if (!view.block) continue;
      Machine& map = maps_[next_map++];
      for (size_t axis = 0; axis < step_.size(); ++axis) map.SetScalar(axis, static_cast<int32_t>(step_[axis]));
      if (!map.Run()) return false;
      const std::vector<int64_t> index(map.returned().begin(), map.returned().end());
      if (index == view.index) continue;
      if (!IsInside(view, index, at)) return false;
      if (view.is_result && !view.index.empty()) WriteBack(state_.pool, view);
      view.index = index;
      if (view.is_result) {
        Poison(view.block.get(), NumElements(view.info.memref), view.info.memref.element);
      } else {
        Fetch(state_.pool, view);
      }
    }
    for (size_t axis = 0; axis < step_.size(); ++axis) kernel_.SetScalar(axis, static_cast<int32_t>(step_[axis]));
    return kernel_.Run();
  }

  bool IsInside(const View& view, const std::vector<int64_t>& index, size_t at) {
    for (size_t axis = 0; axis < index.size(); ++axis) {
      const int64_t bound = view.info.memref.dims[axis];
      if (index[axis] < 0 || index[axis] * bound >= view.array->dims[axis]) {
        state_.fault = fmt::format("window {} is at block ({}) of an array of {}", at, fmt::join(index, ", "),
                                   fmt::join(view.array->dims, "x"));
        return false;
      }
    }
    return true;
  }

  Interpreted Collect(std::span<const ArrayType> results, int64_t num_steps) {
    Interpreted done;
    done.num_steps = num_steps;
    for (const View& view : views_) done.num_moved.push_back(view.num_moved);
    const size_t first = arrays_.size() - results.size();
    for (size_t at = 0; at < results.size(); ++at) {
      std::vector<std::byte>& bytes = done.results.emplace_back(static_cast<size_t>(BytesOf(results[at])));
      FromWords(arrays_[first + at].words.get(), results[at].element, Count(results[at].dims), bytes.data());
    }
    return done;
  }

  const Signature& signature_;
  RunState state_;
  Machine kernel_;
  std::vector<int64_t> grid_;  // with the bounds that operands said
  std::vector<int64_t> step_;
  std::deque<Whole> arrays_;  // operands, then results; a deque, because views point at them
  std::deque<Whole> scratch_;
  std::deque<View> views_;
  std::deque<Machine> maps_;  // of the views with a block
};

}  // namespace

int64_t BytesOf(const ArrayType& type) { return Count(type.dims) * ArrayBytesOf(type.element); }

Result<Interpreted> Interpret(const Module& module, std::span<const ArrayView> operands,
                              std::span<const ArrayType> results, const InterpretOptions& options) {
  TESSERA_TRY(VerifyModule(module));
  std::vector<ArrayType> types;
  for (const ArrayView& operand : operands) {
    types.push_back({operand.element, operand.dims});
    if (static_cast<int64_t>(operand.bytes.size()) != BytesOf(types.back())) {
      return Fail(ErrorCode::kKernelOperands,
                  fmt::format("operand {} has {} bytes where its shape has {}", types.size() - 1, operand.bytes.size(),
                              BytesOf(types.back())));
    }
  }
  TESSERA_TRY(VerifyOperands(module, types, results));
  const Signature signature = TESSERA_TRY(ReadSignature(module));
  return Run(module, signature, options).Go(operands, results);
}

}  // namespace tessera::mosaic
