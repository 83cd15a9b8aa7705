// What a public call adds to the lane it ends in. The same bound lane is called both ways on the same tensors, in
// turns: through Bound, and directly with a workspace that is taken once and held.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "cpu/results.h"
#include "engine/state.h"

namespace tessera::bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// What a call may add: so much, and so much of the lane's time.
constexpr double kGoal_s = 15e-6;
constexpr double kGoalShare = 0.005;
// Calls are repeated so long and so often, and --repeats times at least.
constexpr double kPatience_s = 3;
constexpr int64_t kMostCalls = 3000;

struct OverheadCase {
  Case shape;
  bool has_ratio_goal = false;
};

std::vector<OverheadCase> OverheadCases() {
  const Case one{.name = "causal-256-h1-d64-f32", .tokens = 256, .dim = 64, .heads = 1, .kv_heads = 1};
  Case half = one;
  half.name = "causal-256-h1-d64-bf16";
  half.dtype = DType::kBf16;
  const Case kilo{.name = "causal-1k-h8-d64-f32", .tokens = 1024, .dim = 64};
  const Case documents{
      .name = "documents-4k-h1-d64-f32", .mask = MaskKind::kDocuments, .dim = 64, .heads = 1, .kv_heads = 1};
  const Case four{.name = "causal-4k-h2-d64-f32", .dim = 64, .heads = 2, .kv_heads = 2};
  return {{one, true}, {half}, {kilo}, {documents}, {four}};
}

// The call of 256 tokens is so short that its goal is a ratio: of the lane's time where that is known.
std::optional<double> RatioGoal(const std::string& isa) {
  if (ThisMachine() == Machine::kArm) return 1.06;
  if (isa.starts_with("avx512")) return 1.25;
  return std::nullopt;
}

std::vector<Verdict> Judge(const OverheadRow& row, bool has_ratio_goal) {
  std::vector<Verdict> goals{{.text = fmt::format("{:.0f} us + {:.1f}%", kGoal_s * 1e6, kGoalShare * 100),
                              .held = row.more_s() <= kGoal_s + kGoalShare * row.lane_s}};
  if (!has_ratio_goal) return goals;
  if (const std::optional<double> ratio = RatioGoal(row.isa)) {
    goals.push_back({.text = fmt::format("{:.2f}x the lane", *ratio), .held = row.call_s <= *ratio * row.lane_s});
  } else {
    goals.push_back({.not_judged = fmt::format("no ratio asked of {}", row.isa)});
  }
  return goals;
}

using Work = std::function<Status()>;

// Both take turns, and in who comes first as well: the second finds warmer caches. The first calls warm up.
Status TakeTurns(const Settings& settings, const Work& lane, const Work& call, OverheadRow& row) {
  row.lane_s = row.call_s = kNever;
  double spent = 0;
  for (int64_t i = 0; i < kMostCalls && (i <= settings.repeats || spent < kPatience_s); ++i) {
    if (Status go = BeginStep(fmt::format("overhead: {}, {}: {}", row.name, row.call, i)); !go) return go;
    for (const bool is_lane : {i % 2 == 0, i % 2 != 0}) {
      Status done;
      const double seconds = TimeOf([&] { done = is_lane ? lane() : call(); });
      if (!done) return done;
      double& best = is_lane ? row.lane_s : row.call_s;
      if (i > 0) best = std::min(best, seconds);
      spent += seconds;
    }
  }
  return {};
}

// The lane that a Bound ends in, called directly.
class HeldLane {
 public:
  // The workspace is of the pool that public calls take theirs from, so that both work in the same kind of pages.
  explicit HeldLane(const Bound& bound)
      : state_(*EngineAccess::Of(bound)),
        workspace_(state_.attention->engine->workspaces.Take(bound.workspace_bytes())) {}

  Status Call(Pass pass, const RunTensors& t) const {
    const LaneCall call{.workspace = workspace_.bytes()};
    if (pass == Pass::kForward) {
      ForwardArgs args;
      args.q = t.q;
      args.k = t.k;
      args.v = t.v;
      args.o = t.o;
      args.lse = t.lse;
      return state_.lane->Forward(args, call).map([](int64_t) {});
    }
    BackwardArgs args;
    args.q = t.q;
    args.k = t.k;
    args.v = t.v;
    args.o = t.o;
    args.dout = t.dout;
    args.lse = t.lse;
    args.dq = t.dq;
    args.dk = t.dk;
    args.dv = t.dv;
    return state_.lane->Backward(args, call).map([](int64_t) {});
  }

