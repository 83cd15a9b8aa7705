// `tessera lanes`: the lanes there are; with a contract, which one the target's table names and what each says.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "json_text.h"
#include "lane_probes.h"
#include "metadata.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string contract;
  BatchArguments batch;
  std::string target = "cpu";
  std::string lane = "auto";
  std::string plugin;
  std::optional<std::string> moba;
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera lanes\n"
    "  tessera lanes --target h200 --lane cuda\n"
    "  tessera lanes examples/packed.toml --target v6e";

// The smallest contract that every lane which is there accepts.
constexpr const char* kPlain = "version = 1\n[shape]\nq_len = 64\ndim_qk = 64\n[mask]\nexpr = \"causal\"\n";

// What a lane says that says nothing where it is not asked for.
Decision AskedByName(const std::string& lane, const Target& target) {
  AttentionOptions options;
  options.lane = lane;
  auto attention = ParseContract(kPlain).and_then(
      [&](const Contract& plain) { return TheEngine().Prepare(plain, target, options); });
  for (const LaneDecision& d : attention ? attention->selection().decisions : std::vector<LaneDecision>()) {
    if (d.lane == lane) return d.decision;
  }
  return Decision::No(ReasonCode::kOnlyByName);
}

// Which lane a plain contract gets on the target: the one asked for by name or an error, else the first that is there.
Result<BackendChoice> ChooseLane(const Options& options) {
  auto target = FindTarget(options.target);
  if (!target) return tl::unexpected(target.error());
  auto selection =
      ParseContract(kPlain).and_then([&](const Contract& plain) { return TheEngine().Select(plain, *target); });
  if (!selection) return tl::unexpected(selection.error());
  for (LaneDecision& d : selection->decisions) {
    if (d.lane != options.lane || d.decision.reason != ReasonCode::kOnlyByName) continue;
    d.decision = AskedByName(options.lane, *target);
  }
  return ChooseBackend(options.lane, ProbeLanes(*selection));
}

// What a decoder of MoBA layers is told here. There is no flash runtime in Tessera to find.
int ShowMoba(const Options& options) {
  auto record = ResolveMoba(options.moba, {.name = "flash", .has_package = false, .has_device = false});
  if (!record) return Report(record.error(), options.json);
  Print(ToJson(*record) + "\n");
  return kGood;
}

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
    const DeviceUse& use = plugin.use;
    Print(fmt::format("  {}: usable {}\n    {}\n", plugin.name, plugin.usable, use.plugin));
    if (use.pjrt.empty()) continue;
    const std::string platform = use.platform.empty() ? "" : fmt::format("platform {}, ", use.platform);
    Print(fmt::format("    {}PJRT {}, StableHLO {}, guard {}, devices {}\n", platform, use.pjrt, use.stablehlo,
                      use.guard, DevicesInWords(plugin.devices)));
  }
}

int ListLanes(const Options& options) {
  auto chosen = ChooseLane(options);
  if (!chosen) return Report(chosen.error(), options.json);
  std::vector<std::string> documents;
  const auto here = [](const LaneInfo& lane) {
    return lane.isas.empty() ? "not built" : fmt::format("{}", fmt::join(lane.isas, ", "));
  };
  constexpr std::string_view kIsas = "instruction sets";
  size_t width = kIsas.size();
  for (const LaneInfo& lane : TheEngine().Lanes()) width = std::max(width, here(lane).size());
  if (!options.json) Print(fmt::format("{:<12} {:<12} {:<{}} {}\n", "lane", "mode", kIsas, width, "what it is"));
  for (const LaneInfo& lane : TheEngine().Lanes()) {
    JsonObject object;
    object.Text("lane", lane.name).Text("runtime_mode", lane.runtime_mode).Text("description", lane.description);
    std::vector<std::string> isas;
    for (const std::string& isa : lane.isas) isas.push_back(JsonString(isa));
    documents.push_back(object.Raw("isas", JsonList(isas)).Done());
    if (options.json) continue;
    Print(fmt::format("{:<12} {:<12} {:<{}} {}\n", lane.name, lane.runtime_mode, here(lane), width, lane.description));
  }
  const std::vector<PluginReport> plugins = TheEngine().Plugins(options.plugin);
  if (options.json) {
    JsonObject object;
    object.Raw("lanes", JsonList(documents)).Raw("chosen", ToJson(*chosen)).Raw("plugins", PluginsJson(plugins));
    Print(object.Done() + "\n");
  } else {
    Print(fmt::format("\na plain contract on {} would run on {} ({}): {}\n", options.target, chosen->backend,
                      chosen->source, chosen->reason));
    PrintPlugins(plugins);
  }
  return kGood;
}

