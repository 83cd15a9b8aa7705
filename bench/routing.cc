// Routing benchmark: route + plan + attention forward on the CPU lane beside dense causal attention on the same lane,
// on inputs with structure to find (routing_inputs.h). docs/benchmarks.md says how to read it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "routing_inputs.h"
#include "tessera/tessera.h"

namespace tessera::bench {
namespace {

struct Settings {
  std::vector<int64_t> tokens = {32768, 131072};
  int64_t threads = 1;
  int64_t repeats = 3;
  int64_t dense_tiles = 16;
  int64_t mass_queries = 64;
  uint64_t seed = 1;
  bool json = false;
  std::string picks;
};

constexpr int64_t kQueryHeads = 8;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kDim = 128;
constexpr int64_t kTile = 256;

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void Say(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

TensorRef RefOf(const std::vector<float>& values, int64_t len) {
  auto* data = reinterpret_cast<std::byte*>(const_cast<float*>(values.data()));  // lanes only read inputs
  return {ElementType::kF32, data, static_cast<int64_t>(values.size()), len * kDim, kDim};
}

Contract MakeContract(int64_t q_len, int64_t kv_len, const char* mask) {
  Contract contract;
  contract.shape = {1, q_len, kv_len, kQueryHeads, kKvHeads, kDim, kDim, DType::kF32};
  contract.mask.heads = {*ParseMaskExpr(mask)};
  contract.mask.offset = kv_len - q_len;
  contract.score.scale = 1.0 / std::sqrt(static_cast<double>(kDim));
  return contract;
}

Contract RoutedContract(int64_t len, bool hierarchical) {
  Contract contract = MakeContract(len, len, "causal and blocks");
  contract.routing.emplace();
  contract.routing->hierarchical = hierarchical;
  return contract;
}

struct Parts {
  double route = 0;  // score, expand, unite, legalise
  double plan = 0;   // the other stages, and binding the plan
  double attention = 0;
  double total() const { return route + plan + attention; }
};

struct Row {
  int64_t tokens = 0;
  bool hierarchical = false;
  Parts best;
  std::vector<StageReport> stages;
  double dense = 0;  // of all query tiles, from those timed
  PicksReport picks;
  double recall = 0;
  double mass = 0;
  double exhaustive_mass = 0;
};

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings), target_(*FindTarget("cpu")) {
    target_.workers = settings.threads;
    options_.lane = "cpu";
    options_.threads = settings.threads;
  }

  Result<std::vector<Row>> Run(int64_t len) {
    Say(fmt::format("{} tokens: making inputs", len));
    tensors_ = MakeRoutingTensors(
        {.len = len, .num_q_heads = kQueryHeads, .num_kv_heads = kKvHeads, .dim = kDim, .seed = settings_.seed});
    out_.resize(static_cast<size_t>(kQueryHeads * len * kDim));
    lse_.resize(static_cast<size_t>(kQueryHeads * len));
    std::vector<Row> rows;
    for (const bool hierarchical : {false, true}) {
      Row row;
      row.tokens = len;
      row.hierarchical = hierarchical;
      rows.push_back(std::move(row));
    }
    double dense = 0;
    for (int64_t repeat = 0; repeat < settings_.repeats; ++repeat) {
      for (Row& row : rows) {
        if (Status ok = RunRouted(row); !ok) return tl::unexpected(ok.error());
        Say(fmt::format("  {}: routed{} {:.2f} s", repeat + 1, row.hierarchical ? " hierarchically" : "",
                        row.best.total()));
      }
      Result<double> seconds = RunDense(len);
      if (!seconds) return tl::unexpected(seconds.error());
      dense = repeat == 0 ? *seconds : std::min(dense, *seconds);
      Say(fmt::format("  {}: dense {:.1f} s, from {} query tiles", repeat + 1, dense, settings_.dense_tiles));
    }
    for (Row& row : rows) {
      row.dense = dense;
      if (Status ok = Measure(row); !ok) return tl::unexpected(ok.error());
    }
    return rows;
  }

 private:
  Status RunRouted(Row& row) {
    const Contract contract = RoutedContract(row.tokens, row.hierarchical);
    RunTensors tensors;
    tensors.q = RefOf(tensors_.q, row.tokens);
    tensors.k = RefOf(tensors_.k, row.tokens);
    tensors.v = RefOf(tensors_.v, row.tokens);
    tensors.o = RefOf(out_, row.tokens);
    tensors.lse = lse_;
    Result<Attention> attention = engine_.Prepare(contract, target_, options_);
    if (!attention) return tl::unexpected(attention.error());
    Parts parts;
    const Clock plan_clock;
    Result<PlanResult> made = attention->Plan({}, tensors.q, tensors.k);
    if (!made) return tl::unexpected(made.error());
    const Result<Bound> bound = attention->Bind(std::move(made->plan));
    if (!bound) return tl::unexpected(bound.error());
    parts.plan = plan_clock.seconds();
    const Clock call_clock;
    if (Status done = bound->Forward(tensors); !done) return done;
    parts.attention = call_clock.seconds();
    for (const StageReport& stage : made->stages) {
      for (const char* routing : {"score", "expand", "unite", "legalise"}) {
        if (stage.name != routing) continue;
        parts.route += Seconds(stage.ns);
        parts.plan -= Seconds(stage.ns);
      }
    }
    if (row.stages.empty() || parts.total() < row.best.total()) {
      row.best = parts;
      row.stages = made->stages;
    }
    row.picks = *made->picks_report;
    return {};
  }

