// No output destroys an input or another output: every command, every two of its options that name files, and every way
// to name one file twice. Nothing on the disk changes, and the message names both.
#include <algorithm>
#include <set>

#include "help.h"
#include "support/npy_file.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// What is done with the file of an option. An option that is not here fails the test: say what it does.
enum class Use { kReads, kWrites, kFolder };
Use UseOf(const HelpCommand& command, const std::string& name) {
  const std::string words = command.Text();
  const bool is_of_files = words == "rows pack" || words == "emit";
  if (name == "--emit" || (is_of_files && name == "--out")) return Use::kFolder;
  if (name == "--out" || name == "--dense" || name == "--svg") return Use::kWrites;
  if (name == "--receipt") return words == "view" ? Use::kReads : Use::kWrites;
  if (name == "--ledger") return words == "ledger add" ? Use::kWrites : Use::kReads;
  const std::set<std::string> read = {"contract",  "what",       "file",           "other",    "--batch",
                                      "--inputs",  "--plan",     "--from-receipt", "--plugin", "--custom",
                                      "--default", "--contract", "--specs"};
  EXPECT_TRUE(read.count(name) == 1) << "what does " << words << " do with the file of " << name << "?";
  return Use::kReads;
}

// Everything in a folder: names, links and bytes.
std::map<std::string, std::string> Snapshot(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    std::string content = "a folder";
    if (entry.is_symlink()) {
      content = "a link to " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      content = ReadWhole(entry.path().string());
    }
    files[entry.path().string()] = content;
  }
  return files;
}

constexpr const char* kContract =
    "version = 1\n[shape]\nq_len = 32\ndim_qk = 8\n[mask]\nexpr = \"{}\"\n[tiles]\nq = 16\nkv = 16\nreason = \"a "
    "test\"\n";
std::string ContractWith(const std::string& expr) {
  std::string text = kContract;
  return text.replace(text.find("{}"), 2, expr);
}

class Paths : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_.File("sub/deep"));
    fs::create_directory_symlink("sub", folder_.File("to_sub"));
    WriteWhole(File("there"), "what was there");
    fs::create_hard_link(File("there"), File("hard"));
    fs::create_symlink("there", File("link"));
    fs::create_symlink("link", File("link_to_link"));
    fs::create_symlink("../there", File("sub/up"));
    fs::create_symlink("new", File("dangling"));
    fs::create_symlink(File("dangling"), File("dangling_too"));
    WriteWhole(File("c.toml"), ContractWith("causal"));
    WriteWhole(File("other"), "another file");
  }
  std::string File(const std::string& name) const { return folder_.File(name); }

  // Refused with one message that has these words, and nothing on the disk is another than before.
  void ExpectRefused(const std::vector<std::string>& arguments, const std::vector<std::string>& words,
                     ProgramOptions options = {}) const {
    SCOPED_TRACE(testing::PrintToString(arguments));
    options.folder = folder_.path();
    const auto before = Snapshot(folder_.path());
    const ProgramResult result = Tessera(arguments, options);
    EXPECT_EQ(result.exit_code, 2) << result.err << result.out;
    EXPECT_EQ(result.err.rfind("tessera: TSR-R007", 0), 0u) << result.err;
    EXPECT_NE(result.err.find("name the same file"), std::string::npos) << result.err;
    for (const std::string& word : words) EXPECT_NE(result.err.find(word), std::string::npos) << word << result.err;
    EXPECT_EQ(Snapshot(folder_.path()), before) << "something was written";
  }

  // The command with these two, and a file that is neither where it wants more.
  std::vector<std::string> With(const HelpCommand& command, const HelpOption& a, const std::string& a_path,
                                const HelpOption& b, const std::string& b_path) const {
    std::vector<std::string> arguments = command.words;
    for (const HelpOption& option : command.options) {
      const bool is_asked = option.name == a.name || option.name == b.name;
      if (!is_asked && !option.is_required) continue;
      if (!option.is_positional) arguments.push_back(option.name);
      arguments.push_back(option.name == a.name ? a_path : option.name == b.name ? b_path : File("other"));
    }
    return arguments;
  }

  TemporaryFolder folder_;
};

