// The command line: commands, options and flags. Only arguments.cc knows the library that reads them, which takes
// seconds to compile wherever it is included.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own
class App;
class Option;
}  // namespace CLI

namespace tessera::program {

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option* TypeName(const std::string& name);  // what --help calls its value
  Option* Required();
  Option* ShowDefault();  // in --help
  Option* Repeated();     // each time it is given adds one value
  Option* Excludes(Option* other);
  Option* Needs(Option* other);
  Option* FromEnvironment(const std::string& variable);  // where it is not given
  Option* InRange(int64_t low, int64_t high);
  Option* OneOf(const std::vector<std::string>& words);
  bool IsGiven() const;

 private:
  CLI::Option* option_;
};

class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}
  Command* AddCommand(const std::string& name, const std::string& about);
  // A name without dashes is a positional argument. What stands in `value` is the default.
  template <class T>
  Option* AddOption(const std::string& name, T& value, const std::string& about);
  Option* AddFlag(const std::string& name, bool& value, const std::string& about);
  // An option that was added.
  Option* Find(const std::string& name);
  void Footer(const std::string& text);
  // Called once all arguments have been read, if this command was named.
  void OnParsed(std::function<void()> callback);
  void RequireCommand(int at_least, int at_most);
  bool HasCommand() const;  // was one of its commands named?

 private:
  Option* Keep(CLI::Option* option);
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

 private:
  std::unique_ptr<CLI::App> app_;
  Command root_;
};

}  // namespace tessera::program
