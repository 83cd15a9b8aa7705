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
// For --seconds, but no more often than this settles the best of a short call, and --repeats times at least.
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
  const Case documents{.name = "documents-4k-h8-d128-bf16", .mask = MaskKind::kDocuments, .dtype = DType::kBf16};
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

// Calls the work further down the stack, so far as the turn says. From one depth, long calls differed by up to one
// percent in either direction, the same within a run and another in the next; so each way gets the best of several
// places.
[[gnu::noinline]] Status CallFromDepth(int64_t turn, const Work& work) {
  constexpr int64_t kPlaces = 8;
  constexpr int64_t kPage = 4096;
  void* below = __builtin_alloca(static_cast<size_t>(turn % kPlaces * (kPage / kPlaces) + 16));
  asm volatile("" : : "r"(below) : "memory");
  return work();
}

// Both take turns, and in who comes first as well: the second finds warmer caches. The first calls warm up.
Status TakeTurns(const Settings& settings, const Work& lane, const Work& call, OverheadRow& row) {
  row.lane_s = row.call_s = kNever;
  double spent = 0;
  for (int64_t i = 0; i < kMostCalls && (i <= settings.repeats || spent < settings.seconds); ++i) {
    if (Status go = BeginStep(fmt::format("overhead: {}, {}: {}", row.name, row.call, i)); !go) return go;
    for (const bool is_lane : {i % 2 == 0, i % 2 != 0}) {
      Status done;
      const double seconds = TimeOf([&] { done = CallFromDepth(i / 2, is_lane ? lane : call); });
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
  // Each pass has the block that the next public call will find in the pool: pages of another would differ in speed by
  // more than is measured here. Nobody else calls meanwhile, and the two take turns.
  explicit HeldLane(const Bound& bound) : state_(*EngineAccess::Of(bound)), forward_(Block(Pass::kForward)) {
    backward_ = Block(Pass::kBackward);
  }

  Status Call(Pass pass, const RunTensors& t) const {
    const LaneCall call{.workspace = pass == Pass::kForward ? forward_ : backward_};
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
  std::span<std::byte> Block(Pass pass) const {
    return state_.attention->engine->workspaces.Take(state_.lane->WorkspaceBytes(pass)).bytes();
  }

  const BoundState& state_;
  std::span<std::byte> forward_;
  std::span<std::byte> backward_;
};

// The ways to call that are held against the lane.
struct CallForm {
  std::string name;
  std::vector<Pass> passes;  // what the lane does beside it
  Work work;
};

std::vector<CallForm> FormsOf(const Problem& problem, const Bound& bound, const RunTensors& tensors,
                              const Settings& settings) {
  RunOptions options;
  static_cast<AttentionOptions&>(options) = OptionsOf(Mode::kBoth, settings);
  const auto done = [](RunOutcome outcome) -> Status {
    if (outcome.error) return tl::unexpected(std::move(*outcome.error));
    return {};
  };
  const std::vector<Pass> both{Pass::kForward, Pass::kBackward};
  const Target target = TargetOf(settings);
  return {
      {"bound forward", {Pass::kForward}, [&] { return bound.Forward(tensors); }},
      {"bound backward", {Pass::kBackward}, [&] { return bound.Backward(tensors); }},
      {"bound forward, receipt",
       {Pass::kForward},
       [&] {
         Receipt receipt;
         return bound.Forward(tensors, {.receipt = &receipt});
       }},
      // One-shot, without digests: prepares, plans and binds each time; Run makes its outputs anew as well.
      {"run_strided f+b", both,
       [&, options, target, done] {
         return done(RunStrided(OurEngine(), problem.contract, problem.batch, tensors, target, options));
       }},
      {"run f+b", both,
       [&, options, target, done] {
         return done(Run(OurEngine(), problem.contract, problem.batch, problem.inputs, target, options));
       }},
  };
}

void AddRow(OverheadRow row, FILE* people, Results& results) {
  std::vector<std::string> goals;
  for (const Verdict& goal : row.goals) {
    goals.push_back(goal.held ? fmt::format("{}: {}", goal.text, *goal.held ? "yes" : "NO") : goal.not_judged);
  }
  ClearProgress();
  fmt::print(people, "{:<25} {:<22} {:<9} {:>5.1f} {:>11.1f} {:>11.1f} {:>10.1f} {:>7.2f}%  {}\n", row.name, row.call,
             row.isa, static_cast<double>(row.workspace_bytes) / (1 << 20), row.lane_s * 1e6, row.call_s * 1e6,
             row.more_s() * 1e6, row.more_s() / row.lane_s * 100,
             goals.empty() ? "-" : fmt::format("{}", fmt::join(goals, "; ")));
  std::fflush(people);
  results.overhead.push_back(std::move(row));
}

}  // namespace

Status MeasureOverhead(FILE* people, Results& results) {
  const Settings& settings = results.settings;
  fmt::print(
      people,
      "\nA public call beside the lane called directly in a workspace that is held; best of many; MiB of workspace\n"
      "{:<25} {:<22} {:<9} {:>5} {:>11} {:>11} {:>10} {:>8}  {}\n",
      "case", "call", "isa", "MiB", "lane us", "call us", "more us", "more", "goal");
  for (const OverheadCase& asked : OverheadCases()) {
    Result<Problem> problem = MakeProblem(asked.shape, settings);
    if (!problem) return tl::unexpected(std::move(problem.error()));
    const Result<Bound> bound = BindOurs(*problem, Mode::kBoth, settings);
    if (!bound) return tl::unexpected(bound.error());
    const RunTensors tensors = TensorsOf(*problem, Mode::kBoth);
    const HeldLane held(*bound);
    for (const CallForm& form : FormsOf(*problem, *bound, tensors, settings)) {
      OverheadRow row{.name = asked.shape.name,
                      .call = form.name,
                      .isa = bound->isa(),
                      .workspace_bytes = bound->workspace_bytes()};
      const auto lane = [&] {
        Status done;
        for (const Pass pass : form.passes) done = done ? held.Call(pass, tensors) : done;
        return done;
      };
      if (Status done = TakeTurns(settings, lane, form.work, row); !done) return done;
      const bool is_asked = form.name == "bound forward" || form.name == "bound backward";
      if (is_asked) row.goals = Judge(row, asked.has_ratio_goal && form.name == "bound forward");
      AddRow(std::move(row), people, results);
    }
  }
  return {};
}

}  // namespace tessera::bench
