// `tessera receipt`: shows a receipt to people, or checks that it is whole and consistent.
#include <fmt/format.h>

#include <memory>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string file;
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera receipt show receipt.json\n"
    "  tessera receipt check receipt.json";

void Field(std::string& text, std::string_view name, const std::string& value) {
  if (!value.empty()) text += fmt::format("  {:<18} {}\n", name, value);
}

std::string CountsText(const TileCounts& counts, int64_t executed) {
  return fmt::format("{} full, {} partial, {} empty; {} executed", Grouped(counts.full), Grouped(counts.partial),
                     Grouped(counts.empty), Grouped(executed));
}

std::string Fields(const Receipt& receipt) {
  std::string text = ToLine(receipt) + "\n\n";
  Field(text, "failed at", receipt.failed_at);
  Field(text, "error", receipt.error);
  Field(text, "requested", receipt.requested);
  Field(text, "selected", receipt.selected);
  Field(text, "rule", receipt.selection_rule);
  Field(text, "executed", receipt.executed);
  Field(text, "runtime mode", receipt.runtime_mode);
  Field(text, "fallback reason", receipt.fallback_reason);
  Field(text, "target", receipt.target);
  Field(text, "contract key", receipt.contract_key);
  Field(text, "class key", receipt.class_key);
  Field(text, "mask digest", receipt.mask_digest);
  Field(text, "plan fingerprint", receipt.plan_fingerprint);
  Field(text, "tiles forward", CountsText(receipt.tiles, receipt.tiles_executed));
  if (receipt.tiles_executed_backward > 0) {
    Field(text, "tiles backward", CountsText(receipt.tiles_backward, receipt.tiles_executed_backward));
  }
  Field(text, "plan", Bytes(receipt.plan_bytes));
  Field(text, "metadata",
        receipt.metadata_limit == 0
            ? Bytes(receipt.metadata_bytes)
            : fmt::format("{} of {}", Grouped(receipt.metadata_bytes), Bytes(receipt.metadata_limit)));
  Field(text, "kernel", receipt.kernel);
  Field(text, "isa", receipt.isa);
  Field(text, "workspace", Bytes(receipt.workspace_bytes));
  Field(text, "determinism", receipt.determinism);
  Field(text, "inputs", receipt.input_source + "  " + receipt.input_digest);
  Field(text, "batch", receipt.batch_source + "  " + receipt.batch_digest);
  Field(text, "outputs", receipt.output_digest);
  for (const auto& [name, value] : receipt.options) Field(text, "option " + name, value);
  for (const auto& [name, value] : receipt.versions) Field(text, "version " + name, value);
  for (const Timing& timing : receipt.timings) Field(text, "time " + timing.name, Milliseconds(timing.ns));
  text += "\n  decisions\n";
  for (const LaneDecision& entry : receipt.decisions) {
    text += fmt::format("    {:<12} {:<9} {}\n", entry.lane, entry.step,
                        entry.decision.accepted ? "yes" : fmt::format("no, {}", ReasonText(entry.decision.reason)));
  }
  return text + "\n  contract\n" + Indented(receipt.contract_text, "    ");
}

int Show(const Options& options) {
  auto receipt = ReadReceipt(options.file);
  if (!receipt) return Report(receipt.error(), options.json);
  Print(options.json ? ToJson(*receipt) + "\n" : Fields(*receipt));
  return kGood;
}

int Check(const Options& options) {
  auto receipt = ReadReceipt(options.file);
  if (!receipt) {
    Report(receipt.error(), options.json);
    // A receipt that could be read and is wrong is a failed check, not a bad argument.
    return receipt.error().code == ErrorCode::kFileRead ? kBadInput : kCheckFailed;
  }
  Say(options.json, fmt::format("{}: a valid receipt", options.file));
  Say(options.json, "  " + ToLine(*receipt));
  if (options.json) Print(JsonObject().Text("name", options.file).Bool("pass", true).Done() + "\n");
  return kGood;
}

}  // namespace

void AddReceipt(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("receipt", "Show or check a receipt");
  sub->require_subcommand(1);
  sub->footer(kFooter);
  const auto add = [&](const char* name, const char* about, int (*command)(const Options&)) {
    CLI::App* verb = sub->add_subcommand(name, about);
    verb->add_option("file", options->file, "The receipt")->type_name("FILE")->required();
    verb->add_flag("--json", options->json, "Print one JSON document");
    verb->footer(kFooter);
    verb->callback([options, command, &action] { action = [options, command] { return command(*options); }; });
  };
  add("show", "Print the line and the fields", Show);
  add("check", "Check that it is whole and consistent (exit 1 when not)", Check);
}

}  // namespace tessera::program