TEST_F(Paths, EveryTwoOptions_ThatNameOneFile_AreRefused) {
  const std::vector<std::pair<std::string, std::string>> spellings = {{"there", "there"},
                                                                      {"there", "./sub/../there"},
                                                                      {File("there"), "there"},
                                                                      {"there", "link"},
                                                                      {"link_to_link", "hard"},
                                                                      {"there", "hard"},
                                                                      {"sub/up", "to_sub/../there"},
                                                                      {"new", "new"},
                                                                      {"new", "to_sub/deep/../../new"},
                                                                      {"new", "dangling"},
                                                                      {"dangling_too", "dangling"}};
  size_t pairs = 0;
  for (const HelpCommand& command : AllCommands()) {
    for (const HelpOption& a : command.options) {
      for (const HelpOption& b : command.options) {
        if (!a.IsPath() || !b.IsPath() || &a == &b || UseOf(command, a.name) != Use::kWrites) continue;
        if (UseOf(command, b.name) == Use::kFolder) continue;
        if (UseOf(command, b.name) == Use::kWrites && a.name > b.name) continue;
        ++pairs;
        for (const auto& [one, two] : spellings) {
          ExpectRefused(With(command, a, one, b, two), {a.name, b.name});
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GE(pairs, 25u) << "--help was not understood";
}

TEST_F(Paths, AFolderOfOutputs_HasNoOtherFileOfItsKind) {
  WriteWhole(File("sub/program.mlir"), "version = 1");
  fs::create_hard_link(File("sub/program.mlir"), File("same"));
  fs::create_symlink("../there", File("sub/out.mlir"));
  size_t pairs = 0;
  for (const HelpCommand& command : AllCommands()) {
    for (const HelpOption& folder : command.options) {
      if (!folder.IsPath() || UseOf(command, folder.name) != Use::kFolder) continue;
      for (const HelpOption& file : command.options) {
        if (!file.IsPath() || &file == &folder) continue;
        ++pairs;
        for (const auto& [where, name] :
             std::vector<std::pair<std::string, std::string>>{{"sub", "sub/program.mlir"},
                                                              {"to_sub", "sub/new.mlir"},
                                                              {"sub", "same"},
                                                              {"sub", "hard"},
                                                              {"none", "none/a.mlir"},
                                                              {"none", "none"},
                                                              {"./none/../none", "to_sub/../none/a.mlir"}}) {
          ExpectRefused(With(command, folder, where, file, name), {folder.name, file.name});
        }
      }
    }
  }
  EXPECT_GE(pairs, 4u) << "--help was not understood";
}

// What a folder's own list names is read as much as the folder.
TEST_F(Paths, AFolderThatIsRead_KeepsItsFiles) {
  WriteWhole(File("d.jsonl"), "{\"tokens\": [1, 2, 3]}\n{\"tokens\": [4, 5, 6]}\n");
  const ProgramResult packed = Tessera(
      {"rows", "pack", "d.jsonl", "--length", "4", "--shard-rows", "1", "--out", "rows"}, {.folder = folder_.path()});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  fs::create_directory_symlink("rows", File("to_rows"));
  fs::create_hard_link(File("rows/rows-00001.safetensors"), File("second"));
  fs::create_symlink("rows/rows.json", File("list"));
  for (const char* folder : {"rows", "to_rows", "./sub/../rows/"}) {
    for (const char* out : {"rows/rows.json", "to_rows/rows-00000.safetensors", "second", "list"}) {
      ExpectRefused({"rows", "show", folder, "--out", out}, {"--out", "folder"});
    }
  }
  const ProgramResult written =
      Tessera({"rows", "show", "rows", "--out", "rows/batch.json"}, {.folder = folder_.path()});
  EXPECT_EQ(written.exit_code, 0) << written.err;
}

// A command of each kind that writes, with the option that does.
std::vector<std::vector<std::string>> Writers(const std::string& contract) {
  return {{"plan", contract, "--out"},
          {"explain", contract, "--dense"},
          {"explain", contract, "--svg"},
          {"route", contract, "--out"},
          {"run", contract, "--out"},
          {"run", contract, "--receipt"},
          {"compile", contract, "--receipt"},
          {"view", contract, "--out"},
          {"export", contract, "--to", "flex", "--out"}};
}

TEST_F(Paths, Bitmaps_NamedInAContractGoodOrBad_AreInputs) {
  WriteWhole(File("mask.npy"), NpyBytes("|b1", "(32, 32)", std::string(1024, '\1')));
  fs::create_symlink("mask.npy", File("mask_link"));
  const std::string good = ContractWith("causal and bitmap('mask.npy')");
  std::string wrong = good;
  wrong.replace(wrong.find("dim_qk = 8"), 10, "dim_qk = -8");
  const std::string json = R"j({"version": 1, "mask": {"expr": "\u0062itmap(\"mask.npy\")"}})j";
  const std::string broken = R"j({"mask": {"expr": "bitmap(\"mask.npy\")"}, )j";
  for (const std::string& text : {good, wrong, good + "[unknown]\n", good + "= =\n", json, broken}) {
    WriteWhole(File("b.toml"), text);
    for (const char* out : {"mask.npy", "mask_link", "sub/../mask.npy"}) {
      for (std::vector<std::string> arguments : Writers("b.toml")) {
        arguments.emplace_back(out);
        ExpectRefused(arguments, {"bitmap", arguments[arguments.size() - 2]});
      }
      ExpectRefused({"run", "-", "--receipt", out}, {"bitmap"}, {.input = text});
      ExpectRefused({"plan", "causal,bitmap('mask.npy'):32:d8", "--out", out}, {"bitmap"});
      ExpectRefused({"new", "--length", "32", "--mask", "bitmap('mask.npy')", "--out", out}, {"bitmap"});
    }
  }
}

TEST_F(Paths, WhatAReceiptNames_IsAnInputOfItsRepeat) {
  WriteWhole(File("b.json"), R"({"valid_tokens": 20})");
  WriteWhole(File("mask.npy"), NpyBytes("|b1", "(32, 32)", std::string(1024, '\1')));
  WriteWhole(File("v.toml"), ContractWith("valid and bitmap('mask.npy')"));
  auto contract = ReadContract(File("v.toml"));
  ASSERT_TRUE(contract) << ToText(contract.error());
  ASSERT_TRUE(WriteSafetensors(File("in.safetensors"), MakeInputs(*contract, 1, false)));
  const ProgramOptions here{.folder = folder_.path()};
  for (const char* lane : {"cpu", "reference"}) {
    const ProgramResult run = Tessera({"run", "v.toml", "--batch", "b.json", "--inputs", "in.safetensors", "--lane",
                                       lane, "--receipt", std::string(lane) + ".json"},
                                      here);
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  for (const char* source : {"v.toml", "b.json", "in.safetensors", "mask.npy"}) {
    for (const char* option : {"--out", "--receipt"}) {
      ExpectRefused({"run", "--from-receipt", "cpu.json", option, source}, {option});
    }
    ExpectRefused({"ledger", "add", "--custom", "cpu.json", "--default", "reference.json", "--ledger", source},
                  {"--ledger"});
  }
}

TEST_F(Paths, WhatTheEnvironmentNames_IsAnInput) {
  for (const char* variable : {"TESSERA_LEDGER", "TESSERA_PJRT_PLUGIN", "XLA_FLAGS"}) {
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"run", "c.toml", "--out"},
                                               {"run", "c.toml", "--receipt"},
                                               {"compile", "c.toml", "--receipt"},
                                               {"demo", "--receipt"}}) {
      std::vector<std::string> with = arguments;
      with.push_back("hard");
      ExpectRefused(with, {"environment"}, {.env = {{variable, File("there")}}});
    }
  }
}

