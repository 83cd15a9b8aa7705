// `tessera completion SHELL`: what a shell completes, made from the commands and options themselves.
#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "program.h"

namespace tessera::program {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  source <(tessera completion bash)\n"
    "  source <(tessera completion zsh)\n"
    "  tessera completion fish | source\n\n"
    "An installed tessera has these files where each shell looks for them.";

// A command with the words that lead to it: "", "/plan", "/ledger/add".
struct Place {
  std::string at;
  CommandShape command;
};

void AddPlaces(const CommandShape& command, const std::string& at, std::vector<Place>& places) {
  places.push_back({at, command});
  for (const CommandShape& inner : command.commands) AddPlaces(inner, at + "/" + inner.name, places);
}

std::vector<Place> PlacesOf(const CommandShape& root) {
  std::vector<Place> places;
  AddPlaces(root, "", places);
  return places;
}

// The values that there are, where they are known.
std::vector<std::string> WordsOf(const OptionShape& option) {
  std::vector<std::string> words = option.words;
  if (option.type == "LANE") {
    words.emplace_back("auto");
    for (const LaneInfo& lane : TheEngine().Lanes()) words.emplace_back(lane.name);
  }
  if (option.type == "STAGE") {
    for (const StageInfo& stage : Stages()) words.emplace_back(stage.name);
  }
  if (option.name == "--target") {
    for (const Target& target : Targets()) words.push_back(target.name);
  }
  return words;
}

bool TakesFile(const CommandShape& command) {
  for (const OptionShape& option : command.options) {
    if (option.is_positional && option.is_path) return true;
  }
  return false;
}

// A word of single quotes in a shell.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string Joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

std::vector<std::string> OptionNames(const CommandShape& command) {
  std::vector<std::string> names = {"--help"};
  for (const OptionShape& option : command.options) {
    if (!option.is_positional) names.push_back(option.name);
  }
  return names;
}

std::vector<std::string> CommandNames(const CommandShape& command) {
  std::vector<std::string> names;
  for (const CommandShape& inner : command.commands) names.push_back(inner.name);
  // A positional with known values is completed as commands are.
  for (const OptionShape& option : command.options) {
    if (!option.is_positional) continue;
    for (const std::string& word : WordsOf(option)) names.push_back(word);
  }
  return names;
}

// Which places there are, as patterns of `case`.
std::string PlacePatterns(const std::vector<Place>& places) {
  std::string patterns;
  for (const Place& place : places) {
    if (!place.at.empty()) patterns += (patterns.empty() ? "" : "|") + place.at;
  }
  return patterns;
}

// A line for each option with a value: `AT --option) what`.
template <class OfOption>
std::string ValueCases(const std::vector<Place>& places, const OfOption& of_option) {
  std::string text;
  for (const Place& place : places) {
    for (const OptionShape& option : place.command.options) {
      if (option.is_positional || option.type.empty()) continue;
      text += fmt::format("    {}) {} ;;\n", Quoted(place.at + " " + option.name), of_option(option));
    }
  }
  return text;
}

std::string BashText(const std::vector<Place>& places) {
  std::string text = fmt::format(
      "# tessera for bash, made by `tessera completion bash`.\n"
      "_tessera() {{\n"
      "  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at= i options= names= files=\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$at/${{COMP_WORDS[i]}}\" in {}) at=\"$at/${{COMP_WORDS[i]}}\" ;; esac\n"
      "  done\n"
      "  case \"$at $prev\" in\n",
      PlacePatterns(places));
  text += ValueCases(places, [](const OptionShape& option) {
    if (option.is_path) return std::string("compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\")); return");
    return fmt::format("COMPREPLY=($(compgen -W {} -- \"$cur\")); return", Quoted(Joined(WordsOf(option))));
  });
  text += "  esac\n  case \"$at\" in\n";
  for (const Place& place : places) {
    text += fmt::format("    {}) options={} names={} files={} ;;\n", Quoted(place.at),
                        Quoted(Joined(OptionNames(place.command))), Quoted(Joined(CommandNames(place.command))),
                        TakesFile(place.command) ? "1" : "");
  }
  return text +
         "  esac\n"
         "  if [[ $cur == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
         "    return\n"
         "  fi\n"
         "  COMPREPLY=($(compgen -W \"$names\" -- \"$cur\"))\n"
         "  if [[ $files ]]; then\n"
         "    compopt -o filenames\n"
         "    COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
         "  fi\n"
         "}\n"
         "complete -F _tessera tessera\n";
}

// NAME:ABOUT as zsh's _describe takes it.
std::string Described(std::string_view name, std::string_view about) {
  std::string text;
  for (const char c : name) text += c == ':' ? std::string("\\:") : std::string(1, c);
  return Quoted(fmt::format("{}:{}", text, about));
}

std::string ZshText(const std::vector<Place>& places) {
  std::string text = fmt::format(
      "#compdef tessera\n"
      "# tessera for zsh, made by `tessera completion zsh`.\n"
      "_tessera() {{\n"
      "  local at= files= i\n"
      "  local -a options names\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n"
      "    case \"$at/$words[i]\" in {}) at=\"$at/$words[i]\" ;; esac\n"
      "  done\n"
      "  case \"$at $words[CURRENT-1]\" in\n",
      PlacePatterns(places));
  text += ValueCases(places, [](const OptionShape& option) {
    if (option.is_path) return std::string("_files; return");
    const std::vector<std::string> words = WordsOf(option);
    return words.empty() ? std::string("return") : fmt::format("compadd -- {}; return", Joined(words));
  });
  text += "  esac\n  case \"$at\" in\n";
  for (const Place& place : places) {
    std::string options = Described("--help", "Print this help message and exit");
    for (const OptionShape& option : place.command.options) {
      if (!option.is_positional) options += " " + Described(option.name, option.about);
    }
    std::string names;
    for (const CommandShape& inner : place.command.commands) names += " " + Described(inner.name, inner.about);
    if (names.empty()) {
      for (const std::string& name : CommandNames(place.command)) names += " " + Described(name, "");
    }
    text += fmt::format("    {}) options=({}) names=({}) files={} ;;\n", Quoted(place.at), options,
                        names.empty() ? names : names.substr(1), TakesFile(place.command) ? "1" : "");
  }
  return text +
         "  esac\n"
         "  if [[ $PREFIX == -* ]]; then\n"
         "    _describe -o option options\n"
         "    return\n"
         "  fi\n"
         "  (( $#names )) && _describe command names\n"
         "  [[ -n $files ]] && _files\n"
         "}\n"
         "if [[ $funcstack[1] == _tessera ]]; then _tessera \"$@\"; else compdef _tessera tessera; fi\n";
}

std::string FishText(const std::vector<Place>& places) {
  std::string text =
      "# tessera for fish, made by `tessera completion fish`.\n"
      "function __tessera_at\n"
      "  set -l at ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    switch \"$at/$word\"\n";
  std::string patterns;
  for (const Place& place : places) patterns += place.at.empty() ? "" : " " + Quoted(place.at);
  text += fmt::format("      case{}\n        set at \"$at/$word\"\n", patterns);
  text +=
      "    end\n"
      "  end\n"
      "  test \"$at\" = \"$argv[1]\"\n"
      "end\n"
      "complete -c tessera -f\n";
  for (const Place& place : places) {
    const std::string here = fmt::format("complete -c tessera -n {}", Quoted("__tessera_at \"" + place.at + "\""));
    for (const CommandShape& inner : place.command.commands) {
      text += fmt::format("{} -a {} -d {}\n", here, inner.name, Quoted(inner.about));
    }
    if (place.command.commands.empty()) {
      const std::vector<std::string> names = CommandNames(place.command);
      if (!names.empty()) text += fmt::format("{} -a {}\n", here, Quoted(Joined(names)));
    }
    if (TakesFile(place.command)) text += here + " -F\n";
    for (const OptionShape& option : place.command.options) {
      if (option.is_positional) continue;
      text += fmt::format("{} -l {} -d {}", here, option.name.substr(2), Quoted(option.about));
      const std::vector<std::string> words = WordsOf(option);
      if (option.is_path) {
        text += " -r -F";
      } else if (!option.type.empty()) {
        text += words.empty() ? " -x" : " -x -a " + Quoted(Joined(words));
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace

void AddCompletion(Command& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  Command* sub = app.AddCommand("completion", "Print what makes a shell complete commands, options and files");
  sub->AddOption("shell", *shell, "Which shell")->TypeName("SHELL")->OneOf({"bash", "zsh", "fish"})->Required();
  sub->Footer(kFooter);
  sub->OnParsed([shell, &app, &action] {
    action = [shell, &app] {
      const std::vector<Place> places = PlacesOf(app.Shape());
      Print(*shell == "bash" ? BashText(places) : *shell == "zsh" ? ZshText(places) : FishText(places));
      return kGood;
    };
  });
}

}  // namespace tessera::program
