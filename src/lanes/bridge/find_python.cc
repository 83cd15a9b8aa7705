#include "lanes/bridge/find_python.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>

#include "io/document.h"

extern char** environ;

namespace tessera::lanes::bridge {
namespace {

constexpr const char* kQuestion =
    "import importlib.metadata, importlib.util, json, sys, sysconfig\n"
    "of = lambda name: str(sysconfig.get_config_var(name) or '')\n"
    "jax = importlib.metadata.version('jax') if importlib.util.find_spec('jax') else ''\n"
    "print(json.dumps({'python': sys.version.split()[0], 'jax': jax, 'free': of('Py_GIL_DISABLED'),\n"
    "  'soname': of('INSTSONAME'), 'libdir': of('LIBDIR'), 'multiarch': of('MULTIARCH'), 'prefix': "
    "sys.base_prefix}))\n";
constexpr std::chrono::seconds kPatience{30};
constexpr size_t kMostBytes = 1 << 16;

// What the program prints, or nothing where it cannot be started; `status` as waitpid gives it.
std::string OutputOf(const std::string& program, int& status) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int number : {0, 2}) posix_spawn_file_actions_addopen(&actions, number, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  std::string path = program;
  std::string isolated = "-I";
  std::string command = "-c";
  std::string question = kQuestion;
  char* arguments[] = {path.data(), isolated.data(), command.data(), question.data(), nullptr};
  pid_t pid = -1;
  const int failed = posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  if (failed == 0) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    bool is_open = true;
    while (is_open && output.size() < kMostBytes && std::chrono::steady_clock::now() < deadline) {
      pollfd waiting{ends[0], POLLIN, 0};
      if (poll(&waiting, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t got = read(ends[0], bytes, sizeof(bytes));
      if (got > 0) output.append(bytes, static_cast<size_t>(got));
      is_open = got > 0 || (got < 0 && errno == EINTR);
    }
    if (is_open) kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  close(ends[0]);
  return output;
}

std::string TextOf(const DocumentValue& table, const char* key) {
  const DocumentValue* value = table.Find(key);
  return value == nullptr || value->kind != DocumentValue::Kind::kString ? std::string() : value->text;
}

}  // namespace

tl::expected<PythonFacts, std::string> AskPython(const std::string& program) {
  int status = -1;
  const std::string output = OutputOf(program, status);
  auto tree = ReadJsonTree(output, {.max_depth = 2, .max_values = 64});
  if (!tree || tree->kind != DocumentValue::Kind::kTable || status != 0) {
    return tl::unexpected(fmt::format("{} does not answer as a Python interpreter", program));
  }
  const std::string soname = TextOf(*tree, "soname");
  const std::string folder = TextOf(*tree, "libdir");
  PythonFacts facts{.python = TextOf(*tree, "python"),
                    .jax = TextOf(*tree, "jax"),
                    .is_free_threaded = TextOf(*tree, "free") == "1",
                    .libraries = {}};
  if (soname.find(".so") != std::string::npos) {
    facts.libraries = {folder + "/" + soname, folder + "/" + TextOf(*tree, "multiarch") + "/" + soname,
                       TextOf(*tree, "prefix") + "/lib/" + soname, soname};
  } else {
    // A static interpreter names no library; its distribution may have one all the same, under the usual name.
    const std::string version = facts.python.substr(0, facts.python.find('.', facts.python.find('.') + 1));
    const std::string usual = fmt::format("libpython{}.so.1.0", version);
    facts.libraries = {folder + "/" + usual, folder + "/" + TextOf(*tree, "multiarch") + "/" + usual, usual};
  }
  return facts;
}

bool IsAtLeast(const std::string& version, int major, int minor) {
  int numbers[2] = {0, 0};
  const char* at = version.data();
  const char* end = at + version.size();
  for (int& number : numbers) {
    const auto read = std::from_chars(at, end, number);
    if (read.ec != std::errc()) return false;
    at = read.ptr < end ? read.ptr + 1 : end;
  }
  return numbers[0] != major ? numbers[0] > major : numbers[1] >= minor;
}

}  // namespace tessera::lanes::bridge
