// `tessera train` as a process: signals, full disks, a folder that is in use, and what it prints.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "files.h"
#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
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
  // A run that gets a signal twice as soon as `is_time` says so of what it has printed; its receipt.
  nlohmann::json Signalled(const std::vector<std::string>& more, int signal,
                           const std::function<bool(const std::string&)>& is_time) {
    const std::string err = folder_.File("err");
    WriteWhole(err, "");
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(folder_.path().c_str()) != 0) _exit(126);
      const int fd = ::open(err.c_str(), O_WRONLY | O_CREAT, 0666);
      ::dup2(fd, STDERR_FILENO);
      ::dup2(fd, STDOUT_FILENO);
      std::vector<std::string> words = {TESSERA_PROGRAM, "train", "run.toml"};
      words.insert(words.end(), more.begin(), more.end());
      std::vector<char*> pointers;
      for (std::string& word : words) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      ::execv(TESSERA_PROGRAM, pointers.data());
      _exit(127);
    }
    int status = 0;
    pid_t ended = 0;
    while (ended == 0 && !is_time(ReadWhole(err))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ended = ::waitpid(child, &status, WNOHANG);
    }
    EXPECT_EQ(ended, 0) << ReadWhole(err);
    if (ended != 0) return {};
    ::kill(child, signal);
    ::kill(child, signal);
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << ReadWhole(err);
    return nlohmann::json::parse(ReadWhole(folder_.File(more.back()) + "/train.json"), nullptr, false);
  }
  TemporaryFolder folder_;
};