// The plan of the contract, where there is enough to make one.
struct Planned {
  Problem problem;
  std::optional<Plan> plan;
};

Result<Planned> PlanFor(const Options& options, const Contract& contract, const Target& target) {
  auto batch = ReadBatchArguments(options.batch, contract);
  if (!batch) return tl::unexpected(batch.error());
  Planned planned{{contract, std::move(*batch), target, {}, {}}, std::nullopt};
  if (contract.routing) return planned;  // its picks come out of the data
  auto made = PlanProblem(planned.problem);
  if (made) {
    planned.plan = std::move(made->plan);
  } else if (!options.batch.IsEmpty()) {
    return tl::unexpected(made.error());
  }
  return planned;
}

std::string MetadataText(const Planned& planned) {
  if (planned.plan) return MetadataLine(planned.plan->view(), planned.problem.target, &planned.problem);
  return planned.problem.contract.routing ? "metadata      depends on the picks: tessera plan says it\n"
                                          : "metadata      depends on the batch: give --batch or --documents\n";
}

int SelectFor(const Options& options) {
  auto target = FindTarget(options.target);
  if (!target) return Report(target.error(), options.json);
  auto contract = ReadContractArgument(options.contract);
  if (!contract) return Report(contract.error(), options.json);
  auto selection = TheEngine().Select(*contract, *target);
  if (!selection) return Report(selection.error(), options.json);
  auto planned = PlanFor(options, *contract, *target);
  if (!planned) return Report(planned.error(), options.json);
  std::vector<LaneSupport> supports;
  if (auto facts = DescribeMask(*contract); facts && (contract->routing || facts->names_blocks)) {
    auto found = SupportOfLanes(*contract, *target);
    if (!found) return Report(found.error(), options.json);
    supports = std::move(*found);
  }
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
    object.Raw("decisions", JsonList(decisions));
    if (planned->plan) AddMetadata(object, planned->plan->view(), *target);
    JsonObject support;
    for (const LaneSupport& s : supports) support.Raw(s.lane, ToJson(s.support));
    if (!supports.empty()) object.Raw("support", support.Done());
    Print(object.Done() + "\n");
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
  Print("\n" + MetadataText(*planned));
  if (!supports.empty()) Print("\nwith picks, routing and the lane both take\n");
  const auto word = [](bool value) { return value ? "yes" : "no"; };
  for (const LaneSupport& s : supports) {
    Print(fmt::format("{:<12} a window {}, documents {}, valid lengths {}\n", s.lane, word(s.support.local_window),
                      word(s.support.general_doc_ids), word(s.support.valid_prefix)));
  }
  return kGood;
}

}  // namespace

void AddLanes(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("lanes", "List the lanes; with a contract, say which is selected and why");
  AddContract(*sub, options->contract);
  AddBatchArguments(*sub, options->batch);
  sub->AddOption("--target", options->target, "Machine to select for: cpu, h200, v6e, v5e, v5p")->ShowDefault();
  sub->AddOption("--lane", options->lane, "Without a contract: this lane, or why it is not there")
      ->TypeName("LANE")
      ->ShowDefault();
  sub->AddOption("--moba", options->moba, "What a decoder of MoBA layers that asks for this backend is told")
      ->TypeName("NAME");
  sub->AddOption("--plugin", options->plugin, "Also look at this PJRT plugin")->Reads("FILE.so");
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] {
    action = [options, sub] {
      Status used;
      if (options->moba) used = sub->AllowOnly("--moba", {"--moba", "--json"});
      if (used && !options->contract.empty()) used = sub->Refuse("a contract", {"--lane", "--plugin"});
      if (used && options->contract.empty()) used = sub->Refuse("no contract", kBatchOptions);
      if (!used) return Report(used.error(), options->json);
      if (options->moba) return ShowMoba(*options);
      return options->contract.empty() ? ListLanes(*options) : SelectFor(*options);
    };
  });
}

}  // namespace tessera::program
