// What the program says of itself: every command with its options, read from --help, so that tests of all commands and
// all options meet the next one too.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "program_test.h"

namespace tessera {

struct HelpOption {
  std::string name;  // "--out", or a positional's name
  std::string type;  // "FILE", "N", "NAME"; empty for a flag
  bool is_positional = false;
  bool is_required = false;

  bool IsFlag() const { return type.empty() && !is_positional; }
  bool IsNumber() const { return type == "N" || type == "Q" || type == "UINT" || type == "INT"; }
  bool IsPath() const {
    return type.find("FILE") != std::string::npos || type.rfind("F.", 0) == 0 || type.rfind("DIR", 0) == 0;
  }
};

struct HelpCommand {
  std::vector<std::string> words;  // {"ledger", "add"}
  std::vector<HelpOption> options;
  bool has_commands = false;

  std::string Text() const {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
    return text;
  }
};

// The command and all below it.
inline void AddCommands(std::vector<std::string> words, std::vector<HelpCommand>& commands) {
  std::vector<std::string> arguments = words;
  arguments.push_back("--help");
  const ProgramResult help = Tessera(arguments);
  EXPECT_EQ(help.exit_code, 0) << help.err;
  HelpCommand command{words, {}, false};
  std::vector<std::string> below;
  std::istringstream lines(help.out);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != ' ') section = line.substr(0, line.find(':'));
    if (line.size() < 3 || line.substr(0, 2) != "  " || line[2] == ' ') continue;
    std::istringstream parts(line.substr(2));
    std::string name;
    std::string type;
    parts >> name >> type;
    if (section == "Subcommands") below.push_back(name);
    const bool is_positional = section == "Positionals";
    if ((section != "Options" && !is_positional) || name[0] == (is_positional ? '-' : ' ')) continue;
    if (name == "-h,--help" || name == "--version") continue;
    // A type is in capitals; what follows a flag is prose, or the names of other options.
    const std::string bare = type.substr(0, type.find_first_of("=:"));
    const bool is_type = !bare.empty() && line.find(name + " " + type) == 2 &&
                         (bare.find_first_of("abcdefghijklmnopqrstuvwyz") == std::string::npos || bare.find('.') == 1 ||
                          bare.rfind("FILE", 0) == 0 || bare == "QxKV");
    command.options.push_back({.name = name,
                               .type = is_type ? bare : "",
                               .is_positional = is_positional,
                               .is_required = line.find(" REQUIRED") != std::string::npos});
  }
  command.has_commands = !below.empty();
  if (!words.empty()) commands.push_back(command);
  for (const std::string& word : below) {
    std::vector<std::string> deeper = words;
    deeper.push_back(word);
    AddCommands(deeper, commands);
  }
}

inline const std::vector<HelpCommand>& AllCommands() {
  static const std::vector<HelpCommand> commands = [] {
    std::vector<HelpCommand> all;
    AddCommands({}, all);
    return all;
  }();
  return commands;
}

}  // namespace tessera
