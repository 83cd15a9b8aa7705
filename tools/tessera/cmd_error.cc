// `tessera error`: what an error code or a refusal reason means and what to do, from the documents' own text.
#include <fmt/format.h>

#include <cctype>
#include <memory>
#include <string_view>

#include "docs_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string name;
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera error TSR-C003\n"
    "  tessera error c003\n"
    "  tessera error dispatch.off_machine";

struct Entry {
  std::string_view name;
  std::string_view text;
};

// The sections of a document: "## NAME", then its text.
std::vector<Entry> EntriesOf(std::string_view document) {
  constexpr std::string_view kHeading = "\n## ";
  std::vector<Entry> entries;
  size_t at = document.find(kHeading);
  while (at != std::string_view::npos) {
    const size_t name = at + kHeading.size();
    const size_t end_of_name = document.find('\n', name);
    const size_t next = document.find(kHeading, end_of_name);
    std::string_view text = document.substr(end_of_name, next == std::string_view::npos ? next : next - end_of_name);
    while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
    while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    entries.push_back({document.substr(name, end_of_name - name), text});
    at = next;
  }
  return entries;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// "TSR-C003", "tsr-c003" and "C003" are one.
bool IsNamed(std::string_view entry, std::string_view asked) {
  const std::string name = Lower(entry);
  const std::string wanted = Lower(asked);
  return name == wanted || name == "tsr-" + wanted;
}

// Bold and links are for a page; a terminal shows the words.
std::string Plain(std::string_view markdown) {
  std::string text;
  for (size_t i = 0; i < markdown.size(); ++i) {
    if (markdown.substr(i, 2) == "**") {
      ++i;
    } else if (markdown.substr(i, 2) == "](") {
      i = std::min(markdown.find(')', i), markdown.size() - 1);
    } else if (markdown[i] != '[' || markdown.find("](", i) == std::string_view::npos) {
      text += markdown[i];
    }
  }
  return text;
}

int Explain(const Options& options) {
  std::vector<Entry> entries = EntriesOf(kErrorCodesMd);
  const std::vector<Entry> reasons = EntriesOf(kReasonsMd);
  entries.insert(entries.end(), reasons.begin(), reasons.end());
  if (options.name.empty()) {
    for (const Entry& entry : entries) {
      Print(fmt::format("{:<28} {}\n", entry.name, entry.text.substr(0, entry.text.find('\n'))));
    }
    return kGood;
  }
  std::vector<std::string_view> names;
  for (const Entry& entry : entries) names.push_back(entry.name);
  for (const Entry& entry : entries) {
    if (!IsNamed(entry.name, options.name)) continue;
    Print(fmt::format("{}: {}\n", entry.name, Plain(entry.text)));
    return kGood;
  }
  return Report(Error{ErrorCode::kBadArgument,
                      fmt::format("there is no error or reason '{}'{}; tessera error lists them all", options.name,
                                  DidYouMean(options.name, names)),
                      "tessera error",
                      {}},
                options.json);
}

}  // namespace

void AddError(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("error", "Say what an error code or a refusal reason means and what to do");
  sub->AddOption("name", options->name, "A code such as TSR-C003 or C003, or a reason; without one, all are listed")
      ->TypeName("CODE");
  sub->Footer(kFooter);
  sub->OnParsed([options, &action] { action = [options] { return Explain(*options); }; });
}

}  // namespace tessera::program
