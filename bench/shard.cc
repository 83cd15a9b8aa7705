// What the collectives of a forward and a backward carry when tokens are cut over eight shards, in total and to the
// device that receives most, against an all-gather of keys and values (and a reduce-scatter of their gradients in f32).
// Bytes are read from programs that XLA compiled for as many CPU devices, each collective times its trips for the
// batch; nothing is run, so that lengths may be those of large machines.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "checked.h"
#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/pjrt/find_plugins.h"
#include "shard/context_program.h"
#include "shard/pod_model.h"
#include "shard_time.h"
#include "tessera/cpu_guard.h"

namespace tessera {
namespace {

using bench::Checked;

constexpr int64_t kShards = 8;
constexpr int64_t kTile = 256;
constexpr int64_t kLong = 131072;
constexpr double kPodEfficiency = 0.5;  // assumed of a chip's products: no kernel of ours was timed on one

struct PodTable {
  const char* mask = "";
  std::vector<shard::PodCost> costs;
};

struct Settings {
  int64_t batches = 1000;
  uint64_t seed = 20261118;
  int64_t time_tokens = 0;  // of the row that is run and timed; 0: none is
  int64_t repeats = 5;
  bool only_time = false;
  int64_t shards = kShards;    // that are timed
  std::string documents = {};  // a file for the lengths of the documents that are timed
  bool has_json = false;
};

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

// What the collectives of one pass carried, of an all-gather's bytes, for each batch.
struct Carried {
  std::vector<double> total;
  std::vector<double> largest;  // the device that received most, of what an all-gather gives one
  double Mean() const { return std::accumulate(total.begin(), total.end(), 0.0) / static_cast<double>(total.size()); }
  double Worst() const { return *std::max_element(total.begin(), total.end()); }
  double Largest() const { return *std::max_element(largest.begin(), largest.end()); }
};

// Both passes, each compiled once for a contract, cut and exchange; planned for every batch.
class Case {
 public:
  Case(pjrt::Client& client, const std::string& mask, int64_t tokens, CutForm form, Exchange exchange)
      : client_(client),
        planner_(Checked(
            ContextPlanner::Make(ContractOf(mask, tokens), Checked(FindTarget("v6e")), OptionsOf(form, exchange)))) {}

  void Add(const Batch& batch) {
    const auto start = std::chrono::steady_clock::now();
    const ContextPlan plan = Checked(planner_.Plan(batch));
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::map<std::string, pjrt::OptionValue> quickly = {{"xla_backend_optimization_level", int64_t{0}}};
    for (const shard::ContextPass pass : {shard::ContextPass::kForward, shard::ContextPass::kBackward}) {
      std::optional<shard::ContextRunner>& runner = runners_[static_cast<size_t>(pass)];
      if (!runner) runner = Checked(shard::ContextRunner::Make(client_, plan, quickly, pass));
      Count(plan, pass, Checked(runner->Carried(plan)));
    }
    const stablehlo::ContextSpec& spec = runners_[0]->spec();
    if (!(Checked(shard::ContextSpecOf(plan)).local == spec.local)) ++other_classes_;
    int64_t needed = 0;
    for (const auto& target : plan.needs) {
      for (const auto& source : target) needed += static_cast<int64_t>(source.size());
    }
    const Shape& s = plan.contract.shape;
    const int64_t tile_bytes = kTile * s.num_kv_heads * (s.dim_qk + s.dim_v) * BytesOf(s.dtype);
    needed_.push_back(static_cast<double>(needed * tile_bytes) /
                      static_cast<double>(plan.BytesOf(Exchange::kAllGather).total));
    balances_.push_back(plan.TileBalance());
    pair_balances_.push_back(plan.PairBalance());
  }

  const Carried& forward() const { return carried_[0]; }
  const Carried& backward() const { return carried_[1]; }
  double Needed() const { return Most(needed_); }
  double Balance() const { return Most(balances_); }
  double PairBalance() const { return Most(pair_balances_); }
  double MillisecondsEach() const { return seconds_ * 1e3 / static_cast<double>(balances_.size()); }
  int64_t other_classes() const { return other_classes_; }

