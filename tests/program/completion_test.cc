// What shells complete and the manual know every command and option that --help lists, and are texts that a shell and
// troff read.
#include "help.h"

namespace tessera {
namespace {

std::string Completion(const std::string& shell) {
  const ProgramResult result = Tessera({"completion", shell});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

bool HasTool(const std::string& name) {
  return RunProgram({"/bin/sh", "-c", "command -v " + name + " > /dev/null"}, {}).exit_code == 0;
}

// As a manual writes a name.
std::string Escaped(const std::string& name) {
  std::string escaped;
  for (const char c : name) escaped += c == '-' ? std::string("\\-") : std::string(1, c);
  return escaped;
}

TEST(Completion, AndManual_KnowEveryCommandAndOption) {
  const std::string manual = Tessera({"man"}).out;
  const std::vector<std::string> texts = {Completion("bash"), Completion("zsh"), Completion("fish")};
  for (const HelpCommand& command : AllCommands()) {
    for (const std::string& text : texts) EXPECT_NE(text.find(command.words.back()), std::string::npos);
    EXPECT_NE(manual.find(".SS tessera " + Escaped(command.Text()) + "\n"), std::string::npos) << command.Text();
    for (const HelpOption& option : command.options) {
      if (option.is_positional) continue;
      const std::string name = option.name.substr(0, option.name.find('{'));  // --help also says what a flag sets
      for (const std::string& text : {texts[0], texts[1]}) {
        EXPECT_NE(text.find(name), std::string::npos) << command.Text() << " " << name;
      }
      EXPECT_NE(texts[2].find("-l " + name.substr(2)), std::string::npos) << name;
      EXPECT_NE(manual.find(Escaped(name)), std::string::npos) << name;
    }
  }
}

// The words that bash offers after these, in a folder with a file.
std::string Offered(const std::vector<std::string>& words) {
  const TemporaryFolder folder;
  WriteWhole(folder.File("here.toml"), "");
  std::string script = Completion("bash") + "\ncompopt() { :; }\nCOMP_WORDS=(tessera";
  for (const std::string& word : words) script += " '" + word + "'";
  script += ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_tessera\necho \" ${COMPREPLY[*]} \"\n";
  WriteWhole(folder.File("script"), script);
  const ProgramResult result = RunProgram({"/bin/bash", "script"}, {.folder = folder.path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

TEST(Completion, Bash_OffersWhatFits) {
  if (!HasTool("bash")) GTEST_SKIP() << "there is no bash";
  EXPECT_NE(Offered({"ex"}).find(" explain "), std::string::npos);
  EXPECT_NE(Offered({"ex"}).find(" export "), std::string::npos);
  EXPECT_EQ(Offered({"ex"}).find(" plan "), std::string::npos);
  EXPECT_EQ(Offered({"ledger", "ad"}), " add advise \n");
  EXPECT_EQ(Offered({"plan", "--ver"}), " --verify-stages \n");
  EXPECT_EQ(Offered({"plan", "h"}), " here.toml \n");
  EXPECT_EQ(Offered({"plan", "x.toml", "--batch", "h"}), " here.toml \n");
  EXPECT_EQ(Offered({"run", "x.toml", "--layout", "bt"}), " bthd \n");
  EXPECT_EQ(Offered({"plan", "x.toml", "--target", "h"}), " h200 \n");
  EXPECT_EQ(Offered({"run", "x.toml", "--lane", "ref"}), " reference \n");
  EXPECT_EQ(Offered({"completion", "z"}), " zsh \n");
  EXPECT_EQ(Offered({"bench", "run", "--repeat", ""}), "  \n");
}

TEST(Completion, ShellsAndTroff_ReadTheTexts) {
  const TemporaryFolder folder;
  size_t read = 0;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    WriteWhole(folder.File(shell), Completion(shell));
    if (!HasTool(shell)) continue;
    ++read;
    const ProgramResult result = RunProgram({"/usr/bin/env", shell, "-n", folder.File(shell)}, {});
    EXPECT_EQ(result.exit_code, 0) << shell << result.err;
  }
  WriteWhole(folder.File("tessera.1"), Tessera({"man"}).out);
  if (HasTool("groff")) {
    ++read;
    const ProgramResult page =
        RunProgram({"/usr/bin/env", "groff", "-man", "-Tascii", "-ww", folder.File("tessera.1")}, {});
    EXPECT_EQ(page.exit_code, 0);
    EXPECT_EQ(page.err, "");
    EXPECT_NE(page.out.find("tessera ledger add"), std::string::npos);
  }
  if (read == 0) GTEST_SKIP() << "neither a shell nor groff is there";
}

}  // namespace
}  // namespace tessera
