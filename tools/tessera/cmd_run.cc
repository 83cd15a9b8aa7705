// `tessera run`: plan, choose a lane, run, check when asked, and leave a receipt of whatever happened.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>

#include "check.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  std::string from_receipt;
  std::string inputs;
  uint64_t seed = 1;
  std::string out;
  std::string receipt;
  std::string lane = "auto";
  std::vector<std::string> exclude;
  std::string layout = "bhtd";
  int64_t threads = 0;
  bool strict = false;
  bool backward = false;
  bool row_max = false;
  bool check = false;
  bool json = false;
  bool progress = false;
};

constexpr const char* kFooter =
    "Inputs are q, k, v, [sink_logits] and with --backward do; outputs o, lse, [max] and dq, dk, dv, [dsink_logits].\n"
    "The environment variable TESSERA_LANE is the default of --lane.\n\n"
    "Examples:\n"
    "  tessera run examples/packed.toml --batch examples/packed_batch.json --seed 7 --backward --check\n"
    "  tessera run model.toml --inputs qkv.safetensors --out o.safetensors --receipt receipt.json --lane reference\n"
    "  tessera run --from-receipt receipt.json";

std::vector<std::string> SplitNames(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) names.push_back(name);
  return names;
}

// Asks again for exactly what a receipt's run was asked for. --batch and --inputs may name files that have moved.
Status AskAgain(const Receipt& receipt, Options& options) {
  const auto option = [&](const char* name) {
    const auto found = receipt.options.find(name);
    return found == receipt.options.end() ? std::string() : found->second;
  };
  constexpr std::string_view kFile = "file ";
  constexpr std::string_view kSeed = "seed ";
  options.problem.contract_text = receipt.contract_text;
  options.problem.target = receipt.target;
  options.problem.tile = option("tile") == "default" ? "" : option("tile");
  options.problem.disable = SplitNames(option("disable"));
  options.problem.widen_class = option("widen_class") == "true";
  options.lane = receipt.requested;
  options.exclude = SplitNames(option("exclude"));
  options.layout = option("layout");
  options.strict = option("strict") == "true";
  options.backward = option("backward") == "true";
  options.row_max = option("row_max") == "true";
  options.threads = std::atoll(option("threads").c_str());
  const std::string& batch = receipt.batch_source;
  if (options.problem.batch.empty() && batch.substr(0, kFile.size()) == kFile) {
    options.problem.batch = batch.substr(kFile.size());
  } else if (options.problem.batch.empty() && !batch.empty()) {
    return Fail(ErrorCode::kBadArgument, fmt::format("its batch was {}: give --batch", batch), options.from_receipt);
  }
  const std::string& inputs = receipt.input_source;
  if (!options.inputs.empty()) return {};
  if (inputs.substr(0, kSeed.size()) == kSeed) {
    options.seed = std::strtoull(inputs.c_str() + kSeed.size(), nullptr, 10);
  } else if (inputs.substr(0, kFile.size()) == kFile) {
    options.inputs = inputs.substr(kFile.size());
  } else {
    return Fail(ErrorCode::kBadArgument, "it does not say where its inputs came from: give --inputs",
                options.from_receipt);
  }
  return {};
}

// Whether the second run is the first one again: the same inputs, and the same bits out.
Status CompareReceipts(const Receipt& first, const Receipt& again, const std::string& where) {
  const auto differ = [&](std::string_view what, const std::string& was, const std::string& is) {
    return Fail(ErrorCode::kCheckFailed, fmt::format("{} differ: {} then, {} now", what, was, is), where);
  };
  if (first.input_digest != again.input_digest) return differ("the inputs", first.input_digest, again.input_digest);
  if (first.batch_digest != again.batch_digest) return differ("the batches", first.batch_digest, again.batch_digest);
  if (first.executed != again.executed) return differ("the lanes", first.executed, again.executed);
  if (first.output_digest != again.output_digest) {
    return differ("the outputs", first.output_digest, again.output_digest);
  }
  return {};
}

Result<TensorMap> ReadInputs(const Contract& contract, const Options& options, Layout layout) {
  if (!options.inputs.empty()) return ReadSafetensors(options.inputs);
  if (auto fits = CheckTensorMemory(contract, options.backward); !fits) return tl::unexpected(fits.error());
  return MakeInputs(contract, options.seed, options.backward, layout);
}

// A run whose result is wrong, or could not be checked, did not succeed: the receipt says so, and vouches for no
// outputs.
void MarkFailed(RunOutcome& outcome, Error error) {
  outcome.receipt.ok = false;
  outcome.receipt.failed_at = "check";
  outcome.receipt.error = ToText(error);
  outcome.receipt.output_digest.clear();
  outcome.error = std::move(error);
}

void CheckOutcome(const Problem& problem, const TensorMap& inputs, Layout layout, const Options& options,
                  RunOutcome& outcome) {
  const Stopwatch watch;
  auto report = [&] {
    const Progress progress("checking against the oracle", options.progress);
    return CheckRun({problem.contract, problem.batch, inputs, outcome, layout});
  }();
  outcome.receipt.timings.push_back({"check", watch.Ns()});
  if (!report) return MarkFailed(outcome, report.error());
  Say(options.json, Indented(report->text, "  "));
  outcome.receipt.options["check"] = !report->pass ? "failed" : report->sampled ? "passed on sampled rows" : "passed";
  if (report->pass) return;
  std::string names;
  for (const Comparison& output : report->outputs) {
    if (!output.pass) names += (names.empty() ? "" : ", ") + output.name;
  }
  MarkFailed(
      outcome,
      Error{ErrorCode::kCheckFailed, fmt::format("{} not within tolerance of the oracle", names), "--check", {}});
}

