// See transfer.h.
#include "lanes/xla/transfer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/tensor_row.h"
#include "lanes/workers.h"

namespace tessera::lanes::xla {
namespace {

// Along an axis of one, a stride says nothing.
bool IsDense(const TensorRef& tensor, const TensorAxes& axes) {
  return (axes[2] == 1 || tensor.token_stride == axes[3]) &&
         (axes[1] == 1 || tensor.head_stride == axes[2] * axes[3]) &&
         (axes[0] == 1 || tensor.batch_stride == axes[1] * axes[2] * axes[3]);
}

pjrt::ElementType ToPjrt(ElementType type) {
  return type == ElementType::kF32    ? pjrt::ElementType::kF32
         : type == ElementType::kBf16 ? pjrt::ElementType::kBf16
                                      : pjrt::ElementType::kF16;
}

void Store(std::byte* row, ElementType type, int64_t i, float value) {
  const uint16_t bits = type == ElementType::kBf16 ? F32ToBf16(value) : F32ToF16(value);
  std::memcpy(row + i * 2, &bits, 2);
}

}  // namespace

Result<pjrt::LentBuffer> LendTensor(pjrt::Client& client, const TensorRef& tensor, const TensorAxes& axes,
                                    int64_t device) {
  const pjrt::TensorType type{ToPjrt(tensor.type), {axes.begin(), axes.end()}};
  if (IsDense(tensor, axes)) {
    return client.Lend(type, std::span(tensor.data, static_cast<size_t>(type.bytes())), device);
  }
  const int64_t size = BytesOf(tensor.type);
  const int64_t strides[] = {tensor.batch_stride * size, tensor.head_stride * size, tensor.token_stride * size, size};
  int64_t bytes = size;
  for (size_t i = 0; i < axes.size(); ++i) bytes += (axes[i] - 1) * strides[i];
  return client.Lend(type, std::span(tensor.data, static_cast<size_t>(bytes)), strides, device);
}

std::byte* PlaceOf(const TilesAt& at, const TensorRef& into, const TensorAxes& axes) {
  const bool as_they_come = into.type == ElementType::kF32 && IsDense(into, axes) && axes[2] % at.tokens == 0;
  return as_they_come ? into.data + at.first_row * at.tokens * axes[3] * 4 : nullptr;
}

void PlaceTiles(const std::byte* tiles, const TilesAt& at, const TensorRef& into, const TensorAxes& axes) {
  const int64_t dim = axes[3];
  for (int64_t i = 0; i < at.num_rows; ++i) {
    const int64_t pair = (at.first_row + i) / at.rows_per_head;
    const int64_t begin = (at.first_row + i) % at.rows_per_head * at.tokens;
    const int64_t end = std::min(begin + at.tokens, axes[2]);
    for (int64_t t = begin; t < end; ++t) {
      const std::byte* from = tiles + (i * at.tokens + t - begin) * dim * 4;
      std::byte* to = RowAt(into, pair / axes[1], pair % axes[1], t);
      if (into.type == ElementType::kF32) {
        std::memcpy(to, from, static_cast<size_t>(dim) * 4);
        continue;
      }
      for (int64_t d = 0; d < dim; ++d) Store(to, into.type, d, ScalarAt(from, ElementType::kF32, d));
    }
  }
}

void FillDelta(const DeltaOf& from, int64_t threads, std::span<float> delta) {
  const TensorAxes& axes = from.axes;
  const int64_t rows = axes[0] * axes[1] * axes[2];
  constexpr int64_t kRowsPerUnit = 256;
  RunUnits(threads, (rows + kRowsPerUnit - 1) / kRowsPerUnit, [&](int64_t unit, int64_t) {
    const int64_t end = std::min((unit + 1) * kRowsPerUnit, rows);
    for (int64_t row = unit * kRowsPerUnit; row < end; ++row) {
      double sum = 0.0;
      if (from.lse[static_cast<size_t>(row)] != -std::numeric_limits<float>::infinity()) {
        const int64_t pair = row / axes[2];
        const std::byte* out = RowAt(from.o, pair / axes[1], pair % axes[1], row % axes[2]);
        const std::byte* grad = RowAt(from.dout, pair / axes[1], pair % axes[1], row % axes[2]);
        for (int64_t i = 0; i < axes[3]; ++i) {
          sum += static_cast<double>(ScalarAt(out, from.o.type, i)) *
                 static_cast<double>(ScalarAt(grad, from.dout.type, i));
        }
      }
      delta[static_cast<size_t>(row)] = static_cast<float>(sum);
    }
  });
}

}  // namespace tessera::lanes::xla
