// Where plugins lie on this machine: <xla folder>/plugins/NAME/*.so, as script/setup puts them there.
#pragma once

#include <string>
#include <vector>

namespace tessera::pjrt {

struct FoundPlugin {
  std::string name;  // of its folder: "xla-cpu-pjrt-0.0.1"
  std::string path;
  bool operator==(const FoundPlugin&) const = default;
};

// Sorted by name, then path; none where the folder does not exist. Nothing is loaded.
std::vector<FoundPlugin> FindPlugins(const std::string& xla_folder);

// Google's plugin for TPUs, whose file has one name. Where the system has no TPU's chips among its devices, it can only
// compile.
bool IsTpuPlugin(const std::string& path);
bool HasTpu();

}  // namespace tessera::pjrt
