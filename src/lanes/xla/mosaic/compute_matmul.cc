// Sums: reductions and the matmul. See compute.h.
#include <algorithm>
#include <vector>

#include "lanes/xla/mosaic/compute.h"
#include "lanes/xla/mosaic/words.h"

namespace tessera::mosaic {
namespace {

template <class F>
void ReduceWith(const ReduceShape& shape, const float* x, float* out, const F& f) {
  const int64_t count = shape.dims.back();
  const int64_t step = shape.out_strides.back();
  const size_t outer = shape.dims.size() - 1;
  int64_t num_rows = 1;
  for (size_t axis = 0; axis < outer; ++axis) num_rows *= shape.dims[axis];
  std::vector<int64_t> at(outer, 0);
  int64_t offset = 0;
  for (int64_t row = 0; row < num_rows; ++row, x += count) {
    float* to = out + offset;
    if (step == 0) {
      float sum = *to;
      for (int64_t i = 0; i < count; ++i) sum = f(sum, x[i]);
      *to = sum;
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = f(to[i], x[i]);
    }
    for (size_t axis = outer; axis-- > 0;) {
      offset += shape.out_strides[axis];
      if (++at[axis] < shape.dims[axis]) break;
      offset -= shape.out_strides[axis] * shape.dims[axis];
      at[axis] = 0;
    }
  }
}

// The side as rows of `columns`, rounded when asked for. `from` lies the other way round when it is transposed.
std::vector<float> Packed(const float* from, int64_t rows, int64_t columns, bool is_transposed, bool rounds) {
  std::vector<float> to(static_cast<size_t>(rows * columns));
  constexpr int64_t kTile = 32;  // of a transposition that stays in the cache
  if (!is_transposed) {
    std::copy_n(from, to.size(), to.data());
  } else {
    for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
      for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
        for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
          for (int64_t c = c0; c < std::min(columns, c0 + kTile); ++c) to[r * columns + c] = from[c * rows + r];
        }
      }
    }
  }
  if (rounds) {
    for (float& value : to) value = RoundToBf16(value);
  }
  return to;
}

constexpr int64_t kRows = 4;
constexpr int64_t kColumns = 16;

// A block of the result in registers.
void Block(const MatmulShape& shape, const float* lhs, const float* rhs, float* out) {
  float sums[kRows][kColumns] = {};
  for (int64_t k = 0; k < shape.k; ++k) {
    const float* row = rhs + k * shape.n;
    for (int64_t r = 0; r < kRows; ++r) {
      const float factor = lhs[r * shape.k + k];
      for (int64_t c = 0; c < kColumns; ++c) sums[r][c] += factor * row[c];
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) out[r * shape.n + c] += sums[r][c];
  }
}

}  // namespace

void ComputeReduce(std::string_view kind, Element element, const ReduceShape& shape, const std::byte* x,
                   std::byte* out) {
  if (kind == "add") {
    ReduceWith(shape, Floats(x), Floats(out), [](float a, float b) { return a + b; });
  } else if (kind == "maximumf") {
    ReduceWith(shape, Floats(x), Floats(out), [](float a, float b) { return a > b || a != a ? a : b; });
  } else {
    ReduceWith(shape, Floats(x), Floats(out), [](float a, float b) { return a < b || a != a ? a : b; });
  }
  if (element != Element::kBf16) return;
  int64_t count = 1;
  for (size_t axis = 0; axis < shape.dims.size(); ++axis) count *= shape.out_strides[axis] == 0 ? 1 : shape.dims[axis];
  for (int64_t at = 0; at < count; ++at) Floats(out)[at] = RoundToBf16(Floats(out)[at]);
}

void ComputeMatmul(const MatmulShape& shape, const float* lhs, const float* rhs, float* out) {
  const std::vector<float> a = Packed(lhs, shape.m, shape.k, shape.lhs_is_transposed, shape.rounds);
  const std::vector<float> b = Packed(rhs, shape.k, shape.n, shape.rhs_is_transposed, shape.rounds);
  const int64_t whole_m = shape.m / kRows * kRows;
  const int64_t whole_n = shape.n / kColumns * kColumns;
  for (int64_t n = 0; n < whole_n; n += kColumns) {
    for (int64_t m = 0; m < whole_m; m += kRows) {
      Block(shape, a.data() + m * shape.k, b.data() + n, out + m * shape.n + n);
    }
  }
  for (int64_t m = 0; m < shape.m; ++m) {
    for (int64_t n = m < whole_m ? whole_n : 0; n < shape.n; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < shape.k; ++k) sum += a[m * shape.k + k] * b[k * shape.n + n];
      out[m * shape.n + n] += sum;
    }
  }
}

}  // namespace tessera::mosaic
