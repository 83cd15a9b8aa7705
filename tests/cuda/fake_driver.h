// A driver for tests: device memory is memory of the host's that only this driver gave out, launches are written down,
// and any function can be told to fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lanes/cuda/driver.h"

namespace tessera::lanes::cuda {

struct Launched {
  std::string kernel;
  unsigned grid_x = 0, threads = 0, shared_bytes = 0;
  Stream stream = nullptr;
  const void* params = nullptr;  // valid during on_launch
  bool is_beside = false;        // may begin before the launch in front of it has ended
};

// One at a time: the driver's functions have no place for a pointer to it.
class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();

  const Driver& driver() const { return table_; }
  Context context(int device) { return reinterpret_cast<Context>(&contexts_[device]); }
  // A stream of that device's context.
  Stream MakeStream(int device);
  // Memory of that device.
  std::byte* Allocate(size_t bytes, int device);
  bool IsDevice(const void* data) const;

  // The next call of that function fails once, or always with `is_forever`.
  void FailNext(const std::string& function, DriverResult result, bool is_forever = false);

  int num_devices = 2;
  int major = 9;
  std::string name = "NVIDIA H200";
  bool is_capturing = false;
  bool is_event_done = true;
  std::map<std::string, int> calls;  // of each function
  std::vector<Launched> launches;
  void (*on_launch)(const Launched& launch) = nullptr;
  int64_t live_bytes = 0;

 private:
  friend struct FakeFunctions;
  struct Range {
    size_t bytes = 0;
    int device = 0;
    std::unique_ptr<std::byte[]> memory;
  };
  DriverResult Enter(const std::string& function);
  Driver table_;
  Context current_ = nullptr;
  std::vector<Context> stack_;
  int contexts_[4] = {0, 1, 2, 3};
  std::map<std::string, std::pair<DriverResult, bool>> failures_;
  std::map<uintptr_t, Range> memory_;
  std::map<Stream, int> streams_;
  std::map<Kernel, std::string> kernels_;
  std::vector<std::unique_ptr<int>> handles_;
};

}  // namespace tessera::lanes::cuda
