// `tessera train` as a process: signals, full disks, a folder that is in use, and what it prints.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "files.h"
#include "support/engine.h"
#include "support/proves.h"
#include "train/checkpoint.h"

namespace tessera::train {
namespace {

using testing::HasSubstr;

class CommandRuns : public testing::Test {
 protected:
  void SetUp() override {
    WriteTexts(folder_.File("texts"));
    const auto trainer = Trainer::Create(TestEngine(), ParsedRun(RunText(), folder_.path()).model, *FindTarget("cpu"));
    if (!trainer) GTEST_SKIP() << ToText(trainer.error()) << "; script/setup --xla installs a plugin";
  }
  ProgramResult Go(const std::string& text, const std::vector<std::string>& more, ProgramOptions options = {}) {
    WriteWhole(folder_.File("run.toml"), text);
    std::vector<std::string> arguments = {TESSERA_PROGRAM, "train", "run.toml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    options.folder = folder_.path();
    return RunProgram(arguments, options);
  }
  TemporaryFolder folder_;
};

// Interrupted, twice at once, somewhere in a run that would take very long: it ends well, with a checkpoint of its last
// step, and the receipt says so.
TEST_F(CommandRuns, Interrupted_EndsWithACheckpoint) {
  Proves("R90");
  std::string text = RunText("keep = 3\n");
  text.replace(text.find("steps = 6"), 9, "steps = 1000000");
  WriteWhole(folder_.File("run.toml"), text);
  const std::string err = folder_.File("err");
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder_.path().c_str()) != 0) _exit(126);
    const int fd = ::open(err.c_str(), O_WRONLY | O_CREAT, 0666);
    ::dup2(fd, STDERR_FILENO);
    ::dup2(fd, STDOUT_FILENO);
    ::execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "train", "run.toml", "--out", "run", nullptr);
    _exit(127);
  }
  int status = 0;
  pid_t ended = 0;
  while (ended == 0 && ReadWhole(err).find("step ") == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ended = ::waitpid(child, &status, WNOHANG);
  }
  ASSERT_EQ(ended, 0) << ReadWhole(err);
  ::kill(child, SIGINT);
  ::kill(child, SIGINT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << ReadWhole(err);
  const nlohmann::json receipt = nlohmann::json::parse(ReadWhole(folder_.File("run/train.json")), nullptr, false);
  ASSERT_FALSE(receipt.is_discarded());
  EXPECT_EQ(receipt["ended"], "interrupted");
  const std::vector<int64_t> steps = ListCheckpoints(folder_.File("run"));
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(receipt["steps"]["last"], steps.back());
  EXPECT_TRUE(ReadCheckpoint(folder_.File("run/") + CheckpointName(steps.back())));
}

TEST_F(CommandRuns, AFullDisk_LosesNothing) {
  ASSERT_EQ(Go(RunText(), {"--steps", "2", "--out", "run"}).exit_code, 0);
  const std::string newest = folder_.File("run/") + CheckpointName(2);
  const std::string before = ReadWhole(newest);
  ProgramOptions small;
  small.max_file_bytes = static_cast<int64_t>(before.size()) / 2;
  const ProgramResult full = Go(RunText("checkpoint_every = 1\n"), {"--resume", "--out", "run"}, small);
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_THAT(full.err, HasSubstr("no checkpoint: TSR-R003"));
  EXPECT_EQ(ReadWhole(newest), before);
  EXPECT_EQ(ListCheckpoints(folder_.File("run")), std::vector<int64_t>{2});
  const ProgramResult good = Go(RunText(), {"--resume", "--out", "run", "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  const nlohmann::json receipt = nlohmann::json::parse(good.out, nullptr, false);
  ASSERT_FALSE(receipt.is_discarded()) << good.out;
  EXPECT_EQ(receipt["steps"]["first"], 3);
  EXPECT_EQ(receipt["ended"], "finished");
  EXPECT_EQ(receipt["substitutes"].size(), 7U);
}

// A process of its own has the bits of one in which other runs were before.
TEST_F(CommandRuns, AnotherProcess_HasTheSameBits) {
  Proves("R90");
  const ProgramResult first = Go(RunText(), {"--out", "one", "--json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("tokens/s"));
  EXPECT_THAT(first.err, HasSubstr("goodput"));
  TrainOptions options;
  options.folder = folder_.File("two");
  options.target = *FindTarget("cpu");
  const auto second = Train(TestEngine(), ParsedRun(RunText(), folder_.path()), options);
  ASSERT_TRUE(second) << ToText(second.error());
  EXPECT_EQ(nlohmann::json::parse(first.out, nullptr, false)["digests"]["state"], second->state_digest);
}

}  // namespace
}  // namespace tessera::train
