// See arguments.h.
#include "arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <set>
#include <type_traits>
#include <utility>

#include "shorthand.h"
#include "tessera/spelling.h"

namespace tessera::program {
namespace {

// The command the arguments got as far as.
const CLI::App& Reached(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

// Its name, so that a message can say it.
std::string CommandOf(const CLI::App& app) {
  const CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

// "; did you mean --batch?", of the options where it begins with a dash, and of the commands where it does not.
std::string Guess(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  if (word.substr(0, 1) == "-") {
    for (const CLI::Option* option : app.get_options()) {
      if (!option->get_positional()) names.push_back(option->get_name());
    }
  } else {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
  }
  return DidYouMean(word.substr(0, word.find('=')), std::vector<std::string_view>(names.begin(), names.end()));
}

const CLI::App& Root(const CLI::App& app) {
  const CLI::App* at = &app;
  while (at->get_parent() != nullptr) at = at->get_parent();
  return *at;
}

Error ArgumentError(const CLI::App& app, const CLI::ParseError& error) {
  const std::string command = CommandOf(app);
  const bool is_root = command == app.get_name();
  std::string message = error.what();
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  // What is there and should not be says more than what is missing for it.
  const std::vector<std::string> extras = app.remaining(true);
  const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || (is_missing && !extras.empty())) {
    const std::string first = extras.empty() ? "" : extras.front();
    message = is_root && first.substr(0, 1) != "-" ? fmt::format("there is no command '{}'", first)
                                                   : fmt::format("'{}' was not expected", first);
    message += Guess(Reached(app), first);
  }
  // A command whose verbs are missing: their names are the next step.
  if (is_missing && extras.empty()) {
    std::string verbs;
    for (const CLI::App* verb : Reached(app).get_subcommands([](const CLI::App*) { return true; })) {
      verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
    }
    if (!verbs.empty() && !is_root) message += ": " + verbs;
  }
  return Error{ErrorCode::kBadArgument, fmt::format("{} (see {} --help)", message, command), is_root ? "" : command};
}

}  // namespace

std::string NumberProblem(const std::string& text, NumberRange range) {
  const bool is_negative = !text.empty() && text[0] == '-';
  const std::string_view digits = std::string_view(text).substr(is_negative ? 1 : 0);
  uint64_t size = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  const bool is_number = !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos &&
                         (digits[0] != '0' || text == "0");
  const bool is_below = is_negative && (range.low >= 0 || size > uint64_t{0} - static_cast<uint64_t>(range.low));
  const bool is_in_range =
      read.ec == std::errc() && !is_below &&
      (is_negative || (size <= range.high && (range.low <= 0 || size >= static_cast<uint64_t>(range.low))));
  if (is_number && is_in_range) return {};
  return fmt::format("'{}' is not a whole number from {} to {}{}", text, range.low, range.high,
                     is_number ? "" : ", in decimal digits and without leading zeros");
}

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

Option* Option::Does(const std::string& type, PathRole role) {
  path_ = NamedPath{.name = Name(), .path = {}, .role = role};
  return TypeName(type);
}

Option* Option::Reads(const std::string& type) { return Does(type, PathRole::kInput); }
Option* Option::ReadsOrInput(const std::string& type) { return Does(type, PathRole::kInputOrStandard); }
Option* Option::Writes(const std::string& type) { return Does(type, PathRole::kOutput); }
Option* Option::Changes(const std::string& type) { return Does(type, PathRole::kInPlace); }
Option* Option::WritesInto(const std::string& type, const std::string& suffix) {
  Does(type, PathRole::kFolder);
  path_->suffix = suffix;
  return this;
}

std::vector<NamedPath> Option::Paths() const {
  std::vector<NamedPath> paths;
  const auto add = [&](const std::string& value) {
    // A contract in one argument is no file.
    if (value.empty() || (path_->role == PathRole::kInputOrStandard && IsShorthand(value))) return;
    paths.push_back(*path_);
    paths.back().path = value;
  };
  if (!path_) return paths;
  if (const auto* one = std::get_if<const std::string*>(&values_)) add(**one);
  if (const auto* many = std::get_if<const std::vector<std::string>*>(&values_)) {
    for (const std::string& value : **many) add(value);
  }
  return paths;
}

std::string Option::Name() const { return option_->get_name(); }

Option* Option::Repeated() {
  is_repeated_ = true;
  option_->expected(1)->take_all();
  return this;
}

Option* Option::Many() {
  is_repeated_ = true;
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

Option* Option::OneOf(const std::vector<std::string>& words) {
  words_ = words;
  option_->check(CLI::IsMember(words));
  return this;
}

OptionShape Option::Shape() const {
  const bool is_flag = option_->get_items_expected_max() == 0;
  return {.name = Name(),
          .about = option_->get_description(),
          .type = is_flag ? std::string() : option_->get_type_name(),
          .words = words_,
          .is_positional = option_->get_positional(),
          .is_required = option_->get_required(),
          .is_path = path_.has_value()};
}

bool Option::IsGiven() const { return option_->count() > 0; }

bool Option::IsGivenTwice() const {
  const std::vector<std::string>& given = option_->results();
  if (!is_repeated_) return given.size() > 1;
  if (path_) return false;  // a file can be compared with itself
  return std::set<std::string>(given.begin(), given.end()).size() != given.size();
}

Option* Command::Keep(CLI::Option* option, Option::Values values) {
  return options_.emplace_back(std::make_unique<Option>(option, values)).get();
}

Command* Command::AddCommand(const std::string& name, const std::string& about) {
  return commands_.emplace_back(std::make_unique<Command>(app_->add_subcommand(name, about))).get();
}

template <class T>
Option* Command::AddOption(const std::string& name, T& value, const std::string& about) {
  CLI::Option* option = app_->add_option(name, value, about);
  option->check([](const std::string& given) { return given.empty() ? "an empty value was given" : std::string(); });
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>>) {
    return Keep(option, &value);
  } else {
    return Keep(option);
  }
}
// Every type that an option of ours has.
template Option* Command::AddOption(const std::string&, std::string&, const std::string&);
template Option* Command::AddOption(const std::string&, std::vector<std::string>&, const std::string&);
template Option* Command::AddOption(const std::string&, std::optional<std::string>&, const std::string&);

template <class T>
Option* Command::AddNumber(const std::string& name, T& value, NumberRange range, const std::string& about) {
  constexpr bool kIsUnsigned = std::is_same_v<T, uint64_t>;
  if constexpr (!kIsUnsigned) range.high = std::min<uint64_t>(range.high, std::numeric_limits<int64_t>::max());
  CLI::Option* option = app_->add_option(name, value, about);
  option->check([range](const std::string& given) { return NumberProblem(given, range); });
  return Keep(option);
}
template Option* Command::AddNumber(const std::string&, int64_t&, NumberRange, const std::string&);
template Option* Command::AddNumber(const std::string&, uint64_t&, NumberRange, const std::string&);
template Option* Command::AddNumber(const std::string&, std::optional<int64_t>&, NumberRange, const std::string&);

Option* Command::AddFlag(const std::string& name, bool& value, const std::string& about) {
  return Keep(app_->add_flag(name, value, about)->disable_flag_override());  // --json=0 would be taken for true
}

Option* Command::Find(const std::string& name) const {
  const auto is_named = [&](const std::unique_ptr<Option>& option) { return option->Name() == name; };
  const auto found = std::find_if(options_.begin(), options_.end(), is_named);
  return found == options_.end() ? nullptr : found->get();
}
void Command::Footer(const std::string& text) { app_->footer(text); }
void Command::OnParsed(std::function<void()> callback) { app_->callback(std::move(callback)); }
void Command::RequireCommand(int at_least, int at_most) {
  app_->require_subcommand(static_cast<size_t>(at_least), static_cast<size_t>(at_most));
}
bool Command::HasCommand() const { return !app_->get_subcommands().empty(); }
bool Command::IsNamed() const { return app_->parsed(); }

std::vector<const Option*> Command::OptionsInUse() const {
  std::vector<const Option*> options;
  for (const std::unique_ptr<Option>& option : options_) options.push_back(option.get());
  for (const std::unique_ptr<Command>& command : commands_) {
    if (!command->IsNamed()) continue;
    for (const Option* option : command->OptionsInUse()) options.push_back(option);
  }
  return options;
}

CommandShape Command::Shape() const {
  CommandShape shape{app_->get_name(), app_->get_description(), app_->get_footer(), {}, {}};
  for (const std::unique_ptr<Option>& option : options_) shape.options.push_back(option->Shape());
  for (const std::unique_ptr<Command>& command : commands_) shape.commands.push_back(command->Shape());
  return shape;
}

Status Command::Refuse(std::string_view with, const std::vector<std::string>& names) const {
  for (const std::unique_ptr<Option>& option : options_) {
    if (!option->IsGiven() || std::find(names.begin(), names.end(), option->Name()) == names.end()) continue;
    return Fail(ErrorCode::kBadArgument,
                fmt::format("{} has no use with {} (see {} --help)", option->Name(), with, CommandOf(Root(*app_))),
                CommandOf(Root(*app_)));
  }
  return {};
}

Status Command::AllowOnly(std::string_view with, const std::vector<std::string>& names) const {
  std::vector<std::string> others;
  for (const std::unique_ptr<Option>& option : options_) {
    if (std::find(names.begin(), names.end(), option->Name()) == names.end()) others.push_back(option->Name());
  }
  return Refuse(with, others);
}

void RefuseTogether(const std::string& name, const std::string& other) { throw CLI::ExcludesError(name, other); }
void RefuseMissing(const std::string& what) { throw CLI::RequiredError(what); }

CommandLine::CommandLine(const std::string& about, const std::string& name, const std::string& version)
    : app_(std::make_unique<CLI::App>(about, name)), root_(app_.get()) {
  app_->set_version_flag("--version", version);
}
CommandLine::~CommandLine() = default;

std::string CommandLine::Help() const { return app_->help(); }

std::vector<NamedPath> CommandLine::Paths() const {
  std::vector<NamedPath> paths;
  for (const Option* option : root_.OptionsInUse()) {
    for (NamedPath& path : option->Paths()) paths.push_back(std::move(path));
  }
  return paths;
}

bool CommandLine::IsGiven(const std::string& flag) const {
  const std::vector<const Option*> options = root_.OptionsInUse();
  return std::any_of(options.begin(), options.end(),
                     [&](const Option* option) { return option->Name() == flag && option->IsGiven(); });
}

Result<bool> CommandLine::Parse(int argc, char** argv) {
  // The library takes the next argument for the value of "--name=".
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") break;
    const bool is_empty =
        argument.size() > 3 && argument.substr(0, 2) == "--" && argument.find('=') + 1 == argument.size();
    if (!is_empty) continue;
    return Fail(ErrorCode::kBadArgument, fmt::format("{}: an empty value was given (see {} --help)",
                                                     argument.substr(0, argument.size() - 1), app_->get_name()));
  }
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help and --version
    app_->exit(asked);
    return false;
  } catch (const CLI::ParseError& error) {
    return tl::unexpected(ArgumentError(*app_, error));
  }
  for (const Option* option : root_.OptionsInUse()) {
    if (!option->IsGivenTwice()) continue;
    return Fail(ErrorCode::kBadArgument,
                fmt::format("{} was given twice (see {} --help)", option->Name(), CommandOf(*app_)), CommandOf(*app_));
  }
  return true;
}

}  // namespace tessera::program
