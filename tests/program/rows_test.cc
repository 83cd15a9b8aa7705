// `tessera rows`: the commands of docs/rows.md, packing that is killed and resumed, and full disks.
#include <csignal>
#include <random>
#include <thread>

#include "program_test.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> FilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = ReadWhole(entry.path().string());
  return files;
}

class RowsCommand : public testing::Test {
 protected:
  std::string Documents(int count) const {
    std::mt19937_64 random(PrintedSeed());
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += "{\"tokens\": [1";
      for (size_t j = random() % 200; j > 0; --j) text += "," + std::to_string(random() % 5000);
      text += "]}\n";
    }
    WriteWhole(folder_.File("d.jsonl"), text);
    return folder_.File("d.jsonl");
  }
  std::vector<std::string> Pack(const std::string& out) const {
    return {"rows", "pack", "d.jsonl", "--length", "256", "--shard-rows", "8", "--threads", "2", "--out", out};
  }
  TemporaryFolder folder_;
  ProgramOptions here_{.folder = folder_.path()};
};

TEST_F(RowsCommand, CommandsOfThePage_Work) {
  fs::create_directory_symlink(TESSERA_SOURCE_DIR "/examples", folder_.File("examples"));
  std::istringstream page(ReadWhole(TESSERA_SOURCE_DIR "/docs/rows.md"));
  bool is_inside = false;
  int commands = 0;
  std::string shown;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("```", 0) == 0) is_inside = line == "```sh";
    if (!is_inside || line.rfind("tessera ", 0) != 0) continue;
    std::istringstream words(line.substr(8));
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(word);
    const ProgramResult result = Tessera(arguments, here_);
    EXPECT_EQ(result.exit_code, 0) << line << result.err;
    if (line.find("--row 0") != std::string::npos && line.find("json") == std::string::npos) shown = result.out;
    ++commands;
  }
  EXPECT_GE(commands, 8);
  EXPECT_NE(ReadWhole(TESSERA_SOURCE_DIR "/docs/rows.md").find(shown), std::string::npos) << shown;
  // What `show` writes is a batch.
  WriteWhole(folder_.File("c.toml"),
             "version = 1\n[shape]\nbatch = 2\nq_len = 32\ndim_qk = 8\n[mask]\nexpr = \"causal and documents and "
             "valid\"\n[tiles]\nq = 16\nkv = 16\nreason = \"a test\"\n");
  const ProgramResult run = Tessera({"run", "c.toml", "--batch", "batch.json", "--check"}, here_);
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

// Killed at any moment, again and again: what is there is whole, and in the end it is what one packing gives.
TEST_F(RowsCommand, KilledAndResumed_GivesTheSameBytes) {
  Documents(4000);
  ASSERT_EQ(Tessera(Pack("whole"), here_).exit_code, 0);
  const auto expected = FilesOf(folder_.File("whole"));
  std::mt19937_64 random(PrintedSeed());
  std::vector<std::string> arguments = Pack("out");
  arguments.emplace_back("--resume");
  int killed = 0;
  for (int time = 0; time < 12; ++time) {
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(folder_.path().c_str()) != 0) _exit(126);
      std::vector<char*> words = {const_cast<char*>(TESSERA_PROGRAM)};
      for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(126);
      execv(words[0], words.data());
      _exit(127);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    if (!fs::exists(folder_.File("out"))) continue;
    for (const auto& [name, bytes] : FilesOf(folder_.File("out"))) {
      if (name.rfind("rows-", 0) == 0) {
        EXPECT_EQ(bytes, expected.at(name)) << name;
      }
    }
  }
  RecordProperty("killed", killed);
  const ProgramResult last = Tessera(arguments, here_);
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(FilesOf(folder_.File("out")), expected);
}

TEST_F(RowsCommand, AFullDisk_LeavesWholeShards_AndIsResumed) {
  Documents(200);
  ProgramOptions small = here_;
  small.max_file_bytes = 4096;  // no shard fits
  const ProgramResult full = Tessera(Pack("out"), small);
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_NE(full.err.find("TSR-R003"), std::string::npos) << full.err;
  EXPECT_TRUE(FilesOf(folder_.File("out")).empty());
  EXPECT_EQ(Tessera(Pack("out"), here_).exit_code, 0);
  EXPECT_EQ(Tessera({"rows", "check", "out"}, here_).exit_code, 0);
}

