// How long planning takes: the four cases we hold ourselves to, how the cost per surviving tile grows, and exports
// beside the planners of JAX Splash, Tokamax and FlexAttention in the same run, where they are installed.
//
// A timed plan is a cold one: contract keys, the class, both directions and the packed bytes, from a parsed contract
// and a batch in memory. One thread. The figure is the best of many runs, because noise only ever adds.
#include "tessera/planner.h"

#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tessera/engine.h"
#include "tessera/export.h"

namespace {

int64_t g_live_bytes = 0;
int64_t g_peak_bytes = 0;

// A size in front of every block; 16 bytes keep the alignment new promises.
constexpr size_t kFront = 16;

void* Counted(size_t size) {
  auto* block = static_cast<char*>(std::malloc(size + kFront));
  if (block == nullptr) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(block) = size;
  g_live_bytes += static_cast<int64_t>(size);
  g_peak_bytes = std::max(g_peak_bytes, g_live_bytes);
  return block + kFront;
}

void Uncount(void* pointer) noexcept {
  if (pointer == nullptr) return;
  char* block = static_cast<char*>(pointer) - kFront;
  g_live_bytes -= static_cast<int64_t>(*reinterpret_cast<size_t*>(block));
  std::free(block);
}

}  // namespace

void* operator new(size_t size) { return Counted(size); }
void* operator new[](size_t size) { return Counted(size); }
void operator delete(void* pointer) noexcept { Uncount(pointer); }
void operator delete[](void* pointer) noexcept { Uncount(pointer); }
void operator delete(void* pointer, size_t) noexcept { Uncount(pointer); }
void operator delete[](void* pointer, size_t) noexcept { Uncount(pointer); }

namespace tessera {
namespace {

struct PlannerCase {
  std::string name;
  int64_t tokens = 0;
  std::string mask;
  int64_t tile = 256;
  int64_t documents = 0;  // of random length; 0 = the mask has none
  double limit_ms = 0;    // 0 = printed for scale only
};

// Both directions of one mask in a library's arrays.
struct ExportCase {
  Library library = Library::kSplash;
  PlannerCase mask;
  std::string peer_mask;     // what the peer script calls it; empty = the library could not hold its mask at all
  bool stores_tiles = true;  // with documents: baked, or skipped with no tile stored and at the class's capacities
};

// Says on standard error which case is being timed: some take a minute, and results wait for their table.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total) {}
  void Begin(const std::string& what) {
    fmt::print(stderr, "[{}/{}] timing {}\n", ++begun_, total_, what);
    std::fflush(stderr);
  }

