// A plugin is code, and is met in a child process first: whatever it does there is a reason here.
#include "lanes/xla/pjrt/probe.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/test_files.h"
#include "pjrt/plugin_test.h"

namespace tessera::pjrt {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A copy of the fake that goes wrong in this way.
struct Wrong {
  explicit Wrong(const std::string& kind) : path(folder / (kind + ".so")) {
    Put(path, Slurp(TESSERA_FAKE_PLUGIN));
    setenv("TESSERA_FAKE_PLUGIN", kind.c_str(), 1);
  }
  ~Wrong() { unsetenv("TESSERA_FAKE_PLUGIN"); }
  TestFolder folder;
  std::string path;
};

TEST(Probe, WhateverALibraryDoes_IsAReasonAndNotOurEnd) {
  struct How {
    const char* kind;
    const char* text;
  };
  for (const char* when : {"load_", "table_"}) {
    for (const How& how :
         {How{"crash", "dies of signal 6"}, How{"exit", "ends the process that loads it, with status 0"},
          How{"quit", "with status 7"}}) {
      const Wrong wrong(std::string(when) + how.kind);
      const Result<const Plugin*> plugin = Plugin::Load(wrong.path);
      ExpectError(plugin, ErrorCode::kPluginUnusable, how.text);
    }
  }
}

TEST(Probe, OneThatHangs_IsGivenUpOnce) {
  for (const char* kind : {"load_hang", "table_hang"}) {
    const Wrong wrong(kind);
    const Clock::time_point begin = Clock::now();
    ExpectError(Plugin::Load(wrong.path, {.seconds = 1}), ErrorCode::kPluginUnusable, "does not come back within 1 s");
    EXPECT_GE(SecondsSince(begin), 1.0);
    // It is known from here on, and nobody waits again.
    const Clock::time_point again = Clock::now();
    ExpectError(Plugin::Load(wrong.path, {.seconds = 30}), ErrorCode::kPluginUnusable, "does not come back");
    EXPECT_LT(SecondsSince(again), 20.0);
  }
}

TEST(Probe, OneThatComesBack_IsMetOnceForAllProcesses) {
  const Wrong good("");
  const TestFolder folder;
  const ProbeSettings settings{.seconds = 60, .folder = folder.path().string()};
  ASSERT_TRUE(ProbePlugin(good.path, settings));
  const auto marks = [&] {
    const std::filesystem::directory_iterator begin(folder / "probed");
    return std::distance(begin, std::filesystem::directory_iterator());
  };
  EXPECT_EQ(marks(), 1);
  // A file that changed is another file: even one that now goes wrong.
  setenv("TESSERA_FAKE_PLUGIN", "load_quit", 1);
  EXPECT_TRUE(ProbePlugin(good.path, settings)) << "met before";
  Put(good.path, Slurp(TESSERA_FAKE_PLUGIN) + "more");
  EXPECT_FALSE(ProbePlugin(good.path, settings));
  EXPECT_EQ(marks(), 1) << "what goes wrong is not kept";
  EXPECT_TRUE(ProbePlugin(good.path, {.seconds = 0})) << "not asked to look";
}

// The child has nothing of ours: no open files, no blocked signals, no words on our standard output.
TEST(Probe, ChildWithSignalsIgnoredHere_IsStillSeenToEnd) {
  const Wrong wrong("load_crash");
  struct sigaction before = {};
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &ignore, &before);
  const Result<const Plugin*> plugin = Plugin::Load(wrong.path);
  sigaction(SIGCHLD, &before, nullptr);
  ExpectError(plugin, ErrorCode::kPluginUnusable, "seen in a child process");
}

// Everything that is no regular file is refused without waiting for anybody.
TEST(Probe, PipesSocketsAndDevices_AreRefusedAtOnce) {
  const TestFolder folder;
  const std::string pipe = folder / "pipe.so";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string named = folder / "socket.so";
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(named.size(), sizeof(address.sun_path));
  named.copy(address.sun_path, named.size());
  ASSERT_EQ(bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const Clock::time_point begin = Clock::now();
  for (const std::string& path :
       {pipe, named, std::string("/dev/zero"), std::string("/dev/tty"), folder.path().string()}) {
    const Result<const Plugin*> plugin = Plugin::Load(path);
    ASSERT_FALSE(plugin) << path;
    EXPECT_EQ(plugin.error().code, ErrorCode::kPluginUnusable) << path;
  }
  EXPECT_LT(SecondsSince(begin), 10.0);
  close(server);
}

}  // namespace
}  // namespace tessera::pjrt
