// `tessera man`: the manual page, made from the commands and options themselves.
#include <fmt/format.h>

#include <string_view>

#include "program.h"

namespace tessera::program {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera man | man -l -";

// Text as troff shows it: a backslash is one, a dash is a dash that can be copied, and no line is a request.
std::string Escaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_begin = i == 0 || text[i - 1] == '\n';
    if (is_begin && (text[i] == '.' || text[i] == '\'')) out += "\\&";
    if (text[i] == '\\') {
      out += "\\e";
    } else if (text[i] == '-') {
      out += "\\-";
    } else {
      out += text[i];
    }
  }
  return out;
}

// Lines that stay as they are: examples.
std::string Verbatim(std::string_view text) { return fmt::format(".PP\n.nf\n{}\n.fi\n", Escaped(text)); }

void AddOptions(const CommandShape& command, std::string& text) {
  for (const OptionShape& option : command.options) {
    text += fmt::format(".TP\n\\fB{}\\fR", Escaped(option.name));
    if (!option.type.empty()) text += fmt::format(" \\fI{}\\fR", Escaped(option.type));
    std::string about = option.about;
    if (!option.words.empty()) about += fmt::format(": {}", fmt::join(option.words, ", "));
    if (option.is_required) about += " (required)";
    text += "\n" + Escaped(about) + "\n";
  }
}

void AddCommands(const CommandShape& command, const std::string& name, std::string& text) {
  for (const CommandShape& inner : command.commands) {
    const std::string full = name + " " + inner.name;
    text += fmt::format(".SS {}\n{}\n", Escaped(full), Escaped(inner.about + "."));
    AddOptions(inner, text);
    // Commands of a command repeat the footer of it.
    if (!inner.footer.empty() && inner.footer != command.footer) text += Verbatim(inner.footer);
    AddCommands(inner, full, text);
  }
}

std::string ManText(const CommandShape& root) {
  std::string text = fmt::format(
      ".TH TESSERA 1 \"\" \"tessera {}\" \"Tessera\"\n.SH NAME\ntessera \\- block\\-sparse attention from a contract\n"
      ".SH SYNOPSIS\n\\fBtessera\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n.SH DESCRIPTION\n{}\n.SH COMMANDS\n",
      kVersion, Escaped(root.about));
  AddCommands(root, "tessera", text);
  text += ".SH EXAMPLES AND EXIT STATUS\n" + Verbatim(root.footer);
  text += fmt::format(
      ".SH ENVIRONMENT\n"
      ".TP\nTESSERA_LANE, TESSERA_ISA, TESSERA_LEDGER, TESSERA_PJRT_PLUGIN\n{}\n"
      ".TP\nNO_COLOR\n{}\n",
      Escaped("The defaults of --lane, --isa, --ledger and --plugin."),
      Escaped("Set to anything but nothing, no colour is used on a terminal."));
  return text;
}

}  // namespace

void AddMan(Command& app, Action& action) {
  Command* sub = app.AddCommand("man", "Print the manual page of the program");
  sub->Footer(kFooter);
  sub->OnParsed([&app, &action] {
    action = [&app] {
      Print(ManText(app.Shape()));
      return kGood;
    };
  });
}

}  // namespace tessera::program
