// Reading /proc/cpuinfo: lines of "field<tabs>: value".
#pragma once

#include <algorithm>
#include <string_view>

namespace tessera::lanes::xla {

inline constexpr const char* kCpuinfoPath = "/proc/cpuinfo";
// The same file under a name that the preloaded guard (cpu_guard.h) lets pass.
inline constexpr const char* kTrueCpuinfoPath = "/proc/./cpuinfo";

inline std::string_view WithoutSpace(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// visit(field, value) for every line that has a colon.
template <class Visit>
void ForEachCpuinfoLine(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos)
      visit(WithoutSpace(line.substr(0, colon)), WithoutSpace(line.substr(colon + 1)));
  }
}

}  // namespace tessera::lanes::xla
