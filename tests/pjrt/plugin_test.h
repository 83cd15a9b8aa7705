// What the tests of the PJRT client share: the CPU plugin, or the reason to skip; arrays in and out; small programs.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/pjrt/find_plugins.h"

namespace tessera::pjrt {

// Where script/setup puts plugins.
inline std::string InstalledFolder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string own = variable("TESSERA_XLA"); !own.empty()) return own;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/tessera/xla";
  return variable("HOME") + "/.cache/tessera/xla";
}

// Loads the installed CPU plugin; a test of it skips where there is none. Where there is one it must load.
class PluginTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const FoundPlugin& found : FindPlugins(InstalledFolder())) {
      if (found.name.starts_with("xla-cpu-pjrt-")) path_ = found.path;
    }
    if (path_.empty()) GTEST_SKIP() << "no CPU plugin in " << InstalledFolder() << ": script/setup --xla installs it";
    const Result<const Plugin*> plugin = Plugin::Load(path_);
    ASSERT_TRUE(plugin) << ToText(plugin.error());
    plugin_ = *plugin;
  }
  const std::string& path() const { return path_; }
  const Plugin& plugin() const { return *plugin_; }

  // Of so many devices: one for all tests and threads, never destroyed.
  Client& ClientOf(int64_t devices) const {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    static std::map<int64_t, std::unique_ptr<Client>>& kept = *new std::map<int64_t, std::unique_ptr<Client>>;
    std::unique_ptr<Client>& client = kept[devices];
    if (client != nullptr) return *client;
    Result<std::unique_ptr<Client>> made = Client::Create(plugin(), {.cpu_devices = devices});
    if (!made) throw std::runtime_error(ToText(made.error()));
    client = std::move(*made);
    EXPECT_EQ(static_cast<int64_t>(client->devices().size()), devices);
    return *client;
  }

 private:
  std::string path_;
  const Plugin* plugin_ = nullptr;
};

// And a client with two devices.
class ClientTest : public PluginTest {
 protected:
  Client& client() const { return ClientOf(2); }

  Executable Compiled(const std::string& mlir, const CompileOptions& options) const {
    Result<Executable> executable = client().Compile(mlir, options);
    EXPECT_TRUE(executable) << ToText(executable.error());
    return executable ? std::move(*executable) : Executable();
  }

  template <class T>
  Buffer Uploaded(const TensorType& type, const std::vector<T>& values, int64_t device = 0) const {
    Result<Buffer> buffer = client().Upload(type, std::as_bytes(std::span(values)), device);
    EXPECT_TRUE(buffer) << ToText(buffer.error());
    return buffer ? std::move(*buffer) : Buffer();
  }
};

template <class T>
std::vector<T> Downloaded(const Buffer& buffer) {
  std::vector<T> values(buffer.type().bytes() / sizeof(T));
  const Status ok = buffer.Download(std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(ok) << ToText(ok.error());
  return values;
}

template <class T>
void ExpectError(const Result<T>& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result) << "expected: " << text;
  EXPECT_EQ(result.error().code, code) << ToText(result.error());
  EXPECT_NE(ToText(result.error()).find(text), std::string::npos) << ToText(result.error());
}

inline TensorType F32(std::vector<int64_t> dims) { return {ElementType::kF32, std::move(dims)}; }

// (a, b) -> a * b + a, on six numbers.
inline const std::string kMulAdd = R"(module @mul_add {
  func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.multiply %a, %b : tensor<2x3xf32>
    %1 = stablehlo.add %0, %a : tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }
})";
inline CompileOptions MulAddOptions() { return {.inputs = {F32({2, 3}), F32({2, 3})}}; }

// A test that needs a process of its own says: if (!IsAlone()) return RunAlone();
inline bool IsAlone() { return std::getenv("TESSERA_TEST_ALONE") != nullptr; }

// Runs the current test, or another, in a new process. By a spawn: fork() is not for a process with a client.
inline void RunAlone(std::string test = "", const std::map<std::string, std::string>& variables = {}) {
  if (test.empty()) {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    test = std::string(info->test_suite_name()) + "." + info->name();
  }
  std::vector<std::string> texts = {"TESSERA_TEST_ALONE=1"};
  for (char** at = environ; *at != nullptr; ++at) {
    // Not its report: the parent writes one.
    if (std::strncmp(*at, "GTEST_", 6) != 0) texts.emplace_back(*at);
  }
  for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe";
  std::string argument = "--gtest_filter=" + test;
  char* arguments[] = {program.data(), argument.data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment.data()), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << test << " alone ended with status " << status;
}

}  // namespace tessera::pjrt
