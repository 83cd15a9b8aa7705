// See arguments.h.
#include "arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <utility>

namespace tessera::program {
namespace {

// The command the arguments got as far as, so that a message can name it.
std::string CommandOf(const CLI::App& app) {
  const CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

Error ArgumentError(const CLI::App& app, const CLI::ParseError& error) {
  const std::string command = CommandOf(app);
  const bool is_root = command == app.get_name();
  std::string message = error.what();
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extras = app.remaining(true);
    const std::string first = extras.empty() ? "" : extras.front();
    message = is_root && first.substr(0, 1) != "-" ? fmt::format("there is no command '{}'", first)
                                                   : fmt::format("'{}' was not expected", first);
  }
  return Error{ErrorCode::kBadArgument, fmt::format("{} (see {} --help)", message, command), is_root ? "" : command};
}

}  // namespace

Option* Option::TypeName(const std::string& name) {
  option_->type_name(name);
  return this;
}

Option* Option::Required() {
  option_->required();
  return this;
}

Option* Option::ShowDefault() {
  option_->capture_default_str();
  return this;
}

Option* Option::Repeated() {
  option_->expected(1)->take_all();
  return this;
}

Option* Option::Excludes(Option* other) {
  option_->excludes(other->option_);
  return this;
}

Option* Option::Needs(Option* other) {
  option_->needs(other->option_);
  return this;
}

Option* Option::FromEnvironment(const std::string& variable) {
  option_->envname(variable);
  return this;
}

Option* Option::InRange(int64_t low, int64_t high) {
  option_->check(CLI::Range(low, high));
  return this;
}

Option* Option::OneOf(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return this;
}

bool Option::IsGiven() const { return option_->count() > 0; }

Option* Command::Keep(CLI::Option* option) { return options_.emplace_back(std::make_unique<Option>(option)).get(); }

Command* Command::AddCommand(const std::string& name, const std::string& about) {
  return commands_.emplace_back(std::make_unique<Command>(app_->add_subcommand(name, about))).get();
}

template <class T>
Option* Command::AddOption(const std::string& name, T& value, const std::string& about) {
  return Keep(app_->add_option(name, value, about));
}
// Every type that an option of ours has.
template Option* Command::AddOption(const std::string&, std::string&, const std::string&);
template Option* Command::AddOption(const std::string&, std::vector<std::string>&, const std::string&);
template Option* Command::AddOption(const std::string&, int64_t&, const std::string&);
template Option* Command::AddOption(const std::string&, uint64_t&, const std::string&);
template Option* Command::AddOption(const std::string&, std::optional<int64_t>&, const std::string&);

Option* Command::AddFlag(const std::string& name, bool& value, const std::string& about) {
  return Keep(app_->add_flag(name, value, about));
}

Option* Command::Find(const std::string& name) { return Keep(app_->get_option(name)); }
void Command::Footer(const std::string& text) { app_->footer(text); }
void Command::OnParsed(std::function<void()> callback) { app_->callback(std::move(callback)); }
void Command::RequireCommand(int at_least, int at_most) {
  app_->require_subcommand(static_cast<size_t>(at_least), static_cast<size_t>(at_most));
}
bool Command::HasCommand() const { return !app_->get_subcommands().empty(); }

void RefuseTogether(const std::string& name, const std::string& other) { throw CLI::ExcludesError(name, other); }
void RefuseMissing(const std::string& what) { throw CLI::RequiredError(what); }

CommandLine::CommandLine(const std::string& about, const std::string& name, const std::string& version)
    : app_(std::make_unique<CLI::App>(about, name)), root_(app_.get()) {
  app_->set_version_flag("--version", version);
}
CommandLine::~CommandLine() = default;

std::string CommandLine::Help() const { return app_->help(); }

Result<bool> CommandLine::Parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help and --version
    app_->exit(asked);
    return false;
  } catch (const CLI::ParseError& error) {
    return tl::unexpected(ArgumentError(*app_, error));
  }
  return true;
}

}  // namespace tessera::program
