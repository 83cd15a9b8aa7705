// What a program compiled for this machine's processor depends on, as text for its key: XLA compiles for the very core
// it runs on, and the compiled program says nothing of that itself.
#pragma once

#include <string>
#include <string_view>

namespace tessera::lanes::xla {

// From the text of /proc/cpuinfo: the architecture, then each kind of core once, then its features in order of the
// alphabet. The order of cores and their speeds at the moment do not enter.
std::string HostFeaturesOf(std::string_view architecture, std::string_view cpuinfo);

// Of this machine, as a plugin in this process sees it (see cpu_guard.h).
std::string HostFeatures();

}  // namespace tessera::lanes::xla
