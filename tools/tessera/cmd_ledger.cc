// `tessera ledger`: adds a measurement to a ledger once both its runs have been run again, shows one, or says what it
// decides for a contract and why.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "check.h"
#include "json_text.h"
#include "run_files.h"

namespace tessera::program {
namespace {

struct Options {
  std::string ledger;
  std::string custom_receipt;
  std::string default_receipt;
  std::string contract;
  std::string target = "cpu";
  std::string custom_lane;
  std::string default_lane;
  bool backward = false;
  bool dynamic_shapes = false;
  bool experimental = false;
  bool json = false;
  bool progress = false;
};

constexpr const char* kFooter =
    "An entry is made of two receipts, or of two files of `bench run --json`. Before it is written both runs are run\n"
    "again: their outputs must be the same bits, and the custom lane's must be what the contract says. It counts on "
    "this\n"
    "machine and with this version. The environment variable TESSERA_LEDGER is the default of --ledger. Examples:\n"
    "  tessera run model.toml --lane cpu --receipt custom.json\n"
    "  tessera run model.toml --lane reference --receipt default.json\n"
    "  tessera ledger add --ledger ledger.json --custom custom.json --default default.json\n"
    "  tessera ledger decide model.toml --ledger ledger.json\n"
    "  tessera ledger advise model.toml";

// The fastest of a few: noise only ever adds.
constexpr int kTimesAgain = 3;

int64_t PassesNs(const Receipt& receipt) {
  int64_t ns = 0;
  for (const Timing& timing : receipt.timings) {
    if (timing.name == "forward" || timing.name == "backward") ns += timing.ns;
  }
  return ns;
}

Error NoEvidence(std::string message, const std::string& path, std::vector<Violation> violations) {
  return {ErrorCode::kLedgerEvidence, std::move(message), path, std::move(violations)};
}

// Asks again for what the receipt's run was asked for. The outputs must be the same bits; with `check` they must agree
// with the contract too, and the receipt that comes back says so.
Result<Receipt> RunAgain(const Receipt& receipt, const std::string& path, bool check, const Options& options) {
  RunArguments arguments;
  RunFiles files;
  arguments.problem.target = receipt.target;
  Repeat repeat = PrepareRepeat(receipt, arguments, files);
  if (!repeat.differences.empty()) {
    return tl::unexpected(NoEvidence("its run cannot be run again here", path, std::move(repeat.differences)));
  }
  RunOutcome best;
  for (int time = 0; time < kTimesAgain; ++time) {
    RunMeter meter;
    arguments.run.meter = &meter;
    const Progress progress(fmt::format("running {} again", receipt.executed), options.progress, &meter);
    RunOutcome outcome = Run(TheEngine(), *files.contract, *files.batch, *files.inputs, *files.target, arguments.run);
    if (outcome.error) return tl::unexpected(*outcome.error);
    if (Status same = CompareRepeat(repeat, outcome.receipt, path); !same) {
      return tl::unexpected(NoEvidence("run again, it gave other outputs", path, same.error().violations));
    }
    if (time == 0 || PassesNs(outcome.receipt) < PassesNs(best.receipt)) best = std::move(outcome);
  }
  if (!check) return std::move(best.receipt);
  RunMeter meter;
  const Progress progress("checking the outputs", options.progress, &meter);
  const Batch batch = WithPicks(*files.batch, best.picks);
  auto report = CheckRun({*files.contract, batch, *files.inputs, best, arguments.run.layout, &meter});
  if (!report) return tl::unexpected(report.error());
  best.receipt.options["check"] = CheckWord(*report);
  if (report->pass) return std::move(best.receipt);
  std::vector<Violation> outside;
  for (const Comparison& output : report->outputs) {
    if (!output.pass) outside.push_back({output.name, "within tolerance of what the contract says"});
  }
  return tl::unexpected(NoEvidence("run again, its outputs are not what the contract says", path, std::move(outside)));
}

// Evidence is made, not typed: what the two files say is taken apart, run again and compared before it is believed.
Result<LedgerEntry> MakeEntry(const Options& options) {
  auto custom_run = ReadMeasurement(options.custom_receipt);
  if (!custom_run) return tl::unexpected(custom_run.error());
  auto default_run = ReadMeasurement(options.default_receipt);
  if (!default_run) return tl::unexpected(default_run.error());
  for (const Receipt* receipt : {&*custom_run, &*default_run}) {
    if (Status ok = DeclareSourcesOf(*receipt); !ok) return tl::unexpected(ok.error());
  }
  // A ledger that cannot be read is never written over, and that is said before anything is run.
  if (std::error_code ignored; std::filesystem::exists(options.ledger, ignored)) {
    if (auto read = ReadLedger(options.ledger); !read) return tl::unexpected(read.error());
  }
  auto entry = EntryFromReceipts(
      {.custom_run = *custom_run, .default_run = *default_run, .dynamic_shapes = options.dynamic_shapes});
  if (!entry) return entry;
  auto custom_again = RunAgain(*custom_run, options.custom_receipt, /*check=*/true, options);
  if (!custom_again) return tl::unexpected(custom_again.error());
  auto default_again = RunAgain(*default_run, options.default_receipt, /*check=*/false, options);
  if (!default_again) return tl::unexpected(default_again.error());
  return ProveEntry(std::move(*entry), *custom_again, *default_again);
}

// The worse of what the receipts say and what running again showed, as the rule takes it.
double SpeedupOf(const LedgerEntry& e) {
  const auto ratio = [](int64_t default_ns, int64_t custom_ns) {
    return static_cast<double>(default_ns) / static_cast<double>(custom_ns);
  };
  const double claimed = ratio(e.default_ns, e.custom_ns);
  return e.proof == LedgerProof{} ? claimed : std::min(claimed, ratio(e.proof.default_ns, e.proof.custom_ns));
}

std::string Line(const LedgerEntry& e) {
  const double speedup = SpeedupOf(e);
  return fmt::format("{:<12} {:<12} {:<8} {:<32} {:<42} {:>10} {:>10} {:>6.2f}x {:<10} {}", OneLine(e.custom_lane),
                     OneLine(e.default_lane), OneLine(e.target), OneLine(e.kind),
                     ShapeText(e.shape) + (e.backward ? " +backward" : ""), Milliseconds(e.custom_ns),
                     Milliseconds(e.default_ns), speedup, e.date, EntryId(e).substr(0, 8));
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
  if (options.ledger.empty()) return Report(MissingOption("give --ledger FILE, or set TESSERA_LEDGER"), options.json);
  if (options.custom_receipt.empty() || options.default_receipt.empty()) {
    return Report(MissingOption("give two receipts or benchmarks: --custom and --default"), options.json);
  }
  auto entry = MakeEntry(options);
  if (!entry) return Report(entry.error(), options.json);
  const auto ledger = AddToLedger(options.ledger, *entry);
  if (!ledger) return Report(ledger.error(), options.json);
  Say(options.json, kHead + Line(*entry));
  Say(options.json, fmt::format("run again: the same outputs, check {}, {} and {}", entry->proof.check,
                                Milliseconds(entry->proof.custom_ns), Milliseconds(entry->proof.default_ns)));
  Say(options.json, fmt::format("wrote {}: {} {}", options.ledger, ledger->entries.size(),
                                ledger->entries.size() == 1 ? "entry" : "entries"));
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
    if (entry.proof == LedgerProof{}) text += " unproved";
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

// A misspelt lane has no measurements, and would look like one that was never measured.
Status CheckLanes(const Options& options) {
  std::vector<std::string> names;
  for (const LaneInfo& lane : TheEngine().Lanes()) names.push_back(lane.name);
  for (const auto& [option, name] :
       {std::pair{"--custom-lane", &options.custom_lane}, {"--default-lane", &options.default_lane}}) {
    if (name->empty() || std::find(names.begin(), names.end(), *name) != names.end()) continue;
    return Fail(ErrorCode::kLaneUnknown, fmt::format("there is no lane '{}': one of {}", *name, fmt::join(names, ", ")),
                option);
  }
  return {};
}

int Decide(const Options& options) {
  if (Status ok = CheckLanes(options); !ok) return Report(ok.error(), options.json);
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

int Advise(const Options& options) {
  auto contract = ReadContractArgument(options.contract);
  if (!contract) return Report(contract.error(), options.json);
  auto facts = KernelCaseOf(*contract, options.dynamic_shapes);
  if (!facts) return Report(facts.error(), options.json);
  const KernelAdvice advice = AdviseKernel(*facts);
  Say(options.json, fmt::format("{}: {}", advice.advice, advice.why));
  if (options.json) {
    JsonObject object;
    object.Text("advice", advice.advice).Text("why", advice.why).Bool("dynamic_shapes", facts->dynamic_shapes);
    object.Bool("explicit_tiling", facts->explicit_tiling).Bool("avoids_dense_mask", facts->avoids_dense_mask);
    Print(object.Done() + "\n");
  }
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
  const auto add_ledger = [&](Command* verb) {
    return verb->AddOption("--ledger", options->ledger, "The ledger")->FromEnvironment("TESSERA_LEDGER");
  };
  Command* verb = add("add", "Run both again, and add the measurement or replace the older one of the same", Add);
  add_ledger(verb)->Changes("FILE");
  verb->AddOption("--custom", options->custom_receipt, "Receipt or benchmark of the custom lane's run")
      ->Reads("F.json");
  verb->AddOption("--default", options->default_receipt, "Of the default lane's run of the same request")
      ->Reads("F.json");
  verb->AddFlag("--dynamic", options->dynamic_shapes, "Lengths changed from step to step while it was measured");
  verb->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  add_ledger(add("show", "Print every measurement", Show))->Reads("FILE");
  verb = add("decide", "Say which lanes the ledger would choose for a contract, and by which measurements", Decide);
  add_ledger(verb)->Reads("FILE");
  AddContract(*verb, options->contract)->Required();
  add_question(verb);
  verb->AddFlag("--experimental", options->experimental, "As for a run that asks for experimental lanes");
  verb = add("advise", "Before anything is measured: whether a custom kernel is worth writing for a contract", Advise);
  AddContract(*verb, options->contract)->Required();
  verb->AddFlag("--dynamic", options->dynamic_shapes, "Lengths change from step to step");
}

}  // namespace tessera::program