// Interrupted, twice at once, somewhere in a run that would take very long: it ends well, with a checkpoint of its last
// step, and the receipt says so.
// Asked for in the run file or beside it, which comes first; what was not asked for is told too.
TEST_F(CommandRuns, SubstitutesByName_AreInTheReceipt) {
  Proves("R84 R85");
  const std::string table = "[substitutes]\nnorm = \"cpu\"\nlinear_fc1 = \"cpu\"\nlayernorm_mlp = \"recomputed\"\n";
  const ProgramResult ran = Go(RunText() + table, {"--out", "run", "--steps", "2", "--json", "--substitutes",
                                                   "linear_fc1=none,attention=xla_chunked"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  std::map<std::string, std::string> names;
  const nlohmann::json receipt = nlohmann::json::parse(ran.out);
  for (const nlohmann::json& one : receipt.at("substitutes")) {
    names[one.at("key")] = one.at("name");
    EXPECT_FALSE(one.at("reason").get<std::string>().empty());
  }
  EXPECT_EQ(names, (std::map<std::string, std::string>{{"norm", "cpu"},
                                                       {"linear_qkv", "none"},
                                                       {"linear_proj", "none"},
                                                       {"linear_fc1", "none"},
                                                       {"linear_fc2", "none"},
                                                       {"attention", "xla_chunked"},
                                                       {"layernorm_mlp", "recomputed"}}));
  const ProgramResult refused = Go(RunText(), {"--out", "other", "--substitutes", "norm=magic"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("TSR-L001 at norm: one of auto, none, cpu expected"));
}

TEST_F(CommandRuns, Interrupted_EndsWithACheckpoint) {
  Proves("R90");
  std::string text = RunText("keep = 3\n");
  text.replace(text.find("steps = 6"), 9, "steps = 1000000");
  WriteWhole(folder_.File("run.toml"), text);
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string out = "run" + std::to_string(signal);
    const nlohmann::json receipt = Signalled(
        {"--out", out}, signal, [&](const std::string& err) { return err.find("step ") != std::string::npos; });
    EXPECT_EQ(receipt["ended"], "interrupted");
    const std::vector<int64_t> steps = ListCheckpoints(folder_.File(out));
    ASSERT_EQ(steps.size(), 1U);
    EXPECT_EQ(receipt["steps"]["last"], steps.back());
    EXPECT_TRUE(ReadCheckpoint(folder_.File(out) + "/" + CheckpointName(steps.back())));
  }
}

// While files are read and packed: nothing is trained, and the next run begins from the beginning.
TEST_F(CommandRuns, InterruptedBeforeItsFirstStep_EndsWell) {
  Proves("R88");
  for (int i = 0; i < 5; ++i) {
    std::string source;
    while (source.size() < (size_t{1} << 20)) source += "int Function(int x) { return x + 1; }  // and so on\n";
    WriteWhole(folder_.File(fmt::format("texts/large{}.cc", i)), source);
  }
  WriteWhole(folder_.File("run.toml"), RunText());
  int times = 0;
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string out = "run" + std::to_string(++times);
    const nlohmann::json receipt = Signalled({"--out", out}, signal, [&](const std::string&) {
      return times == 1 ? std::filesystem::exists(folder_.File(out))
                        : std::filesystem::exists(folder_.File(out) + "/rows/train");
    });
    EXPECT_EQ(receipt["ended"], "interrupted");
    EXPECT_EQ(receipt["steps"]["made"], 0);
    EXPECT_EQ(receipt["checks"]["has_steps"], false);
    EXPECT_TRUE(ListCheckpoints(folder_.File(out)).empty());
  }
}

// Killed at any moment, again and again: the newest checkpoint loads every time, and the end has the same bits.
TEST_F(CommandRuns, Killed_GoesOnToTheSameBits) {
  Proves("R90");
  std::string text = RunText("checkpoint_every = 3\n");
  text.replace(text.find("steps = 6"), 9, "steps = 90");
  const ProgramResult whole = Go(text, {"--out", "whole", "--json"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  std::mt19937_64 random(PrintedSeed());
  int killed = 0;
  for (int time = 0; time < 6; ++time) {
    const pid_t child = fork();
    if (child == 0) {
      const int fd = ::open("/dev/null", O_RDWR);
      for (const int number : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(fd, number);
      if (chdir(folder_.path().c_str()) != 0) _exit(126);
      ::execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "train", "run.toml", "--out", "run", "--resume", nullptr);
      _exit(127);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 500));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    for (const int64_t step : ListCheckpoints(folder_.File("run")))
      EXPECT_TRUE(ReadCheckpoint(folder_.File("run/") + CheckpointName(step))) << step;
  }
  RecordProperty("killed", killed);
  const ProgramResult last = Go(text, {"--out", "run", "--resume", "--json"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  const auto state = [](const ProgramResult& result) {
    return nlohmann::json::parse(result.out, nullptr, false)["digests"]["state"];
  };
  EXPECT_EQ(state(last), state(whole));
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

// The commands of docs/training.md in a small repository, its examples cut to a few steps of a smaller model. A machine
// that is not here is told of by its code, with the texts of its programs where only those were asked for.
TEST_F(CommandRuns, CommandsOfThePage_Work) {
  WriteTexts(folder_.File("src"));
  for (const char* name : {"src/a.h", "include/a.h", "tools/a.cc", "tests/a.cc", "python/a.py", "cmake/a.py"}) {
    std::filesystem::create_directories(std::filesystem::path(folder_.File(name)).parent_path());
    WriteWhole(folder_.File(name), "int x = 1;\n");
  }
  std::filesystem::create_directory(folder_.File("examples"));
  for (const char* name : {"tiny_code.toml", "packed_code.toml"}) {
    std::string text = ReadWhole(TESSERA_SOURCE_DIR "/examples/" + std::string(name));
    for (const auto& [from, to] : {std::pair{"held_out = 16", "held_out = 3"}, std::pair{"steps = 450", "steps = 24"},
                                   std::pair{"rows = 16 ", "rows = 2 "}, std::pair{"layers = 2", "layers = 1"},
                                   std::pair{"row_tokens = 4096", "row_tokens = 512"}}) {
      if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, std::strlen(from), to);
    }
    WriteWhole(folder_.File("examples/" + std::string(name)), text);
  }
  std::istringstream page(ReadWhole(TESSERA_SOURCE_DIR "/docs/training.md"));
  bool is_inside = false;
  int commands = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("```", 0) == 0) is_inside = line == "```sh";
    if (!is_inside || line.rfind("tessera ", 0) != 0) continue;
    std::istringstream words(line);
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(arguments.empty() ? TESSERA_PROGRAM : word);
    const bool is_elsewhere = line.find("--target") != std::string::npos;
    ProgramOptions options{.folder = folder_.path()};
    if (is_elsewhere) options.env["XLA_FLAGS"] = "";  // over flags for CPUs Google's compiler ends the process
    const ProgramResult result = RunProgram(arguments, options);
    EXPECT_TRUE(result.exit_code == 0 || (is_elsewhere && result.exit_code == 2)) << line << result.err;
    if (result.exit_code != 0) {
      EXPECT_THAT(result.err, HasSubstr("TSR-L008")) << line;
    }
    ++commands;
  }
  EXPECT_GE(commands, 5);
  EXPECT_THAT(ReadWhole(folder_.File("run/train.json")), HasSubstr("\"last\": 24"));
  EXPECT_THAT(ReadWhole(folder_.File("compiled/gradients.mlir")), HasSubstr("@tpu_custom_call"));
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
