// `tessera view`: plans, lanes and receipts as one HTML file, opened where there is a browser.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "hints.h"
#include "program.h"
#include "shorthand.h"
#include "tessera/route.h"
#include "tessera/view.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  std::vector<std::string> plans;
  std::vector<std::string> receipts;
  std::string out;
  bool no_open = false;
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera view examples/packed.toml --batch examples/packed_batch.json\n"
    "  tessera view --plan before.plan --plan after.plan --out difference.html\n"
    "  tessera view examples/causal.toml --receipt run.json --no-open\n\n"
    "The file needs nothing else: no network, no server.";

// A plan that is shown, with what its view points into.
struct Subject {
  std::string name;
  std::optional<Problem> problem;
  Plan plan;
  std::vector<StageReport> stages;
  std::optional<RouteResult> routed;
};

Result<Subject> FromPlanFile(const std::string& path) {
  Result<Plan> plan = ReadPlan(path);
  if (!plan) return tl::unexpected(plan.error());
  Subject subject;
  subject.name = path;
  subject.plan = std::move(*plan);
  return subject;
}

Result<Subject> FromContract(const ProblemArguments& arguments) {
  Result<Problem> problem = ReadProblem(arguments);
  if (!problem) return tl::unexpected(problem.error());
  Result<PlanResult> made = PlanProblem(*problem);
  if (!made) return tl::unexpected(made.error());
  Subject subject;
  subject.name = arguments.contract == "-" ? "standard input" : arguments.contract;
  if (problem->contract.routing) {
    auto routed = RouteInputsOf(problem->contract, problem->inputs).and_then([&](const RouteInputs& route) {
      return Route(problem->contract, problem->batch, route, {.plan = problem->options, .keep_scores = true});
    });
    if (!routed) return tl::unexpected(routed.error());
    subject.routed = std::move(*routed);
  }
  subject.problem = std::move(*problem);
  subject.plan = std::move(made->plan);
  subject.stages = std::move(made->stages);
  return subject;
}

Result<std::vector<Subject>> ReadSubjects(const Options& options) {
  std::vector<Subject> subjects;
  const std::string& contract = options.problem.contract;
  if (!contract.empty()) {
    Result<Subject> subject = IsPlanFile(contract) ? FromPlanFile(contract) : FromContract(options.problem);
    if (!subject) return tl::unexpected(subject.error());
    subjects.push_back(std::move(*subject));
  }
  for (const std::string& path : options.plans) {
    Result<Subject> subject = FromPlanFile(path);
    if (!subject) return tl::unexpected(subject.error());
    subjects.push_back(std::move(*subject));
  }
  if (subjects.size() > 2) {
    return Fail(ErrorCode::kBadArgument, fmt::format("{} plans are given: at most two are compared", subjects.size()),
                "tessera view");
  }
  return subjects;
}

