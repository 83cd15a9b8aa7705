// How fast attention runs on this machine's processor: named cases with what they must reach, beside PyTorch and ONNX
// Runtime in the same run; how it scales with threads; how its time follows the tiles that survive; what a public call
// adds to the lane. docs/benchmarks.md says what is measured and how to read it.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cpu/results.h"

namespace tessera::bench {
namespace {

struct Options {
  Settings settings;
  std::vector<std::string> cases;
  std::vector<std::string> sections{"table"};
  int64_t threads = 0;  // 0 = one; in the scaling section as many as there are
  bool quick = false;
  bool json = false;
  bool peers = false;
  bool list = false;
  std::string python;
  std::string plot;
};

constexpr int64_t kQuickTokens = 1024;
constexpr const char* kFooter =
    "Examples:\n"
    "  script/bench cpu                                  our own figures and the roof\n"
    "  script/bench cpu --peers                          also PyTorch and ONNX Runtime, installed when missing\n"
    "  script/bench cpu --quick --peers --plot cpu.svg   at 1024 tokens, with a picture\n"
    "  script/bench cpu --cases causal --repeats 20      the cases whose names begin so\n"
    "  script/bench cpu --section scaling --threads 16\n"
    "  script/bench cpu --section overhead               what a public call adds to the lane\n"
    "  TESSERA_PEER_PYTHON=python3 script/bench cpu --peers   with libraries installed elsewhere";

// A folder of our own for what the peers read and write, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_bench_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// "Neoverse-N1", or a model name as the kernel writes it, and how many cores there are.
std::string MachineName() {
  constexpr std::pair<const char*, const char*> kArmParts[] = {{"0xd0c", "Neoverse-N1"}, {"0xd40", "Neoverse-V1"},
                                                               {"0xd49", "Neoverse-N2"}, {"0xd4f", "Neoverse-V2"},
                                                               {"0xd8e", "Neoverse-N3"}, {"0xd84", "Neoverse-V3"}};
  std::ifstream info("/proc/cpuinfo");
  std::string name(ToText(ThisMachine()));
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) name = value;
    if (!line.starts_with("CPU part")) continue;
    name = "aarch64 part " + value;
    for (const auto& [part, known] : kArmParts) {
      if (value == part) name = known;
    }
  }
  return fmt::format("{}, {} cores", name, std::thread::hardware_concurrency());
}

// Where `script/bench cpu --peers` installs them, when the caller names no interpreter.
std::string DefaultPython() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string folder = variable("TESSERA_PEERS");
  if (folder.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    folder = (cache.empty() ? variable("HOME") + "/.cache" : cache) + "/tessera/peers";
  }
  const std::string python = folder + "/bin/python3";
  return std::filesystem::exists(python) ? python : "python3";
}

// The cases whose names begin with one of the words; all when there is none.
Result<std::vector<Case>> ChooseCases(const std::vector<std::string>& words) {
  std::vector<Case> chosen;
  std::string names;
  for (const Case& shape : TableCases()) {
    names += (names.empty() ? "" : ", ") + shape.name;
    const bool is_wanted = words.empty() || std::any_of(words.begin(), words.end(), [&](const std::string& word) {
                             return shape.name.starts_with(word);
                           });
    if (is_wanted) chosen.push_back(shape);
  }
  for (const std::string& word : words) {
    if (std::none_of(chosen.begin(), chosen.end(), [&](const Case& shape) { return shape.name.starts_with(word); })) {
      return Fail(ErrorCode::kBadArgument, fmt::format("no case begins with \"{}\"; there are {}", word, names),
                  "--cases");
    }
  }
  return chosen;
}

void PrintRoof(const Results& results, FILE* people) {
  const auto line = [&](const char* dtype, const Roof& roof, double matmul) {
    fmt::print(
        people, "roof of one core, {:<4}  {}", dtype,
        roof.gflops > 0 ? fmt::format("{:.1f} GFLOP/s ({})", roof.gflops, roof.instructions) : roof.instructions);
    if (matmul > 0) fmt::print(people, "; PyTorch's 2048^3 product here: {:.1f}", matmul);
    fmt::print(people, "\n");
  };
  line("f32", results.f32_roof, results.f32_matmul);
  line("bf16", results.bf16_roof, results.bf16_matmul);
}

bool Wants(const Options& options, const char* section) {
  return std::any_of(options.sections.begin(), options.sections.end(),
                     [&](const std::string& name) { return name == section || name == "all"; });
}

