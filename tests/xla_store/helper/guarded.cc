// A program that its tests start as a user would: it guards itself first thing, then says what it sees. Built with the
// variants of the guard and of its detection that take a plain core for one with SVE, so that the whole way can be
// walked on machines that hide nothing.
//   guarded cpuinfo FOLDER   the parts that each way of opening gives, and what other files give
//   guarded plugin PATH      loads a PJRT plugin and compiles with it
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lanes/xla/store/cpuinfo.h"
#include "tessera/cpu_guard.h"

namespace {

constexpr const char* kPath = "/proc/cpuinfo";

std::string Parts(const std::string& text) {
  std::string parts;
  tessera::lanes::xla::ForEachCpuinfoLine(text, [&](std::string_view field, std::string_view value) {
    if (field == "CPU part") parts.append(parts.empty() ? "" : " ").append(value);
  });
  return parts;
}

std::string Drain(int fd) {
  std::string text;
  std::array<char, 512> chunk;
  while (true) {
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got <= 0) break;
    text.append(chunk.data(), static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

std::string Drain(std::FILE* file) {
  std::string text;
  std::array<char, 512> chunk;
  while (const size_t got = std::fread(chunk.data(), 1, chunk.size(), file)) text.append(chunk.data(), got);
  std::fclose(file);
  return text;
}

void Say(const char* name, const std::string& value) { std::printf("%s: %s\n", name, value.c_str()); }

void ShowCpuinfo(const std::string& folder) {
  Say("open", Parts(Drain(open(kPath, O_RDONLY))));
  Say("open64", Parts(Drain(open64(kPath, O_RDONLY | O_CLOEXEC))));
  Say("openat", Parts(Drain(openat(AT_FDCWD, kPath, O_RDONLY))));
  Say("fopen", Parts(Drain(std::fopen(kPath, "r"))));
  Say("fopen64", Parts(Drain(fopen64(kPath, "rbe"))));
  std::ifstream stream(kPath);
  std::stringstream text;
  text << stream.rdbuf();
  Say("ifstream", Parts(text.str()));
  Say("another name", Parts(Drain(open(tessera::lanes::xla::kTrueCpuinfoPath, O_RDONLY))));
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY);
  Say("relative", Parts(Drain(openat(proc, "cpuinfo", O_RDONLY))));

  // What goes through must keep its mode, its error and its flags.
  umask(0);
  const std::string made = folder + "/made";
  const int fd = open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0640);
  struct stat info {};
  fstat(fd, &info);
  std::array<char, 16> mode;
  std::snprintf(mode.data(), mode.size(), "%o", static_cast<unsigned>(info.st_mode & 0777));
  Say("mode", mode.data());
  close(fd);
  Say("again", open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0640) < 0 && errno == EEXIST ? "exists" : "wrong");
  Say("missing", std::fopen((folder + "/none").c_str(), "r") == nullptr && errno == ENOENT ? "not there" : "wrong");
  const int kept = open(kPath, O_RDONLY | O_CLOEXEC);
  Say("close on exec", (fcntl(kept, F_GETFD) & FD_CLOEXEC) != 0 ? "yes" : "no");
  close(kept);

  const std::string expected = Drain(open(kPath, O_RDONLY));
  std::array<int, 8> num_same{};
  std::vector<std::thread> threads;
  for (int& count : num_same) {
    threads.emplace_back([&count, &expected] {
      // Speeds may change from one reading to the next, parts may not.
      for (int i = 0; i < 20; ++i) count += Parts(Drain(open(kPath, O_RDONLY))) == Parts(expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int num_all = 0;
  for (const int count : num_same) num_all += count;
  Say("threads", std::to_string(num_all));
}

int NumServed() {
  void* symbol = dlsym(RTLD_DEFAULT, "tessera_cpuinfo_served");
  return symbol == nullptr ? -1 : reinterpret_cast<int (*)()>(symbol)();
}

// Just enough of PJRT's C interface to have it compile one small program. The numbers are slots of its table of
// functions, and each struct begins with its size and a null.
using Call = void* (*)(void*);
Call Slot(const void* api, size_t number) {
  Call call = nullptr;
  std::memcpy(&call, static_cast<const char*>(api) + 40 + 8 * number, sizeof(call));
  return call;
}

bool Invoke(const void* api, size_t slot, void** arguments, size_t size) {
  arguments[0] = reinterpret_cast<void*>(size);
  return Slot(api, slot)(arguments) == nullptr;
}

int UsePlugin(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto get_api = reinterpret_cast<const void* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const void* api = get_api();
  const int before = NumServed();
  std::array<void*, 2> initialize{};
  if (!Invoke(api, 3, initialize.data(), sizeof(initialize))) return 1;
  std::array<void*, 11> create{};  // the client comes back in the ninth
  if (!Invoke(api, 10, create.data(), sizeof(create))) return 1;
  std::string code =
      "module @m { func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {\n"
      "  %y = stablehlo.add %x, %x : tensor<64xf32>\n  return %y : tensor<64xf32> } }\n";
  std::string format = "mlir";
  std::array<void*, 6> program{};
  program[0] = reinterpret_cast<void*>(sizeof(program));
  program[2] = code.data();
  program[3] = reinterpret_cast<void*>(code.size());
  program[4] = format.data();
  program[5] = reinterpret_cast<void*>(format.size());
  std::string options("\x1a\x04\x20\x01\x28\x01", 6);  // one replica, one partition
  std::array<void*, 7> compile{};
  compile[2] = create[8];
  compile[3] = program.data();
  compile[4] = options.data();
  compile[5] = reinterpret_cast<void*>(options.size());
  Say("compiled", Invoke(api, 20, compile.data(), sizeof(compile)) ? "yes" : "no");
  Say("served to the plugin", NumServed() > before ? "yes" : "no");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::ReexecWithCpuGuard(argv);
  const tessera::CpuGuard guard = tessera::AskCpuGuard();
  constexpr std::array<const char*, 3> kStates = {"not needed", "active", "refused"};
  Say("state", kStates[static_cast<size_t>(guard.state)]);
  Say("reason", guard.reason);
  for (const char* name : {"LD_PRELOAD", "TESSERA_XLA_GUARD_PROCESS"}) {
    const char* value = std::getenv(name);
    Say(name, value == nullptr ? "not set" : value);
  }
  std::string words;
  for (int i = 1; i < argc; ++i) words.append(i == 1 ? "" : "|").append(argv[i]);
  Say("arguments", words);
  int status = 0;
  if (argc > 2 && std::string_view(argv[1]) == "cpuinfo") ShowCpuinfo(argv[2]);
  if (argc > 2 && std::string_view(argv[1]) == "plugin") status = UsePlugin(argv[2]);
  std::fflush(stdout);
  _exit(status);  // a plugin keeps threads of its own
}
