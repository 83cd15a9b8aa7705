// A receipt's options read back, by the same list that wrote them.
#include <fmt/format.h>

#include <set>

#include "dispatch/options.h"
#include "engine/describe.h"
#include "tessera/run.h"

namespace tessera {

Result<RunOptions> OptionsOf(const Receipt& receipt) {
  RunOptions options;
  std::vector<Violation> violations;
  // Facts that stand among the options: what was planned for, and how.
  std::set<std::string> known = {"plan", "target", "workers", "check", kCompileOnlyOption, kEmitOnlyOption, "chips"};
  const auto read = [&](const std::string& name, auto& value) {
    known.insert(name);
    const auto at = receipt.options.find(name);
    if (at == receipt.options.end() || ReadOption(at->second, value)) return;
    violations.push_back(
        {"options." + name, fmt::format("\"{}\" then, which this version does not understand", at->second)});
  };
  AttentionOptions& attention = options;
  VisitOptions(attention, [&](std::string_view name, auto& value, OptionUse) { read(std::string(name), value); });
  read("row_max", options.row_max);
  std::string layout = "bhtd";
  read("layout", layout);
  options.layout = layout == "bthd" ? Layout::kBthd : Layout::kBhtd;
  if (layout != "bthd" && layout != "bhtd") {
    violations.push_back(
        {"options.layout", fmt::format("\"{}\" then, which this version does not understand", layout)});
  }
  for (const auto& [name, value] : receipt.options) {
    if (known.count(name) != 0) continue;
    violations.push_back(
        {"options." + name, fmt::format("\"{}\" then, which this version does not understand", value)});
  }
  if (!violations.empty()) return Fail(ErrorCode::kCannotReproduce, std::move(violations), "options");
  return options;
}

}  // namespace tessera
