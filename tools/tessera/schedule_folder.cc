// See schedule_folder.h.
#include "schedule_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "program.h"

namespace tessera::program {
namespace {
constexpr const char* kVariable = "LIBTPU_INIT_ARGS";
constexpr std::string_view kFlag = "--xla_jf_dump_to=";
}  // namespace

ScheduleFolder::ScheduleFolder() {
  const char* given = std::getenv(kVariable);
  const std::string before = given == nullptr ? "" : given;
  const bool is_file = !before.empty() && before[0] != '-';
  if (is_file) return;
  if (const size_t at = before.find(kFlag); at != std::string::npos) {
    const std::string rest = before.substr(at + kFlag.size());
    path_ = rest.substr(0, rest.find_first_of(" \t\n"));
    return;
  }
  std::error_code error;
  std::string name = (std::filesystem::temp_directory_path(error) / "tessera_schedules_XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) return;
  path_ = name;
  is_own_ = true;
  const std::string flags = fmt::format("{}{}{}{} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final",
                                        before, before.empty() ? "" : " ", kFlag, path_);
  setenv(kVariable, flags.c_str(), 1);
  EngineDefaults().xla_flags = OptionsFromEnvironment().xla_flags;
}

ScheduleFolder::~ScheduleFolder() {
  std::error_code error;
  if (is_own_) std::filesystem::remove_all(path_, error);
}

}  // namespace tessera::program