Status Table(const Options& options, FILE* people, Results& results) {
  Result<std::vector<Case>> cases = ChooseCases(options.cases);
  if (!cases) return tl::unexpected(std::move(cases.error()));
  const Folder folder;
  if (folder.path().empty()) return Fail(ErrorCode::kBadArgument, "cannot make a folder for the peers' files");
  std::vector<std::unique_ptr<Peer>> peers;
  if (options.peers) {
    const std::string python = options.python.empty() ? DefaultPython() : options.python;
    ShowProgress("starting the peers");
    peers = StartPeers(python, results.settings.threads, folder.path());
    ClearProgress();
    for (const auto& peer : peers) {
      const PeerInfo& info = peer->info();
      results.peers.push_back(info);
      fmt::print(people, "peer {:<8} {}\n", info.name,
                 info.missing.empty() ? info.title + " " + info.version : "skipped: " + info.missing);
    }
    ShowProgress("timing a matrix product");
    results.f32_matmul = peers[0]->MatmulGflops(DType::kF32);
    if (results.bf16_roof.gflops > 0) results.bf16_matmul = peers[0]->MatmulGflops(DType::kBf16);
    ClearProgress();
  } else {
    fmt::print(people, "peers: not asked for (--peers)\n");
  }
  PrintRoof(results, people);
  if (results.settings.tokens > 0) {
    fmt::print(people, "every case at {} tokens; what it must reach is meant for the length in its name\n",
               results.settings.tokens);
  }
  return MeasureTable({.cases = std::move(*cases), .peers = &peers, .folder = folder.path()}, people, results);
}

Status Measure(const Options& options, FILE* people, Results& results) {
  results.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  results.machine = MachineName();
  results.settings = options.settings;
  results.settings.threads = std::max<int64_t>(options.threads, 1);
  if (options.quick && results.settings.tokens == 0) results.settings.tokens = kQuickTokens;
  fmt::print(people, "{}, {}, {} thread{}\n", results.machine, results.date, results.settings.threads,
             results.settings.threads == 1 ? "" : "s");
  ShowProgress("measuring the roof");
  results.f32_roof = MeasureF32Roof();
  results.bf16_roof = MeasureBf16Roof();
  ClearProgress();
  if (!Wants(options, "table")) PrintRoof(results, people);
  if (Wants(options, "table")) {
    if (Status done = Table(options, people, results); !done) return done;
  }
  if (Wants(options, "sparsity")) {
    if (Status done = MeasureSparsity(people, results); !done) return done;
  }
  if (Wants(options, "scaling")) {
    const int64_t asked = results.settings.threads;
    if (options.threads == 0) results.settings.threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
    Status done = MeasureScaling(people, results);
    results.settings.threads = asked;
    if (!done) return done;
  }
  if (Wants(options, "overhead")) {
    if (Status done = MeasureOverhead(people, results); !done) return done;
  }
  return {};
}

int Main(int argc, char** argv) {
  CLI::App app{"CPU benchmark: attention forward and backward, best of many runs, peers in the same run.", "bench_cpu"};
  app.footer(kFooter);
  Options options;
  app.add_option("--section", options.sections, "table, scaling, sparsity, overhead or all; several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"table", "scaling", "sparsity", "overhead", "all"}))
      ->capture_default_str();
  app.add_option("--cases", options.cases, "only cases whose names begin with one of these")->delimiter(',');
  app.add_flag("--list", options.list, "list the cases and what they must reach, and stop");
  app.add_flag("--quick", options.quick, "every case at 1024 tokens");
  app.add_option("--tokens", options.settings.tokens, "every case at this length; 0 = its own")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  app.add_option("--threads", options.threads,
                 "of ours and of every peer; 0 = one, in the scaling section all there are")
      ->check(CLI::Range(int64_t{0}, int64_t{4096}));
  app.add_option("--repeats", options.settings.repeats, "runs of each, the best of which counts")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--seconds", options.settings.seconds, "that each row of the overhead section repeats its calls for")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option("--lane", options.settings.lane, "run on this lane or not at all")
      ->envname("TESSERA_LANE")
      ->capture_default_str();
  app.add_option("--isa", options.settings.isa, "the lane's instruction set; auto = TESSERA_ISA, else the best here")
      ->capture_default_str();
  app.add_option("--seed", options.settings.seed, "of the inputs and random masks")->capture_default_str();
  app.add_flag("--peers", options.peers, "also time PyTorch and ONNX Runtime (script/bench installs them)");
  app.add_option("--python", options.python, "the Python that has them")->envname("TESSERA_PEER_PYTHON");
  app.add_flag("--json", options.json, "one JSON document on standard output, text on standard error");
  app.add_option("--plot", options.plot, "write the table as a bar chart")->type_name("FILE.svg");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.list) {
    for (const Case& shape : TableCases()) {
      for (const Mode mode : shape.ModesOn(ThisMachine())) {
        const Asked* asked = shape.Find(ThisMachine(), mode);
        fmt::print("{:<29} {:<17} {:<18} {}\n", shape.name, ToText(mode), ToText(asked->must), ToText(asked->goal));
      }
    }
    return 0;
  }
  StopOnSignals();
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ends is a stated skip
  FILE* people = options.json ? stderr : stdout;
  Results results;
  Status done = Measure(options, people, results);
  if (done && !options.plot.empty()) done = WriteFile(options.plot, ToSvg(results));
  ClearProgress();
  if (!done) {
    fmt::print(stderr, "bench_cpu: {}\n", IsStopped() ? "stopped before the end" : ToText(done.error()));
    return IsStopped() ? 130 : 2;
  }
  if (options.json) fmt::print("{}", ToJson(results));
  const bool agrees = std::all_of(results.table.begin(), results.table.end(), [](const TableRow& row) {
    return std::all_of(row.peers.begin(), row.peers.end(),
                       [](const PeerFigure& figure) { return !figure.difference || figure.difference->agrees; });
  });
  return agrees ? 0 : 1;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
