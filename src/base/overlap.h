// Whether two strided tensors in one memory share a byte. Views of one buffer that interleave without touching (q, k
// and v of one fused tensor, say) do not, though their address ranges cross.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera {

// Rows of `row_bytes` that lie together, repeated along up to three axes. Strides are in bytes and not negative.
struct ByteRows {
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;
  struct Axis {
    int64_t stride = 0;
    int64_t count = 1;
  };
  std::array<Axis, 3> axes = {};
};

// From the first byte to one past the last; -1 when that is beyond any memory.
int64_t ExtentOf(const ByteRows& rows);

// Whether two rows of one tensor may share a byte. Sufficient, not necessary: axes must nest, each stride stepping over
// all that lies inside it, which every layout that a program really uses does.
bool RowsMayOverlap(const ByteRows& rows);

// Whether two tensors share a byte; both extents must be good. Exact for tensors of related strides, whatever their
// size; for strides that have nothing to do with each other it gives up at some point and says yes.
bool MayOverlap(const ByteRows& a, const ByteRows& b);

}  // namespace tessera