// What was left out or cut is told when it is packed and whenever rows are asked; so is a packing that has not ended.
TEST_F(RowsCommand, Stats_TellsWhatDidNotComeIn) {
  WriteWhole(folder_.File("d.jsonl"), "{\"tokens\": [1, 2, 3, 4, 5]}\n{\"tokens\": []}\n{\"tokens\": [1, 2]}\n");
  const std::vector<std::string> pack = {"rows", "pack", "d.jsonl", "--length", "4", "--shard-rows", "1"};
  const auto packed = [&](std::vector<std::string> more) {
    more.insert(more.begin(), pack.begin(), pack.end());
    return Tessera(more, here_).out;
  };
  const std::string skipped = "1 documents skipped: longer than a row, 5 tokens";
  EXPECT_NE(packed({"--long", "skip", "--out", "skip"}).find(skipped), std::string::npos);
  EXPECT_NE(Tessera({"rows", "stats", "skip"}, here_).out.find(skipped), std::string::npos);
  const std::string split = "1 documents split: longer than a row";
  EXPECT_NE(packed({"--long", "split", "--out", "split"}).find(split), std::string::npos);
  const ProgramResult stats = Tessera({"rows", "stats", "split"}, here_);
  EXPECT_NE(stats.out.find(split), std::string::npos) << stats.out;
  EXPECT_NE(stats.out.find("1 documents empty"), std::string::npos) << stats.out;
  EXPECT_EQ(stats.out.find("--resume"), std::string::npos) << stats.out;
  const ProgramResult json = Tessera({"rows", "stats", "split", "--json"}, here_);
  EXPECT_NE(json.out.find("\"split\":1"), std::string::npos) << json.out;
  EXPECT_NE(json.out.find("\"complete\":true"), std::string::npos) << json.out;
  // A folder in the way of the second shard ends the packing after the first.
  fs::create_directories(folder_.File("open/rows-00001.safetensors"));
  packed({"--long", "split", "--out", "open"});
  for (const char* verb : {"check", "stats"}) {
    const ProgramResult told = Tessera({"rows", verb, "open"}, here_);
    EXPECT_EQ(told.exit_code, 0) << told.err;
    EXPECT_NE(told.out.find("the packing has not ended"), std::string::npos) << told.out;
  }
}

TEST_F(RowsCommand, Check_OfAChangedShard_Fails) {
  Documents(50);
  ASSERT_EQ(Tessera(Pack("out"), here_).exit_code, 0);
  const std::string path = folder_.File("out/rows-00000.safetensors");
  std::string bytes = ReadWhole(path);
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  WriteWhole(path, bytes);
  const ProgramResult checked = Tessera({"rows", "check", "out", "--json"}, here_);
  EXPECT_EQ(checked.exit_code, 1) << checked.err;
  EXPECT_NE(checked.err.find("digest"), std::string::npos) << checked.err;
  EXPECT_EQ(Tessera({"rows", "check", "out/none"}, here_).exit_code, 2);
  EXPECT_EQ(Tessera({"rows", "pack", "d.jsonl", "--out", "new"}, here_).exit_code, 2) << "--length is missing";
}

// What the options of packing cannot be is refused by their names, and nothing is packed.
TEST_F(RowsCommand, Pack_RefusesByTheOptionsName) {
  Proves("R69 R74 R78");
  WriteWhole(folder_.File("d.jsonl"), "{\"tokens\": [1, 2, 30, 4], \"token_ast_depth\": [1, 1, 1, 1]}\n");
  WriteWhole(folder_.File("t.jsonl"), "{\"text\": \"int x;\"}\n");
  struct Case {
    std::vector<std::string> words;
    const char* says;
  };
  const std::vector<Case> cases = {
      {{"d.jsonl", "--fim", "101"}, "--fim"},
      {{"d.jsonl", "--fim", "50"}, "--fim-tokens"},
      {{"d.jsonl", "--fim", "50", "--fim-tokens", "1,2,3"}, "--fim-tokens"},
      {{"d.jsonl", "--fim", "50", "--fim-tokens", "1,2,3,4,5"}, "--fim-tokens"},
      {{"d.jsonl", "--fim", "50", "--fim-tokens", "1,2,3,x"}, "--fim-tokens"},
      {{"d.jsonl", "--fim", "50", "--fim-tokens", "7,7,7,7"}, "four different tokens"},
      {{"d.jsonl", "--fim", "50", "--fim-tokens", "1,2,3,40", "--vocab", "40"}, "fim_sentinels"},
      {{"d.jsonl", "--fim-tokens", "1,2,3,4"}, "--fim"},
      {{"d.jsonl", "--fim-seed", "3"}, "--fim"},
      {{"d.jsonl", "--require", "token_ast"}, "token_ast"},
      {{"d.jsonl", "--require", "token_def_use"}, "token_def_use is required, and missing"},
      {{"d.jsonl", "--vocab", "0"}, "--vocab"},
      {{"d.jsonl", "--vocab", "30"}, "holds 30"},
      {{"t.jsonl"}, "--bytes takes its bytes"},
      {{"t.jsonl", "--bytes", "--vocab", "100"}, "TSR-D003"},
  };
  for (const Case& bad : cases) {
    std::vector<std::string> words = {"rows", "pack", "--length", "16", "--out", "bad"};
    words.insert(words.end(), bad.words.begin(), bad.words.end());
    const ProgramResult result = Tessera(words, here_);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(bad.words);
    EXPECT_NE(result.err.find(bad.says), std::string::npos) << testing::PrintToString(bad.words) << result.err;
    EXPECT_FALSE(fs::exists(folder_.File("bad/rows-00000.safetensors")));
  }
  const std::vector<std::string> good = {"rows",  "pack",         "d.jsonl",    "--length",        "16",
                                         "--out", "good",         "--require",  "token_ast_depth", "--fim",
                                         "100",   "--fim-tokens", "41,42,43,44"};
  EXPECT_EQ(Tessera(good, here_).exit_code, 0);
  EXPECT_EQ(Tessera({"rows", "pack", "t.jsonl", "--length", "16", "--out", "text", "--bytes"}, here_).exit_code, 0);
}