// In a shell: what is printed goes into a file too.
TEST_F(Paths, StandardStreams_AreFilesLikeOthers) {
  const auto shell = [&](const std::string& script) {
    return RunProgram({"/bin/sh", "-c", "exec \"$0\" " + script, TESSERA_PROGRAM}, {.folder = folder_.path()});
  };
  const auto before = Snapshot(folder_.path());
  for (const char* script : {"plan c.toml >> c.toml", "plan - < c.toml >> c.toml", "plan c.toml --out there >> there",
                             "plan c.toml --out /dev/stdout >> there", "run c.toml --json --receipt link >> hard",
                             "plan c.toml --json --out there 2>> there", "lanes c.toml 2>> c.toml"}) {
    const ProgramResult result = shell(script);
    EXPECT_EQ(result.exit_code, 2) << script;
    // The message itself may go to the file, when that is standard error: what was there stays in front of it.
    for (const auto& [name, content] : Snapshot(folder_.path())) {
      EXPECT_EQ(content.rfind(before.at(name), 0), 0u) << script << ": " << name;
    }
    WriteWhole(File("c.toml"), ContractWith("causal"));
    WriteWhole(File("there"), "what was there");
  }
  // Pipes and devices take what several write.
  EXPECT_EQ(shell("run c.toml --out /dev/null --receipt /dev/null > /dev/null").exit_code, 0);
  EXPECT_EQ(shell("plan c.toml --out - ").exit_code, 2);
  EXPECT_FALSE(fs::exists(File("-")));
}

TEST_F(Paths, DifferentFiles_AreWritten) {
  const ProgramOptions here{.folder = folder_.path()};
  const ProgramResult run = Tessera({"run", "c.toml", "--out", "sub/up", "--receipt", "dangling"}, here);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(fs::is_symlink(File("sub/up")) && fs::is_symlink(File("dangling")));
  EXPECT_NE(ReadWhole(File("there")), "what was there");
  EXPECT_EQ(Tessera({"receipt", "check", "new"}, here).exit_code, 0);
  EXPECT_EQ(Tessera({"compile", "c.toml", "--emit", "."}, here).exit_code, 0) << "a contract beside its programs";
}

}  // namespace
}  // namespace tessera
