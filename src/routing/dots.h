// The arithmetic of routing, in one order of operations that every instruction set, compiler and number of threads
// repeats bit for bit.
//
// A dot product has 16 lanes: lane l adds q[d] * k[d] for d = l, l + 16, ..., each product rounded before it is added.
// Then lanes 8..15 are added to lanes 0..7, 4..7 to 0..3, 2..3 to 0..1, and 1 to 0. Rows are padded with zeros to whole
// rounds of 16. The file is compiled without contraction into fused multiply-adds, which would round once less.
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor_row.h"
#include "tessera/tensor.h"

namespace tessera::routing {

inline constexpr int64_t kDotLanes = 16;
constexpr int64_t PaddedDim(int64_t dim) { return (dim + kDotLanes - 1) / kDotLanes * kDotLanes; }

// out[i * out_stride + m] = queries[i] . rows[m], with `rows` [num_rows, dim] and dim a multiple of 16.
struct DotJob {
  std::span<const float* const> queries = {};
  const float* rows = nullptr;
  int64_t num_rows = 0;
  int64_t dim = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};
void Dots(const DotJob& job);

// out[d] = row[d] and out[d] += row[d] for d < dim; every value of the three types is exact in f32.
void CopyRow(ElementType type, const std::byte* row, int64_t dim, float* out);
void AddRow(ElementType type, const std::byte* row, int64_t dim, float* out);

}  // namespace tessera::routing
