// `tessera ledger`: adds a measurement to a ledger, shows one, or says what it decides for a contract and why.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  std::string ledger;
  std::string custom_receipt;
  std::string default_receipt;
  LedgerEntry entry;  // given field by field
  std::string contract;
  std::string target = "cpu";
  std::string custom_lane;
  std::string default_lane;
  bool backward = false;
  bool dynamic_shapes = false;
  bool experimental = false;
  bool json = false;
};

constexpr const char* kFooter =
    "An entry counts on the machine and with the version it was measured with, and only with a receipt and a "
    "comparison\n"
    "with the reference. The environment variable TESSERA_LEDGER is the default of --ledger. Examples:\n"
    "  tessera run model.toml --lane cpu --check --receipt custom.json\n"
    "  tessera run model.toml --lane reference --receipt default.json\n"
    "  tessera ledger add --ledger ledger.json --custom custom.json --default default.json\n"
    "  tessera ledger decide model.toml --ledger ledger.json";

Result<LedgerEntry> FromReceipts(const Options& options) {
  auto custom_run = ReadReceipt(options.custom_receipt);
  if (!custom_run) return tl::unexpected(custom_run.error());
  auto default_run = ReadReceipt(options.default_receipt);
  if (!default_run) return tl::unexpected(default_run.error());
  return EntryFromReceipts({.custom_run = *custom_run,
                            .default_run = *default_run,
                            .dynamic_shapes = options.dynamic_shapes,
                            .date = options.entry.date});
}

Result<LedgerEntry> FromFields(const Options& options) {
  auto contract = ReadContractArgument(options.contract);
  if (!contract) return tl::unexpected(contract.error());
  auto kind = LedgerKind(*contract);
  if (!kind) return tl::unexpected(kind.error());
  LedgerEntry entry = options.entry;
  entry.custom_lane = options.custom_lane;
  entry.default_lane = options.default_lane;
  entry.target = options.target;
  entry.kind = *kind;
  entry.shape = contract->shape;
  entry.backward = options.backward;
  entry.dynamic_shapes = options.dynamic_shapes;
  if (entry.machine.empty()) entry.machine = MachineId();
  if (entry.software.empty()) entry.software = SoftwareId();
  if (entry.date.empty()) entry.date = Today();
  return entry;
}

std::string Line(const LedgerEntry& e) {
  const double speedup = static_cast<double>(e.default_ns) / static_cast<double>(e.custom_ns);
  return fmt::format("{:<12} {:<12} {:<8} {:<32} {:<42} {:>10} {:>10} {:>6.2f}x {:<10} {}", e.custom_lane,
                     e.default_lane, e.target, e.kind, ShapeText(e.shape) + (e.backward ? " +backward" : ""),
                     Milliseconds(e.custom_ns), Milliseconds(e.default_ns), speedup, e.date, EntryId(e).substr(0, 8));
}

constexpr const char* kHead =
    "custom       default      target   kind                             shape                                         "
    " "
    "custom    default speedup date       id\n";

Error MissingOption(std::string message) { return {ErrorCode::kBadArgument, std::move(message), "tessera ledger", {}}; }

Result<Ledger> ReadGiven(const Options& options) {
  if (options.ledger.empty()) return tl::unexpected(MissingOption("give --ledger FILE, or set TESSERA_LEDGER"));
  return ReadLedger(options.ledger);
}

int Add(const Options& options) {
  const bool has_receipts = !options.custom_receipt.empty() || !options.default_receipt.empty();
  if (options.ledger.empty()) return Report(MissingOption("give --ledger FILE, or set TESSERA_LEDGER"), options.json);
  if (has_receipts == !options.contract.empty() ||
      (has_receipts && (options.custom_receipt.empty() || options.default_receipt.empty()))) {
    return Report(MissingOption("give two receipts (--custom and --default), or a --contract and its fields"),
                  options.json);
  }
  // A file that is not there yet begins a ledger; one that cannot be read is never written over.
  Ledger ledger;
  if (std::error_code ignored; std::filesystem::exists(options.ledger, ignored)) {
    auto read = ReadLedger(options.ledger);
    if (!read) return Report(read.error(), options.json);
    ledger = std::move(*read);
  }
  auto entry = has_receipts ? FromReceipts(options) : FromFields(options);
  if (!entry) return Report(entry.error(), options.json);
  if (Status added = AddEntry(ledger, *entry); !added) return Report(added.error(), options.json);
  if (Status written = WriteLedger(options.ledger, ledger); !written) return Report(written.error(), options.json);
  Say(options.json, kHead + Line(*entry));
  Say(options.json, fmt::format("wrote {}: {} {}", options.ledger, ledger.entries.size(),
                                ledger.entries.size() == 1 ? "entry" : "entries"));
  if (options.json) Print(ToJson(*entry) + "\n");
  return kGood;
}

int Show(const Options& options) {
  auto ledger = ReadGiven(options);
  if (!ledger) return Report(ledger.error(), options.json);
  if (options.json) {
    Print(ToJson(*ledger) + "\n");
    return kGood;
  }
  std::string text = kHead;
  for (const LedgerEntry& entry : ledger->entries) {
    text += Line(entry);
    if (entry.dynamic_shapes) text += " dynamic";
    if (!entry.reference_passed) text += " unchecked";
    if (entry.receipt.empty()) text += " no-receipt";
    if (entry.machine != MachineId()) text += " other-machine";
    if (entry.software != SoftwareId()) text += " other-version";
    text += "\n";
  }
  Print(text);
  return kGood;
}

