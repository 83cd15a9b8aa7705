// The command line: commands, options and flags. Only arguments.cc knows the library that reads them, which takes
// seconds to compile wherever it is included.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "paths.h"
#include "tessera/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own
class App;
class Option;
}  // namespace CLI

namespace tessera::program {

// What a number may be. It is written in decimal digits, and in no other way: no sign but a minus, no leading zero,
// nothing before or after.
struct NumberRange {
  int64_t low = 0;
  uint64_t high = std::numeric_limits<uint64_t>::max();
};
// What is wrong with a number that was given, or nothing.
std::string NumberProblem(const std::string& text, NumberRange range);

// What an option or a command is, for who describes the whole command line: completion of shells, the manual.
struct OptionShape {
  std::string name;  // "--batch", or a positional's name
  std::string about;
  std::string type;                     // what --help calls its value; empty for a flag
  std::vector<std::string> words = {};  // the values that there are, where they are few
  bool is_positional = false;
  bool is_required = false;
  bool is_path = false;
};
struct CommandShape {
  std::string name;
  std::string about;
  std::string footer;
  std::vector<OptionShape> options;
  std::vector<CommandShape> commands;
};

// No option takes an empty value: that is an unset variable of a shell. None is given twice, unless it is Repeated.
class Option {
 public:
  // What it is read into, where that can name files.
  using Values = std::variant<std::monostate, const std::string*, const std::vector<std::string>*>;
  explicit Option(CLI::Option* option, Values values = {}) : option_(option), values_(values) {}
  Option* TypeName(const std::string& name);  // what --help calls its value
  // For names of files, in place of TypeName: what is done with the file, which paths.h decides about.
  Option* Reads(const std::string& type);
  Option* ReadsOrInput(const std::string& type);  // "-" is standard input
  Option* Writes(const std::string& type);
  Option* Changes(const std::string& type);                                // reads it and writes it
  Option* WritesInto(const std::string& type, const std::string& suffix);  // files of a folder
  Option* Required();
  Option* ShowDefault();  // in --help
  Option* Repeated();     // each time it is given adds one value
  Option* Many();         // of a positional: takes all that follow
  Option* Excludes(Option* other);
  Option* Needs(Option* other);
  Option* FromEnvironment(const std::string& variable);  // where it is not given
  Option* OneOf(const std::vector<std::string>& words);
  bool IsGiven() const;
  bool IsGivenTwice() const;  // though it may not be
  std::string Name() const;
  // The files that it names, given or by default.
  std::vector<NamedPath> Paths() const;
  OptionShape Shape() const;

 private:
  Option* Does(const std::string& type, PathRole role);
  CLI::Option* option_;
  Values values_;
  std::optional<NamedPath> path_;
  std::vector<std::string> words_;
  bool is_repeated_ = false;
};

class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}
  Command* AddCommand(const std::string& name, const std::string& about);
  // A name without dashes is a positional argument. What stands in `value` is the default.
  template <class T>
  Option* AddOption(const std::string& name, T& value, const std::string& about);
  // A number, and what it may be; T is int64_t, uint64_t or an optional int64_t.
  template <class T>
  Option* AddNumber(const std::string& name, T& value, NumberRange range, const std::string& about);
  Option* AddFlag(const std::string& name, bool& value, const std::string& about);
  // An option that was added; null where none was.
  Option* Find(const std::string& name) const;
  void Footer(const std::string& text);
  // Called once all arguments have been read, if this command was named.
  void OnParsed(std::function<void()> callback);
  void RequireCommand(int at_least, int at_most);
  bool HasCommand() const;  // was one of its commands named?
  // Options that this input, or another option, leaves without use are errors: those of a list, or all but those of it.
  Status Refuse(std::string_view with, const std::vector<std::string>& names) const;
  Status AllowOnly(std::string_view with, const std::vector<std::string>& names) const;
  bool IsNamed() const;  // on the command line
  // Those of it and of its commands that were named, by what was given.
  std::vector<const Option*> OptionsInUse() const;
  CommandShape Shape() const;

 private:
  Option* Keep(CLI::Option* option, Option::Values values = {});
  CLI::App* app_;
  std::vector<std::unique_ptr<Option>> options_;
  std::vector<std::unique_ptr<Command>> commands_;
};

// For a callback, whose command's arguments do not go together: ends the reading with that message.
[[noreturn]] void RefuseTogether(const std::string& name, const std::string& other);
[[noreturn]] void RefuseMissing(const std::string& what);

// The whole command line.
class CommandLine {
 public:
  CommandLine(const std::string& about, const std::string& name, const std::string& version);
  ~CommandLine();
  Command& root() { return root_; }
  std::string Help() const;
  // Reads the arguments. True: go on. False: --help or --version was asked for, and answered.
  Result<bool> Parse(int argc, char** argv);
  // Every file that the arguments name.
  std::vector<NamedPath> Paths() const;
  bool IsGiven(const std::string& flag) const;

 private:
  std::unique_ptr<CLI::App> app_;
  Command root_;
};

}  // namespace tessera::program
