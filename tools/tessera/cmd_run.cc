// `tessera run`: plan, choose a lane, run, check when asked, and leave a receipt of whatever happened.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "check.h"
#include "run_files.h"

namespace tessera::program {
namespace {

struct Options {
  RunArguments arguments;
  std::string layout = "bhtd";
  std::string out;
  std::string receipt;
  bool at_class = false;
  bool check = false;
  bool json = false;
  bool inference = false;
  bool progress = false;
  const Command* command = nullptr;
};

constexpr const char* kFooter =
    "Inputs are q, k, v, [sink_logits] and with --backward do; outputs o, lse, [max] and dq, dk, dv, [dsink_logits].\n"
    "The environment variables TESSERA_LANE, TESSERA_ISA and TESSERA_LEDGER are the defaults of --lane, --isa and\n"
    "--ledger.\n\n"
    "Examples:\n"
    "  tessera run examples/packed.toml --batch examples/packed_batch.json --seed 7 --backward --check\n"
    "  tessera run model.toml --inputs qkv.safetensors --out o.safetensors --receipt receipt.json --lane reference\n"
    "  tessera run --from-receipt receipt.json";

// A run whose result is wrong, or could not be checked, did not succeed: the receipt says so, and vouches for no
// outputs.
void MarkFailed(RunOutcome& outcome, std::string step, Error error) {
  outcome.receipt.ok = false;
  outcome.receipt.failed_at = std::move(step);
  outcome.receipt.error = ToText(error);
  outcome.receipt.output_digest.clear();
  outcome.error = std::move(error);
}

// The plan that ran against the mask of the contract it was made for, which of a run at a class is the padded one.
Result<MaskCheck> CheckPlan(const RunFiles& files, const Options& options, const RunOutcome& outcome, RunMeter& meter) {
  const PlanView& plan = outcome.bound->plan().view();
  if (!options.at_class) {
    return CheckMask(*files.contract, WithPicks(*files.batch, outcome.picks), plan, kMaskCheckPairs, &meter);
  }
  auto at = Normalise(*files.contract, *files.target, options.arguments.run.plan);
  if (!at) return tl::unexpected(at.error());
  // Picks of the outcome are the request's, and a contract that routes takes none.
  Contract picked = *files.contract;
  picked.routing.reset();
  auto batch = AtClass(picked, WithPicks(*files.batch, outcome.picks), *at);
  if (!batch) return tl::unexpected(batch.error());
  return CheckMask(outcome.bound->contract(), *batch, plan, kMaskCheckPairs, &meter);
}

void CheckOutcome(const RunFiles& files, const Options& options, RunOutcome& outcome) {
  const Stopwatch watch;
  RunMeter meter;
  auto mask = [&] {
    const Progress progress("checking the plan", options.progress, &meter);
    return CheckPlan(files, options, outcome, meter);
  }();
  if (!mask) return MarkFailed(outcome, "check", mask.error());
  Say(options.json, "  " + mask->text);
  if (!mask->pass) {
    outcome.receipt.options["check"] = "failed";
    return MarkFailed(
        outcome, "check",
        Error{ErrorCode::kCheckFailed, "the plan is not the contract's mask: " + mask->text, "--check", {}});
  }
  auto report = [&] {
    const Progress progress("checking the outputs", options.progress, &meter);
    const Batch batch = WithPicks(*files.batch, outcome.picks);
    return CheckRun({*files.contract, batch, *files.inputs, outcome, options.arguments.run.layout, &meter});
  }();
  outcome.receipt.timings.push_back({"check", watch.Ns()});
  if (!report) return MarkFailed(outcome, "check", report.error());
  Say(options.json, Indented(report->text, "  "));
  outcome.receipt.options["check"] = CheckWord(*report);
  if (report->pass) return;
  std::string names;
  for (const Comparison& output : report->outputs) {
    if (!output.pass) names += (names.empty() ? "" : ", ") + output.name;
  }
  MarkFailed(outcome, "check",
             Error{ErrorCode::kCheckFailed,
                   fmt::format("{} not within tolerance of what the contract says", names),
                   "--check",
                   {}});
}

// Writes and prints what there is, and reports what went wrong. Outputs first, so that a receipt on disk never speaks
// of outputs that are not there.
int Finish(const Options& options, RunOutcome& outcome) {
  if (!outcome.error && !options.out.empty()) {
    if (Status written = WriteSafetensors(options.out, outcome.outputs); !written) {
      MarkFailed(outcome, "write", written.error());
    }
  }
  Status written;
  if (!options.receipt.empty()) written = WriteFile(options.receipt, ToJson(outcome.receipt) + "\n");
  if (options.json) Print(ToJson(outcome.receipt) + "\n");
  if (!outcome.error && written) {
    Say(options.json, ToLine(outcome.receipt));
    if (!options.out.empty()) Say(options.json, "wrote " + options.out);
  }
  int code = kGood;
  if (outcome.error) code = Report(*outcome.error, false);
  if (!written) {
    const int write_code = Report(written.error(), false);
    return outcome.error ? code : write_code;
  }
  if (!options.receipt.empty()) Say(options.json || outcome.error, "wrote " + options.receipt);
  return code;
}

int FinishUnbegun(const Options& options, const RunFiles& files, RunFailure failure) {
  // The receipt may be what would be written over.
  if (IsAnyPathRefused()) return Report(failure.error, options.json);
  const auto get = [](const auto& part) { return part ? &*part : nullptr; };
  RunOutcome outcome;
  outcome.receipt = ReceiptOf(TheEngine(),
                              {.failed_at = std::move(failure.step),
                               .target = options.arguments.problem.target,
                               .contract = get(files.contract),
                               .batch = get(files.batch),
                               .inputs = get(files.inputs)},
                              options.arguments.run, failure.error);
  outcome.error = std::move(failure.error);
  return Finish(options, outcome);
}

std::optional<Error> CheckArguments(const Options& options) {
  const auto bad = [](std::string message) {
    return Error{ErrorCode::kBadArgument, std::move(message), "tessera run", {}};
  };
  const RunArguments& arguments = options.arguments;
  if (arguments.problem.contract.empty() && arguments.from_receipt.empty()) {
    return bad("give a contract or --from-receipt");
  }
  // What the receipt says is not to be said again, in other words.
  const std::vector<std::string> beside_receipt = {"contract",    "--from-receipt", "--inputs", "--batch",
                                                   "--documents", "--valid",        "--out",    "--receipt",
                                                   "--check",     "--threads",      "--json",   "--progress"};
  if (!arguments.from_receipt.empty()) {
    if (Status used = options.command->AllowOnly("--from-receipt", beside_receipt); !used) return used.error();
  }
  if (arguments.run.lane != "auto") {
    if (Status used = options.command->Refuse("--lane", {"--ledger", "--experimental"}); !used) return used.error();
  }
  if (arguments.run.ledger.empty() && EngineDefaults().ledger.empty()) {
    const Status used = options.command->Refuse("no ledger: give --ledger, or set TESSERA_LEDGER", {"--experimental"});
    if (!used) return used.error();
  }
  return std::nullopt;
}

// The scalar lane does about as many multiply-adds in a second.
constexpr double kScalarRate = 1e8;
constexpr double kLongSeconds = 60;

// A run that ends up on the scalar lane because no better one is there can take minutes or hours: that is said before
// it starts, with what keeps the fast one away.
void WarnOfScalarLane(const RunFiles& files, const RunOptions& run, const Attention& attention) {
  if (run.lane != "auto" || attention.ExpectedLane() != "reference") return;
  const Shape& s = files.contract->shape;
  const double pairs = static_cast<double>(s.batch) * static_cast<double>(s.num_q_heads) *
                       static_cast<double>(s.q_len) * static_cast<double>(s.kv_len);
  const double passes = run.backward ? 3.5 : 1.0;
  const double seconds = pairs * static_cast<double>(s.dim_qk + s.dim_v) * passes / kScalarRate;
  if (seconds < kLongSeconds) return;
  std::string why;
  for (const LaneDecision& d : attention.selection().decisions) {
    if (d.lane == "cpu") why = ReasonText(d.decision.reason);
  }
  Say(true,
      fmt::format("note: only the scalar lane, reference, will run this: up to {:.0f} minutes where every pair is "
                  "allowed. The cpu lane, which would be fast, is kept away by {}; without that, plain "
                  "`tessera run` takes it",
                  seconds / 60, why));
}

// Whether it is worth making inputs, which can take longer than a run: not when every lane that may run this refuses.
// The run then says so without them.
bool IsAccepted(const RunFiles& files, const RunOptions& run) {
  auto attention = TheEngine().Prepare(*files.contract, *files.target, run);
  if (!attention || !attention->CheckAccepted()) return false;
  WarnOfScalarLane(files, run, *attention);
  return true;
}

// What the error is not told of by who found it: what the command line could have said.
Error WithAdvice(const Error& error, const RunFiles& files, Layout layout) {
  Error advised = WithBatchAdvice(error, *files.batch);
  const auto is_exchanged = [](const Violation& violation) {
    return violation.expected.find("heads and tokens are exchanged") != std::string::npos;
  };
  if (std::any_of(error.violations.begin(), error.violations.end(), is_exchanged)) {
    advised.message += layout == Layout::kBhtd ? "; give --layout bthd" : "; give --layout bhtd";
  }
  return advised;
}

int RunCommand(Options options) {
  if (auto bad = CheckArguments(options)) return Report(*bad, options.json);
  if (Status ok = DeclareEnvironment(); !ok) return Report(ok.error(), options.json);
  RunArguments& arguments = options.arguments;
  RunFiles files;
  std::optional<Repeat> repeat;
  if (arguments.from_receipt.empty()) {
    const auto accepts = [&](const RunFiles& read) { return IsAccepted(read, arguments.run); };
    if (auto failure = ReadRunFiles(arguments, files, accepts))
      return FinishUnbegun(options, files, std::move(*failure));
    const Status used = CheckXlaOptions(*options.command, *files.contract, *files.target, arguments.run);
    if (!used) return FinishUnbegun(options, files, {"request", used.error()});
  } else {
    ForgetRequestDefaults();
    auto receipt = ReadReceipt(arguments.from_receipt, /*is_strict=*/false);
    if (!receipt) return Report(receipt.error(), options.json);
    if (Status ok = DeclareSourcesOf(*receipt); !ok) return Report(ok.error(), options.json);
    arguments.problem.target = receipt->target;
    repeat = PrepareRepeat(std::move(*receipt), arguments, files);
    if (!repeat->differences.empty()) {
      Error error = Fail(ErrorCode::kCannotReproduce, repeat->differences, arguments.from_receipt).value();
      return FinishUnbegun(options, files, {"request", std::move(error)});
    }
  }

  const std::string notes = LeakNotes(*files.contract);
  options.json ? PrintError(notes) : Print(notes);
  RunMeter meter;
  arguments.run.meter = &meter;
  RunOutcome outcome = [&] {
    const Progress progress(arguments.run.backward ? "running forward and backward" : "running forward",
                            options.progress, &meter);
    const auto run = options.at_class ? RunAtClass : Run;
    return run(TheEngine(), *files.contract, *files.batch, *files.inputs, *files.target, arguments.run);
  }();
  arguments.run.meter = nullptr;
  if (outcome.error) {
    outcome.error = WithAdvice(*outcome.error, files, arguments.run.layout);
    outcome.receipt.error = ToText(*outcome.error);
  }
  if (repeat && !outcome.error) {
    const Status same = CompareRepeat(*repeat, outcome.receipt, arguments.from_receipt);
    if (!same) MarkFailed(outcome, "check", same.error());
    for (const std::string& note : repeat->notes) Say(options.json || !same, "note: " + note);
    if (same)
      Say(options.json,
          fmt::format("the same outputs as in {}: {}", arguments.from_receipt, outcome.receipt.output_digest));
  }
  if (!outcome.error && options.check) CheckOutcome(files, options, outcome);
  return Finish(options, outcome);
}

}  // namespace

void AddRun(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  RunArguments& arguments = options->arguments;
  RunOptions& run = arguments.run;
  Command* sub = app.AddCommand("run", "Run a contract on a lane and write outputs and a receipt");
  AddContract(*sub, arguments.problem.contract, "; with --from-receipt, where it is now");
  sub->AddOption("--from-receipt", arguments.from_receipt,
                 "Run again what this receipt was given for: the same outputs, or every difference")
      ->Reads("F.json");
  auto* inputs = sub->AddOption("--inputs", arguments.inputs, "Input tensors")->Reads("F.safetensors");
  AddSeed(*sub, arguments.seed, "Make inputs from this seed");
  sub->Find("--seed")->Excludes(inputs);
  sub->AddFlag("--backward", run.backward, "Also compute gradients");
  sub->AddFlag("--check", options->check,
               "Work plan and result out again from the contract, and compare (long inputs: sampled rows)");
  sub->AddOption("--out", options->out, "Write the outputs to this file, if the run is good")->Writes("F.safetensors");
  sub->AddOption("--receipt", options->receipt, "Write the receipt to this file, also when the run fails")
      ->Writes("F.json");
  AddLaneOption(*sub, run);
  sub->AddOption("--exclude", run.exclude, "Never use this lane (may be repeated)")->TypeName("LANE")->Repeated();
  sub->AddOption("--ledger", run.ledger, "Measurements that may choose between lanes (tessera ledger)")
      ->Reads("F.json");
  sub->AddFlag("--experimental", run.experimental, "Let the ledger choose a lane that won at this shape only");
  sub->AddFlag("--class", options->at_class, "Run padded to the request's class; outputs are the request's own");
  sub->AddFlag("--strict", run.strict, "Any fallback is an error");
  sub->AddOption("--layout", options->layout, "Tensor layout: bhtd or bthd")->ShowDefault()->OneOf({"bhtd", "bthd"});
  sub->AddFlag("--max", run.row_max, "Also return the row maximum of the logits");
  AddWorkOptions(*sub, run);
  AddKernelOptions(*sub, run, options->inference)->Excludes(sub->Find("--backward"));
  AddProblemOptions(*sub, arguments.problem);
  sub->AddFlag("--json", options->json, "Print the receipt as one JSON document");
  sub->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->Footer(kFooter);
  options->command = sub;
  sub->OnParsed([options, &action] {
    UseKernelOptions(options->arguments.run, options->inference);
    options->arguments.run.digests = true;
    options->arguments.run.keep_bound = options->check;
    options->arguments.run.layout = options->layout == "bthd" ? Layout::kBthd : Layout::kBhtd;
    action = [options] { return RunCommand(*options); };
  });
}

}  // namespace tessera::program