// Every pair of lanes that the ledger has measured against each other.
std::vector<std::pair<std::string, std::string>> PairsOf(const Ledger& ledger, const Options& options) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const LedgerEntry& entry : ledger.entries) {
    const std::pair<std::string, std::string> pair{entry.custom_lane, entry.default_lane};
    if (!options.custom_lane.empty() && pair.first != options.custom_lane) continue;
    if (!options.default_lane.empty() && pair.second != options.default_lane) continue;
    if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
  }
  return pairs;
}

int Decide(const Options& options) {
  auto contract = ReadContractArgument(options.contract);
  if (!contract) return Report(contract.error(), options.json);
  auto target = FindTarget(options.target);
  if (!target) return Report(target.error(), options.json);
  auto ledger = ReadGiven(options);
  if (!ledger) return Report(ledger.error(), options.json);
  std::vector<std::string> documents;
  for (const auto& pair : PairsOf(*ledger, options)) {
    const LedgerQuestion question{.contract = *contract,
                                  .target = *target,
                                  .custom_lane = pair.first,
                                  .default_lane = pair.second,
                                  .backward = options.backward,
                                  .dynamic_shapes = options.dynamic_shapes};
    auto decision = DecideByLedger(*ledger, question);
    if (!decision) return Report(decision.error(), options.json);
    const bool is_used = decision->Prefers(options.experimental);
    Say(options.json, fmt::format("{} instead of {}: {}, {}; {}", pair.first, pair.second, ToText(decision->verdict),
                                  is_used ? "used" : "not used", decision->note));
    std::vector<std::string> counted;
    std::vector<std::string> uncounted;
    for (const LedgerEntry& entry : decision->counted) {
      Say(options.json, fmt::format("  {} {}", EntryId(entry) == decision->entry ? "*" : " ", Line(entry)));
      counted.push_back(ToJson(entry));
    }
    for (const UncountedEntry& entry : decision->uncounted) {
      Say(options.json, fmt::format("  - {}  does not count: {}", Line(entry.entry), entry.why));
      uncounted.push_back(JsonObject().Raw("entry", ToJson(entry.entry)).Text("why", entry.why).Done());
    }
    JsonObject object;
    object.Text("custom_lane", pair.first).Text("default_lane", pair.second);
    object.Text("verdict", ToText(decision->verdict)).Bool("used", is_used).Text("note", decision->note);
    object.Text("entry", decision->entry).Raw("counted", JsonList(counted)).Raw("uncounted", JsonList(uncounted));
    documents.push_back(object.Done());
  }
  if (documents.empty()) Say(options.json, "no_evidence: the ledger has no measurement of these lanes");
  if (options.json) Print(JsonObject().Raw("decisions", JsonList(documents)).Done() + "\n");
  return kGood;
}

}  // namespace

void AddLedger(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("ledger", "Add measurements of lanes, show them, or see what they decide");
  sub->RequireCommand(1, 1);
  sub->Footer(kFooter);
  const auto add = [&](const char* name, const char* about, int (*command)(const Options&)) {
    Command* verb = sub->AddCommand(name, about);
    verb->AddOption("--ledger", options->ledger, "The ledger")->TypeName("FILE")->FromEnvironment("TESSERA_LEDGER");
    verb->AddFlag("--json", options->json, "Print one JSON document");
    verb->Footer(kFooter);
    verb->OnParsed([options, command, &action] { action = [options, command] { return command(*options); }; });
    return verb;
  };
  const auto add_question = [&](Command* verb) {
    verb->AddOption("--custom-lane", options->custom_lane, "The lane that might be used")->TypeName("LANE");
    verb->AddOption("--default-lane", options->default_lane, "The lane it would stand in for")->TypeName("LANE");
    verb->AddOption("--target", options->target, "Machine, by its target's name")->TypeName("NAME")->ShowDefault();
    verb->AddFlag("--backward", options->backward, "Forward and backward together");
    verb->AddFlag("--dynamic", options->dynamic_shapes, "Lengths change from step to step");
  };
  Command* verb = add("add", "Add a measurement, or replace the older one of the same", Add);
  verb->AddOption("--custom", options->custom_receipt, "Receipt of the custom lane's run, with --check")
      ->TypeName("F.json");
  verb->AddOption("--default", options->default_receipt, "Receipt of the default lane's run of the same request")
      ->TypeName("F.json");
  verb->AddOption("--contract", options->contract, "Contract of a measurement given by hand")->TypeName("FILE");
  add_question(verb);
  LedgerEntry& entry = options->entry;
  verb->AddOption("--custom-ns", entry.custom_ns, "Time of the custom lane, in nanoseconds")->TypeName("NS");
  verb->AddOption("--default-ns", entry.default_ns, "Time of the default lane, in nanoseconds")->TypeName("NS");
  verb->AddFlag("--reference-passed", entry.reference_passed, "The custom lane's outputs agreed with the reference");
  verb->AddOption("--receipt-fingerprint", entry.receipt, "Of the custom lane's receipt")->TypeName("HEX");
  verb->AddOption("--mask-digest", entry.mask_digest, "Of the mask both ran")->TypeName("HEX");
  verb->AddOption("--machine", entry.machine, "Where it was measured (default: here)")->TypeName("TEXT");
  verb->AddOption("--software", entry.software, "With what it was measured (default: this version)")->TypeName("TEXT");
  verb->AddOption("--date", entry.date, "When, as 2026-01-31 (default: today)")->TypeName("DATE");
  add("show", "Print every measurement", Show);
  verb = add("decide", "Say which lanes the ledger would choose for a contract, and by which measurements", Decide);
  verb->AddOption("contract", options->contract, "Contract (.toml or .json, - = standard input)")
      ->TypeName("FILE")
      ->Required();
  add_question(verb);
  verb->AddFlag("--experimental", options->experimental, "As for a run that asks for experimental lanes");
}

}  // namespace tessera::program
