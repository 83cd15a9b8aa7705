// The processor that this process runs on, by a name that people know it by.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// "Neoverse-V1", "Intel(R) Xeon(R) Platinum 8481C": read from the system once, and the same ever after.
const std::string& HostProcessor();

// The same of the text of a /proc/cpuinfo, on a machine of that architecture ("aarch64").
std::string ProcessorIn(std::string_view cpuinfo, std::string_view architecture);

// "aarch64", "x86_64" or "unknown": what this code was compiled for.
std::string_view Architecture();

}  // namespace tessera
