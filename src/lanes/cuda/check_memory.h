// What the kernels ask of a call's memory beyond check_args.h: that it is this device's, all of it, and that rows lie
// at multiples of 16 bytes. Collects every complaint.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "lanes/cuda/device.h"
#include "tessera/contract.h"
#include "tessera/tensor.h"

namespace tessera::lanes::cuda {

class MemoryCheck {
 public:
  MemoryCheck(const Driver& driver, const Device& device, const Contract& contract)
      : driver_(driver), device_(device), contract_(contract) {}

  void Tensor(const char* name, const TensorRef& ref, const std::array<int64_t, 4>& axes);
  void Floats(const char* name, std::span<const float> values);
  void Bytes(const char* name, std::span<const std::byte> bytes);
  void Image(std::span<const std::byte> image);
  // TSR-R001 with every complaint, or the driver's own error.
  Status Finish();

 private:
  void Range(const char* name, const void* data, int64_t bytes);

  const Driver& driver_;
  const Device& device_;
  const Contract& contract_;
  std::vector<Violation> violations_;
  DriverResult failed_ = kDriverSuccess;
};

}  // namespace tessera::lanes::cuda
