// What the collectives of a forward and a backward carry when tokens are cut over eight shards, against an all-gather
// of keys and values (and a reduce-scatter of their gradients in f32). Bytes are read from programs that XLA compiled
// for as many CPU devices, each collective times its trips for the batch; nothing is run, so that lengths may be those
// of large machines.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "shard/context_program.h"
#include "tessera/cpu_guard.h"

namespace tessera {
namespace {

constexpr int64_t kShards = 8;
constexpr int64_t kTile = 256;
constexpr int64_t kLong = 131072;

struct Settings {
  int64_t batches = 1000;
  uint64_t seed = 20261118;
  bool has_json = false;
};

template <class T>
T Checked(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "bench_shard: {}\n", ToText(result.error()));
  std::exit(2);
}

Contract ContractOf(const std::string& mask, int64_t tokens) {
  Contract contract;
  contract.shape = {.batch = 1,
                    .q_len = tokens,
                    .kv_len = tokens,
                    .num_q_heads = 8,
                    .num_kv_heads = 8,
                    .dim_qk = 128,
                    .dim_v = 128,
                    .dtype = DType::kBf16};
  contract.mask.heads = {Checked(ParseMaskExpr(mask))};
  contract.score.scale = 0.088;
  return contract;
}

// Compiled once for a contract, cut and exchange; planned for every batch.
class Case {
 public:
  Case(pjrt::Client& client, const std::string& mask, int64_t tokens, CutForm form, Exchange exchange,
       shard::ContextPass pass = shard::ContextPass::kForward)
      : client_(client),
        pass_(pass),
        planner_(Checked(
            ContextPlanner::Make(ContractOf(mask, tokens), Checked(FindTarget("v6e")), OptionsOf(form, exchange)))) {}

  void Add(const Batch& batch) {
    const auto start = std::chrono::steady_clock::now();
    const ContextPlan plan = Checked(planner_.Plan(batch));
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!runner_) {
      runner_ =
          Checked(shard::ContextRunner::Make(client_, plan, {{"xla_backend_optimization_level", int64_t{0}}}, pass_));
      spec_ = runner_->spec();
    } else if (!(Checked(shard::ContextSpecOf(plan)).local == spec_.local)) {
      ++other_classes_;
    }
    int64_t bytes = 0;
    for (const shard::CarriedCollective& one : Checked(runner_->Carried(plan))) bytes += one.bytes_per_trip * one.trips;
    // A backward gathers halves again and gives f32 back.
    const double passes = pass_ == shard::ContextPass::kForward ? 1.0 : 3.0;
    const double all = passes * static_cast<double>(plan.BytesOf(Exchange::kAllGather).total);
    shares_.push_back(static_cast<double>(bytes) / all);
    largest_.push_back(static_cast<double>(plan.BytesOf(plan.exchange).largest) * kShards * passes / all);
    int64_t needed = 0;
    for (const auto& target : plan.needs) {
      for (const auto& source : target) needed += static_cast<int64_t>(source.size());
    }
    const Shape& s = plan.contract.shape;
    const int64_t tile_bytes = kTile * s.num_kv_heads * (s.dim_qk + s.dim_v) * BytesOf(s.dtype);
    needed_.push_back(static_cast<double>(needed * tile_bytes) * passes / all);
    balances_.push_back(plan.TileBalance());
    pair_balances_.push_back(plan.PairBalance());
  }

  double Mean() const {
    return std::accumulate(shares_.begin(), shares_.end(), 0.0) / static_cast<double>(shares_.size());
  }
  double Worst() const { return Most(shares_); }
  double Needed() const { return Most(needed_); }
  double Balance() const { return Most(balances_); }
  double PairBalance() const { return Most(pair_balances_); }
  double Largest() const { return Most(largest_); }
  double MillisecondsEach() const { return seconds_ * 1e3 / static_cast<double>(shares_.size()); }
  int64_t other_classes() const { return other_classes_; }

 private:
  static double Most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }
  static ContextOptions OptionsOf(CutForm form, Exchange exchange) {
    ContextOptions options;
    options.shards = kShards;
    options.form = form;
    options.exchange = exchange;
    options.plan.tile = TileSize{kTile, kTile};
    return options;
  }

  pjrt::Client& client_;
  shard::ContextPass pass_;
  ContextPlanner planner_;
  std::optional<shard::ContextRunner> runner_;
  stablehlo::ContextSpec spec_;
  int64_t other_classes_ = 0;
  double seconds_ = 0;
  std::vector<double> shares_, largest_, needed_, balances_, pair_balances_;
};

Batch EvenDocuments(std::mt19937_64& random) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 64; ++i) lengths.push_back(32 + 64 * i);
  for (size_t i = lengths.size(); i > 1; --i) std::swap(lengths[i - 1], lengths[random() % i]);
  Batch batch;
  batch.doc_lengths = IntRows{lengths};
  return batch;
}