 private:
  void Count(const ContextPlan& plan, shard::ContextPass pass, const std::vector<shard::CarriedCollective>& carried) {
    int64_t bytes = 0;
    for (const shard::CarriedCollective& one : carried) bytes += one.bytes_per_trip * one.trips;
    const std::vector<int64_t> received = shard::ReceivedBytes(carried, plan.shards);
    // A backward gathers halves again and gives f32 back.
    const double passes = pass == shard::ContextPass::kForward ? 1.0 : 3.0;
    const double all = passes * static_cast<double>(plan.BytesOf(Exchange::kAllGather).total);
    Carried& out = carried_[static_cast<size_t>(pass)];
    out.total.push_back(static_cast<double>(bytes) / all);
    out.largest.push_back(static_cast<double>(*std::max_element(received.begin(), received.end())) * kShards / all);
  }

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
  ContextPlanner planner_;
  std::array<std::optional<shard::ContextRunner>, 2> runners_;
  std::array<Carried, 2> carried_;
  int64_t other_classes_ = 0;
  double seconds_ = 0;
  std::vector<double> needed_, balances_, pair_balances_;
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
  std::optional<double> must = {};
  std::optional<double> goal = {};
  std::optional<double> largest = {};  // of bytes: the device that received most
};

// A pass's bytes, and what the device that received most had of what an all-gather gives it.
void AddBytes(std::vector<Line>& lines, const std::string& what, const Case& of, std::optional<double> must,
              std::optional<double> goal) {
  lines.push_back({what, "bytes", of.forward().Mean(), must, goal, of.forward().Largest()});
  lines.push_back({what, "bytes of the backward", of.backward().Mean(), {}, {}, of.backward().Largest()});
}

std::string NumberOr(std::optional<double> value, const char* none) {
  return value ? fmt::format("{:.4g}", *value) : none;
}

void PrintJson(const std::vector<Line>& lines, const std::vector<PodTable>& pods) {
  std::string text;
  for (const Line& line : lines) {
    text += fmt::format(
        "{}    {{\"what\": \"{}\", \"figure\": \"{}\", \"value\": {:.6f}, \"must\": {}, \"goal\": {}, "
        "\"largest_device\": {}, \"is_met\": {}}}",
        text.empty() ? "" : ",\n", line.what, line.figure, line.value, NumberOr(line.must, "null"),
        NumberOr(line.goal, "null"), NumberOr(line.largest, "null"),
        line.must ? (line.value <= *line.must ? "true" : "false") : "null");
  }
  std::string models;
  for (const PodTable& table : pods) {
    for (const shard::PodCost& cost : table.costs) {
      models += fmt::format(
          "{}    {{\"mask\": \"{}\", \"chips\": {}, \"slices\": {}, \"tokens\": {}, \"compute_ms\": {:.4f}, "
          "\"allgather_ms\": {:.4f}, \"sparse_ms\": {:.4f}, \"heads_ms\": {}}}",
          models.empty() ? "" : ",\n", table.mask, cost.chips, cost.slices, cost.tokens, cost.compute_s * 1e3,
          cost.allgather.seconds * 1e3, cost.sparse.seconds * 1e3,
          cost.heads ? fmt::format("{:.4f}", cost.heads->seconds * 1e3) : "null");
    }
  }
  fmt::print(
      "{{\n  \"rows\": [\n{}\n  ],\n  \"pods\": {{\"is_a_model\": true, \"efficiency\": {}, \"rows\": [\n{}\n  "
      "]}}\n}}\n",
      text, kPodEfficiency, models);
}

void Print(const std::vector<Line>& lines) {
  fmt::print("| what | figure | measured | largest device | must | | goal | |\n|---|---|---|---|---|---|---|---|\n");
  const auto verdict = [](double value, std::optional<double> bound) {
    return !bound ? "" : value <= *bound ? "yes" : "NO";
  };
  for (const Line& line : lines) {
    fmt::print("| {} | {} | {:.4f} | {} | {} | {} | {} | {} |\n", line.what, line.figure, line.value,
               NumberOr(line.largest, ""), NumberOr(line.must, ""), verdict(line.value, line.must),
               NumberOr(line.goal, ""), verdict(line.value, line.goal));
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

std::vector<PodTable> ModelsOfPods() {
  const ChipFigures chip = *ChipFiguresOf("v6e");
  std::vector<PodTable> tables;
  for (const int64_t window : {4095, 0}) {
    const shard::PodQuestion question{
        .shape = ContractOf("causal", 16384).shape, .window = window, .efficiency = kPodEfficiency};
    tables.push_back({window > 0 ? "window(4095, 0)" : "causal, zigzag",
                      shard::ModelPods(chip, question, {16, 64, 256, 1024, 4096})});
  }
  return tables;
}

void PrintPods(const std::vector<PodTable>& tables) {
  const ChipFigures chip = *ChipFiguresOf("v6e");
  fmt::print(
      "\nA model of v6e pods, not a measurement: {:.0f} TFLOP/s and {:.0f} GB/s of links for each chip, {:.0f} % of "
      "the "
      "first reached (assumed, not measured); links join {} chips, and {:.1f} GB/s of network for each chip join what "
      "is beyond. A forward of 16,384 tokens on each chip, ms of the chip that has most, nothing overlapped.\n"
      "| mask | chips | slices | tokens | compute | all-gather | sparse | heads | compute's share with the cheapest |\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      chip.flops * 1e-12, chip.link_bytes * 1e-9, 100 * kPodEfficiency, chip.slice_chips, chip.network_bytes * 1e-9);
  for (const PodTable& table : tables) {
    for (const shard::PodCost& cost : table.costs) {
      fmt::print("| {} | {} | {} | {} | {:.1f} | {:.1f} | {:.2f} | {} | {:.3f} |\n", table.mask, cost.chips,
                 cost.slices, cost.tokens, cost.compute_s * 1e3, cost.allgather.seconds * 1e3,
                 cost.sparse.seconds * 1e3,
                 cost.heads ? fmt::format("{:.2f}", cost.heads->seconds * 1e3) : "no: 8 key heads",
                 cost.compute_s / (cost.compute_s + cost.LeastSeconds()));
    }
  }
}

// Where no exchange but an all-gather is left: heads cannot be shared, and a sparse one would carry more than 0.6.
// How often something else is taken, and 1 where there was no such case.
double WrongAbove(const std::vector<ContextPlan>& plans) {
  int64_t cases = 0;
  int64_t wrong = 0;
  for (const ContextPlan& plan : plans) {
    fmt::print(stderr, "{}\n", plan.reason);
    const double share = static_cast<double>(plan.BytesOf(Exchange::kSparse).total) /
                         static_cast<double>(plan.BytesOf(Exchange::kAllGather).total);
    if (share <= 0.6) continue;
    ++cases;
    if (plan.exchange != Exchange::kAllGather) ++wrong;
  }
  return static_cast<double>(cases == 0 ? 1 : wrong);
}

ContextPlan PlannedWithOneKeyHead(const std::string& mask, const Batch& batch, CutForm form) {
  Contract contract = ContractOf(mask, kLong / 2);
  contract.shape.num_kv_heads = 1;
  ContextOptions options;
  options.shards = kShards;
  options.form = form;
  options.plan.tile = TileSize{kTile, kTile};
  return Checked(PlanContext(contract, batch, Checked(FindTarget("v6e")), options));
}

// What eight devices of the CPU take, against the lane that is not sharded.
void AddTimes(const Settings& settings, std::vector<Line>& lines) {
  const bench::ShardTimes how{.tokens = settings.time_tokens,
                              .shards = settings.shards,
                              .seed = settings.seed,
                              .repeats = settings.repeats,
                              .documents = settings.documents};
  for (const bench::ShardTime& time : bench::TimeShards(how)) {
    lines.push_back({time.what, fmt::format("time, {} devices over 1", settings.shards), time.ratio, 1.3, 1.1});
    fmt::print(stderr, "{}\n", time.about);
  }
}

void RunAll(const Settings& settings) {
  std::vector<Line> timed;
  if (settings.only_time) {
    AddTimes(settings, timed);
    return settings.has_json ? PrintJson(timed, {}) : Print(timed);
  }
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
  AddBytes(lines, "window(4095, 0), 128K", window, 0.04, 0.03125);
  lines.push_back({"window(4095, 0), 128K", "largest shard", window.Balance(), 1.05, 1.02});
  const Batch even = EvenDocuments(random);
  const std::string documents = "causal and documents";
  AddBytes(lines, "64 even documents, 128K, as given", once(documents, kLong, kContiguous, kSparse, even), 0.05, 0.0);
  const Case placed = once(documents, kLong, kReordered, kSparse, even);
  AddBytes(lines, "64 even documents, 128K, reordered", placed, 0.0, 0.0);
  lines.push_back({"64 even documents, 128K, reordered", "largest shard", placed.Balance(), 1.05, 1.02});
  for (const bool has_window : {false, true}) {
    Case heavy(client, documents + (has_window ? " and window(1023, 0)" : ""), kLong, kReordered, kSparse);
    for (int64_t i = 0; i < settings.batches; ++i) heavy.Add(HeavyDocuments(random));
    const std::string what = fmt::format("heavy documents{}, 128K, {} batches, mean",
                                         has_window ? " and window(1023, 0)" : "", settings.batches);
    AddBytes(lines, what, heavy, has_window ? 0.04 : 0.25, has_window ? 0.015 : 0.15);
    lines.push_back({what,
                     "worst bytes",
                     heavy.forward().Worst(),
                     {},
                     has_window ? std::nullopt : std::optional(0.40),
                     heavy.forward().Largest()});
    lines.push_back({what, "largest shard, worst batch", heavy.Balance(), 1.05, {}});
    lines.push_back({what, "batches of another class", static_cast<double>(heavy.other_classes()), 0.0, 0.0});
    fmt::print(stderr, "{}: planned in {:.1f} ms each; pairs of the largest shard at worst {:.3f}\n", what,
               heavy.MillisecondsEach(), heavy.PairBalance());
  }
  const int64_t half = kLong / 2;
  AddBytes(lines, "causal 64K, contiguous", once("causal", half, kContiguous, kSparse, {}), 0.55, 0.50);
  AddBytes(lines, "causal 64K, zigzag", once("causal", half, kZigzag, kSparse, {}), 0.80, 0.75);
  AddBytes(lines, "causal 64K, heads (8, g = 1)", once("causal", half, kContiguous, kHeads, {}), 0.25, 0.25);
  std::vector<ContextPlan> alone;
  for (const auto& [name, kind] : {std::pair("uniform", PickKind::kUniform), std::pair("local", PickKind::kLocal),
                                   std::pair("zipf", PickKind::kZipf)}) {
    const Batch picked = PickedBlocks(random, kind, half, 8);
    const Case routed = once("causal and blocks", half, kContiguous, kSparse, picked);
    AddBytes(lines, fmt::format("routed, {} picks, 64K", name), routed, routed.Needed() * 1.10, routed.Needed() * 1.02);
    alone.push_back(PlannedWithOneKeyHead("causal and blocks", PickedBlocks(random, kind, half, 1), kContiguous));
  }
  alone.push_back(PlannedWithOneKeyHead("causal", {}, kZigzag));
  lines.push_back({"one key head, 64K", "no all-gather above 0.6", WrongAbove(alone), 0.0, 0.0});
  if (settings.time_tokens > 0) AddTimes(settings, lines);
  const std::vector<PodTable> pods = ModelsOfPods();
  if (settings.has_json) return PrintJson(lines, pods);
  Print(lines);
  PrintPods(pods);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::ReexecWithCpuGuard(argv);
  tessera::Settings settings;
  CLI::App app(
      "What the collectives of a forward and a backward carry over eight shards, against an all-gather of keys and "
      "values.");
  app.add_option("--batches", settings.batches, "batches of documents with heavy tails")->check(CLI::Range(1, 100000));
  app.add_option("--seed", settings.seed, "of the documents");
  app.add_option("--time", settings.time_tokens, "also run rows of so many tokens on eight devices, against one")
      ->check(CLI::Range(2048, 1 << 20));
  app.add_flag("--only-time", settings.only_time, "with --time: nothing else");
  app.add_option("--shards", settings.shards, "with --time: on so many devices")->check(CLI::Range(2, 64));
  app.add_option("--documents", settings.documents, "with --time: write the lengths of its documents to this file");
  app.add_option("--repeats", settings.repeats, "of what is timed")->check(CLI::Range(1, 100));
  app.add_flag("--json", settings.has_json, "one JSON document");
  CLI11_PARSE(app, argc, argv);
  tessera::RunAll(settings);
  return 0;
}