 private:
  size_t total_;
  size_t begun_ = 0;
};

struct Measured {
  double best_ms = 0;
  int64_t tiles = 0;
  int64_t plan_bytes = 0;
  int64_t peak_bytes = 0;
};

std::vector<PlannerCase> HeldCases() {
  return {
      {"64K causal+window 4096, tile 512", 65536, "causal and window(4095, 0)", 512, 0, 0.15},
      {"64K causal, tile 512", 65536, "causal", 512, 0, 0.5},
      {"128K causal+window 4096, tile 128", 131072, "causal and window(4095, 0)", 128, 0, 1.0},
      {"1M, 1000 documents, causal+window 4096, tile 256", 1 << 20, "causal and window(4095, 0) and documents", 256,
       1000, 2.0},
  };
}

std::vector<PlannerCase> GrowthCases() {
  std::vector<PlannerCase> cases;
  for (const int64_t tokens : {65536, 131072, 262144, 524288, 1048576}) {
    cases.push_back({fmt::format("{}K causal+window 4096, tile 256", tokens / 1024), tokens,
                     "causal and window(4095, 0)", 256, 0, 0});
  }
  return cases;
}

std::vector<ExportCase> ExportCases() {
  const std::string window = "causal and window(4095, 0)";
  return {
      {Library::kSplash, {"64K causal+window 4096, tile 512", 65536, window, 512}, "window"},
      {Library::kSplash, {"64K causal, tile 512", 65536, "causal", 512}, "causal"},
      {Library::kTokamax, {"64K causal+window 4096, tile 512", 65536, window, 512}, "window"},
      {Library::kTokamax, {"64K causal, tile 512", 65536, "causal", 512}, "causal"},
      {Library::kFlex, {"16K causal+window 4096, tile 128", 16384, window, 128}, "window"},
      {Library::kFlex, {"16K causal, tile 128", 16384, "causal", 128}, "causal"},
      {Library::kSplash,
       {"1M, 1000 documents, no tile stored, window 4096, tile 512", 1 << 20, window + " and documents", 512, 1000, 10},
       "",
       false},
      {Library::kTokamax,
       {"1M, 1000 documents, no tile stored, window 4096, tile 512", 1 << 20, window + " and documents", 512, 1000},
       "",
       false},
      {Library::kSplash,
       {"1M, 1000 documents baked, window 4096, tile 512", 1 << 20, window + " and documents", 512, 1000},
       ""},
  };
}

Batch MakeDocuments(const PlannerCase& planner_case) {
  Batch batch;
  if (planner_case.documents == 0) return batch;
  std::mt19937_64 rng(7);
  std::vector<int64_t> cuts{0, planner_case.tokens};
  while (static_cast<int64_t>(cuts.size()) < planner_case.documents + 1) {
    cuts.push_back(static_cast<int64_t>(rng() % static_cast<uint64_t>(planner_case.tokens)));
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  }
  IdRows ids{1, planner_case.tokens, {}};
  for (size_t d = 0; d + 1 < cuts.size(); ++d) {
    ids.values.insert(ids.values.end(), static_cast<size_t>(cuts[d + 1] - cuts[d]), static_cast<int32_t>(d));
  }
  batch.doc_ids = std::move(ids);
  return batch;
}

Result<Contract> MakeContract(const PlannerCase& planner_case) {
  return ParseContract(fmt::format("version = 1\n[shape]\nq_len = {}\ndim_qk = 128\n[mask]\nexpr = \"{}\"\n",
                                   planner_case.tokens, planner_case.mask));
}

Result<Measured> Measure(const PlannerCase& planner_case, double seconds) {
  Result<Contract> contract = MakeContract(planner_case);
  if (!contract) return tl::unexpected(std::move(contract.error()));
  const Batch batch = MakeDocuments(planner_case);
  Target target;
  target.name = "one core";
  AttentionOptions options;
  options.plan.tile = TileSize{planner_case.tile, planner_case.tile};
  // As a training step does it: prepared once, planned for each batch.
  Result<Attention> attention = Engine().Prepare(*contract, target, options);
  if (!attention) return tl::unexpected(std::move(attention.error()));
  Measured measured;
  measured.best_ms = 1e9;
  const auto start = std::chrono::steady_clock::now();
  for (int run = 0; run < 3 || std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds);
       ++run) {
    const int64_t before = g_live_bytes;
    g_peak_bytes = before;
    const auto begin = std::chrono::steady_clock::now();
    Result<PlanResult> made = attention->Plan(batch);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (!made) return tl::unexpected(std::move(made.error()));
    measured.best_ms = std::min(measured.best_ms, took.count());
    measured.peak_bytes = g_peak_bytes - before;
    measured.tiles = static_cast<int64_t>(made->plan.view().Of(Direction::kForward).slots.size());
    measured.plan_bytes = static_cast<int64_t>(made->plan.bytes().size());
  }
  return measured;
}

