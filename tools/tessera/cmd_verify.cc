// `tessera verify`: a named case, a contract or a plan file, held against what the contract says.
#include <fmt/format.h>

#include <memory>

#include "cases/cases.h"
#include "check.h"
#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;  // `contract` holds the case's name, the contract or the plan file
  uint64_t seed = 1;
  RunOptions run;  // lane, isa, threads, backward
  bool all = false;
  bool list = false;
  bool json = false;
  bool progress = false;
  const Command* command = nullptr;
};

constexpr const char* kFooter =
    "A case or contract is planned with every stage checked, its plan compared with the dense mask pair by pair, run "
    "on\n"
    "the lane with inputs from the seed, and its outputs compared with what the contract says. A plan file is checked "
    "as bytes.\n\n"
    "Examples:\n"
    "  tessera verify --list\n"
    "  tessera verify --all --backward\n"
    "  tessera verify examples/packed.toml --batch examples/packed_batch.json --backward --lane reference\n"
    "  tessera verify packed.plan";

struct Verdict {
  std::string name;
  bool pass = false;
  std::string lane;
  std::string text;  // what was compared, one line each
  std::string json;
  int64_t ns = 0;
};

Result<Verdict> VerifyProblem(const std::string& name, const Problem& problem, const Options& options) {
  const Stopwatch watch;
  RunMeter meter;
  const Progress progress("verifying " + name, options.progress, &meter);
  if (auto fits = CheckTensorMemory(problem.contract, options.run.backward); !fits) return tl::unexpected(fits.error());
  if (Status used = CheckXlaOptions(*options.command, problem.contract, problem.target, options.run); !used) {
    return tl::unexpected(used.error());
  }
  PlanOptions plan_options = problem.options;
  plan_options.verify_stages = true;
  const TensorMap inputs = MakeInputs(problem.contract, options.seed, options.run.backward);
  auto route = RouteInputsOf(problem.contract, inputs);
  if (!route) return tl::unexpected(route.error());
  auto planned = MakePlan(problem.contract, problem.batch, problem.target, plan_options, &*route);
  if (!planned) return tl::unexpected(planned.error());
  const Batch picked = WithPicks(problem.batch, planned->picks);
  auto mask = CheckMask(problem.contract, picked, planned->plan.view(), kMaskCheckPairs, &meter);
  if (!mask) return tl::unexpected(mask.error());

  RunOptions run = options.run;
  run.row_max = true;
  run.plan = plan_options;
  run.meter = &meter;
  run.input_source = fmt::format("seed {}", options.seed);
  RunOutcome outcome = Run(TheEngine(), problem.contract, problem.batch, inputs, problem.target, run);
  if (outcome.error) return tl::unexpected(*outcome.error);
  auto report = CheckRun({problem.contract, picked, inputs, outcome, Layout::kBhtd, &meter});
  if (!report) return tl::unexpected(report.error());

  Verdict verdict;
  verdict.name = name;
  verdict.pass = mask->pass && report->pass;
  verdict.lane = outcome.receipt.executed;
  verdict.ns = watch.Ns();
  verdict.text = mask->text + "\n" + report->text;
  JsonObject mask_json;
  mask_json.Bool("pass", mask->pass).Bool("sampled", mask->sampled).Int("pairs", mask->pairs).Text("text", mask->text);
  JsonObject object;
  object.Text("name", name)
      .Bool("pass", verdict.pass)
      .Text("lane", verdict.lane)
      .Text("isa", outcome.receipt.isa)
      .Int("ns", verdict.ns);
  object.Text("input_source", run.input_source).Bool("backward", options.run.backward);
  object.Text("plan_fingerprint", outcome.receipt.plan_fingerprint).Raw("mask", mask_json.Done());
  verdict.json = object.Raw("outputs", ToJson(*report)).Done();
  return verdict;
}

Result<Problem> CaseProblem(const std::string& name, const Options& options) {
  auto built = BuildCase(name, options.seed);
  if (!built) return tl::unexpected(built.error());
  auto target = FindTarget(options.problem.target);
  if (!target) return tl::unexpected(target.error());
  Problem problem{std::move(built->contract), std::move(built->batch), std::move(*target), {}, {}};
  if (!options.problem.tile.empty()) {
    auto tile = ParseTile(options.problem.tile);
    if (!tile) return tl::unexpected(tile.error());
    problem.options.tile = *tile;
  }
  problem.options.disable = options.problem.disable;
  problem.options.widen_class = options.problem.widen_class;
  return problem;
}

bool IsCase(const std::string& name) {
  for (const CaseInfo& info : Cases()) {
    if (info.name == name) return true;
  }
  return false;
}

std::string ReproduceLine(const std::string& name, const Options& options) {
  std::string line = fmt::format("tessera verify {} --seed {} --lane {}", name, options.seed, options.run.lane);
  if (options.run.isa != "auto") line += " --isa " + options.run.isa;
  if (options.run.threads) line += fmt::format(" --threads {}", *options.run.threads);
  const BatchArguments& batch = options.problem.batch;
  if (!batch.file.empty()) line += " --batch " + batch.file;
  if (!batch.documents.empty()) line += " --documents " + batch.documents;
  if (!batch.valid.empty()) line += " --valid " + batch.valid;
  if (options.problem.target != "cpu") line += " --target " + options.problem.target;
  if (!options.problem.tile.empty()) line += " --tile " + options.problem.tile;
  for (const std::string& stage : options.problem.disable) line += " --disable " + stage;
  return line + (options.run.backward ? " --backward" : "");
}

int Failed(const std::string& name, const Options& options) {
  Error error{ErrorCode::kCheckFailed, "reproduce with: " + ReproduceLine(name, options), name, {}};
  return Report(error, false);
}

