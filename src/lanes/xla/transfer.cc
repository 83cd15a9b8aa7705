// See transfer.h.
#include "lanes/xla/transfer.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "contract/tensor_row.h"

namespace tessera::lanes::xla {
namespace {

// visit(row, batch, head, token): rows are counted as they lie in a dense tensor.
template <class Visit>
void ForEachRow(const TensorAxes& axes, Visit visit) {
  int64_t row = 0;
  for (int64_t b = 0; b < axes[0]; ++b) {
    for (int64_t h = 0; h < axes[1]; ++h) {
      for (int64_t t = 0; t < axes[2]; ++t) visit(row++, b, h, t);
    }
  }
}

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
  if (type == ElementType::kF32) {
    std::memcpy(row + i * 4, &value, 4);
    return;
  }
  const uint16_t bits = type == ElementType::kBf16 ? F32ToBf16(value) : F32ToF16(value);
  std::memcpy(row + i * 2, &bits, 2);
}

}  // namespace

Result<pjrt::Buffer> UploadTensor(pjrt::Client& client, const TensorRef& tensor, const TensorAxes& axes,
                                  int64_t device) {
  const pjrt::TensorType type{ToPjrt(tensor.type), {axes.begin(), axes.end()}};
  if (IsDense(tensor, axes)) {
    return client.Upload(type, std::span(tensor.data, static_cast<size_t>(type.bytes())), device);
  }
  const int64_t size = BytesOf(tensor.type);
  const int64_t strides[] = {tensor.batch_stride * size, tensor.head_stride * size, tensor.token_stride * size, size};
  int64_t bytes = size;
  for (size_t i = 0; i < axes.size(); ++i) bytes += (axes[i] - 1) * strides[i];
  return client.Upload(type, std::span(tensor.data, static_cast<size_t>(bytes)), strides, device);
}

Status DownloadTensor(const pjrt::Buffer& buffer, const TensorRef& into, const TensorAxes& axes,
                      std::span<std::byte> staging) {
  const auto bytes = static_cast<size_t>(buffer.type().bytes());
  if (into.type == ElementType::kF32 && IsDense(into, axes)) return buffer.Download({into.data, bytes});
  const std::span<std::byte> dense = staging.first(bytes);
  if (Status ok = buffer.Download(dense); !ok) return ok;
  ForEachRow(axes, [&](int64_t row, int64_t b, int64_t h, int64_t t) {
    const std::byte* from = dense.data() + row * axes[3] * 4;
    std::byte* to = RowAt(into, b, h, t);
    for (int64_t i = 0; i < axes[3]; ++i) Store(to, into.type, i, ScalarAt(from, ElementType::kF32, i));
  });
  return {};
}

void FillDelta(const TensorRef& o, const TensorRef& dout, std::span<const float> lse, const TensorAxes& axes,
               std::span<float> delta) {
  ForEachRow(axes, [&](int64_t row, int64_t b, int64_t h, int64_t t) {
    double sum = 0.0;
    if (lse[static_cast<size_t>(row)] != -std::numeric_limits<float>::infinity()) {
      const std::byte* out = RowAt(o, b, h, t);
      const std::byte* grad = RowAt(dout, b, h, t);
      for (int64_t i = 0; i < axes[3]; ++i) {
        sum += static_cast<double>(ScalarAt(out, o.type, i)) * static_cast<double>(ScalarAt(grad, dout.type, i));
      }
    }
    delta[static_cast<size_t>(row)] = static_cast<float>(sum);
  });
}

}  // namespace tessera::lanes::xla