Result<std::vector<ShownLane>> LanesFor(const Problem& problem) {
  auto selection = TheEngine().Select(problem.contract, problem.target);
  if (!selection) return tl::unexpected(selection.error());
  std::vector<ShownLane> lanes;
  for (const LaneDecision& entry : selection->decisions) {
    ShownLane lane;
    lane.lane = entry.lane;
    lane.selected = entry.lane == selection->lane;
    lane.accepted = entry.decision.accepted;
    if (!entry.decision.accepted) {
      lane.why = fmt::format("{}: {}", ReasonText(entry.decision.reason), ReasonMeaning(entry.decision.reason));
      if (!entry.decision.detail.empty()) lane.why += fmt::format(" ({})", entry.decision.detail);
    }
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

Result<ShownPlan> ToShown(const Subject& subject) {
  ShownPlan shown;
  shown.name = subject.name;
  shown.plan = &subject.plan.view();
  shown.stages = subject.stages;
  if (subject.routed) {
    shown.picks = &subject.routed->picks;
    shown.pick_scores = &subject.routed->scores;
  }
  if (subject.problem) {
    shown.contract = &subject.problem->contract;
    shown.workers = subject.problem->target.workers;
    shown.scalar_bytes = subject.problem->target.scalar_bytes;
    if (std::string notes = LeakNotes(subject.problem->contract); !notes.empty()) shown.notes.push_back(notes);
    auto lanes = LanesFor(*subject.problem);
    if (!lanes) return tl::unexpected(lanes.error());
    shown.lanes = std::move(*lanes);
  }
  return shown;
}

// The file beside the reader: the first thing shown, with .html for its ending, in this folder.
std::string OutputPath(const Options& options, const std::vector<Subject>& subjects) {
  if (!options.out.empty()) return options.out;
  std::string name = !subjects.empty() ? subjects.front().name : options.receipts.front();
  if (options.problem.contract == "-" || IsShorthand(options.problem.contract)) name = "contract";
  return std::filesystem::path(name).stem().string() + ".html";
}

// Hands the file to the desktop. The child's words are not ours, so it has no output.
bool OpenInBrowser(const std::string& path) {
  if (std::getenv("DISPLAY") == nullptr && std::getenv("WAYLAND_DISPLAY") == nullptr) return false;
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= 2; ++fd) dup2(null, fd);
    execlp("xdg-open", "xdg-open", path.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int View(const Command& command, const Options& options) {
  const std::vector<std::string> always = {"contract", "--plan", "--receipt", "--out", "--no-open"};
  if (options.problem.contract.empty() || IsPlanFile(options.problem.contract)) {
    if (Status used = command.AllowOnly("no contract", always); !used) return Report(used.error(), options.json);
  }
  if (options.problem.contract.empty() && options.plans.empty() && options.receipts.empty()) {
    return Report(Error{ErrorCode::kBadArgument, "give a contract, --plan or --receipt", "tessera view", {}},
                  options.json);
  }
  auto subjects = ReadSubjects(options);
  if (!subjects) return Report(subjects.error(), options.json);
  ViewSubject view;
  for (const Subject& subject : *subjects) {
    auto shown = ToShown(subject);
    if (!shown) return Report(shown.error(), options.json);
    view.title += (view.title.empty() ? "" : " and ") + shown->name;
    view.plans.push_back(std::move(*shown));
  }
  for (const std::string& path : options.receipts) {
    auto receipt = ReadReceipt(path);
    if (!receipt) return Report(WithFileHint(receipt.error(), path, FileUse::kReceipt), options.json);
    view.receipts.push_back(ToJson(*receipt));
  }
  if (view.title.empty()) view.title = options.receipts.front();
  const std::string path = OutputPath(options, *subjects);
  if (options.out.empty()) {
    const Status ok = DeclarePath({.name = "the page", .path = path, .role = PathRole::kOutput});
    if (!ok) return Report(ok.error(), options.json);
  }
  auto page = MakeViewHtml(view);
  if (!page) return Report(page.error(), options.json);
  if (auto written = WriteFile(path, *page); !written) return Report(written.error(), options.json);
  const bool opened = !options.no_open && isatty(STDOUT_FILENO) != 0 && OpenInBrowser(path);
  Print(fmt::format("wrote {}, {}{}\n", path, Bytes(static_cast<int64_t>(page->size())),
                    opened ? ", and opened it" : "; open it in a browser"));
  return kGood;
}

}  // namespace

void AddView(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("view", "Write a page that shows a plan: tiles, pairs, documents, balance, lanes");
  AddContract(*sub, options->problem.contract, ", or a .plan file");
  AddProblemOptions(*sub, options->problem);
  AddRouteOptions(*sub, options->problem);
  sub->AddOption("--plan", options->plans, "Show this plan; a second one is compared with the first")
      ->Reads("FILE.plan")
      ->Repeated();
  sub->AddOption("--receipt", options->receipts, "Show this receipt too")->Reads("FILE.json")->Repeated();
  sub->AddOption("--out", options->out, "Write the page here; default: the name of what is shown, in this folder")
      ->Writes("FILE.html");
  sub->AddFlag("--no-open", options->no_open, "Do not open it in a browser");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] { action = [options, sub] { return View(*sub, *options); }; });
}

}  // namespace tessera::program
