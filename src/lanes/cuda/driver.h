// NVIDIA's driver, libcuda.so.1, found at run time: the functions that the lane uses as a table, so that the library
// builds and starts where there is none, and so that tests can put a driver of their own in its place. The types are
// declared here: no header of CUDA's is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/error.h"

namespace tessera::lanes::cuda {

using DriverResult = int;
inline constexpr DriverResult kDriverSuccess = 0;
inline constexpr DriverResult kDriverOutOfMemory = 2;
inline constexpr DriverResult kDriverNotReady = 600;
using DevicePointer = uint64_t;
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Library = struct LibraryHandle*;
using Kernel = struct KernelHandle*;

// Values of the driver's enumerations, as far as they are used.
enum DeviceAttribute : int { kAttributeSms = 16, kAttributeMajor = 75, kAttributeMinor = 76, kAttributeShared = 97 };
enum PointerAttribute : int {
  kPointerMemoryType = 2,
  kPointerOrdinal = 9,
  kPointerRangeBegin = 11,
  kPointerRangeSize = 12
};
inline constexpr unsigned kMemoryTypeDevice = 2;
inline constexpr int kKernelMaxShared = 8;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventWithoutTiming = 2;
inline constexpr unsigned kWaitExternal = 1;  // in a capture: a node that waits at every replay
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kLaunchProgrammatic = 6;

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int value;
  };
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

struct Driver {
  // TESSERA_CUDA_FUNCTION(member, the driver's name, parameters)
#define TESSERA_CUDA_FUNCTION(member, symbol, ...) DriverResult (*member)(__VA_ARGS__) = nullptr;
#include "lanes/cuda/driver_functions.def"
#undef TESSERA_CUDA_FUNCTION

  // Of an answer that is not success: what was being done, the driver's name of the error and its words. Out of memory
  // is TSR-R009; an error that the driver will give again at every further call, TSR-L012; all others TSR-L011.
  Error ErrorOf(DriverResult result, std::string_view doing) const;
};

// The driver of this machine, loaded and started once for the process; or why there is none. Load only opens it.
struct LoadedDriver {
  const Driver* driver = nullptr;
  std::string problem;  // why not
};
const LoadedDriver& LoadDriver();

// Whether the driver will answer with this error from now on, whatever it is asked.
bool IsSticky(DriverResult result);

}  // namespace tessera::lanes::cuda
