// Host tensors of a one-shot run, on the device for its duration: copied in before, copied out after, and counted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes/cuda/device.h"
#include "tessera/tensor.h"

namespace tessera::lanes::cuda {

class Copies {
 public:
  // On the device's upload stream.
  Copies(Device& device, MemorySpace space) : device_(device), space_(space) {}

  // Dense twins; the first failure is kept, and everything after it does nothing.
  TensorRef In(const TensorRef& ref, const std::array<int64_t, 4>& axes);
  std::span<const float> In(std::span<const float> values);
  TensorRef Out(const TensorRef& ref, const std::array<int64_t, 4>& axes);
  std::span<float> Out(std::span<float> values);
  const Status& status() const { return status_; }
  // Copies outputs back and waits for them.
  Status Finish();
  int64_t bytes() const { return bytes_; }

 private:
  struct Twin {
    TensorRef host;
    std::array<int64_t, 4> axes{};
    bool is_output = false;
    Block there;
    std::vector<std::byte> packed;
  };
  DevicePointer Add(const TensorRef& ref, const std::array<int64_t, 4>& axes, bool is_output);

  Device& device_;
  MemorySpace space_;
  Status status_;
  std::vector<Twin> twins_;
  int64_t bytes_ = 0;
};

}  // namespace tessera::lanes::cuda
