// `tessera compile`: the programs of a contract as text and compiled, and nothing run: also for a machine that is not
// here.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "json_text.h"
#include "program.h"
#include "schedule_folder.h"
#include "shorthand.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  std::string topology;
  RunOptions run;
  std::string emit;
  std::string receipt;
  bool json = false;
  bool inference = false;
  const Command* command = nullptr;
  bool progress = false;
};

constexpr const char* kFooter =
    "Compiles with the PJRT plugin of --plugin, else of TESSERA_PJRT_PLUGIN, else the installed one for the target. "
    "For\n"
    "a TPU that is not here it needs libtpu and no TPU. --emit by itself needs no plugin: where there is none, the "
    "texts\n"
    "are written and nothing is compiled.\n\n"
    "Examples:\n"
    "  tessera compile examples/causal.toml --backward\n"
    "  tessera compile examples/packed.toml --batch examples/packed_batch.json --target v6e --receipt receipt.json\n"
    "  tessera compile examples/window_sink.toml --target v6e --emit programs\n"
    "  tessera compile examples/causal.toml --topology v6e:1x1 --lane xla_pallas --backward\n\n"
    "For a TPU that is not here it prints the compiled program's fingerprint and the vector memory of its kernels; "
    "with\n"
    "--topology also the instruction bundles of their schedules, which is no time.";

// What was asked for, as far as it came.
struct Outcome {
  std::vector<ProgramText> texts;  // with --emit
  RunOutcome compiled;
  std::string why_not;  // nothing was compiled, and that is no error
};

std::string EmittedFile(const Options& options, const ProgramText& program) {
  return (std::filesystem::path(options.emit) / (program.name + ".mlir")).string();
}

Status Emit(const Options& options, const Problem& problem, Outcome& outcome) {
  auto texts = LowerPrograms(TheEngine(), problem.contract, problem.batch, problem.target, options.run, problem.inputs);
  if (!texts) return tl::unexpected(texts.error());
  for (const ProgramText& program : *texts) {
    const NamedPath path{.name = "--emit", .path = EmittedFile(options, program), .role = PathRole::kOutput};
    if (Status ok = DeclarePath(path); !ok) return ok;
  }
  std::error_code error;
  std::filesystem::create_directories(options.emit, error);
  if (error)
    return Fail(ErrorCode::kFileWrite, fmt::format("cannot make the folder: {}", error.message()), options.emit);
  for (const ProgramText& program : *texts) {
    if (Status written = WriteFile(EmittedFile(options, program), program.text); !written) return written;
  }
  outcome.texts = std::move(*texts);
  return {};
}

// One that the plugin does not tell is -1.
std::string Size(int64_t bytes) { return bytes < 0 ? "unknown" : Bytes(bytes); }

std::string InWords(const ProgramUse& use) {
  std::string text = fmt::format("{}\n  compiled in {}\n", use.name, Milliseconds(use.compile_ns));
  text += fmt::format("  arguments {}, outputs {}, temporary {}, code {}\n", Size(use.argument_bytes),
                      Size(use.output_bytes), Size(use.temp_bytes), Size(use.code_bytes));
  text += fmt::format("  {} instructions: {}\n", Grouped(use.instructions), use.opcodes);
  if (!use.custom_calls.empty()) text += fmt::format("  custom calls: {}\n", use.custom_calls);
  if (!use.fingerprint.empty()) text += fmt::format("  fingerprint {}\n", use.fingerprint);
  if (use.vector_bytes >= 0) {
    text += fmt::format("  vector memory {} of {}\n", Bytes(use.vector_bytes), Size(use.vector_limit));
  }
  if (use.bundles >= 0) {
    text += fmt::format("  {} bundles in the kernels' schedules, which is no time\n", Grouped(use.bundles));
  }
  if (!use.collectives.empty()) text += fmt::format("  collectives: {}\n", use.collectives);
  if (!use.note.empty()) text += fmt::format("  note: {}\n", use.note);
  return text;
}

void PrintJson(const Options& options, const Outcome& outcome) {
  std::vector<std::string> emitted;
  for (const ProgramText& program : outcome.texts) {
    emitted.push_back(JsonObject().Text("name", program.name).Text("file", EmittedFile(options, program)).Done());
  }
  JsonObject object;
  object.Bool("compiled", outcome.compiled.receipt.ok).Text("why_not", outcome.why_not);
  std::vector<std::string> reports;
  for (const ProgramUse& use : outcome.compiled.receipt.programs) {
    JsonObject report;
    report.Text("name", use.name).Text("fingerprint", use.fingerprint).Int("vector_bytes", use.vector_bytes);
    reports.push_back(report.Int("vector_limit", use.vector_limit).Int("bundles", use.bundles).Done());
  }
  object.Raw("emitted", JsonList(emitted))
      .Raw("reports", JsonList(reports))
      .Raw("receipt", ToJson(outcome.compiled.receipt));
  Print(object.Done() + "\n");
}

