#include "lanes/cuda/check_memory.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::lanes::cuda {
namespace {

constexpr int64_t kAlignment = 16;
constexpr DriverResult kInvalidValue = 1;

}  // namespace

void MemoryCheck::Range(const char* name, const void* data, int64_t bytes) {
  const auto begin = reinterpret_cast<DevicePointer>(data);
  unsigned type = 0;
  int ordinal = -1;
  DevicePointer first = 0;
  size_t size = 0;
  int attributes[] = {kPointerMemoryType, kPointerOrdinal, kPointerRangeBegin, kPointerRangeSize};
  void* values[] = {&type, &ordinal, &first, &size};
  const DriverResult result = driver_.pointer_attributes(4, attributes, values, begin);
  if (result != kDriverSuccess && result != kInvalidValue) {
    if (failed_ == kDriverSuccess) failed_ = result;
    return;
  }
  const auto add = [&](std::string expected) { violations_.push_back({name, std::move(expected)}); };
  if (result == kInvalidValue || type != kMemoryTypeDevice) {
    add(fmt::format("memory of gpu:{} expected, got an address that is not a GPU's", device_.facts().ordinal));
  } else if (ordinal != device_.facts().device) {
    add(fmt::format("memory of gpu:{} expected, got memory of GPU {}", device_.facts().ordinal, ordinal));
  } else if (size != 0 && begin + static_cast<DevicePointer>(bytes) > first + size) {
    add(fmt::format("{} bytes expected, but only {} were allocated from its address on", bytes, first + size - begin));
  }
}

void MemoryCheck::Tensor(const char* name, const TensorRef& ref, const std::array<int64_t, 4>& axes) {
  const auto add = [&](std::string expected) { violations_.push_back({name, std::move(expected)}); };
  if (ref.type != ToElementType(contract_.shape.dtype)) {
    return add(fmt::format("{} expected, the contract's dtype, got {}", ToText(ToElementType(contract_.shape.dtype)),
                           ToText(ref.type)));
  }
  const std::array<int64_t, 3> strides{ref.batch_stride, ref.head_stride, ref.token_stride};
  bool is_aligned = reinterpret_cast<uintptr_t>(ref.data) % kAlignment == 0;
  int64_t last = axes[3];
  for (size_t i = 0; i < strides.size(); ++i) {
    if (axes[i] > 1 && strides[i] * 2 % kAlignment != 0) is_aligned = false;
    last += (axes[i] - 1) * strides[i];
  }
  if (!is_aligned) {
    return add(fmt::format("an address and strides that are multiples of {} bytes expected, got strides {}, {}, {}",
                           kAlignment, ref.batch_stride, ref.head_stride, ref.token_stride));
  }
  Range(name, ref.data, last * 2);
}

void MemoryCheck::Floats(const char* name, std::span<const float> values) {
  if (!values.empty()) Range(name, values.data(), static_cast<int64_t>(values.size_bytes()));
}

void MemoryCheck::Bytes(const char* name, std::span<const std::byte> bytes) {
  if (!bytes.empty()) Range(name, bytes.data(), static_cast<int64_t>(bytes.size()));
}

void MemoryCheck::Image(std::span<const std::byte> image) {
  if (image.empty()) return;
  if (reinterpret_cast<uintptr_t>(image.data()) % kAlignment != 0) {
    violations_.push_back({"image", fmt::format("an address that is a multiple of {} expected", kAlignment)});
  } else if (image.size() < sizeof(PlanHeader)) {
    violations_.push_back(
        {"image", fmt::format("{} bytes or more expected, got {}", sizeof(PlanHeader), image.size())});
  } else {
    Bytes("image", image);
  }
}

Status MemoryCheck::Finish() {
  if (failed_ != kDriverSuccess) return tl::unexpected(driver_.ErrorOf(failed_, "asking whose memory it is"));
  if (violations_.empty()) return {};
  return Fail(ErrorCode::kTensorMismatch, std::move(violations_), "cuda");
}

}  // namespace tessera::lanes::cuda
