// `tessera plan`: a contract (and batch) in, a plan and its summary out.
#include <fmt/format.h>

#include <memory>

#include "json_text.h"
#include "metadata.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  std::string out;
  bool json = false;
  bool progress = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera plan examples/causal.toml\n"
    "  tessera plan examples/packed.toml --batch examples/packed_batch.json --target v6e --out packed.plan\n"
    "  tessera plan packed.plan --json > packed.json";

std::string StageTable(const std::vector<StageReport>& stages) {
  std::string text = "\nstage      time\n";
  int64_t total = 0;
  for (const StageReport& stage : stages) {
    text += fmt::format("{:<10} {:>10}\n", stage.name, stage.disabled ? "disabled" : Milliseconds(stage.ns));
    total += stage.ns;
  }
  return text + fmt::format("{:<10} {:>10}\n", "all", Milliseconds(total));
}

int ShowPlanFile(const Options& options) {
  auto plan = ReadPlan(options.problem.contract);
  if (!plan) return Report(plan.error(), options.json);
  auto target = FindTarget(options.problem.target);
  if (!target) return Report(target.error(), options.json);
  const std::string summary = Summary(plan->view()) + "\n" + MetadataLine(plan->view(), *target, nullptr);
  if (options.json) {
    PrintError(summary);
    Print(ToJson(plan->view()) + "\n");
  } else {
    Print(summary);
  }
  return kGood;
}

int MakeAndShow(const Options& options) {
  auto problem = ReadProblem(options.problem);
  if (!problem) return Report(problem.error(), options.json);
  auto result = [&] {
    const Progress progress("planning", options.progress);
    return PlanProblem(*problem);
  }();
  if (!result) return Report(result.error(), options.json);
  const PlanView& plan = result->plan.view();
  if (!options.out.empty()) {
    if (auto written = WritePlan(options.out, result->plan); !written) return Report(written.error(), options.json);
  }
  std::string text = Summary(plan) + "\n" + MetadataLine(plan, problem->target, &*problem) +
                     LeakNotes(problem->contract) + StageTable(result->stages);
  if (!options.out.empty()) text += fmt::format("\nwrote {}\n", options.out);
  if (options.json) {
    PrintError(text);
    std::vector<std::string> stages;
    for (const StageReport& stage : result->stages) {
      JsonObject object;
      object.Text("name", stage.name).Int("ns", stage.ns).Bool("disabled", stage.disabled);
      stages.push_back(object.Text("summary", stage.summary).Done());
    }
    JsonObject object;
    object.Text("target", problem->target.name);
    AddMetadata(object, plan, problem->target);
    object.Raw("stages", JsonList(stages)).Raw("plan", ToJson(plan));
    Print(object.Done() + "\n");
  } else {
    Print(text);
  }
  return kGood;
}

}  // namespace

void AddPlan(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("plan", "Plan a contract and print what the plan holds and costs");
  AddContract(*sub, options->problem.contract, ", or a .plan file")->Required();
  AddProblemOptions(*sub, options->problem);
  AddRouteOptions(*sub, options->problem);
  sub->AddOption("--out", options->out, "Write the plan to this file")->Writes("FILE.plan");
  sub->AddFlag("--json", options->json, "Print the whole plan as one JSON document");
  sub->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] {
    action = [options, sub] {
      if (!IsPlanFile(options->problem.contract)) return MakeAndShow(*options);
      const Status used = sub->AllowOnly("a .plan file", {"contract", "--target", "--json", "--progress"});
      return used ? ShowPlanFile(*options) : Report(used.error(), options->json);
    };
  });
}

}  // namespace tessera::program
