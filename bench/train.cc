// Training steps beside the same model in jitted JAX (bench/peers/train_jax.py): equal parameters, rows, optimizer and
// order of batches. `tiny` has the sizes of examples/tiny_code.toml, without its structure columns and on random bytes:
// what a step takes does not depend on what is learnt. Both run one after the other in one run, in turns, so that
// whoever else is on the machine disturbs both. The losses of both are compared: a peer that computes something else is
// no peer. The figure is the median step of the better turn, by the clock and by the time of all threads on cores,
// which a busy machine does not add to.
#include "tessera/train.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tessera/cpu_guard.h"
#include "tessera/io.h"
#include "tessera/model.h"

namespace tessera {
namespace {

struct Options {
  std::string python;
  std::string attention = "auto";
  std::string only;
  int64_t steps = 0;
  int64_t turns = 2;
  bool json = false;
};

struct Case {
  std::string name;
  ModelSpec spec;
  std::vector<int64_t> windows;  // of each mask, -1: none
  double mean_document = 0.0;    // tokens
  std::string goal;
  int64_t steps = 12;  // of a turn: dense attention of 4,096 tokens takes the peer seconds
};

std::vector<Case> Cases() {
  ModelSpec tiny;
  tiny.vocab = 256;
  tiny.layers = 2;
  tiny.width = 96;
  tiny.num_q_heads = 4;
  tiny.num_kv_heads = 4;
  tiny.head_dim = 24;
  tiny.mlp_width = 256;
  tiny.rows = 16;
  tiny.row_tokens = 256;
  ModelSpec packed = tiny;
  packed.layers = 4;
  packed.num_q_heads = 6;
  packed.num_kv_heads = 2;
  packed.head_dim = 16;
  packed.rows = 1;
  packed.row_tokens = 4096;
  packed.masks = {"causal and documents and window(511, 0)", "causal and documents and window(511, 0)",
                  "causal and documents and window(511, 0)", "causal and documents"};
  return {{"tiny", tiny, {-1}, 200.0, "must 1.0x, goal 2x"},
          {"packed documents, windows, 4,096 tokens", packed, {511, 511, 511, -1}, 700.0, "must 2x, goal 5x", 5}};
}

// Rows that are full but for their last document: random bytes of few kinds, so that there is something to learn.
PackedRows MakeRows(const Case& problem) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> lengths(std::log(problem.mean_document), 0.7);
  const int64_t width = problem.spec.row_tokens;
  DocumentSet set;
  while (set.token_begins.back() < 4 * problem.spec.rows * width) {
    Document document;
    document.tokens.resize(static_cast<size_t>(std::clamp(lengths(random), 8.0, static_cast<double>(width))));
    for (int32_t& token : document.tokens) token = static_cast<int32_t>(random() % 64 * (random() % 4) / 2);
    set.Add(document);
  }
  PackedRows rows;
  rows.Clear(width);
  const RowPlan plan = PlanRows(set, width, Packer::kBestFit);
  FillRows(set, plan, {0, plan.NumRows()}, 1, rows);
  return rows;
}

RowBatch BatchOf(const RowShard& shard, const ModelSpec& spec, int64_t step) {
  const int64_t first = (step - 1) * spec.rows % (shard.rows() - spec.rows + 1);
  RowBatch batch;
  ReadRows(shard, {first, first + spec.rows}, 1, batch);
  return batch;
}

constexpr double kLearningRate = 1e-3;

nlohmann::json SpecJson(const Case& problem) {
  const ModelSpec& spec = problem.spec;
  const OptimizerOptions optimizer;
  return {{"vocab", spec.vocab},
          {"layers", spec.layers},
          {"num_q_heads", spec.num_q_heads},
          {"num_kv_heads", spec.num_kv_heads},
          {"head_dim", spec.head_dim},
          {"rows", spec.rows},
          {"rope_base", spec.rope_base},
          {"norm_eps", spec.norm_eps},
          {"windows", problem.windows},
          {"beta1", optimizer.beta1},
          {"beta2", optimizer.beta2},
          {"eps", optimizer.eps},
          {"weight_decay", optimizer.weight_decay},
          {"clip_norm", optimizer.clip_norm}};
}

struct Timed {
  std::vector<double> losses;
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;  // of all threads of the process: what others on the machine do not add to
  std::string note;
};

// The middle one of the steps after the first two, which compile and warm up.
double Median(std::vector<double> seconds) {
  seconds.erase(seconds.begin(), seconds.begin() + std::min<int64_t>(2, static_cast<int64_t>(seconds.size()) - 1));
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)), people_(options_.json ? stderr : stdout) {}

  int Run() {
    for (const Case& problem : Cases()) {
      if (!options_.only.empty() && problem.name.rfind(options_.only, 0) != 0) continue;
      if (Status ran = RunCase(problem); !ran) {
        fmt::print(stderr, "{}: {}\n", problem.name, ToText(ran.error()));
        return 1;
      }
    }
    if (options_.json) fmt::print("{}\n", document_.dump(2));
    return 0;
  }

 private:
  int64_t StepsOf(const Case& problem) const { return options_.steps > 0 ? options_.steps : problem.steps; }

  Status RunCase(const Case& problem) {
    const std::string folder = Folder();
    const std::string shard_path = folder + "/rows.safetensors";
    PackOptions pack;
    pack.documents.row_tokens = problem.spec.row_tokens;
    if (Status ok = WriteFile(shard_path, ToShard(MakeRows(problem), pack)); !ok) return ok;
    auto shard = RowShard::Open(shard_path);
    if (!shard) return tl::unexpected(shard.error());
    int64_t tokens = 0;
    for (const int8_t mask : shard->loss_mask()) tokens += mask;
    const double step_tokens =
        static_cast<double>(tokens) * static_cast<double>(problem.spec.rows) / static_cast<double>(shard->rows());
    Timed ours;
    Timed peer;
    for (int64_t turn = 0; turn < options_.turns; ++turn) {
      if (Status ok = TimeOurs(problem, *shard, ours); !ok) return ok;
      if (!options_.python.empty()) TimePeer(problem, folder, shard_path, peer);
    }
    Tell(problem, ours, peer, step_tokens);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return {};
  }

  static std::string Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_bench_XXXXXX").string();
    return mkdtemp(name.data()) == nullptr ? "." : name;
  }

  static const Engine& TheEngine() {
    static const Engine& engine = *new Engine(OptionsFromEnvironment());
    return engine;
  }

  Status TimeOurs(const Case& problem, const RowShard& shard, Timed& timed) {
    TrainerOptions options;
    options.attention = options_.attention;
    options.seed = 1;
    auto trainer = Trainer::Create(TheEngine(), problem.spec, *FindTarget("cpu"), options);
    if (!trainer) return tl::unexpected(trainer.error());
    Timed turn;
    for (int64_t step = 1; step <= StepsOf(problem); ++step) {
      const RowBatch batch = BatchOf(shard, problem.spec, step);
      const RowBatch* one = &batch;
      const auto begin = std::chrono::steady_clock::now();
      const double cpu_begin = CpuSeconds();
      auto result = trainer->Step({&one, 1}, {kLearningRate, step});
      if (!result) return tl::unexpected(result.error());
      turn.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      turn.cpu_seconds.push_back(CpuSeconds() - cpu_begin);
      turn.losses.push_back(result->loss);
    }
    for (const Substitute& substitute : trainer->substitutes())
      if (substitute.key == "attention") turn.note = substitute.name;
    Keep(std::move(turn), timed);
    return {};
  }

  // Of several turns the faster one: noise only ever adds.
  static void Keep(Timed turn, Timed& timed) {
    if (timed.seconds.empty() || Median(turn.cpu_seconds) < Median(timed.cpu_seconds)) timed = std::move(turn);
  }

  void TimePeer(const Case& problem, const std::string& folder, const std::string& shard, Timed& timed) {
    nlohmann::json decayed = nlohmann::json::array();
    for (const ParameterInfo& info : ParametersOf(problem.spec))
      if (info.has_decay) decayed.push_back(info.name);
    const std::string parameters = folder + "/parameters.safetensors";
    const std::string file = folder + "/problem.json";
    const nlohmann::json text = {{"spec", SpecJson(problem)}, {"rows", shard},
                                 {"parameters", parameters},  {"decayed", decayed},
                                 {"steps", StepsOf(problem)}, {"learning_rate", kLearningRate}};
    if (!WriteSafetensors(parameters, InitialParameters(problem.spec, 1)) || !WriteFile(file, text.dump())) return;
    const std::string command = fmt::format("'{}' '{}' '{}'", options_.python, TESSERA_TRAIN_PEER_SCRIPT, file);
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return;
    std::string out;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out += static_cast<char>(c);
    ::pclose(pipe);
    const nlohmann::json answer = nlohmann::json::parse(out, nullptr, false);
    if (answer.is_discarded()) {
      fmt::print(stderr, "the peer failed: {}\n", out.substr(0, 400));
      return;
    }
    Keep({answer.at("losses"), answer.at("seconds"), answer.at("cpu_seconds"),
          "JAX " + answer.at("jax").get<std::string>()},
         timed);
  }

  void Side(const Timed& timed, double step_tokens) {
    fmt::print(people_, "  {:24} {:8.0f} tokens/s, {:.1f} ms a step, {:.1f} ms of cores\n", timed.note,
               step_tokens / Median(timed.seconds), 1e3 * Median(timed.seconds), 1e3 * Median(timed.cpu_seconds));
  }

  void Tell(const Case& problem, Timed ours, const Timed& peer, double step_tokens) {
    ours.note = "tessera, attention " + ours.note;
    fmt::print(people_, "{}: {} rows of {} tokens, {} layers, width {}\n", problem.name, problem.spec.rows,
               problem.spec.row_tokens, problem.spec.layers, problem.spec.width);
    Side(ours, step_tokens);
    nlohmann::json row = {{"name", problem.name},
                          {"tessera", ours.note},
                          {"tokens_per_s", step_tokens / Median(ours.seconds)},
                          {"cpu_s", Median(ours.cpu_seconds)}};
    if (!peer.seconds.empty()) {
      Side(peer, step_tokens);
      const double ratio = Median(peer.seconds) / Median(ours.seconds);
      const double cpu_ratio = Median(peer.cpu_seconds) / Median(ours.cpu_seconds);
      double worst = 0.0;
      for (size_t i = 0; i < ours.losses.size() && i < peer.losses.size(); ++i)
        worst = std::max(worst, std::abs(ours.losses[i] - peer.losses[i]));
      fmt::print(people_, "  ratio {:.2f}x by the clock, {:.2f}x by time on cores ({})\n", ratio, cpu_ratio,
                 problem.goal);
      fmt::print(people_, "  losses of {} steps differ by at most {:.1e} of {:.3f}\n", ours.losses.size(), worst,
                 ours.losses.back());
      row.update({{"peer", peer.note},
                  {"peer_tokens_per_s", step_tokens / Median(peer.seconds)},
                  {"peer_cpu_s", Median(peer.cpu_seconds)},
                  {"ratio", ratio},
                  {"cpu_ratio", cpu_ratio},
                  {"loss_difference", worst}});
    } else {
      fmt::print(people_, "  no peer: --python names a Python with JAX\n");
    }
    std::fflush(people_);
    document_["results"].push_back(row);
  }

  Options options_;
  FILE* people_;
  nlohmann::json document_;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::ReexecWithCpuGuard(argv);
  tessera::KeepFreedMemory();  // as `tessera train` does
  tessera::Options options;
  CLI::App app("Training steps beside the same model in jitted JAX.", "bench_train");
  const char* home = std::getenv("HOME");
  const std::string peers = std::string(home == nullptr ? "" : home) + "/.cache/tessera/peers/bin/python3";
  if (const char* given = std::getenv("TESSERA_PEER_PYTHON"); given != nullptr) {
    options.python = given;
  } else if (std::filesystem::exists(peers)) {
    options.python = peers;
  }
  app.add_option("--python", options.python, "A Python with JAX (default: TESSERA_PEER_PYTHON, else the peers')");
  app.add_option("--attention", options.attention, "What attention runs on")->capture_default_str();
  app.add_option("--only", options.only, "The case whose name begins so");
  app.add_option("--steps", options.steps, "Steps of each turn (default: the case's, 12 or 5)")
      ->check(CLI::Range(3, 10000));
  app.add_option("--turns", options.turns, "Turns of each")->check(CLI::Range(1, 100))->capture_default_str();
  app.add_flag("--json", options.json, "Print one JSON document");
  CLI11_PARSE(app, argc, argv);
  return tessera::Bench(options).Run();
}
