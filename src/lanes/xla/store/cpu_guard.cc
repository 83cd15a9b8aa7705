// Finds the case, finds the library (src/lanes/xla/guard) and starts the program anew with it.
#include "lanes/xla/store/cpu_guard.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "io/file.h"
#include "lanes/xla/store/cpuinfo.h"
#include "lanes/xla/store/limits.h"

namespace tessera::lanes::xla {
namespace {

constexpr const char* kSwitch = "TESSERA_XLA_GUARD";
// Holds the process that was started anew. It keeps its number, so it does so once, and what it starts is not misled.
constexpr const char* kMarker = "TESSERA_XLA_GUARD_PROCESS";
constexpr const char* kLibrary = TESSERA_GUARD_LIBRARY;
constexpr uint64_t kHwcapSve = uint64_t{1} << 22;  // HWCAP_SVE; other architectures' headers lack the name

struct SvePart {
  uint32_t implementer;
  uint32_t part;
  const char* name;
};

constexpr SvePart kSveParts[] = {
#define TESSERA_SVE_PART(implementer, part, name) {implementer, part, name},
#include "lanes/xla/guard/sve_parts.def"
#undef TESSERA_SVE_PART
};

// "0x41"; 0 where it is no such number, which no implementer has.
uint32_t ParseHex(std::string_view text) {
  uint32_t value = 0;
  if (text.starts_with("0x")) std::from_chars(text.data() + 2, text.data() + text.size(), value, 16);
  return value;
}

bool HasWord(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (text.substr(0, end) == word) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

bool IsOff() {
  const char* text = std::getenv(kSwitch);
  return text != nullptr && std::string_view(text) == "off";
}

GuardFacts FactsHere() {
  GuardFacts facts{DetectHiddenSve()};
  if (!facts.sve.is_hidden) return facts;
  facts.is_off = IsOff();
  if (void* symbol = ::dlsym(RTLD_DEFAULT, "tessera_cpuinfo_changed")) {
    facts.is_loaded = true;
    facts.num_changed = reinterpret_cast<int (*)()>(symbol)();
  }
  return facts;
}

std::string FolderOf(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }

std::string FindLibrary() {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  Dl_info info{};
  const bool is_known = ::dladdr(reinterpret_cast<const void*>(&FindLibrary), &info) != 0 && info.dli_fname != nullptr;
  const std::string code = is_known ? std::filesystem::absolute(info.dli_fname, error).string() : program;
  for (const std::string& path : GuardPaths(FolderOf(program), FolderOf(code))) {
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return {};
}

}  // namespace

SveHidden DetectHiddenSve(uint64_t hwcap, std::string_view cpuinfo) {
  SveHidden found;
  bool has_sve = (hwcap & kHwcapSve) != 0;
  uint32_t implementer = 0;
  ForEachCpuinfoLine(cpuinfo, [&](std::string_view field, std::string_view value) {
    if (field == "Features") has_sve = has_sve || HasWord(value, "sve");
    if (field == "CPU implementer") implementer = ParseHex(value);
    if (field != "CPU part" || !found.core.empty()) return;
    const uint32_t part = ParseHex(value);
    for (const SvePart& row : kSveParts) {
      if (row.implementer == implementer && row.part == part)
        found.core = fmt::format("{} (part {:#x} {:#05x})", row.name, implementer, part);
    }
  });
  found.is_hidden = !found.core.empty() && !has_sve;
  return found;
}

SveHidden DetectHiddenSve() {
#if defined(__aarch64__)
  if ((::getauxval(AT_HWCAP) & kHwcapSve) != 0) return {};
  const Result<std::string> cpuinfo = ReadFile(kTrueCpuinfoPath, kMaxCpuinfoBytes);
  return DetectHiddenSve(::getauxval(AT_HWCAP), cpuinfo ? *cpuinfo : std::string());
#else
  return {};
#endif
}

CpuGuard GuardOf(const GuardFacts& facts) {
  if (!facts.sve.is_hidden) return {};
  const std::string here =
      fmt::format("the system hides the SVE of this {}, for which XLA would compile", facts.sve.core);
  if (facts.is_loaded && facts.num_changed > 0)
    return {CpuGuardState::kActive, fmt::format("{}; {} shows it a core without", here, kLibrary)};
  std::string why = fmt::format("the program was not started with LD_PRELOAD={}", kLibrary);
  if (facts.is_off) why = fmt::format("the guard is turned off by {}=off", kSwitch);
  if (facts.is_loaded) why = fmt::format("{} could not change what it reads", kLibrary);
  return {CpuGuardState::kRefused, fmt::format("{}, and {}", here, why)};
}

std::vector<std::string> GuardPaths(const std::string& program_folder, const std::string& code_folder) {
  // Beside the program in a build tree; below the libraries' folder where installed, seen from the program and from
  // libtessera.so.
  const std::string library_folder = TESSERA_LIBRARY_FOLDER;
  const std::string from_program =
      library_folder.starts_with("/") ? library_folder : program_folder + "/../" + library_folder;
  return {program_folder + "/" + kLibrary, from_program + "/tessera/" + kLibrary, code_folder + "/" + kLibrary,
          code_folder + "/tessera/" + kLibrary};
}

}  // namespace tessera::lanes::xla

namespace tessera {

CpuGuard AskCpuGuard() { return lanes::xla::GuardOf(lanes::xla::FactsHere()); }

void ReexecWithCpuGuard(char** argv) {
  using namespace lanes::xla;  // NOLINT: the two halves of one thing
  if (!DetectHiddenSve().is_hidden || IsOff()) return;
  const GuardFacts facts = FactsHere();
  const std::string process = std::to_string(::getpid());
  const char* marker = std::getenv(kMarker);
  const bool is_second = marker != nullptr && process == marker;
  ::unsetenv(kMarker);
  if (facts.is_loaded || is_second) return;
  const std::string library = FindLibrary();
  if (library.empty() || library.find_first_of(" :") != std::string::npos) return;  // LD_PRELOAD has no way to quote
  const char* before = std::getenv("LD_PRELOAD");
  const bool has_before = before != nullptr && *before != '\0';
  const std::string preload = has_before ? library + ":" + before : library;
  const std::string kept = has_before ? before : "";
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  ::setenv(kMarker, process.c_str(), 1);
  ::execv("/proc/self/exe", argv);
  // It did not work: as before. The lane says why it refuses.
  ::unsetenv(kMarker);
  if (has_before) {
    ::setenv("LD_PRELOAD", kept.c_str(), 1);
  } else {
    ::unsetenv("LD_PRELOAD");
  }
}

}  // namespace tessera