int VerifyOne(const Options& options) {
  const std::string& name = options.problem.contract;
  auto problem = IsCase(name) ? CaseProblem(name, options) : ReadProblem(options.problem);
  if (!problem) {
    // Neither a case nor a file: the likelier mistake is a misspelt case.
    const bool looks_like_file = name.find_first_of("./") != std::string::npos || name == "-";
    if (problem.error().code == ErrorCode::kFileRead && !looks_like_file) {
      std::vector<std::string_view> names;
      for (const CaseInfo& info : Cases()) names.push_back(info.name);
      const Error error{ErrorCode::kCaseUnknown,
                        fmt::format("there is no case '{}' and no such file{}; tessera verify --list names the cases",
                                    name, DidYouMean(name, names)),
                        "tessera verify",
                        {}};
      return Report(error, options.json);
    }
    return Report(problem.error(), options.json);
  }
  auto verdict = VerifyProblem(name, *problem, options);
  if (!verdict) return Report(verdict.error(), options.json);
  Say(options.json, fmt::format("{}: {} on {} in {}", name, verdict->pass ? "verified" : "WRONG", verdict->lane,
                                Milliseconds(verdict->ns)));
  Say(options.json, Indented(verdict->text, "  "));
  if (options.json) Print(verdict->json + "\n");
  return verdict->pass ? kGood : Failed(name, options);
}

int VerifyAll(const Options& options) {
  std::vector<std::string> documents;
  std::string first_failure;
  int64_t failures = 0;
  for (const CaseInfo& info : Cases()) {
    auto problem = CaseProblem(info.name, options);
    if (!problem) return Report(problem.error(), options.json);
    auto verdict = VerifyProblem(info.name, *problem, options);
    if (!verdict) {
      Error error = verdict.error();
      error.where = error.where.empty() ? info.name : info.name + ", " + error.where;
      return Report(error, options.json);
    }
    Say(options.json, verdict->pass ? Colour::kGood : Colour::kBad, verdict->pass ? "ok   " : "WRONG",
        fmt::format("  {:<36} {:>9}  {}", info.name, Milliseconds(verdict->ns), info.about));
    documents.push_back(verdict->json);
    if (verdict->pass) continue;
    Say(options.json, Indented(verdict->text, "       "));
    if (failures++ == 0) first_failure = info.name;
  }
  Say(options.json,
      fmt::format("{} of {} cases verified", Cases().size() - static_cast<size_t>(failures), Cases().size()));
  if (options.json) {
    Print(JsonObject().Bool("pass", failures == 0).Raw("cases", JsonList(documents)).Done() + "\n");
  }
  return failures == 0 ? kGood : Failed(first_failure, options);
}

int VerifyPlanFile(const Options& options) {
  auto plan = ReadPlan(options.problem.contract);
  if (!plan) {
    Report(plan.error(), options.json);
    // The file was read and found wrong: that is a failed check, not a bad argument.
    return plan.error().code == ErrorCode::kFileRead ? kBadInput : kCheckFailed;
  }
  Say(options.json, fmt::format("{}: a valid plan\n", options.problem.contract));
  Say(options.json, Summary(plan->view()));
  if (options.json) {
    JsonObject object;
    object.Text("name", options.problem.contract).Bool("pass", true);
    Print(object.Text("plan_fingerprint", ToHex(plan->view().fingerprint)).Done() + "\n");
  }
  return kGood;
}

int ListCases(const Options& options) {
  std::vector<std::string> documents;
  for (const CaseInfo& info : Cases()) {
    documents.push_back(JsonObject().Text("name", info.name).Text("about", info.about).Done());
    if (!options.json) Print(fmt::format("{:<36} {}\n", info.name, info.about));
  }
  if (options.json) Print(JsonList(documents) + "\n");
  return kGood;
}

// What the rest of the arguments leaves without use.
Status CheckArguments(const Command& command, const Options& options) {
  if (options.list) return command.AllowOnly("--list", {"--list", "--json"});
  std::vector<std::string> unused = kBatchOptions;
  if (IsCase(options.problem.contract)) return command.Refuse("a named case", unused);
  unused.push_back("what");
  if (options.all) return command.Refuse("--all", unused);
  if (IsPlanFile(options.problem.contract)) return command.AllowOnly("a .plan file", {"what", "--json", "--progress"});
  return {};
}

int Verify(const Command& command, const Options& options) {
  if (Status ok = CheckArguments(command, options); !ok) return Report(ok.error(), options.json);
  if (options.list) return ListCases(options);
  if (options.all) return VerifyAll(options);
  if (options.problem.contract.empty()) {
    return Report(
        Error{ErrorCode::kBadArgument, "give a case, a contract, a .plan file, --all or --list", "tessera verify", {}},
        options.json);
  }
  return IsPlanFile(options.problem.contract) ? VerifyPlanFile(options) : VerifyOne(options);
}

}  // namespace

void AddVerify(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("verify", "Hold a case, a contract or a plan file against what the contract says");
  sub->AddOption("what", options->problem.contract, "A named case, a contract (also in short), or a .plan file")
      ->ReadsOrInput("CASE|FILE");
  sub->AddFlag("--list", options->list, "List the named cases");
  sub->AddFlag("--all", options->all, "Verify every named case");
  AddLaneOption(*sub, options->run);
  AddSeed(*sub, options->seed, "Seed of the inputs, and of a case's batch");
  sub->AddFlag("--backward", options->run.backward, "Also check gradients");
  AddWorkOptions(*sub, options->run);
  AddProblemOptions(*sub, options->problem);
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->Footer(kFooter);
  options->command = sub;
  sub->OnParsed([options, sub, &action] { action = [options, sub] { return Verify(*sub, *options); }; });
}

}  // namespace tessera::program
