// How fast documents become rows and rows batches, beside a plain NumPy packer and the way of Hugging Face's datasets
// in the same run, where a Python with NumPy is there. The figure is the best of many runs, because noise only ever
// adds; what one thread does, the peers too, is timed by the thread's own time on a core, whoever else is on the
// machine.
#include "tessera/rows.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>

#include "tessera/io.h"
#include "tessera/row_batch.h"

namespace tessera {
namespace {

constexpr int64_t kRowTokens = 8192;
constexpr int64_t kBatchRows = 64;
constexpr int64_t kColumnsOfLines = 5;                // enriched columns of the lines that are parsed
constexpr int64_t kTokensOfLines = int64_t{1} << 19;  // 11 MB of lines, about what the packer reads at once
constexpr double kStepSeconds = 0.02;                 // of a caller's work between two batches

double Now(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double BestSeconds(double seconds, int64_t threads, const std::function<void()>& call) {
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const double start = Now(CLOCK_MONOTONIC);
  double best = INFINITY;
  while (std::isinf(best) || Now(CLOCK_MONOTONIC) - start < seconds) {
    const double begin = Now(clock);
    call();
    best = std::min(best, Now(clock) - begin);
  }
  return best;
}

// Lengths as files of source have them: many short, a few as long as a row.
DocumentSet MakeDocuments(int64_t tokens, size_t num_columns) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> lengths(6.8, 1.0);
  DocumentSet set;
  Document document;
  while (set.token_begins.back() < tokens) {
    const auto length = static_cast<size_t>(std::clamp(lengths(random), 8.0, static_cast<double>(kRowTokens)));
    document.tokens.resize(length);
    for (int32_t& token : document.tokens) token = static_cast<int32_t>(1 + random() % 65535);
    for (size_t c = 0; c < num_columns; ++c) {
      document.columns[c].resize(length);
      for (size_t i = 0; i < length; ++i) document.columns[c][i] = document.tokens[i] % 9;
    }
    document.chunks.clear();
    for (size_t at = 0; num_columns > 0 && at < length; at += 200) {
      const auto end = static_cast<int32_t>(std::min(length, at + 200));
      document.chunks.push_back({static_cast<int32_t>(at), end, static_cast<int32_t>(at % 9), 1});
    }
    set.Add(document);
  }
  return set;
}

std::string ToLines(const DocumentSet& set) {
  std::string text;
  for (int64_t i = 0; i < set.Size(); ++i) {
    const Document document = set.Get(i);
    text += fmt::format("{{\"tokens\": [{}]", fmt::join(document.tokens, ", "));
    for (size_t c = 0; c < size_t{kColumnsOfLines}; ++c)
      text += fmt::format(", \"{}\": [{}]", TokenColumns()[c].name, fmt::join(document.columns[c], ", "));
    text += "}\n";
  }
  return text;
}

class Report {
 public:
  explicit Report(bool json) : people_(json ? stderr : stdout) {}
  void Line(const std::string& name, double value, const std::string& unit, const std::string& goal) {
    fmt::print(people_, "{:48} {:10.1f} {:12} {}\n", name, value, unit, goal);
    std::fflush(people_);
    document_["results"].push_back({{"name", name}, {"value", value}, {"unit", unit}});
  }
  void Note(const std::string& text) { fmt::print(people_, "{}\n", text); }
  const nlohmann::json& document() const { return document_; }

