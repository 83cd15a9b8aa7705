// `tessera bench`: a quick timing of planning or running one contract, for people; script/bench keeps the records.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "json_text.h"
#include "program.h"
#include "shorthand.h"
#include "stability.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  int64_t repeat = 0;  // 0 = about half a second's worth
  RunOptions run;      // lane, isa, threads, backward
  uint64_t seed = 1;
  bool json = false;
  bool progress = false;
};

constexpr int64_t kEnoughNs = 500'000'000;
constexpr int64_t kMostRepeats = 1000;
constexpr const char* kFooter =
    "Examples:\n"
    "  tessera bench planner examples/causal.toml --target v6e\n"
    "  tessera bench run examples/packed.toml --batch examples/packed_batch.json --backward --repeat 5\n"
    "  tessera bench --stability --batches 10000";

bool WantsMore(const Options& options, const std::vector<int64_t>& times, const Stopwatch& watch) {
  if (options.repeat > 0) return static_cast<int64_t>(times.size()) < options.repeat;
  return times.size() < 3 || (watch.Ns() < kEnoughNs && static_cast<int64_t>(times.size()) < kMostRepeats);
}

struct Measured {
  std::string what;
  std::vector<int64_t> times;
  int64_t kept = 0;  // surviving tiles the time pays for
  std::string_view tiles;
  std::vector<Receipt> receipts = {};  // of a run, one for each time
  WorkUse work = {};                   // of a run: the best rates
};

int64_t PassesNs(const Receipt& receipt) {
  int64_t ns = 0;
  for (const Timing& timing : receipt.timings) {
    if (timing.name == "forward" || timing.name == "backward") ns += timing.ns;
  }
  return ns;
}

int Show(Measured result, const Options& options) {
  std::sort(result.times.begin(), result.times.end());
  const int64_t best = result.times.front();
  const int64_t median = result.times[result.times.size() / 2];
  const double per_tile = result.kept == 0 ? 0.0 : static_cast<double>(best) / static_cast<double>(result.kept);
  Say(options.json,
      fmt::format("{}: best {}, median {} of {}; {} {}, {:.1f} ns each at best", result.what, Milliseconds(best),
                  Milliseconds(median), result.times.size(), Grouped(result.kept), result.tiles, per_tile));
  const WorkUse& work = result.work;
  if (work.forward_gflops > 0) {
    std::string rates = fmt::format("forward {:.1f} GFLOP/s", work.forward_gflops);
    if (work.backward_gflops > 0) rates += fmt::format(", backward {:.1f} GFLOP/s", work.backward_gflops);
    Say(options.json, fmt::format("{} at best, over {} allowed pairs", rates, Grouped(work.pairs)));
  }
  if (options.json) {
    JsonObject object;
    object.Text("what", result.what).Int("best_ns", best).Int("median_ns", median);
    object.Int("repeats", static_cast<int64_t>(result.times.size())).Int("surviving_tiles", result.kept);
    object.Real("ns_per_surviving_tile", per_tile);
    if (work.forward_gflops > 0) object.Int("pairs", work.pairs).Real("forward_gflops", work.forward_gflops);
    if (work.backward_gflops > 0) object.Real("backward_gflops", work.backward_gflops);
    // What a ledger takes as a measurement: the receipt of the run that took the median time.
    const auto is_median = [&](const Receipt& receipt) { return PassesNs(receipt) == median; };
    const auto found = std::find_if(result.receipts.begin(), result.receipts.end(), is_median);
    if (found != result.receipts.end()) object.Raw("receipt", ToJson(*found));
    Print(object.Done() + "\n");
  }
  return kGood;
}

int BenchPlanner(const Command&, const Options& options) {
  auto problem = ReadProblem(options.problem);
  if (!problem) return Report(problem.error(), options.json);
  Measured result;
  result.what = "planning on " + problem->target.name;
  result.tiles = "distinct surviving tiles, all directions";
  const Progress progress("planning", options.progress);
  const Stopwatch all;
  while (WantsMore(options, result.times, all)) {
    const Stopwatch watch;
    auto planned = PlanProblem(*problem);
    result.times.push_back(watch.Ns());
    if (!planned) return Report(planned.error(), options.json);
    result.kept = 0;
    for (const Worklist& worklist : planned->plan.view().worklists) {
      result.kept += static_cast<int64_t>(worklist.slots.size());
    }
  }
  return Show(std::move(result), options);
}