 private:
  const BoundState& state_;
  const Workspace workspace_;
};

Result<OverheadRow> MeasureBound(const Problem& problem, const Bound& bound, Pass pass, const Settings& settings) {
  OverheadRow row{.name = problem.shape.name, .call = fmt::format("bound {}", ToText(pass)), .isa = bound.isa()};
  const RunTensors tensors = TensorsOf(problem, Mode::kBoth);
  const HeldLane lane(bound);
  const Status done = TakeTurns(
      settings, [&] { return lane.Call(pass, tensors); },
      [&] { return pass == Pass::kForward ? bound.Forward(tensors) : bound.Backward(tensors); }, row);
  if (!done) return tl::unexpected(done.error());
  return row;
}

// A one-shot Run, which plans, binds and makes its outputs anew, without digests: beside both passes of the lane.
Result<OverheadRow> MeasureOneShot(const Problem& problem, const Bound& bound, const Settings& settings) {
  OverheadRow row{.name = problem.shape.name, .call = "run forward_backward", .isa = bound.isa()};
  const RunTensors tensors = TensorsOf(problem, Mode::kBoth);
  const HeldLane lane(bound);
  RunOptions options;
  static_cast<AttentionOptions&>(options) = OptionsOf(Mode::kBoth, settings);
  const Target target = TargetOf(settings);
  const Status done = TakeTurns(
      settings,
      [&] {
        Status forward = lane.Call(Pass::kForward, tensors);
        return forward ? lane.Call(Pass::kBackward, tensors) : forward;
      },
      [&]() -> Status {
        RunOutcome outcome = Run(OurEngine(), problem.contract, problem.batch, problem.inputs, target, options);
        if (outcome.error) return tl::unexpected(std::move(*outcome.error));
        return {};
      },
      row);
  if (!done) return tl::unexpected(done.error());
  return row;
}

void AddRow(OverheadRow row, FILE* people, Results& results) {
  std::vector<std::string> goals;
  for (const Verdict& goal : row.goals) {
    goals.push_back(goal.held ? fmt::format("{}: {}", goal.text, *goal.held ? "yes" : "NO") : goal.not_judged);
  }
  ClearProgress();
  fmt::print(people, "{:<24} {:<20} {:<8} {:>11.1f} {:>11.1f} {:>10.1f} {:>7.2f}%  {}\n", row.name, row.call, row.isa,
             row.lane_s * 1e6, row.call_s * 1e6, row.more_s() * 1e6, row.more_s() / row.lane_s * 100,
             goals.empty() ? "-" : fmt::format("{}", fmt::join(goals, "; ")));
  std::fflush(people);
  results.overhead.push_back(std::move(row));
}

}  // namespace

Status MeasureOverhead(FILE* people, Results& results) {
  const Settings& settings = results.settings;
  fmt::print(people,
             "\nA public call beside the lane called directly in a workspace that is held; best of many, microseconds\n"
             "{:<24} {:<20} {:<8} {:>11} {:>11} {:>10} {:>8}  {}\n",
             "case", "call", "isa", "lane us", "call us", "more us", "more", "goal");
  for (const OverheadCase& asked : OverheadCases()) {
    Result<Problem> problem = MakeProblem(asked.shape, settings);
    if (!problem) return tl::unexpected(std::move(problem.error()));
    const Result<Bound> bound = BindOurs(*problem, Mode::kBoth, settings);
    if (!bound) return tl::unexpected(bound.error());
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      Result<OverheadRow> row = MeasureBound(*problem, *bound, pass, settings);
      if (!row) return tl::unexpected(std::move(row.error()));
      row->goals = Judge(*row, asked.has_ratio_goal && pass == Pass::kForward);
      AddRow(std::move(*row), people, results);
    }
    Result<OverheadRow> row = MeasureOneShot(*problem, *bound, settings);
    if (!row) return tl::unexpected(std::move(row.error()));
    AddRow(std::move(*row), people, results);
  }
  return {};
}

}  // namespace tessera::bench