  // Tiles of queries evenly spread over the rows, each against all keys it may see: their mean times all tiles.
  Result<double> RunDense(int64_t len) {
    double seconds = 0;
    const int64_t all_tiles = len / kTile;
    const int64_t timed = std::min(settings_.dense_tiles, all_tiles);
    for (int64_t i = 0; i < timed; ++i) {
      const int64_t tile = (2 * i + 1) * all_tiles / (2 * timed);
      const int64_t begin = tile * kTile;
      RunTensors tensors;
      const auto from = [&](TensorRef ref, int64_t token) {
        ref.data += token * kDim * static_cast<int64_t>(sizeof(float));
        return ref;
      };
      tensors.q = from(RefOf(tensors_.q, len), begin);
      tensors.k = RefOf(tensors_.k, len);
      tensors.v = RefOf(tensors_.v, len);
      tensors.o = from(RefOf(out_, len), begin);
      Result<Attention> attention = engine_.Prepare(MakeContract(kTile, begin + kTile, "causal"), target_, options_);
      if (!attention) return tl::unexpected(attention.error());
      Result<PlanResult> made = attention->Plan({});
      if (!made) return tl::unexpected(made.error());
      const Result<Bound> bound = attention->Bind(std::move(made->plan));
      if (!bound) return tl::unexpected(bound.error());
      const Clock clock;
      if (Status done = bound->Forward(tensors); !done) return tl::unexpected(done.error());
      seconds += clock.seconds();
    }
    return seconds * static_cast<double>(all_tiles) / static_cast<double>(timed);
  }

  Status Measure(Row& row) {
    RouteInputs inputs;
    inputs.q = RefOf(tensors_.q, row.tokens);
    inputs.k = RefOf(tensors_.k, row.tokens);
    Result<RouteResult> result = Route(RoutedContract(row.tokens, row.hierarchical), {}, inputs,
                                       {.plan = {}, .compare = true, .mass_queries = settings_.mass_queries});
    if (!result) return tl::unexpected(result.error());
    row.recall = *result->recall;
    row.mass = *result->mass_kept;
    row.exhaustive_mass = *result->exhaustive_mass_kept;
    return {};
  }