int BenchRun(const Command& command, const Options& options) {
  auto problem = ReadProblem(options.problem);
  if (!problem) return Report(problem.error(), options.json);
  if (Status used = CheckXlaOptions(command, problem->contract, problem->target, options.run); !used) {
    return Report(used.error(), options.json);
  }
  if (auto fits = CheckTensorMemory(problem->contract, options.run.backward); !fits) {
    return Report(fits.error(), options.json);
  }
  const TensorMap inputs = MakeInputs(problem->contract, options.seed, options.run.backward);
  RunOptions run = options.run;
  run.plan = problem->options;
  run.contract_source = SourceOf(options.problem.contract);
  run.batch_source = SourceOf(options.problem.batch);
  run.input_source = fmt::format("seed {}", options.seed);
  Measured result;
  result.tiles = "tiles executed";
  RunMeter meter;
  run.meter = &meter;
  const Progress progress("running", options.progress, &meter);
  const Stopwatch all;
  while (WantsMore(options, result.times, all)) {
    run.digests = options.json || result.times.empty();  // which is when pairs are counted too
    const RunOutcome outcome = Run(TheEngine(), problem->contract, problem->batch, inputs, problem->target, run);
    if (outcome.error) return Report(*outcome.error, options.json);
    result.times.push_back(PassesNs(outcome.receipt));
    if (options.json) result.receipts.push_back(outcome.receipt);
    const auto ns = [&](std::string_view pass) {
      int64_t sum = 0;
      for (const Timing& timing : outcome.receipt.timings) sum += timing.name == pass ? timing.ns : 0;
      return sum;
    };
    const int64_t pairs = std::max(result.work.pairs, outcome.receipt.work.pairs);
    const WorkUse work = WorkOf(problem->contract.shape, pairs, ns("forward"), ns("backward"));
    result.work = {.pairs = pairs,
                   .forward_gflops = std::max(result.work.forward_gflops, work.forward_gflops),
                   .backward_gflops = std::max(result.work.backward_gflops, work.backward_gflops)};
    result.kept = outcome.receipt.tiles_executed + outcome.receipt.tiles_executed_backward;
    result.what = fmt::format("{} on {} with {}", run.backward ? "forward and backward" : "forward",
                              outcome.receipt.executed, outcome.receipt.isa);
  }
  return Show(std::move(result), options);
}

// Options of `bench` itself: it has no verb then.
void AddStability(Command& bench, Action& action) {
  auto stability = std::make_shared<StabilityOptions>();
  Option* flag = bench.AddFlag("--stability", stability->is_asked,
                               "Run fresh batches under one contract and count builds, hits and plans");
  bench.AddNumber("--batches", stability->batches, {1, 1'000'000}, "Batches for each contract")
      ->TypeName("N")
      ->ShowDefault()
      ->Needs(flag);
  bench.AddOption("--contract", stability->contract, "This contract (.toml or .json) instead of a few small ones")
      ->ReadsOrInput("FILE")
      ->Needs(flag);
  AddSeed(bench, stability->seed, "Seed of batches and inputs");
  bench.Find("--seed")->Needs(flag);
  bench.AddFlag("--json", stability->json, "Print one JSON document")->Needs(flag);
  bench.AddFlag("--progress", stability->progress, "Report progress also when standard error is no terminal")
      ->Needs(flag);
  bench.OnParsed([stability, &bench, &action] {
    const bool has_verb = bench.HasCommand();
    if (has_verb && stability->is_asked) RefuseTogether("--stability", "a subcommand");
    if (!has_verb && !stability->is_asked) RefuseMissing("A subcommand or --stability");
    if (!has_verb) action = [stability] { return BenchStability(*stability); };
  });
}

}  // namespace

void AddBench(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("bench", "Time planning or running one contract, or count what many batches build");
  sub->RequireCommand(0, 1);
  sub->Footer(kFooter);
  AddStability(*sub, action);
  const auto add = [&](const char* name, const char* about, int (*command)(const Command&, const Options&)) {
    Command* verb = sub->AddCommand(name, about);
    AddContract(*verb, options->problem.contract)->Required();
    verb->AddNumber("--repeat", options->repeat, {0, 1'000'000}, "How many times; 0 = about half a second's worth")
        ->TypeName("N")
        ->ShowDefault();
    AddProblemOptions(*verb, options->problem);
    verb->AddFlag("--json", options->json, "Print one JSON document");
    verb->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
    verb->Footer(kFooter);
    verb->OnParsed(
        [options, command, verb, &action] { action = [options, command, verb] { return command(*verb, *options); }; });
    return verb;
  };
  add("planner", "Time the planner: every stage, forward and transposed, packed", BenchPlanner);
  Command* run = add("run", "Time a lane: forward, and with --backward both", BenchRun);
  AddLaneOption(*run, options->run);
  AddSeed(*run, options->seed, "Seed of the inputs");
  run->AddFlag("--backward", options->run.backward, "Also compute gradients");
  AddWorkOptions(*run, options->run);
}

}  // namespace tessera::program
