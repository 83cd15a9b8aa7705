// Every writer against every place where writing fails, and against being killed half way: the old file or the new one,
// never half of one, and nothing left behind but, after a kill, a temporary file of a known name.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <random>
#include <thread>

#include "hostile_files.h"
#include "support/seed.h"

namespace tessera {
namespace {

class HostileWrite : public testing::Test {
 protected:
  void SetUp() override { WriteWhole(folder_.File("causal.toml"), SmallContract("causal")); }

  ProgramResult Write(const FileWriter& writer, const std::string& name, const ProgramOptions& options = {}) {
    std::vector<std::string> command = writer.command;
    command.push_back(name);
    return RunHere(folder_.path(), command, options);
  }
  // Every writer must refuse `name` with this reason and leave the folder as it was.
  void ExpectRefused(const std::string& name, const std::string& reason, const ProgramOptions& options = {}) {
    for (const FileWriter& writer : FileWriters()) {
      SCOPED_TRACE(testing::PrintToString(writer.command) + " " + name);
      const size_t files = folder_.NumFiles();
      const ProgramResult result = Write(writer, name, options);
      EXPECT_EQ(result.exit_code, 2) << result.err;
      EXPECT_EQ(result.err.rfind("tessera: TSR-R003", 0), 0u) << result.err;
      EXPECT_NE(result.err.find(reason), std::string::npos) << result.err;
      EXPECT_EQ(folder_.NumFiles(), files) << "something was left behind";
    }
  }

  TemporaryFolder folder_;
};

TEST_F(HostileWrite, DirectoryLoopOrPipeNobodyReads_IsRefused) {
  std::filesystem::create_directory(folder_.File("dir"));
  ExpectRefused("dir", "Is a directory");
  ExpectRefused("no/such", "No such file or directory");
  ExpectRefused("causal.toml/under", "Not a directory");
  std::filesystem::create_symlink("loop", folder_.File("loop"));
  ExpectRefused("loop", "Too many levels of symbolic links");
  ASSERT_EQ(mkfifo(folder_.File("pipe").c_str(), 0600), 0);
  ExpectRefused("pipe", "nobody reads from the pipe");
  EXPECT_TRUE(std::filesystem::is_fifo(folder_.File("pipe")));
}

TEST_F(HostileWrite, FullDevice_IsRefusedAndStaysADevice) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  ExpectRefused("/dev/full", "No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  for (const std::vector<std::string>& command : {std::vector<std::string>{"plan", "causal.toml", "--json"},
                                                  {"run", "causal.toml", "--json"},
                                                  {"lanes", "--json"},
                                                  {"explain", "causal.toml"}}) {
    const ProgramResult result = RunHere(folder_.path(), command, {.out_path = "/dev/full"});
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_NE(result.err.find("TSR-R003 at standard output"), std::string::npos) << result.err;
  }
}

// A limit on the size of files makes a write fail half way, as a full disk does.
TEST_F(HostileWrite, DiskThatFillsUp_KeepsTheOldFile) {
  WriteWhole(folder_.File("old"), "what was there");
  std::filesystem::create_symlink("old", folder_.File("link"));
  const ProgramOptions full{.max_file_bytes = 100};
  for (const char* name : {"old", "link", "new"}) ExpectRefused(name, "File too large", full);
  EXPECT_EQ(ReadWhole(folder_.File("old")), "what was there");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.File("link")));
}

TEST_F(HostileWrite, NoPermission_KeepsTheOldFile) {
  const ProgramOptions nobody{.as_nobody = true};
  chmod(folder_.path().c_str(), 0777);
  if (RunHere(folder_.path(), {"--version"}, nobody).exit_code != 0) {
    GTEST_SKIP() << "nobody but the superuser may run the program from where it lies";
  }
  WriteWhole(folder_.File("old"), "what was there");
  chmod(folder_.File("old").c_str(), 0444);
  ExpectRefused("old", "Permission denied", nobody);
  std::filesystem::create_directory(folder_.File("locked"));
  chmod(folder_.File("locked").c_str(), 0555);
  ExpectRefused("locked/new", "Permission denied", nobody);
  EXPECT_EQ(ReadWhole(folder_.File("old")), "what was there");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.File("locked")));
}

