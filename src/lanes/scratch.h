// The workspace, cut into named slices. The same code that takes slices also counts them: with no memory behind it, it
// only adds up bytes, so that what is booked is what is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/math.h"

namespace tessera::lanes {

inline constexpr int64_t kScratchAlign = 64;

class Scratch {
 public:
  Scratch() = default;  // counts only
  explicit Scratch(std::span<std::byte> memory) : memory_(memory.data()) {}

  // Null while counting. What it holds is not initialised.
  template <class T>
  T* Take(int64_t count) {
    return reinterpret_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  std::span<T> TakeSpan(int64_t count) {
    return {Take<T>(count), static_cast<size_t>(count)};
  }
  std::byte* TakeBytes(int64_t bytes) {
    std::byte* slice = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += RoundUp(bytes, kScratchAlign);
    return slice;
  }
  int64_t bytes() const { return used_; }

 private:
  std::byte* memory_ = nullptr;
  int64_t used_ = 0;
};

}  // namespace tessera::lanes