int RunCommand(Options options) {
  std::optional<Receipt> first;
  if (!options.from_receipt.empty()) {
    auto receipt = ReadReceipt(options.from_receipt);
    if (!receipt) return Report(receipt.error(), options.json);
    if (auto asked = AskAgain(*receipt, options); !asked) return Report(asked.error(), options.json);
    first = std::move(*receipt);
  } else if (options.problem.contract.empty()) {
    return Report(Error{ErrorCode::kBadArgument, "give a contract or --from-receipt", "tessera run", {}}, options.json);
  }
  auto problem = ReadProblem(options.problem);
  if (!problem) return Report(problem.error(), options.json);
  const Layout layout = options.layout == "bthd" ? Layout::kBthd : Layout::kBhtd;
  auto inputs = ReadInputs(problem->contract, options, layout);
  if (!inputs) return Report(inputs.error(), options.json);

  RunOptions run;
  run.lane = options.lane;
  run.exclude = options.exclude;
  run.strict = options.strict;
  run.backward = options.backward;
  run.row_max = options.row_max;
  run.layout = layout;
  run.threads = options.threads;
  run.plan = problem->options;
  run.input_source = options.inputs.empty() ? fmt::format("seed {}", options.seed) : "file " + options.inputs;
  run.batch_source = options.problem.batch.empty() ? "" : "file " + options.problem.batch;
  RunOutcome outcome = [&] {
    const Progress progress(options.backward ? "running forward and backward" : "running forward", options.progress);
    return Run(problem->contract, problem->batch, *inputs, problem->target, run);
  }();

  if (!outcome.error && first && first->ok) {
    if (auto same = CompareReceipts(*first, outcome.receipt, options.from_receipt); !same) {
      MarkFailed(outcome, same.error());
    } else {
      Say(options.json, "the same lane, inputs and output bits as in " + options.from_receipt);
    }
  }
  if (!outcome.error && options.check) CheckOutcome(*problem, *inputs, layout, options, outcome);
  // Outputs first, so that a receipt on disk never speaks of outputs that are not there.
  Status written;
  if (!outcome.error && !options.out.empty()) written = WriteSafetensors(options.out, outcome.outputs);
  if (written && !options.receipt.empty()) written = WriteFile(options.receipt, ToJson(outcome.receipt) + "\n");
  if (options.json) Print(ToJson(outcome.receipt) + "\n");
  if (outcome.error) return Report(*outcome.error, false);
  if (!written) return Report(written.error(), false);
  Say(options.json, ToLine(outcome.receipt));
  if (!options.out.empty()) Say(options.json, "wrote " + options.out);
  if (!options.receipt.empty()) Say(options.json, "wrote " + options.receipt);
  return kGood;
}

}  // namespace

void AddRun(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("run", "Run a contract on a lane and write outputs and a receipt");
  sub->add_option("contract", options->problem.contract, "Contract (.toml or .json, - = standard input)")
      ->type_name("FILE");
  sub->add_option("--from-receipt", options->from_receipt, "Run again what this receipt was given for, and compare")
      ->type_name("F.json");
  auto* inputs = sub->add_option("--inputs", options->inputs, "Input tensors")->type_name("F.safetensors");
  sub->add_option("--seed", options->seed, "Make inputs from this seed")->capture_default_str()->excludes(inputs);
  sub->add_flag("--backward", options->backward, "Also compute gradients");
  sub->add_flag("--check", options->check, "Compare the result with the oracle (long inputs: on sampled rows)");
  sub->add_option("--out", options->out, "Write the outputs to this file")->type_name("F.safetensors");
  sub->add_option("--receipt", options->receipt, "Write the receipt to this file, also when the run fails")
      ->type_name("F.json");
  sub->add_option("--lane", options->lane, "Run on this lane or not at all")
      ->type_name("LANE")
      ->capture_default_str()
      ->envname("TESSERA_LANE");
  sub->add_option("--exclude", options->exclude, "Never use this lane (may be repeated)")
      ->type_name("LANE")
      ->expected(1)
      ->take_all();
  sub->add_flag("--strict", options->strict, "Any fallback is an error");
  sub->add_option("--layout", options->layout, "Tensor layout: bhtd or bthd")
      ->capture_default_str()
      ->check(CLI::IsMember({"bhtd", "bthd"}));
  sub->add_flag("--max", options->row_max, "Also return the row maximum of the logits");
  sub->add_option("--threads", options->threads, "Threads; 0 = as many as the target has workers")
      ->capture_default_str();
  AddProblemOptions(*sub, options->problem);
  sub->add_flag("--json", options->json, "Print the receipt as one JSON document");
  sub->add_flag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->footer(kFooter);
  sub->callback([options, &action] { action = [options] { return RunCommand(*options); }; });
}

}  // namespace tessera::program