void PrintWords(const Options& options, const Outcome& outcome) {
  for (const ProgramText& program : outcome.texts) Print(fmt::format("wrote {}\n", EmittedFile(options, program)));
  if (!outcome.why_not.empty()) return Print(fmt::format("nothing was compiled: {}\n", outcome.why_not));
  const Receipt& receipt = outcome.compiled.receipt;
  const DeviceUse& use = receipt.device;
  Print(fmt::format("target {}: {}, {} with PJRT {} and StableHLO {}\n", receipt.target,
                    use.topology.empty() ? use.name : fmt::format("topology {}, {}", use.topology, use.name),
                    use.plugin, use.pjrt, use.stablehlo));
  for (const ProgramUse& program : receipt.programs) Print(InWords(program));
  Print(ToLine(receipt) + "\n");
}

// The texts are there, no plugin was named, and none of those that are here will do: what was asked for is done.
bool IsOnlyEmit(const Options& options, const RunOutcome& compiled) {
  return !options.emit.empty() && options.receipt.empty() && options.run.xla.plugin.empty() &&
         TheEngine().options().plugin.empty() && compiled.error->code == ErrorCode::kLaneRefused;
}

int CompileCommand(Options options) {
  RunOptions& run = options.run;
  ProblemArguments& arguments = options.problem;
  UseKernelOptions(run, options.inference);
  // "v6e:1x1" is of the target v6e.
  if (!options.topology.empty()) {
    const std::string target = options.topology.substr(0, options.topology.find(':'));
    if (!arguments.target_option->IsGiven()) arguments.target = target;
    if (arguments.target != target || target.size() == options.topology.size()) {
      return Report(Error{ErrorCode::kBadArgument,
                          fmt::format("\"{}\" is no topology of the target {}: write one as v6e:1x1", options.topology,
                                      arguments.target),
                          "--topology"},
                    options.json);
    }
  }
  if (Status ok = CheckKernelOptions(*options.command, options.run.lane); !ok) return Report(ok.error(), options.json);
  if (Status ok = DeclareEnvironment(); !ok) return Report(ok.error(), options.json);
  std::optional<ScheduleFolder> schedules;
  if (!options.topology.empty()) schedules.emplace();
  auto problem = ReadProblem(arguments);
  if (!problem) return Report(problem.error(), options.json);
  if (!options.topology.empty()) problem->target.topology = options.topology;
  run.plan = problem->options;
  run.digests = true;
  run.contract_source = SourceOf(arguments.contract);
  run.batch_source = SourceOf(arguments.batch);
  if (!problem->inputs.empty()) {
    run.input_source = arguments.inputs.empty() ? fmt::format("seed {}", arguments.seed) : "file " + arguments.inputs;
  }

  Outcome outcome;
  if (!options.emit.empty()) {
    if (Status emitted = Emit(options, *problem, outcome); !emitted) return Report(emitted.error(), options.json);
  }
  RunMeter meter;
  run.meter = &meter;
  outcome.compiled = [&] {
    const Progress progress(run.backward ? "compiling forward and backward" : "compiling forward", options.progress,
                            &meter);
    return Compile(TheEngine(), problem->contract, problem->batch, problem->target, run, problem->inputs);
  }();
  std::optional<Error>& error = outcome.compiled.error;
  if (error && IsOnlyEmit(options, outcome.compiled)) {
    outcome.why_not = error->message;
    error.reset();
  }
  Status written;
  if (!options.receipt.empty()) written = WriteFile(options.receipt, ToJson(outcome.compiled.receipt) + "\n");
  if (options.json) PrintJson(options, outcome);
  if (!options.json && !error) PrintWords(options, outcome);
  int code = kGood;
  if (error) code = Report(*error, false);
  if (!written) {
    const int write_code = Report(written.error(), false);
    return error ? code : write_code;
  }
  if (!options.receipt.empty()) Say(options.json || error, "wrote " + options.receipt);
  return code;
}

}  // namespace

void AddCompile(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  RunOptions& run = options->run;
  run.lane = "xla_chunked";
  Command* sub = app.AddCommand("compile", "Compile a contract's programs and run nothing");
  AddContract(*sub, options->problem.contract)->Required();
  sub->AddFlag("--backward", run.backward, "Also the program of the gradients");
  sub->AddOption("--emit", options->emit, "Write the StableHLO text of each program into this folder")
      ->WritesInto("DIR", ".mlir");
  sub->AddOption("--receipt", options->receipt, "Write the receipt to this file, also when a plugin refuses")
      ->Writes("F.json");
  sub->AddOption("--lane", run.lane, "Whose programs; auto = those of the lane that the target's table leads to")
      ->TypeName("LANE")
      ->ShowDefault();
  sub->AddOption("--topology", options->topology, "How many chips of the target, as its compiler calls them: v6e:1x1")
      ->TypeName("T");
  AddXlaOptions(*sub, run);
  AddKernelOptions(*sub, run, options->inference)->Excludes(sub->Find("--backward"));
  AddProblemOptions(*sub, options->problem);
  AddRouteOptions(*sub, options->problem);
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->Footer(kFooter);
  options->command = sub;
  sub->OnParsed([options, &action] { action = [options] { return CompileCommand(*options); }; });
}

}  // namespace tessera::program