  Settings settings_;
  Engine engine_;
  Target target_;
  AttentionOptions options_;
  RoutingTensors tensors_;
  std::vector<float> out_;
  std::vector<float> lse_;
};

// Routes, and writes the picks as NumPy's [batch, q_len, num_kv_heads, top_n] of int32: for benches of other lanes.
Status WritePicks(const Settings& settings, int64_t len) {
  const RoutingTensors tensors = MakeRoutingTensors(
      {.len = len, .num_q_heads = kQueryHeads, .num_kv_heads = kKvHeads, .dim = kDim, .seed = settings.seed});
  const Clock clock;
  const Result<RouteResult> routed =
      Route(RoutedContract(len, true), {}, {.q = RefOf(tensors.q, len), .k = RefOf(tensors.k, len)});
  if (!routed) return tl::unexpected(routed.error());
  Say(fmt::format("{} tokens: routed in {:.2f} s on one thread, unions of {:.1f} blocks", len, clock.seconds(),
                  routed->report.mean_union));
  const Picks& picks = routed->picks;
  std::string head =
      fmt::format("{{'descr': '<i4', 'fortran_order': False, 'shape': ({}), }}", fmt::join(picks.shape, ", "));
  constexpr size_t kHeadBytes = 128;  // with the magic, the version and the length before it
  head.resize(kHeadBytes - 10, ' ');
  head.back() = '\n';
  std::ofstream out(settings.picks, std::ios::binary);
  out << std::string_view("\x93NUMPY\x01\x00\x76\x00", 10) << head;
  out.write(reinterpret_cast<const char*>(picks.blocks.data()), static_cast<int64_t>(picks.blocks.size() * 4));
  out.close();
  if (out.good()) return {};
  return tl::unexpected(Error{ErrorCode::kFileWrite, "cannot be written", settings.picks, {}});
}

// What a row is held to: {text, holds}.
struct Goal {
  std::string text;
  bool holds = false;
};
std::vector<Goal> GoalsOf(const Row& row, const std::vector<Row>& all) {
  std::vector<Goal> goals;
  const double ratio = row.dense / row.best.total();
  if (row.tokens == 32768) goals.push_back({"5x dense", ratio >= 5});
  if (row.tokens == 131072 && row.hierarchical) goals.push_back({"15x dense", ratio >= 15});
  const double share = (row.best.route + row.best.plan) / row.best.total();
  if (row.tokens == 32768) goals.push_back({"routing and planning 25 %", share <= 0.25});
  if (row.hierarchical) goals.push_back({"0.95 of exhaustive mass", row.mass >= 0.95 * row.exhaustive_mass});
  if (row.tokens == 131072 && row.hierarchical) {
    for (const Row& other : all) {
      if (other.tokens != 32768 || !other.hierarchical) continue;
      const double growth = row.best.total() / other.best.total();
      goals.push_back({fmt::format("6x of 32K (is {:.2f}x)", growth), growth <= 6});
    }
  }
  return goals;
}

std::string Table(const std::vector<Row>& rows, const Settings& settings) {
  std::string text = fmt::format(
      "causal, {} query and {} KV heads, D{}, f32, top 8 blocks of 256; forward, {} thread{}; dense from {} query "
      "tiles\n"
      "{:>7} {:<12} {:>8} {:>8} {:>10} {:>8} {:>9} {:>7} {:>6} {:>7} {:>7} {:>7} {:>7}\n",
      kQueryHeads, kKvHeads, kDim, settings.threads, settings.threads == 1 ? "" : "s", settings.dense_tiles, "tokens",
      "routing", "route s", "plan s", "attention", "all s", "dense s", "ratio", "share", "union", "recall", "mass",
      "of best");
  for (const Row& row : rows) {
    const double total = row.best.total();
    text += fmt::format(
        "{:>7} {:<12} {:>8.3f} {:>8.3f} {:>10.2f} {:>8.2f} {:>9.1f} {:>6.1f}x {:>5.0f}% {:>7.1f} {:>7.3f} "
        "{:>7.3f} {:>7.3f}\n",
        row.tokens, row.hierarchical ? "hierarchical" : "exhaustive", row.best.route, row.best.plan, row.best.attention,
        total, row.dense, row.dense / total, 100 * (row.best.route + row.best.plan) / total, row.picks.mean_union,
        row.recall, row.mass, row.mass / row.exhaustive_mass);
  }
  for (const Row& row : rows) {
    for (const Goal& goal : GoalsOf(row, rows)) {
      text += fmt::format("{} {}: {}: {}\n", row.tokens, row.hierarchical ? "hierarchical" : "exhaustive", goal.text,
                          goal.holds ? "yes" : "NO");
    }
  }
  return text;
}

nlohmann::json ToJson(const std::vector<Row>& rows, const Settings& settings) {
  nlohmann::json out = {{"threads", settings.threads}, {"seed", settings.seed}, {"rows", nlohmann::json::array()}};
  for (const Row& row : rows) {
    nlohmann::json stages = nlohmann::json::object();
    for (const StageReport& stage : row.stages) stages[stage.name] = stage.ns;
    nlohmann::json goals = nlohmann::json::object();
    for (const Goal& goal : GoalsOf(row, rows)) goals[goal.text] = goal.holds;
    out["rows"].push_back({{"tokens", row.tokens},
                           {"hierarchical", row.hierarchical},
                           {"route_s", row.best.route},
                           {"plan_s", row.best.plan},
                           {"attention_s", row.best.attention},
                           {"dense_s", row.dense},
                           {"mean_union", row.picks.mean_union},
                           {"recall", row.recall},
                           {"mass_kept", row.mass},
                           {"exhaustive_mass_kept", row.exhaustive_mass},
                           {"stages_ns", stages},
                           {"goals", goals}});
  }
  return out;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Routing benchmark: route + plan + attention against dense causal attention on the same lane.");
  app.add_option("--tokens", settings.tokens, "lengths, multiples of 256; several with commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 20));
  app.add_option("--threads", settings.threads)->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--repeats", settings.repeats, "runs of each, the best of which counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--dense-tiles", settings.dense_tiles, "query tiles that dense attention is timed on")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--mass", settings.mass_queries, "queries that attention mass is measured on")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", settings.seed, "of the inputs")->capture_default_str();
  app.add_option("--picks", settings.picks, "only route, the first length, and write the picks to this .npy file");
  app.add_flag("--json", settings.json, "one JSON document on standard output, text on standard error");
  CLI11_PARSE(app, argc, argv);
  if (!settings.picks.empty()) {
    const Status written = WritePicks(settings, settings.tokens.front());
    if (!written) Say(ToText(written.error()));
    return written ? 0 : 2;
  }
  std::vector<Row> rows;
  for (const int64_t len : settings.tokens) {
    if (len % kTile != 0) {
      Say(fmt::format("--tokens {}: expected a multiple of {}", len, kTile));
      return 2;
    }
    Result<std::vector<Row>> more = Bench(settings).Run(len);
    if (!more) {
      Say(ToText(more.error()));
      return 2;
    }
    rows.insert(rows.end(), more->begin(), more->end());
  }
  const std::string table = Table(rows, settings);
  std::fputs(table.c_str(), settings.json ? stderr : stdout);
  if (settings.json) std::printf("%s\n", ToJson(rows, settings).dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
