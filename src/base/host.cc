// x86 has a "model name". Arm has an implementer and a part, both numbers: the names are in Arm's and the vendors' own
// manuals, and the table has those that servers and laptops have.
#include "base/host.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

namespace tessera {
namespace {

struct ArmPart {
  std::string_view implementer;
  std::string_view part;
  std::string_view name;
};
constexpr ArmPart kArmParts[] = {
    {"0x41", "0xd03", "Cortex-A53"},    {"0x41", "0xd05", "Cortex-A55"},
    {"0x41", "0xd07", "Cortex-A57"},    {"0x41", "0xd08", "Cortex-A72"},
    {"0x41", "0xd09", "Cortex-A73"},    {"0x41", "0xd0a", "Cortex-A75"},
    {"0x41", "0xd0b", "Cortex-A76"},    {"0x41", "0xd0c", "Neoverse-N1"},
    {"0x41", "0xd0d", "Cortex-A77"},    {"0x41", "0xd40", "Neoverse-V1"},
    {"0x41", "0xd41", "Cortex-A78"},    {"0x41", "0xd44", "Cortex-X1"},
    {"0x41", "0xd49", "Neoverse-N2"},   {"0x41", "0xd4a", "Neoverse-E1"},
    {"0x41", "0xd4f", "Neoverse-V2"},   {"0x41", "0xd83", "Neoverse-V3AE"},
    {"0x41", "0xd84", "Neoverse-V3"},   {"0x41", "0xd8e", "Neoverse-N3"},
    {"0x46", "0x001", "Fujitsu A64FX"}, {"0x48", "0xd01", "HiSilicon TaiShan v110"},
    {"0x61", "0x022", "Apple M1"},      {"0x61", "0x023", "Apple M1"},
    {"0x61", "0x024", "Apple M1 Pro"},  {"0x61", "0x025", "Apple M1 Pro"},
    {"0x61", "0x028", "Apple M1 Max"},  {"0x61", "0x029", "Apple M1 Max"},
    {"0x61", "0x032", "Apple M2"},      {"0x61", "0x033", "Apple M2"},
    {"0xc0", "0xac3", "Ampere-1"},      {"0xc0", "0xac4", "Ampere-1A"},
};

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Of the first line "NAME : VALUE" with that name, empty when there is none.
std::string_view ValueOf(std::string_view cpuinfo, std::string_view name) {
  while (!cpuinfo.empty()) {
    const size_t end = std::min(cpuinfo.find('\n'), cpuinfo.size());
    const std::string_view line = cpuinfo.substr(0, end);
    cpuinfo.remove_prefix(std::min(end + 1, cpuinfo.size()));
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && Trim(line.substr(0, colon)) == name) return Trim(line.substr(colon + 1));
  }
  return {};
}

}  // namespace

std::string_view Architecture() {
#if defined(__aarch64__)
  return "aarch64";
#elif defined(__x86_64__)
  return "x86_64";
#else
  return "unknown";
#endif
}

std::string ProcessorIn(std::string_view cpuinfo, std::string_view architecture) {
  if (const std::string_view model = ValueOf(cpuinfo, "model name"); !model.empty()) return std::string(model);
  const std::string_view implementer = ValueOf(cpuinfo, "CPU implementer");
  const std::string_view part = ValueOf(cpuinfo, "CPU part");
  for (const ArmPart& row : kArmParts) {
    if (row.implementer == implementer && row.part == part) return std::string(row.name);
  }
  if (implementer.empty() || part.empty()) return fmt::format("{} processor", architecture);
  return fmt::format("{} processor {} {}", architecture, implementer, part);
}

const std::string& HostProcessor() {
  static const std::string kName = [] {
    // A name of the file that the guard of the XLA lane (tessera/cpu_guard.h) lets pass: people want the real
    // processor.
    std::ifstream file("/proc/./cpuinfo");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return ProcessorIn(text, Architecture());
  }();
  return kName;
}

}  // namespace tessera
