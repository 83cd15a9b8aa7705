// /proc/cpuinfo is a paragraph per core. Arm's names an implementer, a part and "Features"; x86's a vendor, a family, a
// model, a stepping and "flags".
#include "lanes/xla/store/host_features.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "io/file.h"
#include "lanes/xla/store/cpuinfo.h"
#include "lanes/xla/store/limits.h"

namespace tessera::lanes::xla {
namespace {

constexpr std::array<std::string_view, 7> kCoreFields = {"CPU implementer", "CPU part", "CPU variant", "vendor_id",
                                                         "cpu family",      "model",    "stepping"};

std::string SortedWords(std::string_view text) {
  std::set<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.insert(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::string sorted;
  for (const std::string_view word : words) sorted.append(sorted.empty() ? "" : " ").append(word);
  return sorted;
}

std::string Joined(const std::set<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined.append(joined.empty() ? "" : " | ").append(text);
  return joined.empty() ? "unknown" : joined;
}

}  // namespace

std::string HostFeaturesOf(std::string_view architecture, std::string_view cpuinfo) {
  std::set<std::string> cores;
  std::set<std::string> features;
  std::string core;
  ForEachCpuinfoLine(cpuinfo, [&](std::string_view field, std::string_view value) {
    if (field == "processor" && !core.empty()) {
      cores.insert(core);
      core.clear();
    }
    if (field == "Features" || field == "flags") features.insert(SortedWords(value));
    if (std::find(kCoreFields.begin(), kCoreFields.end(), field) != kCoreFields.end())
      core.append(core.empty() ? "" : " ").append(value);
  });
  if (!core.empty()) cores.insert(core);
  return std::string(architecture) + "; cores: " + Joined(cores) + "; features: " + Joined(features);
}

std::string HostFeatures() {
  utsname names{};
  const bool is_known = ::uname(&names) == 0;
  const Result<std::string> cpuinfo = ReadFile(kCpuinfoPath, kMaxCpuinfoBytes);
  return HostFeaturesOf(is_known ? names.machine : "unknown", cpuinfo ? *cpuinfo : std::string());
}

}  // namespace tessera::lanes::xla
