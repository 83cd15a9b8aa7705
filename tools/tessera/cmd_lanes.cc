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
  std::string plugin;
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera lanes\n"
    "  tessera lanes examples/packed.toml --target v6e";

// Each plugin is loaded and asked, so this is what it says of itself.
std::string PluginsJson(const std::vector<PluginReport>& plugins) {
  std::vector<std::string> documents;
  for (const PluginReport& plugin : plugins) {
    std::vector<std::string> devices;
    for (const std::string& device : plugin.devices) devices.push_back(JsonString(device));
    JsonObject object;
    object.Text("plugin", plugin.name).Text("path", plugin.use.plugin).Text("platform", plugin.use.platform);
    object.Text("pjrt", plugin.use.pjrt).Text("stablehlo", plugin.use.stablehlo).Text("guard", plugin.use.guard);
    documents.push_back(object.Raw("devices", JsonList(devices)).Text("usable", plugin.usable).Done());
  }
  return JsonList(documents);
}

// "0 cpu, 1 cpu"; of many, the first and the last.
std::string DevicesInWords(const std::vector<std::string>& devices) {
  constexpr size_t kMost = 4;
  if (devices.empty()) return "none";
  if (devices.size() <= kMost) return fmt::format("{}", fmt::join(devices, ", "));
  return fmt::format("{} to {}", devices.front(), devices.back());
}

void PrintPlugins(const std::vector<PluginReport>& plugins) {
  Print("\nPJRT plugins, for xla_chunked:\n");
  if (plugins.empty()) Print("  none; script/setup --xla installs the one for CPUs, --plugin names another\n");
  for (const PluginReport& plugin : plugins) {
    const XlaUse& use = plugin.use;
    Print(fmt::format("  {}: usable {}\n    {}\n", plugin.name, plugin.usable, use.plugin));
    if (use.pjrt.empty()) continue;
    const std::string platform = use.platform.empty() ? "" : fmt::format("platform {}, ", use.platform);
    Print(fmt::format("    {}PJRT {}, StableHLO {}, guard {}, devices {}\n", platform, use.pjrt, use.stablehlo,
                      use.guard, DevicesInWords(plugin.devices)));
  }
}

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
  const std::vector<PluginReport> plugins = ReportPlugins(AskedXla({.plugin = options.plugin}));
  if (options.json) {
    Print(JsonObject().Raw("lanes", JsonList(documents)).Raw("plugins", PluginsJson(plugins)).Done() + "\n");
  } else {
    PrintPlugins(plugins);
  }
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

void AddLanes(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("lanes", "List the lanes; with a contract, say which is selected and why");
  sub->AddOption("contract", options->contract, "Contract (.toml or .json, - = standard input)")->TypeName("FILE");
  sub->AddOption("--target", options->target, "Machine to select for: cpu, h200, v6e, v5e, v5p")->ShowDefault();
  sub->AddOption("--plugin", options->plugin, "Also look at this PJRT plugin")->TypeName("FILE.so");
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->Footer(kFooter);
  sub->OnParsed([options, &action] {
    action = [options] { return options->contract.empty() ? ListLanes(*options) : SelectFor(*options); };
  });
}

}  // namespace tessera::program