// Every number of rows.json that the shards or the other numbers know better: a check finds it, and packing goes on
// from nothing that is not so.
TEST_F(RowsCommand, RowsJson_ThatSaysAnythingElse_IsFound) {
  Documents(80);
  ASSERT_EQ(Tessera(Pack("out"), here_).exit_code, 0);
  const std::string path = folder_.File("out/rows.json");
  const std::string good = ReadWhole(path);
  const size_t counts_end = good.find("\"next\"");
  const size_t inputs = good.find("\"inputs\"");
  const size_t inputs_end = good.find("\"shards\"");
  ASSERT_TRUE(counts_end < inputs && inputs < inputs_end && inputs_end != std::string::npos);
  std::vector<std::string> arguments = Pack("out");
  arguments.emplace_back("--resume");
  int numbers = 0;
  for (size_t at = 0; (at = good.find("\": ", at)) != std::string::npos;) {
    at += 3;
    const size_t end = good.find_first_not_of("0123456789", at);
    const bool is_told = (at > good.find("\"counts\"") && at < counts_end) || (at > inputs && at < inputs_end);
    if (end == at || is_told) continue;  // what was read: only a new packing knows
    ++numbers;
    const std::string number = good.substr(at, end - at);
    const std::string name = good.substr(good.rfind('\n', at), end - good.rfind('\n', at));
    for (const std::string& other : {std::to_string(std::stoll(number) + 1), std::string("0"), std::string("-1"),
                                     std::string("1000000000000000000"), std::string("9223372036854775807")}) {
      if (other == number) continue;
      SCOPED_TRACE(name + " becomes " + other);
      std::string text = good;
      WriteWhole(path, text.replace(at, end - at, other));
      const ProgramResult checked = Tessera({"rows", "check", "out"}, here_);
      EXPECT_TRUE(checked.exit_code == 1 || checked.exit_code == 2) << checked.exit_code << checked.out;
      EXPECT_NE(checked.err.find("TSR-D00"), std::string::npos) << checked.err;
      const auto before = FilesOf(folder_.File("out"));
      const ProgramResult resumed = Tessera(arguments, here_);
      EXPECT_TRUE(resumed.exit_code == 0 || resumed.exit_code == 2) << resumed.err;
      EXPECT_EQ(FilesOf(folder_.File("out")), before);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GE(numbers, 12);
  // A shard twice, and one in another's place.
  const std::string first = good.substr(good.find("rows-00000"), 10);
  for (const char* name : {"rows-00001", "rows.json\", \"was\": \"rows-00000", "rows-00002"}) {
    std::string text = good;
    WriteWhole(path, text.replace(text.find(first), first.size(), name));
    EXPECT_NE(Tessera({"rows", "check", "out"}, here_).exit_code, 0) << name;
    EXPECT_NE(Tessera({"rows", "stats", "out"}, here_).exit_code, 0) << name;
  }
  WriteWhole(path, good);
  EXPECT_EQ(Tessera({"rows", "check", "out"}, here_).exit_code, 0);
}

}  // namespace
}  // namespace tessera
