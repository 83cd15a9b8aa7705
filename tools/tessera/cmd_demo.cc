// `tessera demo`: the whole line once, on a problem of the kind Tessera is for: packed documents of odd lengths, causal
// with a window, softcap, grouped heads, padding at the end of a row; planned, run both ways, checked, with a receipt.
#include <fmt/format.h>

#include <memory>

#include "check.h"
#include "program.h"
#include "words.h"

namespace tessera::program {
namespace {

struct Options {
  uint64_t seed = 7;
  RunOptions run;  // isa, threads
  std::string receipt = "tessera_demo_receipt.json";
  bool ascii = false;
  bool json = false;
  bool progress = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera demo\n"
    "  tessera demo --seed 3 --receipt demo.json";

constexpr std::string_view kContract = R"(
version = 1
[shape]
batch = 2
q_len = 1500
kv_len = 1500
num_q_heads = 8
num_kv_heads = 2
dim_qk = 32
dim_v = 32
dtype = "f32"
[mask]
expr = "causal and window(383, 0) and documents and valid"
[score]
softcap = 30.0
[tiles]
q = 64
kv = 64
reason = "short documents: 256 would leave hardly a full tile to see"
)";

// Two rows of documents packed end to end; the second row is only partly filled.
const std::vector<std::vector<int64_t>> kDocuments = {{421, 97, 613, 182, 187}, {760, 233, 301}};

Batch MakeBatch(int64_t length) {
  IdRows ids{.rows = static_cast<int64_t>(kDocuments.size()), .len = length, .values = {}};
  std::vector<int64_t> valid;
  for (const std::vector<int64_t>& row : kDocuments) {
    const size_t begin = ids.values.size();
    int32_t id = 0;
    for (const int64_t tokens : row) ids.values.insert(ids.values.end(), static_cast<size_t>(tokens), id++);
    valid.push_back(static_cast<int64_t>(ids.values.size() - begin));
    ids.values.resize(begin + static_cast<size_t>(length), -1);  // padding belongs to no document
  }
  Batch batch;
  batch.doc_ids = std::move(ids);
  batch.valid_tokens = std::move(valid);
  return batch;
}

std::string ProblemText(const Contract& contract) {
  const Shape& shape = contract.shape;
  std::string text =
      fmt::format("problem   {} rows of {} tokens, {} query heads over {} key heads, dim {}, {}\n", shape.batch,
                  shape.q_len, shape.num_q_heads, shape.num_kv_heads, shape.dim_qk, ToText(shape.dtype));
  for (size_t row = 0; row < kDocuments.size(); ++row) {
    int64_t filled = 0;
    for (const int64_t tokens : kDocuments[row]) filled += tokens;
    text += fmt::format("          row {}: documents of {} tokens", row, fmt::join(kDocuments[row], ", "));
    text += filled < shape.q_len ? fmt::format(", then {} of padding\n", shape.q_len - filled) : "\n";
  }
  text += fmt::format("mask      {}\n", ToText(contract.mask.heads.front()));
  text += fmt::format("score     scale {:.4f}, softcap {}\n", contract.score.scale, contract.score.softcap);
  return text;
}

std::string PlanText(const PlanResult& planned, int64_t ns) {
  const PlanView& plan = planned.plan.view();
  const TileCounts counts = CountTiles(plan, Direction::kForward);
  const int64_t kept = counts.full + counts.partial;
  const double share = 100.0 * static_cast<double>(kept) / static_cast<double>(kept + counts.empty);
  std::string text = fmt::format("plan      made in {}: {}, {} distinct masks for {} (row, head) pairs, {} cleanups\n",
                                 Milliseconds(ns), Bytes(static_cast<int64_t>(plan.bytes.size())), plan.num_masks,
                                 plan.batch * plan.num_q_heads, plan.NumCleanups() - 1);
  text += fmt::format("          {:.1f}% of the tiles survive: {} full, {} partial, {} empty\n", share,
                      Grouped(counts.full), Grouped(counts.partial), Grouped(counts.empty));
  return text;
}

int64_t TimeOf(const Receipt& receipt, std::string_view name) {
  for (const Timing& timing : receipt.timings) {
    if (timing.name == name) return timing.ns;
  }
  return 0;
}

int Demo(const Command& command, const Options& options) {
  if (Status ok = DeclareEnvironment(); !ok) return Report(ok.error(), options.json);
  auto contract = ParseContract(kContract);
  if (!contract) return Report(contract.error(), options.json);
  auto target = FindTarget("cpu");
  if (!target) return Report(target.error(), options.json);
  if (Status used = CheckXlaOptions(command, *contract, *target, options.run); !used) {
    return Report(used.error(), options.json);
  }
  const Batch batch = MakeBatch(contract->shape.q_len);
  const auto say = [&](const std::string& text) { Say(options.json, options.ascii ? ToAscii(text) : text); };
  say(ProblemText(*contract));

  const Stopwatch plan_watch;
  auto planned = MakePlan(*contract, batch, *target);
  if (!planned) return Report(planned.error(), options.json);
  say(PlanText(*planned, plan_watch.Ns()));
  say(DrawTiles(planned->plan.view(), 0, 0, 34, 24));

  const TensorMap inputs = MakeInputs(*contract, options.seed, true);
  RunOptions run = options.run;
  run.backward = true;
  run.digests = true;
  run.input_source = fmt::format("seed {}", options.seed);
  run.batch_source = "made by tessera demo";
  RunMeter meter;
  run.meter = &meter;
  RunOutcome outcome = [&] {
    const Progress progress("running forward and backward", options.progress, &meter);
    return Run(TheEngine(), *contract, batch, inputs, *target, run);
  }();
  if (outcome.error) return Report(*outcome.error, options.json);
  say(fmt::format("run       forward {}, backward {} on {}", Milliseconds(TimeOf(outcome.receipt, "forward")),
                  Milliseconds(TimeOf(outcome.receipt, "backward")), outcome.receipt.executed));

  const Stopwatch check_watch;
  auto mask = [&] {
    const Progress progress("comparing the plan with the dense mask", options.progress, &meter);
    return CheckMask(*contract, batch, planned->plan.view(), kMaskCheckPairs, &meter);
  }();
  if (!mask) return Report(mask.error(), options.json);
  auto check = [&] {
    const Progress progress("checking the outputs", options.progress, &meter);
    return CheckRun({*contract, batch, inputs, outcome, Layout::kBhtd, &meter});
  }();
  if (!check) return Report(check.error(), options.json);
  const bool pass = mask->pass && check->pass;
  say(fmt::format("check     {} in {}; {}", pass ? "passed" : "FAILED", Milliseconds(check_watch.Ns()), mask->text));
  say(Indented(check->text, "          "));
  outcome.receipt.options["check"] = pass ? "passed" : "failed";
  outcome.receipt.timings.push_back({"check", check_watch.Ns()});
  if (!pass) {
    outcome.receipt.ok = false;
    outcome.receipt.failed_at = "check";
    outcome.receipt.error = "the result is not what the contract says";
    outcome.receipt.output_digest.clear();
  }
  if (auto written = WriteFile(options.receipt, ToJson(outcome.receipt) + "\n"); !written) {
    return Report(written.error(), options.json);
  }
  say("receipt   " + ToLine(outcome.receipt));
  say("          " + options.receipt);
  if (options.json) Print(ToJson(outcome.receipt) + "\n");
  if (pass) return kGood;
  return Report(Error{ErrorCode::kCheckFailed, "the demo's result is not what the contract says", "tessera demo", {}},
                false);
}

}  // namespace

void AddDemo(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("demo", "Plan, run and check a packed batch, with a picture and a receipt");
  AddSeed(*sub, options->seed, "Seed of the inputs");
  AddWorkOptions(*sub, options->run);
  sub->AddOption("--receipt", options->receipt, "Where the receipt goes")->Writes("F.json")->ShowDefault();
  sub->AddFlag("--ascii", options->ascii, "Draw with plain characters");
  sub->AddFlag("--json", options->json, "Print the receipt as one JSON document");
  sub->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] { action = [options, sub] { return Demo(*sub, *options); }; });
}

}  // namespace tessera::program