// Lognormal with mean 2048 and sigma 1.2; the last one ends with the row.
Batch HeavyDocuments(std::mt19937_64& random) {
  std::lognormal_distribution<double> draw(std::log(2048.0) - 0.5 * 1.2 * 1.2, 1.2);
  std::vector<int32_t> lengths;
  for (int64_t left = kLong; left > 0;) {
    const int64_t length = std::min(left, std::max<int64_t>(1, static_cast<int64_t>(draw(random))));
    lengths.push_back(static_cast<int32_t>(length));
    left -= length;
  }
  Batch batch;
  batch.doc_lengths = IntRows{lengths};
  return batch;
}

// Eight blocks of 256 keys for every 256 queries, one set for all heads: any of those before, near ones more often, or
// a few for everybody.
enum class PickKind : uint8_t { kUniform, kLocal, kZipf };
Batch PickedBlocks(std::mt19937_64& random, PickKind kind, int64_t tokens, int64_t heads) {
  constexpr int64_t kPicks = 8;
  const int64_t blocks = tokens / kTile;
  Picks picks{.block_tokens = kTile, .shape = {1, blocks, heads, kPicks}, .blocks = {}};
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  for (int64_t row = 0; row < blocks; ++row) {
    std::vector<int32_t> chosen = {static_cast<int32_t>(row)};
    for (int tries = 0; tries < 1000 && static_cast<int64_t>(chosen.size()) < std::min(kPicks, row + 1); ++tries) {
      int64_t block = static_cast<int64_t>(unit(random) * static_cast<double>(row + 1));
      if (kind == PickKind::kLocal) {
        block = row - static_cast<int64_t>(-std::log(1.0 - unit(random)) * 24.0);
      } else if (kind == PickKind::kZipf) {
        block = static_cast<int64_t>(std::pow(static_cast<double>(row + 1), unit(random))) - 1;
      }
      if (block < 0 || block > row) continue;
      const auto number = static_cast<int32_t>(block);
      if (std::find(chosen.begin(), chosen.end(), number) == chosen.end()) chosen.push_back(number);
    }
    chosen.resize(kPicks, -1);
    for (int64_t head = 0; head < heads; ++head) {
      picks.blocks.insert(picks.blocks.end(), chosen.begin(), chosen.end());
    }
  }
  Batch batch;
  batch.picks = std::move(picks);
  return batch;
}

struct Line {
  std::string what;
  std::string figure;
  double value = 0;
  double must = 0;
  double goal = 0;
};

void Print(const std::vector<Line>& lines, bool has_json) {
  if (has_json) {
    std::string text;
    for (const Line& line : lines) {
      text += fmt::format(
          "{}  {{\"what\": \"{}\", \"figure\": \"{}\", \"value\": {:.6f}, \"must\": {}, \"goal\": {}, \"is_met\": {}}}",
          text.empty() ? "" : ",\n", line.what, line.figure, line.value, line.must, line.goal, line.value <= line.must);
    }
    fmt::print("[\n{}\n]\n", text);
    return;
  }
  fmt::print("| what | figure | measured | must | | goal | |\n|---|---|---|---|---|---|---|\n");
  for (const Line& line : lines) {
    fmt::print("| {} | {} | {:.4f} | {:.4g} | {} | {:.4g} | {} |\n", line.what, line.figure, line.value, line.must,
               line.value <= line.must ? "yes" : "NO", line.goal, line.value <= line.goal ? "yes" : "NO");
  }
}

pjrt::Client& MakeClient() {
  std::string path;
  const char* own = std::getenv("TESSERA_XLA");
  const char* home = std::getenv("HOME");
  const std::string folder = own != nullptr ? own : std::string(home != nullptr ? home : "") + "/.cache/tessera/xla";
  for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(folder)) {
    if (found.name.rfind("xla-cpu-pjrt", 0) == 0) path = found.path;
  }
  if (path.empty()) {
    fmt::print(stderr, "bench_shard: no CPU plugin in {}; script/setup --xla installs it\n", folder);
    std::exit(2);
  }
  const pjrt::Plugin* plugin = Checked(pjrt::Plugin::Load(path));
  static const std::unique_ptr<pjrt::Client> client = Checked(pjrt::Client::Create(*plugin, {.cpu_devices = kShards}));
  return *client;
}