Result<double> MeasureExport(const ExportCase& export_case, double seconds) {
  Result<Contract> contract = MakeContract(export_case.mask);
  if (!contract) return tl::unexpected(std::move(contract.error()));
  const Batch batch = MakeDocuments(export_case.mask);
  ExportOptions options{.to = export_case.library, .tile = TileSize{export_case.mask.tile, export_case.mask.tile}};
  if (export_case.mask.documents > 0) {
    options.segments = export_case.stores_tiles ? Segments::kBaked : Segments::kSkip;
    options.fixed_shapes = !export_case.stores_tiles;
  }
  options.dynamic_grid = export_case.library == Library::kTokamax;
  double best_ms = 1e9;
  const auto start = std::chrono::steady_clock::now();
  for (int run = 0; run < 3 || std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds);
       ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (const Direction direction : {Direction::kForward, Direction::kDkv}) {
      if (export_case.library == Library::kFlex && direction == Direction::kDkv) continue;  // in the forward's arrays
      options.direction = direction;
      Result<Export> made = MakeExport(*contract, batch, options);
      if (!made) return tl::unexpected(std::move(made.error()));
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    best_ms = std::min(best_ms, took.count());
  }
  return best_ms;
}

bool HasPeer(const std::string& python, const ExportCase& export_case) {
  return !export_case.peer_mask.empty() && !python.empty();
}

// Seconds the library itself needs for the same mask, its cache cleared; negative when it is not installed.
double PeerSeconds(const std::string& python, const ExportCase& export_case) {
  if (!HasPeer(python, export_case)) return -1;
  const std::string command =
      fmt::format("'{}' '{}' {} {} {} {} 2>/dev/null", python, TESSERA_PEER_SCRIPT, ToText(export_case.library),
                  export_case.peer_mask, export_case.mask.tokens, export_case.mask.tile);
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return -1;
  std::array<char, 64> line{};
  double seconds = -1;
  if (std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr) seconds = std::atof(line.data());
  return ::pclose(pipe) == 0 && seconds > 0 ? seconds : -1;
}

// Ours and theirs, both directions, in one run. Returns whether any library was there to be timed.
Result<bool> ReportExports(const std::string& python, double seconds, FILE* people, Progress& progress, bool& held,
                           nlohmann::ordered_json& document) {
  bool timed = false;
  // A loop over batches keeps its memory. Left alone, glibc gives the arrays of a million tokens back after every call,
  // and their page faults would be most of what is timed.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 25);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 28);
  fmt::print(people, "\n{:<8} {:<58} {:>10} {:>9} {:>10} {:>9}\n", "export", "case", "best ms", "limit ms", "theirs s",
             "ratio");
  for (const ExportCase& export_case : ExportCases()) {
    progress.Begin(fmt::format("export to {}: {}", ToText(export_case.library), export_case.mask.name));
    Result<double> best_ms = MeasureExport(export_case, seconds);
    if (!best_ms) return tl::unexpected(std::move(best_ms.error()));
    if (HasPeer(python, export_case)) {
      progress.Begin(fmt::format("{} itself: {}", ToText(export_case.library), export_case.mask.name));
    }
    const double peer = PeerSeconds(python, export_case);
    timed = timed || peer >= 0;
    const double limit_ms = export_case.mask.limit_ms;
    held = held && (limit_ms == 0 || *best_ms <= limit_ms);
    fmt::print(people, "{:<8} {:<58} {:>10.4f} {:>9} {:>10} {:>9}\n", ToText(export_case.library),
               export_case.mask.name, *best_ms, limit_ms == 0 ? "-" : fmt::format("{:.2f}", limit_ms),
               peer < 0 ? "-" : fmt::format("{:.2f}", peer),
               peer < 0 ? "-" : fmt::format("{:.0f}x", peer * 1e3 / *best_ms));
    std::fflush(people);
    document["exports"].push_back({{"library", std::string(ToText(export_case.library))},
                                   {"case", export_case.mask.name},
                                   {"best_ms", *best_ms},
                                   {"limit_ms", limit_ms},
                                   {"library_s", peer < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(peer)}});
  }
  return timed;
}

