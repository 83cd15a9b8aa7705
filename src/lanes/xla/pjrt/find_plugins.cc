#include "lanes/xla/pjrt/find_plugins.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

namespace tessera::pjrt {
namespace {

namespace fs = std::filesystem;

// What can be read of a folder, without exceptions.
std::vector<fs::path> Entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  return entries;
}

}  // namespace

std::vector<FoundPlugin> FindPlugins(const std::string& xla_folder) {
  std::vector<FoundPlugin> found;
  for (const fs::path& folder : Entries(fs::path(xla_folder) / "plugins")) {
    for (const fs::path& file : Entries(folder)) {
      if (file.extension() == ".so") found.push_back({folder.filename().string(), file.string()});
    }
  }
  std::sort(found.begin(), found.end(), [](const FoundPlugin& a, const FoundPlugin& b) {
    return std::tie(a.name, a.path) < std::tie(b.name, b.path);
  });
  return found;
}

bool IsTpuPlugin(const std::string& path) { return fs::path(path).filename() == "libtpu.so"; }

bool HasTpu() {
  std::error_code error;
  return fs::exists("/dev/accel0", error) || fs::exists("/dev/vfio/0", error);
}

}  // namespace tessera::pjrt
