// `tessera lanes`: the lanes there are; with a contract, which one the target's table names and what each says.
#include <fmt/format.h>

#include <memory>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string contract;
  std::string target = "cpu";
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera lanes\n"
    "  tessera lanes examples/packed.toml --target v6e";

int ListLanes(const Options& options) {
  std::vector<std::string> documents;
  if (!options.json) Print(fmt::format("{:<12} {:<12} {:<16} {}\n", "lane", "mode", "instruction sets", "what it is"));
  for (const LaneInfo& lane : Lanes()) {
    JsonObject object;
    object.Text("lane", lane.name).Text("runtime_mode", lane.runtime_mode).Text("description", lane.description);
    std::vector<std::string> isas;
    for (const std::string& isa : lane.isas) isas.push_back(JsonString(isa));
    documents.push_back(object.Raw("isas", JsonList(isas)).Done());
    if (options.json) continue;
    const std::string here = lane.isas.empty() ? "not built" : fmt::format("{}", fmt::join(lane.isas, ", "));
    Print(fmt::format("{:<12} {:<12} {:<16} {}\n", lane.name, lane.runtime_mode, here, lane.description));
  }
  if (options.json) Print(JsonObject().Raw("lanes", JsonList(documents)).Done() + "\n");
  return kGood;
}

int SelectFor(const Options& options) {
  auto target = FindTarget(options.target);
  if (!target) return Report(target.error(), options.json);
  auto contract = ReadContractArgument(options.contract);
  if (!contract) return Report(contract.error(), options.json);
  auto selection = SelectLane(*contract, *target);
  if (!selection) return Report(selection.error(), options.json);
  if (options.json) {
    std::vector<std::string> decisions;
    for (const LaneDecision& entry : selection->decisions) {
      JsonObject object;
      object.Text("lane", entry.lane).Text("step", entry.step).Bool("accepted", entry.decision.accepted);
      object.Text("reason", ReasonText(entry.decision.reason)).Text("meaning", ReasonMeaning(entry.decision.reason));
      decisions.push_back(object.Text("detail", entry.decision.detail).Done());
    }
    JsonObject object;
    object.Text("target", target->name).Text("selected", selection->lane).Text("rule", selection->rule);
    Print(object.Raw("decisions", JsonList(decisions)).Done() + "\n");
    return kGood;
  }
  Print(fmt::format("target {}: {}\n", target->name, target->description));
  Print(fmt::format("selected {}, because: {}\n\n", selection->lane, selection->rule));
  Print(fmt::format("{:<12} {:<4} {}\n", "lane", "runs", "why not"));
  for (const LaneDecision& entry : selection->decisions) {
    const Decision& decision = entry.decision;
    std::string why;
    if (!decision.accepted) {
      why = fmt::format("{}: {}", ReasonText(decision.reason), ReasonMeaning(decision.reason));
      if (!decision.detail.empty()) why += " (" + decision.detail + ")";
    }
    std::string line = fmt::format("{:<12} {:<4} {}", entry.lane, decision.accepted ? "yes" : "no", why);
    line.erase(line.find_last_not_of(' ') + 1);
    Print(line + "\n");
  }
  return kGood;
}

}  // namespace

void AddLanes(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("lanes", "List the lanes; with a contract, say which is selected and why");
  sub->add_option("contract", options->contract, "Contract (.toml or .json, - = standard input)")->type_name("FILE");
  sub->add_option("--target", options->target, "Machine to select for: cpu, h200, v6e, v5e, v5p")
      ->capture_default_str();
  sub->add_flag("--json", options->json, "Print one JSON document");
  sub->footer(kFooter);
  sub->callback([options, &action] {
    action = [options] { return options->contract.empty() ? ListLanes(*options) : SelectFor(*options); };
  });
}

}  // namespace tessera::program