TEST_F(HostileWrite, Links_StayAndTheirTargetIsReplaced) {
  std::filesystem::create_directory(folder_.File("sub"));
  std::filesystem::create_symlink("sub/target", folder_.File("link"));
  for (const FileWriter& writer : FileWriters()) {
    SCOPED_TRACE(testing::PrintToString(writer.command));
    std::filesystem::remove(folder_.File("sub/target"));
    for (const char* before : {"dangling", "there"}) {
      SCOPED_TRACE(before);
      ASSERT_EQ(Write(writer, "link").exit_code, 0);
      EXPECT_TRUE(std::filesystem::is_symlink(folder_.File("link")));
      EXPECT_TRUE(writer.is_good(ReadWhole(folder_.File("sub/target"))));
      WriteWhole(folder_.File("sub/target"), "what was there");
    }
  }
}

// Kills the program at random moments of writing a plan of several MiB over another one.
TEST_F(HostileWrite, KilledAnywhere_LeavesTheOldFileOrTheNewOne) {
  const uint64_t seed = PrintedSeed();
  std::mt19937 random(seed);
  const auto big = [](const char* expr) {
    return fmt::format(
        "version = 1\n[shape]\nq_len = 32768\ndim_qk = 4\n[mask]\nexpr = \"{}\"\n[tiles]\nq = 32\nkv = 32\nreason = "
        "\"a test\"\n",
        expr);
  };
  WriteWhole(folder_.File("0.toml"), big("causal"));
  WriteWhole(folder_.File("1.toml"), big("window(30000, 0)"));
  std::string plans[2];
  const std::string path = folder_.File("the.plan");
  auto longest = std::chrono::microseconds(0);
  for (const int which : {0, 1}) {
    const auto start = std::chrono::steady_clock::now();
    const ProgramResult result = Tessera({"plan", folder_.File(fmt::format("{}.toml", which)), "--out", path});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    longest = std::max(longest,
                       std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start));
    plans[which] = ReadWhole(path);
    ASSERT_GT(plans[which].size(), size_t{1} << 22);
  }
  ASSERT_NE(plans[0], plans[1]);
  int killed = 0;
  int stale = 0;
  int replaced = 0;
  for (int round = 0; round < 60; ++round) {
    const std::string contract = folder_.File(fmt::format("{}.toml", round % 2));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const int null = open("/dev/null", O_WRONLY);
      dup2(null, STDOUT_FILENO);
      dup2(null, STDERR_FILENO);
      execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "plan", contract.c_str(), "--out", path.c_str(), nullptr);
      _exit(127);
    }
    std::this_thread::sleep_for(longest * (200 + random() % 800) / 1000);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    const std::string now = ReadWhole(path);
    EXPECT_TRUE(now == plans[0] || now == plans[1])
        << "round " << round << ": " << now.size() << " bytes of neither plan";
    replaced += now == plans[round % 2] ? 1 : 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename().string();
      if (name == "0.toml" || name == "1.toml" || name == "the.plan" || name == "causal.toml") continue;
      EXPECT_EQ(name.rfind(kTemporaryName, 0), 0u) << name;
      EXPECT_EQ(name.substr(name.size() - 4), ".tmp") << name;
      std::filesystem::remove(entry.path());
      ++stale;
    }
  }
  EXPECT_GT(killed, 0);
  RecordProperty("killed", killed);
  RecordProperty("stale", stale);
  RecordProperty("replaced", replaced);
  // What a kill left behind is in nobody's way.
  WriteWhole(folder_.File(".tessera-1-0.tmp"), "stale");
  EXPECT_EQ(Tessera({"plan", folder_.File("0.toml"), "--out", path}).exit_code, 0);
  EXPECT_EQ(ReadWhole(path), plans[0]);
}

}  // namespace
}  // namespace tessera
