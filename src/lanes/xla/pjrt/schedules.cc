// See schedules.h.
#include "lanes/xla/pjrt/schedules.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace tessera::pjrt {
namespace {

constexpr std::string_view kFlag = "--xla_jf_dump_to=";
constexpr std::string_view kSuffix = "schedule-analysis_final_bundles.txt";

std::set<std::string> AnalysesIn(const std::string& folder) {
  std::set<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    // "-TLP-" is the program around the kernels, whose analysis names them too.
    if (std::string_view(path).ends_with(kSuffix) && path.find("-TLP-") == std::string::npos) files.insert(path);
  }
  return files;
}

// Of one analysis: its "total scheduled bundles", if it is of a TPU kernel; else -1. The lines after the first few hold
// the kernel's whole text.
int64_t BundlesOf(const std::string& path) {
  std::ifstream in(path);
  int64_t bundles = -1;
  bool is_kernel = false;
  constexpr std::string_view kTotal = "total scheduled bundles:";
  for (std::string line; std::getline(in, line);) {
    if (const size_t at = line.find(kTotal); at != std::string::npos) {
      bundles = std::strtoll(line.c_str() + at + kTotal.size(), nullptr, 10);
    }
    is_kernel |= line.find("\"tpu_custom_call\"") != std::string::npos;
  }
  return is_kernel ? bundles : -1;
}

}  // namespace

Schedules::Schedules(std::string_view flags) {
  const size_t at = flags.find(kFlag);
  if (at == std::string_view::npos) return;
  const std::string_view rest = flags.substr(at + kFlag.size());
  folder_ = rest.substr(0, rest.find_first_of(" \t\n"));
  before_ = AnalysesIn(folder_);
}

int64_t Schedules::Bundles() const {
  int64_t sum = -1;
  for (const std::string& path : AnalysesIn(folder_)) {
    if (before_.count(path) != 0) continue;
    if (const int64_t bundles = BundlesOf(path); bundles >= 0) sum = (sum < 0 ? 0 : sum) + bundles;
  }
  return sum;
}

std::string HexOf(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

}  // namespace tessera::pjrt
