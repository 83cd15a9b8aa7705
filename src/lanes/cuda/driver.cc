#include "lanes/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

namespace tessera::lanes::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// Never closed: what the driver has started must outlive every object of this library.
LoadedDriver Open() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* problem = dlerror();
    return {nullptr, problem == nullptr ? fmt::format("{} cannot be opened", kLibrary) : std::string(problem)};
  }
  static Driver driver;
  std::string missing;
#define TESSERA_CUDA_FUNCTION(member, symbol, ...)                                         \
  driver.member = reinterpret_cast<DriverResult (*)(__VA_ARGS__)>(dlsym(library, symbol)); \
  if (driver.member == nullptr) missing += missing.empty() ? symbol : ", " symbol;
#include "lanes/cuda/driver_functions.def"
#undef TESSERA_CUDA_FUNCTION
  if (!missing.empty()) return {nullptr, fmt::format("{} is too old: it lacks {}", kLibrary, missing)};
  return {&driver, {}};
}

}  // namespace

const LoadedDriver& LoadDriver() {
  static const LoadedDriver kLoaded = Open();
  return kLoaded;
}

bool IsSticky(DriverResult result) {
  // Deinitialised, device unavailable or gone, uncorrectable memory or link errors, and all that a faulty kernel leaves
  // behind.
  constexpr DriverResult kSticky[] = {4, 46, 101, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721};
  return std::find(std::begin(kSticky), std::end(kSticky), result) != std::end(kSticky);
}

Error Driver::ErrorOf(DriverResult result, std::string_view doing) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(result, &name) != kDriverSuccess || name == nullptr) name = "an unknown error";
  if (error_text(result, &text) != kDriverSuccess || text == nullptr) text = "no words for it";
  const std::string message = fmt::format("{}: the driver says {} ({}): {}", doing, name, result, text);
  if (result == kDriverOutOfMemory) return {ErrorCode::kTooLarge, message, "cuda", {}};
  if (IsSticky(result)) {
    return {ErrorCode::kDeviceLost, message + "; the driver answers so until the process ends", "cuda", {}};
  }
  return {ErrorCode::kDeviceFailed, message, "cuda", {}};
}

}  // namespace tessera::lanes::cuda
