// `tessera shard`: how the tensors of a model lie on a mesh of devices, and whether a launch may have them so.
#include <fmt/format.h>

#include <memory>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string parameters;
  std::string mesh;
  std::string specs;
  bool zero3 = false;
  std::optional<int64_t> num_devices;
  std::optional<int64_t> device_bytes;
  std::optional<int64_t> replicated_percent;
  bool json = false;
};

constexpr const char* kFooterOfTensors =
    "The file is TOML or JSON: names and types of parameters, buffers and activations. Those the built-in table is "
    "not\n"
    "about need a spec of their own, in the file of --specs. docs/sharding.md explains both. Examples:\n"
    "  tessera shard show examples/sharding/decoder.toml --mesh data=2,model=2\n"
    "  tessera shard check examples/sharding/decoder.toml --mesh data=4,model=2 --zero3 --devices 8\n"
    "  tessera shard check examples/sharding/decoder.toml --mesh data=2,model=3";

Result<ShardTable> ReadTable(const Options& options) {
  const Result<Mesh> mesh = ParseMesh(options.mesh);
  if (!mesh) return tl::unexpected(mesh.error());
  const Result<DeclaredModel> model = ReadDeclaredModel(options.parameters);
  if (!model) return tl::unexpected(model.error());
  ShardOptions how = {.rules = {}, .zero3 = options.zero3};
  if (!options.specs.empty()) {
    Result<std::vector<SpecRule>> rules = ReadSpecs(options.specs);
    if (!rules) return tl::unexpected(rules.error());
    how.rules = std::move(*rules);
  }
  Result<ShardTable> table = MakeShardTable(*model, *mesh, how);
  if (!table && table.error().code == ErrorCode::kSpecsInvalid) table.error().where = options.specs;
  return table;
}

std::string Figures(const ShardTable& table) {
  const ShardFigures figures = FiguresOf(table);
  std::string text = fmt::format("{:<14}{} = {} devices\n", "mesh", ToText(table.mesh), table.mesh.NumDevices());
  text += fmt::format("{:<14}{}\n", "tensors", Grouped(static_cast<int64_t>(table.rows.size())));
  text += fmt::format("{:<14}{} in all, {} on each device\n", "bytes", Grouped(figures.total_bytes),
                      Grouped(figures.device_bytes));
  text += fmt::format("{:<14}{} bytes, {:.1f} % of all, whole on every device\n", "replicated",
                      Grouped(figures.replicated_bytes), 100 * figures.ReplicatedFraction());
  return text + fmt::format("{:<14}{}\n", "fingerprint", ShardFingerprint(table));
}

std::string Picture(const ShardTable& table) {
  return DrawMesh(table.mesh) + "\n" + ToText(table) + "\n" + Figures(table);
}

int Show(const Options& options) {
  const Result<ShardTable> table = ReadTable(options);
  if (!table) return Report(table.error(), options.json);
  if (options.json) {
    Print(ToJson(*table) + "\n");
    return kGood;
  }
  Print(Picture(*table));
  return kGood;
}

int Check(const Options& options) {
  const Result<ShardTable> table = ReadTable(options);
  if (!table) return Report(table.error(), options.json);
  AuditLimits limits = {
      .num_devices = options.num_devices, .device_bytes = options.device_bytes, .replicated_fraction = {}};
  if (options.replicated_percent) {
    limits.replicated_fraction = static_cast<double>(*options.replicated_percent) / 100;
  }
  if (!options.json) Print(Picture(*table));  // what is refused is looked at too
  if (const Status good = AuditShards(*table, limits); !good) return Report(good.error(), options.json);
  Say(options.json, Colour::kGood, "good:", " every tensor has a spec that fits this mesh");
  if (options.json) Print(ToJson(*table) + "\n");
  return kGood;
}

}  // namespace

void AddShard(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand(
      "shard", "See how a model's tensors lie on several devices and audit it; run and compile attention over several");
  sub->RequireCommand(1, 1);
  sub->Footer(kFooterOfTensors);
  const auto add = [&](const char* name, const char* about, int (*command)(const Options&)) {
    Command* verb = sub->AddCommand(name, about);
    verb->AddOption("file", options->parameters, "Names and types of the tensors")->Reads("FILE")->Required();
    verb->AddOption("--mesh", options->mesh, "Axes and their sizes, as data=2,model=4")->TypeName("AXES")->Required();
    verb->AddOption("--specs", options->specs, "Specs of your own, before those of the table")->Reads("FILE");
    verb->AddFlag("--zero3", options->zero3, "Cut each parameter's largest free dimension along data");
    verb->AddFlag("--json", options->json, "Print one JSON document");
    verb->Footer(kFooterOfTensors);
    verb->OnParsed([options, command, &action] { action = [options, command] { return command(*options); }; });
    return verb;
  };
  add("show", "Print the mesh and the spec of every tensor", Show);
  Command* verb = add("check", "Refuse what a launch must not have, with the full list", Check);
  verb->AddNumber("--devices", options->num_devices, {.low = 1, .high = kMaxMeshDevices}, "Of the launch")
      ->TypeName("N");
  verb->AddNumber("--max-device-bytes", options->device_bytes, {.low = 0, .high = INT64_MAX},
                  "Ceiling of parameters and buffers on each device")
      ->TypeName("N");
  verb->AddNumber("--max-replicated", options->replicated_percent, {.low = 0, .high = 100},
                  "Ceiling of what is whole on every device, in percent of all bytes")
      ->TypeName("N");
  AddShardRun(*sub, action);
  AddShardCompile(*sub, action);
}

}  // namespace tessera::program