int Main(int argc, char** argv) {
  CLI::App app{"Planner benchmark: one core, best of many, forward + transposed + packed."};
  bool json = false;
  double seconds = 0.5;
  std::string python = "python3";
  bool no_peer = false;
  app.add_flag("--json", json, "one JSON document on standard output");
  app.add_option("--seconds", seconds, "how long to repeat each case");
  app.add_option("--python", python, "the Python that has JAX, Tokamax or PyTorch (script/setup --peers makes one)");
  app.add_flag("--no-peer", no_peer, "do not time the libraries' planners beside ours");
  CLI11_PARSE(app, argc, argv);
  if (no_peer) python.clear();

  nlohmann::ordered_json document;
  bool held = true;
  FILE* people = json ? stderr : stdout;
  size_t num_timed = HeldCases().size() + GrowthCases().size();
  for (const ExportCase& export_case : ExportCases()) num_timed += HasPeer(python, export_case) ? 2 : 1;
  Progress progress(num_timed);
  fmt::print(people, "{:<50} {:>10} {:>9} {:>9} {:>8} {:>10} {:>9}\n", "case", "best ms", "limit ms", "tiles",
             "ns/tile", "plan KiB", "peak/plan");
  const auto report = [&](const PlannerCase& planner_case, const char* group) -> Status {
    progress.Begin("plan: " + planner_case.name);
    Result<Measured> measured = Measure(planner_case, seconds);
    if (!measured) return tl::unexpected(std::move(measured.error()));
    const double ns_per_tile = measured->best_ms * 1e6 / static_cast<double>(std::max<int64_t>(measured->tiles, 1));
    const double peak = static_cast<double>(measured->peak_bytes) / static_cast<double>(measured->plan_bytes);
    held = held && (planner_case.limit_ms == 0 || measured->best_ms <= planner_case.limit_ms);
    fmt::print(people, "{:<50} {:>10.4f} {:>9} {:>9} {:>8.1f} {:>10.1f} {:>9.2f}\n", planner_case.name,
               measured->best_ms, planner_case.limit_ms == 0 ? "-" : fmt::format("{:.2f}", planner_case.limit_ms),
               measured->tiles, ns_per_tile, static_cast<double>(measured->plan_bytes) / 1024, peak);
    std::fflush(people);
    document[group].push_back({{"case", planner_case.name},
                               {"best_ms", measured->best_ms},
                               {"limit_ms", planner_case.limit_ms},
                               {"tiles", measured->tiles},
                               {"ns_per_tile", ns_per_tile},
                               {"plan_bytes", measured->plan_bytes},
                               {"peak_over_plan", peak}});
    return {};
  };
  Status ok;
  for (const PlannerCase& planner_case : HeldCases()) {
    if (ok) ok = report(planner_case, "held");
  }
  for (const PlannerCase& planner_case : GrowthCases()) {
    if (ok) ok = report(planner_case, "growth");
  }
  if (!ok) {
    fmt::print(stderr, "bench_planner: {}\n", ToText(ok.error()));
    return 2;
  }
  double low = 1e300;
  double high = 0;
  for (const auto& row : document["growth"]) {
    low = std::min(low, row["ns_per_tile"].get<double>());
    high = std::max(high, row["ns_per_tile"].get<double>());
  }
  document["growth_ratio"] = high / low;
  fmt::print(people, "\ncost per surviving tile from 64K to 1M varies {:.2f}x (must stay within 1.5x)\n", high / low);
  const Result<bool> timed = ReportExports(python, seconds, people, progress, held, document);
  if (!timed) {
    fmt::print(stderr, "bench_planner: {}\n", ToText(timed.error()));
    return 2;
  }
  if (!*timed) {
    fmt::print(people, "\nno library was timed: {}\n",
               no_peer ? "--no-peer" : python + " has none of them (script/setup --peers, then --python)");
  }
  document["limits_held"] = held;
  fmt::print(people, "\nlimits {}\n", held ? "held" : "MISSED");
  if (json) fmt::print("{}\n", document.dump(2));
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
