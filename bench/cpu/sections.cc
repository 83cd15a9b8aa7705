// The two sections that need no peer: how time falls with threads, and how it follows what a mask leaves.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cpu/results.h"

namespace tessera::bench {
namespace {

constexpr int64_t kTokens = 16384;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr const char* ShortName(Mode mode) { return mode == Mode::kForward ? "f" : "f+b"; }

// 1, 2, 4, ... and the most there are.
std::vector<int64_t> ThreadCounts(int64_t most) {
  std::vector<int64_t> counts;
  for (int64_t threads = 1; threads < most; threads *= 2) counts.push_back(threads);
  counts.push_back(most);
  return counts;
}

}  // namespace

Status MeasureScaling(FILE* people, Results& results) {
  const Case cases[] = {
      {.name = "causal-16k-d128-f32", .tokens = kTokens},
      {.name = "random_documents-16k-d128-f32", .mask = MaskKind::kRandomDocuments, .tokens = kTokens, .documents = 24},
  };
  fmt::print(people,
             "\nThreads at {} tokens; efficiency is the share of linear\n{:<31} {:<4} {:>7} {:>9} {:>9} {:>8} {:>10}\n",
             results.settings.tokens > 0 ? results.settings.tokens : kTokens, "case", "mode", "threads", "seconds",
             "GFLOP/s", "speedup", "efficiency");
  const std::vector<int64_t> counts = ThreadCounts(results.settings.threads);
  for (const Case& shape : cases) {
    ShowProgress(shape.name + ": making inputs");
    Result<Problem> problem = MakeProblem(shape, results.settings);
    if (!problem) return tl::unexpected(std::move(problem.error()));
    for (const Mode mode : kModes) {
      std::vector<double> best(counts.size(), kNever);
      std::vector<Bound> bounds;  // a plan is balanced for a number of workers, so each count has its own
      for (const int64_t threads : counts) {
        Settings settings = results.settings;
        settings.threads = threads;
        Result<Bound> bound = BindOurs(*problem, mode, settings);
        if (!bound) return tl::unexpected(std::move(bound.error()));
        bounds.push_back(std::move(*bound));
      }
      for (int64_t repeat = 0; repeat < results.settings.repeats; ++repeat) {
        for (size_t i = 0; i < counts.size(); ++i) {
          if (Status go = BeginStep(fmt::format("{} {}, {} of {}: {} threads", shape.name, ToText(mode), repeat + 1,
                                                results.settings.repeats, counts[i]));
              !go)
            return go;
          Result<Times> times = RunOurs(*problem, bounds[i], mode);
          if (!times) return tl::unexpected(std::move(times.error()));
          best[i] = std::min(best[i], times->total_s());
        }
      }
      ClearProgress();
      for (size_t i = 0; i < counts.size(); ++i) {
        const double speedup = best[0] / best[i];
        results.scaling.push_back({.name = shape.name,
                                   .mode = mode,
                                   .threads = counts[i],
                                   .seconds = best[i],
                                   .gflops = Flops(*problem, mode) / best[i] * 1e-9,
                                   .efficiency = speedup / static_cast<double>(counts[i])});
        const ScalingRow& row = results.scaling.back();
        fmt::print(people, "{:<31} {:<4} {:>7} {:>9.4f} {:>9.1f} {:>8.2f} {:>10.2f}\n", row.name, ShortName(mode),
                   row.threads, row.seconds, row.gflops, speedup, row.efficiency);
        std::fflush(people);
      }
    }
  }
  return {};
}

Status MeasureSparsity(FILE* people, Results& results) {
  constexpr int64_t kPercents[] = {100, 75, 50, 25, 10, 5};
  const int64_t tokens = results.settings.tokens > 0 ? results.settings.tokens : kTokens;
  fmt::print(
      people,
      "\nRandom full tiles of 256 at {} tokens, one head, D128, f32; time per surviving tile against all of them\n"
      "{:<4} {:>7} {:>7} {:>10} {:>10} {:>9}\n",
      tokens, "mode", "percent", "tiles", "seconds", "us/tile", "relative");
  std::vector<Problem> problems;
  for (const int64_t percent : kPercents) {
    const Case shape{.name = "random_tiles",
                     .mask = MaskKind::kRandomTiles,
                     .tokens = kTokens,
                     .heads = 1,
                     .kv_heads = 1,
                     .percent = percent};
    Result<Problem> problem = MakeProblem(shape, results.settings);
    if (!problem) return tl::unexpected(std::move(problem.error()));
    problems.push_back(std::move(*problem));
  }
  for (const Mode mode : kModes) {
    std::vector<double> best(problems.size(), kNever);
    std::vector<Bound> bounds;
    for (const Problem& problem : problems) {
      Result<Bound> bound = BindOurs(problem, mode, results.settings);
      if (!bound) return tl::unexpected(std::move(bound.error()));
      bounds.push_back(std::move(*bound));
    }
    for (int64_t repeat = 0; repeat < results.settings.repeats; ++repeat) {
      for (size_t i = 0; i < problems.size(); ++i) {
        if (Status go = BeginStep(fmt::format("{}% of tiles, {}, {} of {}", kPercents[i], ToText(mode), repeat + 1,
                                              results.settings.repeats));
            !go)
          return go;
        Result<Times> times = RunOurs(problems[i], bounds[i], mode);
        if (!times) return tl::unexpected(std::move(times.error()));
        best[i] = std::min(best[i], times->total_s());
      }
    }
    ClearProgress();
    double all = 0;
    for (size_t i = 0; i < problems.size(); ++i) {
      const int64_t tiles = std::max<int64_t>(problems[i].pairs / (int64_t{256} * 256), 1);
      const double per_tile = best[i] / static_cast<double>(tiles);
      if (i == 0) all = per_tile;
      results.sparsity.push_back({mode, kPercents[i], tiles, best[i], per_tile / all});
      fmt::print(people, "{:<4} {:>7} {:>7} {:>10.4f} {:>10.1f} {:>9.2f}\n", ShortName(mode), kPercents[i], tiles,
                 best[i], per_tile * 1e6, per_tile / all);
      std::fflush(people);
    }
  }
  return {};
}

}  // namespace tessera::bench