void RunAll(const Settings& settings) {
  pjrt::Client& client = MakeClient();
  std::mt19937_64 random(settings.seed);
  std::vector<Line> lines;
  const auto once = [&](const std::string& mask, int64_t tokens, CutForm form, Exchange exchange, const Batch& batch) {
    Case one(client, mask, tokens, form, exchange);
    one.Add(batch);
    return one;
  };
  using enum CutForm;
  using enum Exchange;
  const Case window = once("window(4095, 0)", kLong, kContiguous, kSparse, {});
  lines.push_back({"window(4095, 0), 128K", "bytes", window.Mean(), 0.04, 0.03125});
  lines.push_back({"window(4095, 0), 128K", "largest shard", window.Balance(), 1.05, 1.02});
  const Batch even = EvenDocuments(random);
  const std::string documents = "causal and documents";
  lines.push_back({"64 even documents, 128K, as given", "bytes",
                   once(documents, kLong, kContiguous, kSparse, even).Mean(), 0.05, 0.05});
  const Case placed = once(documents, kLong, kReordered, kSparse, even);
  lines.push_back({"64 even documents, 128K, reordered", "bytes", placed.Mean(), 0, 0});
  lines.push_back({"64 even documents, 128K, reordered", "largest shard", placed.Balance(), 1.05, 1.02});
  for (const bool has_window : {false, true}) {
    Case heavy(client, documents + (has_window ? " and window(1023, 0)" : ""), kLong, kReordered, kSparse);
    for (int64_t i = 0; i < settings.batches; ++i) heavy.Add(HeavyDocuments(random));
    const std::string what =
        fmt::format("heavy documents{}, 128K, {} batches", has_window ? " and window(1023, 0)" : "", settings.batches);
    lines.push_back({what, "mean bytes", heavy.Mean(), has_window ? 0.04 : 0.25, has_window ? 0.015 : 0.15});
    lines.push_back({what, "worst bytes", heavy.Worst(), has_window ? 0.04 : 0.40, has_window ? 0.04 : 0.40});
    lines.push_back({what, "largest shard, worst batch", heavy.Balance(), 1.05, 1.05});
    lines.push_back({what, "batches of another class", static_cast<double>(heavy.other_classes()), 0, 0});
    fmt::print(stderr,
               "{}: planned in {:.1f} ms each; pairs of the largest shard at worst {:.3f}, received by one device at "
               "worst {:.3f} of what an all-gather gives it\n",
               what, heavy.MillisecondsEach(), heavy.PairBalance(), heavy.Largest());
  }
  lines.push_back(
      {"causal 64K, contiguous", "bytes", once("causal", kLong / 2, kContiguous, kSparse, {}).Mean(), 0.55, 0.50});
  lines.push_back({"causal 64K, zigzag", "bytes", once("causal", kLong / 2, kZigzag, kSparse, {}).Mean(), 0.80, 0.75});
  lines.push_back(
      {"causal 64K, heads (8, g = 1)", "bytes", once("causal", kLong / 2, kContiguous, kHeads, {}).Mean(), 0.25, 0.25});
  Case back(client, "window(4095, 0)", kLong, kContiguous, kSparse, shard::ContextPass::kBackward);
  back.Add({});
  lines.push_back({"window(4095, 0), 128K, backward", "bytes", back.Mean(), 0.04, 0.03125});
  Case heavy_back(client, documents, kLong, kReordered, kSparse, shard::ContextPass::kBackward);
  for (int64_t i = 0; i < settings.batches; ++i) heavy_back.Add(HeavyDocuments(random));
  lines.push_back({fmt::format("heavy documents, 128K, {} batches, backward", settings.batches), "mean bytes",
                   heavy_back.Mean(), 0.25, 0.15});
  int64_t wrong_choices = 0;
  for (const auto& [name, kind] : {std::pair("uniform", PickKind::kUniform), std::pair("local", PickKind::kLocal),
                                   std::pair("zipf", PickKind::kZipf)}) {
    const Batch picked = PickedBlocks(random, kind, kLong / 2, 8);
    const Case routed = once("causal and blocks", kLong / 2, kContiguous, kSparse, picked);
    const std::string what = fmt::format("routed, {} picks, 64K", name);
    lines.push_back({what, "bytes", routed.Mean(), routed.Needed() * 1.10, routed.Needed() * 1.02});
    ContextOptions free;
    free.shards = kShards;
    free.form = kContiguous;
    free.plan.tile = TileSize{kTile, kTile};
    const ContextPlan chosen =
        Checked(PlanContext(ContractOf("causal and blocks", kLong / 2), picked, Checked(FindTarget("v6e")), free));
    fmt::print(stderr, "{}: {}\n", what, chosen.reason);
    const double share =
        static_cast<double>(chosen.BytesOf(kSparse).total) / static_cast<double>(chosen.BytesOf(kAllGather).total);
    if (share > 0.6 && chosen.exchange == kSparse) ++wrong_choices;
  }
  lines.push_back({"routed, 64K", "sparse taken above 0.6", static_cast<double>(wrong_choices), 0, 0});
  Print(lines, settings.has_json);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::ReexecWithCpuGuard(argv);
  tessera::Settings settings;
  CLI::App app("What the collectives of a forward carry over eight shards, against an all-gather of keys and values.");
  app.add_option("--batches", settings.batches, "batches of documents with heavy tails")->check(CLI::Range(1, 100000));
  app.add_option("--seed", settings.seed, "of the documents");
  app.add_flag("--json", settings.has_json, "one JSON document");
  CLI11_PARSE(app, argc, argv);
  tessera::RunAll(settings);
  return 0;
}
