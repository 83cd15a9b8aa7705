// `tessera route`: which blocks of keys the queries of a routed contract pick, what that costs and what it keeps.
#include <fmt/format.h>

#include <memory>

#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  std::string out;
  int64_t query = -1;
  int64_t mass = 64;
  bool compare = true;
  bool json = false;
  bool progress = false;
};

constexpr const char* kFooter =
    "Nothing is attended here: `tessera run` routes the same way and goes on. The picks that --out writes are a batch "
    "for\nthe same contract without [routing].\n\n"
    "Examples:\n"
    "  tessera route examples/routed.toml\n"
    "  tessera route examples/routed.toml --seed 7 --query 4000 --out picks.json\n"
    "  tessera route model.toml --inputs qkv.safetensors --json";

std::string SettingsText(const Contract& contract) {
  const Shape& shape = contract.shape;
  std::string text = fmt::format("{} queries and {} keys, {} query and {} KV heads\n", Grouped(shape.q_len),
                                 Grouped(shape.kv_len), shape.num_q_heads, shape.num_kv_heads);
  if (!contract.routing) return text;
  const Routing& routing = *contract.routing;
  text += fmt::format("blocks of {} keys, {} per query; scored by means of {} keys, one every {}\n",
                      routing.selected_block, routing.top_n, routing.compression_block, routing.block_stride);
  if (routing.hierarchical) {
    text +=
        fmt::format("hierarchical: the best {} meta-blocks of {} means first\n", routing.meta_keep, routing.meta_ratio);
  }
  return text;
}

std::string PicksOf(const Picks& picks, int64_t query) {
  std::string text;
  for (int64_t b = 0; b < picks.shape[0]; ++b) {
    for (int64_t head = 0; head < picks.shape[2]; ++head) {
      text += fmt::format("query {}, batch row {}, KV head {}: blocks", query, b, head);
      const int64_t first = ((b * picks.shape[1] + query) * picks.shape[2] + head) * picks.shape[3];
      for (int64_t n = first; n < first + picks.shape[3]; ++n) {
        const int32_t block = picks.blocks[static_cast<size_t>(n)];
        if (block >= 0) text += fmt::format(" {}", block);
      }
      text += "\n";
    }
  }
  return text;
}

std::string ReportText(const RouteResult& result) {
  const PicksReport& report = result.report;
  std::string text = fmt::format("\npicks    {} of {} have a legal key", Grouped(report.kept), Grouped(report.picks));
  const auto add = [&](int64_t count, std::string_view why) {
    if (count > 0) text += fmt::format("; {} gone for {}", Grouped(count), why);
  };
  add(report.padding, "padding");
  add(report.documents, "documents");
  add(report.causality, "causality");
  add(report.window, "the window");
  add(report.other, "other terms");
  if (report.nan_scores > 0) text += fmt::format("; {} scores were NaN", Grouped(report.nan_scores));
  text += fmt::format("\nunions   a tile of queries needs {:.1f} blocks, at most {}; room for {}\n", report.mean_union,
                      report.widest_union, report.union_capacity);
  if (result.recall) text += fmt::format("recall   {:.4f} of what exhaustive scoring picks\n", *result.recall);
  if (result.mass_kept) {
    text += fmt::format("mass     {:.4f} of attention kept", *result.mass_kept);
    if (result.exhaustive_mass_kept) text += fmt::format(", by exhaustive picks {:.4f}", *result.exhaustive_mass_kept);
    text += "\n";
  }
  return text;
}

std::string ResultJson(const RouteResult& result, const Options& options) {
  std::vector<std::string> stages;
  for (const StageReport& stage : result.stages) {
    JsonObject object;
    stages.push_back(object.Text("name", stage.name).Int("ns", stage.ns).Text("summary", stage.summary).Done());
  }
  const PicksReport& report = result.report;
  JsonObject object;
  object.Text("source", report.source).Int("picks", report.picks).Int("kept", report.kept);
  object.Int("padding", report.padding).Int("documents", report.documents).Int("causality", report.causality);
  object.Int("window", report.window).Int("other", report.other).Int("nan_scores", report.nan_scores);
  object.Real("mean_union", report.mean_union).Int("widest_union", report.widest_union);
  object.Int("union_capacity", report.union_capacity);
  if (result.recall) object.Real("recall", *result.recall);
  if (result.mass_kept) object.Real("mass_kept", *result.mass_kept);
  if (result.exhaustive_mass_kept) object.Real("exhaustive_mass_kept", *result.exhaustive_mass_kept);
  if (options.query >= 0) object.Text("query", PicksOf(result.picks, options.query));
  return object.Raw("stages", JsonList(stages)).Done();
}

int RouteCommand(const Command& command, const Options& options) {
  auto problem = ReadProblem(options.problem);
  if (!problem) return Report(problem.error(), options.json);
  if (!problem->contract.routing) {
    const Status used = command.Refuse("a contract that does not route", {"--mass", "--no-compare"});
    if (!used) return Report(used.error(), options.json);
  }
  const int64_t q_len = problem->contract.shape.q_len;
  if (options.query >= q_len) {
    return Report(Error{ErrorCode::kBadArgument,
                        fmt::format("query {} is not one of 0..{}", options.query, q_len - 1),
                        "--query",
                        {}},
                  options.json);
  }
  auto result = [&] {
    const Progress progress("routing", options.progress);
    return RouteInputsOf(problem->contract, problem->inputs).and_then([&](const RouteInputs& route) {
      return Route(problem->contract, problem->batch, route,
                   {.plan = problem->options, .compare = options.compare, .mass_queries = options.mass});
    });
  }();
  if (!result) return Report(result.error(), options.json);
  if (!options.out.empty()) {
    Batch batch = problem->batch;
    batch.picks = result->picks;
    if (auto written = WriteFile(options.out, ToJson(batch) + "\n"); !written) {
      return Report(written.error(), options.json);
    }
  }
  std::string text = SettingsText(problem->contract) + "\nstage      time\n";
  for (const StageReport& stage : result->stages) {
    text += fmt::format("{:<10} {:>10}   {}\n", stage.name, Milliseconds(stage.ns), stage.summary);
  }
  text += ReportText(*result);
  if (options.query >= 0) text += PicksOf(result->picks, options.query);
  if (!options.out.empty()) text += fmt::format("wrote {}\n", options.out);
  if (!options.json) {
    Print(text);
    return kGood;
  }
  PrintError(text);
  Print(ResultJson(*result, options) + "\n");
  return kGood;
}

}  // namespace

void AddRoute(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("route", "Pick blocks of keys for a routed contract, and say what they keep");
  AddContract(*sub, options->problem.contract, ", with [routing] or with picks of the batch")->Required();
  AddBatchOptions(*sub, options->problem);
  AddRouteOptions(*sub, options->problem);
  sub->AddNumber("--query", options->query, {}, "Also print this query's picks")->TypeName("Q");
  sub->AddNumber("--mass", options->mass, {0, 1 << 20},
                 "Measure the attention mass kept on so many queries; 0 = do not")
      ->TypeName("N")
      ->ShowDefault();
  sub->AddFlag("!--no-compare", options->compare, "Do not score exhaustively to compare");
  sub->AddOption("--out", options->out, "Write the batch with these picks to this file")->Writes("F.json");
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] { action = [options, sub] { return RouteCommand(*sub, *options); }; });
}

}  // namespace tessera::program
