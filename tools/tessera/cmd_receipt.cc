// `tessera receipt`: shows a receipt to people, checks that it is whole and consistent, or says what two differ in.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string file;
  std::string other;
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera receipt show receipt.json\n"
    "  tessera receipt check receipt.json\n"
    "  tessera receipt diff monday.json tuesday.json";

// A value of several lines, which an error can have, goes on under its beginning: no value can pose as another field.
void Field(std::string& text, std::string_view name, const std::string& value) {
  if (value.empty()) return;
  const std::string shown = Indented(value, std::string(21, ' '));
  text += fmt::format("  {:<18} {}", OneLine(name), shown.substr(std::min<size_t>(shown.size(), 21)));
}

std::string CountsText(const TileCounts& counts, int64_t executed) {
  return fmt::format("{} full, {} partial, {} empty; {} executed", Grouped(counts.full), Grouped(counts.partial),
                     Grouped(counts.empty), Grouped(executed));
}

std::string CacheText(const CacheUse& cache) {
  if (cache.outcome.empty() || cache.outcome == "off") return cache.outcome;
  return fmt::format("{}; {} hits, {} misses, {} builds, {} evictions so far", cache.outcome, Grouped(cache.hits),
                     Grouped(cache.misses), Grouped(cache.builds), Grouped(cache.evictions));
}

std::string DeviceText(const DeviceUse& device) {
  if (device.kind.empty()) return {};
  std::string text = fmt::format("{} {}, {}", device.kind, device.ordinal, device.name);
  if (!device.memory.empty()) text += fmt::format(", tensors in {} memory", device.memory);
  if (!device.driver.empty()) text += fmt::format(", driver {}", device.driver);
  if (!device.topology.empty()) text += fmt::format(", compiled for {}", device.topology);
  return text;
}

std::string PluginText(const DeviceUse& device) {
  if (device.plugin.empty()) return {};
  return fmt::format("{} ({}, PJRT {}, StableHLO {}, guard {})", device.plugin, device.platform, device.pjrt,
                     device.stablehlo, device.guard);
}

std::string WorkText(const WorkUse& work) {
  if (work.pairs == 0) return {};
  std::string text = fmt::format("{} pairs allowed", Grouped(work.pairs));
  if (work.forward_gflops > 0) text += fmt::format(", forward {:.2f} GFLOP/s", work.forward_gflops);
  if (work.backward_gflops > 0) text += fmt::format(", backward {:.2f} GFLOP/s", work.backward_gflops);
  return text;
}

std::string LimitText(int64_t limit) { return limit == 0 ? "no limit" : Grouped(limit); }

void EmittedFields(std::string& text, const Receipt& receipt) {
  for (const KernelUse& use : receipt.kernels) {
    Field(
        text, "kernel",
        fmt::format("{}: vector memory {} of {}, scalar memory {} of {}", OneLine(use.name), Grouped(use.vector_bytes),
                    LimitText(use.vector_limit), Grouped(use.scalar_bytes), LimitText(use.scalar_limit)));
  }
  for (const FileUse& use : receipt.files) {
    Field(text, "file", fmt::format("{}: {} bytes, {}", OneLine(use.name), Grouped(use.bytes), use.digest));
  }
}

std::string Fields(const Receipt& receipt) {
  std::string text = OneLine(ToLine(receipt)) + "\n\n";
  Field(text, "failed at", receipt.failed_at);
  Field(text, "error", receipt.error);
  Field(text, "requested", receipt.requested);
  Field(text, "selected", receipt.selected);
  Field(text, "rule", receipt.selection_rule);
  Field(text, "executed", receipt.executed);
  Field(text, "runtime mode", receipt.runtime_mode);
  Field(text, "fallback reason", receipt.fallback_reason);
  Field(text, "target", receipt.target);
  Field(text, "ran on", receipt.ran_on);
  Field(text, "device", DeviceText(receipt.device));
  Field(text, "plugin", PluginText(receipt.device));
  if (!receipt.ledger.file.empty()) {
    Field(text, "ledger", fmt::format("{}: {} ({})", receipt.ledger.file, receipt.ledger.verdict, receipt.ledger.note));
    Field(text, "ledger entry", receipt.ledger.entry);
  }
  Field(text, "machine", receipt.ledger.machine);
  Field(text, "contract", receipt.contract_source);
  Field(text, "contract key", receipt.contract_key);
  Field(text, "class key", receipt.class_key);
  if (const ClassUse& use = receipt.class_request; !use.request.empty()) {
    Field(text, "request", use.request);
    Field(text, "class",
          fmt::format("{}: {} slots, {} more than the request needs", use.padded, Grouped(use.class_slots),
                      Grouped(use.class_slots - use.exact_slots)));
  }
  if (const auto record = ExactTokenRecordOf(receipt)) Field(text, "picks", ToJson(*record));
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
  for (const ProgramUse& program : receipt.programs) {
    Field(text, "program " + program.pass, fmt::format("{}, {}", program.name, program.source));
  }
  EmittedFields(text, receipt);
  Field(text, "work", WorkText(receipt.work));
  Field(text, "cache", CacheText(receipt.cache));
  Field(text, "cache key", receipt.cache.key);
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
    text += fmt::format("    {:<12} {:<9} {}\n", OneLine(entry.lane), OneLine(entry.step),
                        entry.decision.accepted ? "yes" : fmt::format("no, {}", ReasonText(entry.decision.reason)));
  }
  return text + "\n  contract\n" + Indented(receipt.contract_text, "    ");
}