 private:
  FILE* people_;
  nlohmann::json document_;
};

void TimePacking(int64_t tokens, double seconds, Report& report) {
  for (const size_t columns : {size_t{0}, kNumTokenColumns}) {
    const DocumentSet set = MakeDocuments(tokens, columns);
    PackedRows rows;
    for (const int64_t threads : {1, 2}) {
      for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
        const double best = BestSeconds(seconds, threads, [&] {
          rows.Clear(kRowTokens);
          const RowPlan plan = PlanRows(set, kRowTokens, packer);
          FillRows(set, plan, {0, plan.NumRows()}, threads, rows);
        });
        const double filled =
            100.0 * static_cast<double>(set.tokens.size()) / static_cast<double>(rows.rows * kRowTokens);
        const char* goal = threads == 2 && packer == Packer::kGreedy ? (columns == 0 ? "goal 200" : "goal 60") : "";
        report.Line(fmt::format("pack {} columns, {}, {} threads ({:.1f} % full)", columns + 4, ToText(packer), threads,
                                filled),
                    static_cast<double>(set.tokens.size()) / best / 1e6, "M tokens/s", goal);
      }
    }
  }
}

void TimeLines(double seconds, Report& report) {
  const std::string text = ToLines(MakeDocuments(kTokensOfLines, size_t{kColumnsOfLines}));
  for (const int64_t threads : {1, 2}) {
    DocumentOptions options;
    options.threads = threads;
    const double best = BestSeconds(seconds, threads, [&] {
      auto set = ParseDocuments(text, "bench", options);
      if (!set) std::abort();
    });
    report.Line(fmt::format("JSONL, 5 enriched columns, {} threads", threads),
                static_cast<double>(text.size()) / best / 1e6, "MB/s", threads == 1 ? "goal 200" : "");
  }
}

// How long a caller waits for a batch that was read while it worked.
Status TimeWaiting(const std::string& path, Report& report) {
  using Clock = std::chrono::steady_clock;
  auto loader = RowLoader::Open({path, path, path, path, path}, {.batch_rows = kBatchRows, .threads = 1});
  if (!loader) return tl::unexpected(loader.error());
  std::vector<double> waits;
  while (true) {
    const auto begin = Clock::now();
    auto batch = loader->Next();
    if (!batch) return tl::unexpected(batch.error());
    if (*batch == nullptr) break;
    const auto end = Clock::now();
    waits.push_back(std::chrono::duration<double>(end - begin).count());
    while (std::chrono::duration<double>(Clock::now() - end).count() < kStepSeconds) {
    }
  }
  std::sort(waits.begin(), waits.end());
  report.Line("wait for such a batch after 20 ms of work, median", 1e3 * waits[waits.size() / 2], "ms", "");
  return {};
}

Status TimeBatches(double seconds, Report& report) {
  const DocumentSet set = MakeDocuments(4 * kBatchRows * kRowTokens, kNumTokenColumns);
  PackedRows rows;
  rows.Clear(kRowTokens);
  const RowPlan plan = PlanRows(set, kRowTokens, Packer::kGreedy);
  FillRows(set, plan, {0, plan.NumRows()}, 2, rows);
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("bench_rows_{}.safetensors", ::getpid())).string();
  if (Status ok = WriteFile(path, ToShard(rows, {})); !ok) return ok;
  auto shard = RowShard::Open(path);
  const Status waited = TimeWaiting(path, report);
  std::filesystem::remove(path);
  if (!shard) return tl::unexpected(shard.error());
  if (!waited) return waited;
  RowBatch batch;
  int64_t first = 0;
  for (const int64_t threads : {1, 2}) {
    const double best = BestSeconds(seconds, threads, [&] {
      ReadRows(*shard, {first, first + kBatchRows}, threads, batch);
      first = first + 2 * kBatchRows <= shard->rows() ? first + kBatchRows : 0;
    });
    report.Line(fmt::format("batch of 64 x 8192 from a mapped shard, {} threads", threads), 1e3 * best, "ms", "goal 5");
  }
  std::vector<int8_t> masks;
  const double best = BestSeconds(seconds, 2, [&] { RelationMasks(*shard, {0, kBatchRows}, 2, masks); });
  report.Line("relation masks of that batch, 2 threads", 1e3 * best, "ms", "");
  return {};
}

void TimePeers(const std::string& python, int64_t tokens, double seconds, Report& report) {
  const std::string command =
      fmt::format("'{}' '{}' {} {} {} 2>/dev/null", python, TESSERA_ROWS_PEER_SCRIPT, tokens, kRowTokens, seconds);
  FILE* pipe = ::popen(command.c_str(), "r");
  char name[64] = {};
  int columns = 0;
  double speed = 0;
  int lines = 0;
  while (pipe != nullptr && std::fscanf(pipe, "%63s %d %lf", name, &columns, &speed) == 3) {
    report.Line(fmt::format("{} packs {} columns", name, columns), speed, "M tokens/s", "");
    ++lines;
  }
  if (pipe != nullptr) ::pclose(pipe);
  if (lines == 0) report.Note(fmt::format("no peers: {} has no NumPy (--python names one that has)", python));
}

int Main(int argc, char** argv) {
  CLI::App app("Documents to rows, and rows to batches", "bench_rows");
  double seconds = 2;
  int64_t tokens = int64_t{1} << 23;
  std::string python = "python3";
  bool json = false;
  app.add_option("--seconds", seconds, "how long each is repeated");
  app.add_option("--tokens", tokens, "how many are packed");
  app.add_option("--python", python, "a Python that has NumPy, for the peers");
  app.add_flag("--json", json, "print one JSON document");
  CLI11_PARSE(app, argc, argv);
  Report report(json);
  TimePacking(tokens, seconds, report);
  TimeLines(seconds, report);
  if (Status ok = TimeBatches(seconds, report); !ok) {
    fmt::print(stderr, "{}\n", ToText(ok.error()));
    return 2;
  }
  TimePeers(python, tokens, seconds, report);
  if (json) fmt::print("{}\n", report.document().dump(1));
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
