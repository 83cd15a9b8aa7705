// The one place in the library that reads the environment (but for the processor guard, which acts before anything is
// loaded). What it says becomes an engine's options, and so part of every receipt.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "tessera/engine.h"
#include "tessera/io.h"
#include "tessera/named_files.h"

namespace tessera {
namespace {

constexpr int64_t kMaxFlagsBytes = 1 << 20;

std::string Variable(const char* name, std::string otherwise = {}) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::move(otherwise) : value;
}

// Where plugins and compiled programs are kept: $TESSERA_XLA, or tessera/xla in the user's cache folder.
std::string XlaFolder() {
  if (std::string own = Variable("TESSERA_XLA"); !own.empty()) return own;
  if (const std::string cache = Variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/tessera/xla";
  return Variable("HOME") + "/.cache/tessera/xla";
}

// Options that XLA and libtpu read by themselves, once in a process. XLA_FLAGS may be the name of a file that has them.
std::string XlaFlags() {
  std::string flags;
  for (const char* name : {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}) {
    const std::string value = Variable(name);
    if (value.empty()) continue;
    const std::string text = value[0] == '-' ? value : ReadFile(value, kMaxFlagsBytes).value_or(value);
    flags += fmt::format("{}{}={}", flags.empty() ? "" : " ", name, text);
  }
  return flags;
}

// A number of seconds up to a day; what is none leaves the default.
int64_t ProbeSeconds(int64_t otherwise) {
  const std::string text = Variable("TESSERA_PLUGIN_PROBE_SECONDS");
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_good = error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= 86400;
  return is_good ? value : otherwise;
}

// The interpreter of call_jax: $TESSERA_PYTHON, that of the virtual environment, or the first python3 of PATH.
std::string PythonProgram() {
  if (std::string own = Variable("TESSERA_PYTHON"); !own.empty()) return own;
  if (const std::string venv = Variable("VIRTUAL_ENV"); !venv.empty()) return venv + "/bin/python3";
  const std::string path = Variable("PATH");
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    const std::string program = path.substr(at, end - at) + "/python3";
    if (program[0] == '/' && access(program.c_str(), X_OK) == 0) return program;
    at = end + 1;
  }
  return {};
}

}  // namespace

std::vector<std::string> FilesOfEnvironment() {
  std::vector<std::string> files;
  for (const char* name : {"TESSERA_PJRT_PLUGIN", "TESSERA_LEDGER", "XLA_FLAGS", "LIBTPU_INIT_ARGS"}) {
    std::string value = Variable(name);
    const bool is_text = std::string_view(name).substr(0, 8) != "TESSERA_" && (value.empty() || value[0] == '-');
    if (!value.empty() && !is_text) files.push_back(std::move(value));
  }
  return files;
}

EngineOptions OptionsFromEnvironment() {
  EngineOptions options;
  options.lane = Variable("TESSERA_LANE", "auto");
  options.isa = Variable("TESSERA_ISA", "auto");
  options.machine_isa = Variable("TESSERA_MACHINE_ISA");
  options.plugin = Variable("TESSERA_PJRT_PLUGIN");
  options.ledger = Variable("TESSERA_LEDGER");
  options.xla_folder = XlaFolder();
  options.xla_flags = XlaFlags();
  options.python = PythonProgram();
  options.plugin_probe_seconds = ProbeSeconds(options.plugin_probe_seconds);
  return options;
}

}  // namespace tessera