int Show(const Options& options) {
  auto receipt = ReadReceipt(options.file, /*is_strict=*/false);
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
  Say(options.json, "  " + OneLine(ToLine(*receipt)));
  if (options.json) Print(JsonObject().Text("name", options.file).Bool("pass", true).Done() + "\n");
  return kGood;
}

std::string OrNothing(const std::string& text) { return text.empty() ? "nothing" : text; }

// A number of nanoseconds, as DiffReceipts gives it; 0 for one that is not there.
int64_t Ns(const std::string& text) { return text.empty() ? 0 : std::atoll(text.c_str()); }

std::string ChangeText(const ReceiptChange& change) {
  if (change.group != "timings") {
    return fmt::format("{}: {} became {}", change.field, OrNothing(change.before), OrNothing(change.after));
  }
  const int64_t before = Ns(change.before);
  const int64_t after = Ns(change.after);
  if (change.before.empty()) return fmt::format("{}: {}, not timed before", change.field, Milliseconds(after));
  if (change.after.empty()) return fmt::format("{}: {} before, not timed after", change.field, Milliseconds(before));
  std::string text = fmt::format("{}: {} became {}", change.field, Milliseconds(before), Milliseconds(after));
  if (before == 0 || after == 0) return text;
  const double ratio = static_cast<double>(after) / static_cast<double>(before);
  return text + fmt::format(", {:.2f} times", ratio);
}

// One paragraph per group that has changes; those that do not matter after those that do, and said to be so.
std::string DiffText(const std::vector<ReceiptChange>& changes) {
  std::string text;
  std::string group;
  for (const ReceiptChange& change : changes) {
    if (change.group != group) text += fmt::format("{}\n", group = change.group);
    const bool is_aside = !change.matters && change.group != "timings" && change.group != "cost";
    text += Indented(ChangeText(change) + (is_aside ? "  (does not matter)" : ""), "  ");
  }
  return text;
}

int Diff(const Options& options) {
  auto before = ReadReceipt(options.file, /*is_strict=*/false);
  if (!before) return Report(before.error(), options.json);
  auto after = ReadReceipt(options.other, /*is_strict=*/false);
  if (!after) return Report(after.error(), options.json);
  const std::vector<ReceiptChange> changes = DiffReceipts(*before, *after);
  const auto count = std::count_if(changes.begin(), changes.end(), [](const ReceiptChange& c) { return c.matters; });
  Say(options.json,
      count == 0 ? "nothing that matters changed"
                 : fmt::format("{} {} changed", count, count == 1 ? "thing that matters" : "things that matter"));
  std::string text = DiffText(changes);
  if (!text.empty()) text.pop_back();
  if (!text.empty()) Say(options.json, text);
  if (options.json) {
    std::vector<std::string> list;
    for (const ReceiptChange& c : changes) {
      JsonObject object;
      object.Text("group", c.group).Text("field", c.field).Text("before", c.before).Text("after", c.after);
      list.push_back(object.Bool("matters", c.matters).Done());
    }
    Print(JsonObject().Bool("same", count == 0).Raw("changes", JsonList(list)).Done() + "\n");
  }
  return count == 0 ? kGood : kCheckFailed;
}

}  // namespace

void AddReceipt(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("receipt", "Show, check or compare receipts");
  sub->RequireCommand(1, 1);
  sub->Footer(kFooter);
  const auto add = [&](const char* name, const char* about, int (*command)(const Options&)) {
    Command* verb = sub->AddCommand(name, about);
    verb->AddOption("file", options->file, "The receipt")->Reads("FILE")->Required();
    verb->AddFlag("--json", options->json, "Print one JSON document");
    verb->Footer(kFooter);
    verb->OnParsed([options, command, &action] { action = [options, command] { return command(*options); }; });
    return verb;
  };
  add("show", "Print the line and the fields", Show);
  add("check", "Check that it is whole and consistent (exit 1 when not)", Check);
  add("diff", "Say what changed from one to another (exit 1 when it matters)", Diff)
      ->AddOption("other", options->other, "The other receipt")
      ->Reads("FILE")
      ->Required();
}

}  // namespace tessera::program
