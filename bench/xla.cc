// How fast the lane xla_chunked is beside dense attention built with the same builder and run on the same plugin; the
// memory of both; how time follows the tiles that survive; what a call through the lane adds to its PJRT calls.
// docs/benchmarks.md says how to read it.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "tessera/cpu_guard.h"
#include "xla/results.h"

namespace tessera::bench {
namespace {

struct Options {
  XlaBenchSettings settings;
  std::vector<std::string> sections{"all"};
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  script/bench xla                                   everything: some minutes\n"
    "  script/bench xla --section overhead,memory         what runs no dense attention\n"
    "  script/bench xla --tokens 2048 --section table     a quick look; the goals are meant for 8192\n"
    "  TESSERA_PJRT_PLUGIN=/path/plugin.so script/bench xla";

Status Measure(const Options& options, FILE* people, XlaResults& results) {
  const auto wants = [&](const char* section) {
    return std::any_of(options.sections.begin(), options.sections.end(),
                       [&](const std::string& name) { return name == section || name == "all"; });
  };
  results.settings = options.settings;
  lanes::xla::Session session;
  const Decision decision = XlaState().clients.Open(results.settings.xla, TargetKind::kCpu, &session);
  if (!decision.accepted) {
    return Fail(ErrorCode::kPluginUnusable, fmt::format("{}: {}", ReasonText(decision.reason), decision.detail));
  }
  results.plugin = lanes::xla::UseOf(session);
  fmt::print(people, "{:%Y-%m-%d}, {}, PJRT {}, StableHLO {}, device {}\n", fmt::gmtime(std::time(nullptr)),
             results.plugin.platform, results.plugin.pjrt, results.plugin.stablehlo, results.plugin.name);
  if (wants("table")) {
    if (Status done = MeasureMatmul(session, results); !done) return done;
    if (Status done = MeasureTable(session, people, results); !done) return done;
  }
  if (wants("memory")) {
    if (Status done = MeasureMemory(session, people, results); !done) return done;
  }
  if (wants("sparsity")) {
    if (Status done = MeasureSparsity(people, results); !done) return done;
  }
  if (wants("overhead")) {
    if (Status done = MeasureOverhead(session, people, results); !done) return done;
  }
  return {};
}

int Main(int argc, char** argv) {
  CLI::App app{"XLA benchmark: the lane beside dense attention on the same plugin, best of several runs.", "bench_xla"};
  app.footer(kFooter);
  Options options;
  app.add_option("--section", options.sections, "table, memory, sparsity, overhead or all; several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"table", "memory", "sparsity", "overhead", "all"}))
      ->capture_default_str();
  app.add_option("--tokens", options.settings.tokens, "of the table and the sparsity section; a multiple of 512")
      ->check(CLI::Range(int64_t{512}, int64_t{1} << 17))
      ->capture_default_str();
  app.add_option("--repeats", options.settings.repeats, "runs of each after one to warm up; the best counts")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  app.add_option("--calls", options.settings.calls, "of the overhead section, whose medians count")
      ->check(CLI::Range(int64_t{1}, int64_t{100000}))
      ->capture_default_str();
  app.add_option("--seed", options.settings.seed, "of the inputs and random masks")->capture_default_str();
  app.add_flag("--json", options.json, "one JSON document on standard output, text on standard error");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.settings.tokens % 512 != 0) {
    Say(fmt::format("--tokens {}: expected a multiple of 512", options.settings.tokens));
    return 2;
  }
  options.settings.xla.plugin = OurEngine().options().plugin;
  FILE* people = options.json ? stderr : stdout;
  XlaResults results;
  if (Status done = Measure(options, people, results); !done) {
    Say(fmt::format("bench_xla: {}", ToText(done.error())));
    return 2;
  }
  fmt::print(people, "\n");
  for (const XlaGoal& goal : GoalsOf(results)) {
    if (!goal.holds) fmt::print(people, "not met: {}\n", goal.text);
  }
  if (options.json) fmt::print("{}", ToJson(results));
  const bool agrees = std::all_of(results.table.begin(), results.table.end(),
                                  [](const XlaTableRow& row) { return row.difference.agrees; });
  return agrees ? 0 : 1;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::ReexecWithCpuGuard(argv);  // before anything else: docs/xla.md
  return tessera::bench::Main(argc, argv);
}
