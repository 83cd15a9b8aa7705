#include "lanes/cuda/copies.h"

#include <cstring>
#include <utility>

namespace tessera::lanes::cuda {
namespace {

// Visits the rows of a strided tensor with their places in a dense one.
template <class Visit>
void ForEachRow(const TensorRef& ref, const std::array<int64_t, 4>& axes, const Visit& visit) {
  const int64_t size = BytesOf(ref.type);
  const auto row_bytes = static_cast<size_t>(axes[3] * size);
  size_t place = 0;
  for (int64_t b = 0; b < axes[0]; ++b) {
    for (int64_t h = 0; h < axes[1]; ++h) {
      for (int64_t t = 0; t < axes[2]; ++t, place += row_bytes) {
        visit(ref.data + (b * ref.batch_stride + h * ref.head_stride + t * ref.token_stride) * size, place, row_bytes);
      }
    }
  }
}

}  // namespace

DevicePointer Copies::Add(const TensorRef& ref, const std::array<int64_t, 4>& axes, bool is_output) {
  if (!status_ || ref.data == nullptr) return 0;
  const Driver& driver = device_.driver();
  const int64_t bytes = axes[0] * axes[1] * axes[2] * axes[3] * BytesOf(ref.type);
  Result<Block> block = device_.Take(bytes, device_.upload_stream(), false);
  if (!block) {
    status_ = tl::unexpected(std::move(block.error()));
    return 0;
  }
  Twin& twin = twins_.emplace_back();
  twin.host = ref;
  twin.axes = axes;
  twin.is_output = is_output;
  twin.there = std::move(*block);
  twin.packed.resize(static_cast<size_t>(bytes));
  if (!is_output) {
    ForEachRow(ref, axes, [&](const std::byte* row, size_t place, size_t size) {
      std::memcpy(twin.packed.data() + place, row, size);
    });
    const DriverResult result =
        driver.copy_to_device(twin.there.device(), twin.packed.data(), twin.packed.size(), device_.upload_stream());
    if (result != kDriverSuccess) status_ = tl::unexpected(driver.ErrorOf(result, "copying a tensor to the GPU"));
    bytes_ += bytes;
  }
  return twin.there.device();
}

TensorRef Copies::In(const TensorRef& ref, const std::array<int64_t, 4>& axes) {
  TensorRef there =
      DenseView(reinterpret_cast<void*>(Add(ref, axes, false)), ref.type, {axes[0], axes[1], axes[2], axes[3]});
  there.space = space_;
  return there;
}

TensorRef Copies::Out(const TensorRef& ref, const std::array<int64_t, 4>& axes) {
  TensorRef there =
      DenseView(reinterpret_cast<void*>(Add(ref, axes, true)), ref.type, {axes[0], axes[1], axes[2], axes[3]});
  there.space = space_;
  return there;
}

std::span<const float> Copies::In(std::span<const float> values) {
  if (values.empty()) return {};
  const auto count = static_cast<int64_t>(values.size());
  const TensorRef ref = DenseView(values.data(), ElementType::kF32, {1, 1, 1, count});
  return {reinterpret_cast<const float*>(Add(ref, {1, 1, 1, count}, false)), values.size()};
}

std::span<float> Copies::Out(std::span<float> values) {
  if (values.empty()) return {};
  const auto count = static_cast<int64_t>(values.size());
  const TensorRef ref = DenseView(values.data(), {1, 1, 1, count});
  return {reinterpret_cast<float*>(Add(ref, {1, 1, 1, count}, true)), values.size()};
}

Status Copies::Finish() {
  const Driver& driver = device_.driver();
  const Stream stream = device_.upload_stream();
  for (Twin& twin : twins_) {
    if (!twin.is_output || !status_) continue;
    const DriverResult result =
        driver.copy_to_host(twin.packed.data(), twin.there.device(), twin.packed.size(), stream);
    if (result != kDriverSuccess) status_ = tl::unexpected(driver.ErrorOf(result, "copying a tensor from the GPU"));
    bytes_ += static_cast<int64_t>(twin.packed.size());
  }
  const DriverResult result = driver.stream_finish(stream);
  if (status_ && result != kDriverSuccess) status_ = tl::unexpected(driver.ErrorOf(result, "waiting for the GPU"));
  if (!status_) return status_;
  for (Twin& twin : twins_) {
    if (!twin.is_output) continue;
    ForEachRow(twin.host, twin.axes,
               [&](std::byte* row, size_t place, size_t size) { std::memcpy(row, twin.packed.data() + place, size); });
  }
  return {};
}

}  // namespace tessera::lanes::cuda
