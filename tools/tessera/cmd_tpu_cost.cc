// `tessera tpu-cost`: what libtpu's schedules say of our kernels of a contract, for the tiles that one may choose from.
// Nothing runs, and no TPU is needed: bundles are a schedule and no time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "json_text.h"
#include "program.h"
#include "schedule_folder.h"
#include "shorthand.h"
#include "tpu_schedule.h"

namespace tessera::program {
namespace {

constexpr const char* kFooter =
    "Compiles the kernels of xla_pallas with libtpu (script/setup --tpu), no TPU needed, and counts the instruction\n"
    "bundles of their final schedules on the path that a tile takes. A SCHEDULE, NOT A MEASURED TIME: waits for "
    "memory\n"
    "are not in it. Figures of tiles are for 512x512 scores, so that tiles compare; the floor is what the matrix "
    "units\n"
    "of a v6e need by themselves. The plan's figure is for all heads, no tile in range. docs/tpu.md says how it is "
    "read.\n\n"
    "Examples:\n"
    "  tessera tpu-cost causal:8192:h8/2:d128:bf16\n"
    "  tessera tpu-cost examples/packed.toml --batch examples/packed_batch.json --tile 512x512\n"
    "  tessera tpu-cost causal:8192:h8/2:d128:bf16 --tpu-backward apart --json";

constexpr int64_t kUnit = 512 * 512;  // scores that figures are given for

struct Options {
  ProblemArguments problem;
  std::string topology = "v6e:1x1";
  RunOptions run;
  bool json = false;
  bool inference = false;
  bool progress = false;
};

// What one kernel takes at one tile.
struct KernelCost {
  std::string pass, kernel;
  KernelBundles bundles;                        // of a round of its walk
  std::optional<double> full = {}, range = {};  // of 512x512 scores: without a mask, and the same with scores in range
  std::optional<double> masked = {};            // by one run of keys for each query
  std::optional<double> floor = {};
  int64_t tiles = 0;
  double plan = 0;
};
struct TileCost {
  TileSize tile;
  std::string refused = {};  // why there is nothing else
  std::vector<KernelCost> kernels = {};
};

// ---- the plan, as the kernels' tables have it

class Tables {
 public:
  Tables(const ProgramText& program, std::string suffix) : program_(program), suffix_(std::move(suffix)) {}
  const Tensor& Of(std::string_view name) const {
    const std::string full = fmt::format("{}_{}", name, suffix_);
    const auto found = std::find_if(program_.operands.begin(), program_.operands.end(),
                                    [&](const ProgramOperand& operand) { return operand.name == full; });
    return found->tensor;
  }
  static int64_t At(const Tensor& table, int64_t at) {
    int32_t value = 0;
    std::memcpy(&value, table.bytes.data() + static_cast<size_t>(at) * sizeof(value), sizeof(value));
    return value;
  }

 private:
  const ProgramText& program_;
  const std::string suffix_;
};

// How often the walks of all heads do what, by the names of KernelBundles.
struct Rounds {
  std::map<std::string, int64_t, std::less<>> what;
  int64_t rows = 0;    // of tiles, for each chunk of keys
  int64_t chunks = 0;  // of keys
  int64_t tiles = 0;
};

Rounds RoundsOf(const Tables& tables, int64_t rows, bool by_two) {
  constexpr std::array<const char*, 5> kKinds = {"", "general", "full", "span",
                                                 "full"};  // none is known to be in range
  const Tensor& kinds = tables.Of("kinds");
  const Tensor& begins = tables.Of("begins");
  const Tensor& mask_of = tables.Of("mask_of");
  const int64_t width = kinds.shape[1];
  Rounds rounds;
  rounds.chunks = begins.NumElements() / kinds.shape[0] - 1;
  std::map<int64_t, int64_t> pairs;  // of batch rows and heads, by mask
  for (int64_t pair = 0; pair < mask_of.NumElements(); ++pair) ++pairs[Tables::At(mask_of, pair)];
  for (const auto& [mask, count] : pairs) {
    for (int64_t row = mask * rows; row < (mask + 1) * rows; ++row) {
      rounds.rows += count * rounds.chunks;
      for (int64_t chunk = 0; chunk < rounds.chunks; ++chunk) {
        const int64_t at = row * (rounds.chunks + 1) + chunk;
        std::vector<std::string> slots;
        for (int64_t slot = Tables::At(begins, at); slot < Tables::At(begins, at + 1); ++slot) {
          slots.emplace_back(kKinds[static_cast<size_t>(Tables::At(kinds, row * width + slot))]);
        }
        rounds.tiles += count * static_cast<int64_t>(slots.size());
        for (size_t i = 0; i < slots.size(); i += by_two ? 2 : 1) {
          const bool are_two = by_two && i + 1 < slots.size();
          const std::set<std::string> seen =
              are_two ? std::set<std::string>{slots[i], slots[i + 1]} : std::set<std::string>{slots[i]};
          if (are_two && seen.count("general") == 0) {
            rounds.what[seen.size() == 2 ? "full and span" : "two " + slots[i]] += count;
            continue;
          }
          if (by_two) rounds.what["round"] += count;
          rounds.what[slots[i]] += count;
          if (are_two) rounds.what[slots[i + 1]] += count;
        }
      }
    }
  }
  return rounds;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a tile of 512x512 scores: a matrix unit returns a register of 1024 numbers every other bundle, there are two, and
// each sums over 256. P and dS are the stationary operand of what follows the scores. Of bf16 alone: f32 takes passes.
std::optional<double> FloorOf(const Shape& s, std::string_view kernel) {
  if (s.dtype != DType::kBf16) return std::nullopt;
  const auto scores = [](int64_t dim) { return 256.0 * static_cast<double>(CeilDiv(dim, 256)); };
  const auto sums = [](int64_t dim) { return static_cast<double>(dim); };  // dim x 512 numbers, of two halves of 512
  double floor = scores(s.dim_qk);
  if (kernel == "tessera_forward") return floor + sums(s.dim_v);
  floor += scores(s.dim_v);
  if (kernel != "tessera_dkv") floor += sums(s.dim_qk);
  if (kernel != "tessera_dq") floor += sums(s.dim_qk) + sums(s.dim_v);
  return floor;
}

// ---- the compiler's dumps

constexpr std::string_view kBundles = "-03-final_bundles.txt";

std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) files.insert(entry.path().string());
  return files;
}

// The schedules of the kernels that a program calls, by the kernels' names. The compiler numbers its calls: of two, the
// one with several results is that of dK and dV.
Result<std::map<std::string, Schedule>> SchedulesOf(const std::set<std::string>& files,
                                                    const std::vector<KernelText>& kernels) {
  std::string program;
  std::map<std::string, std::string> dumps;
  for (const std::string& file : files) {
    const std::string name = std::filesystem::path(file).filename().string();
    if (file.ends_with("-TLP-hlo.txt")) {
      const Result<std::string> text = ReadFile(file);
      if (!text) return tl::unexpected(text.error());
      program += *text;
    }
    const size_t dash = name.find('-');
    if (!file.ends_with(kBundles) || dash == std::string::npos) continue;
    dumps[name.substr(dash + 1, name.size() - dash - 1 - kBundles.size())] = file;
  }
  std::map<std::string, Schedule> schedules;
  for (const auto& [name, file] : dumps) {
    const size_t defined = program.find(fmt::format("%{} = ", name));
    if (defined == std::string::npos) continue;
    const std::string line = program.substr(defined, program.find('\n', defined) - defined);
    if (line.find(" custom-call(") == std::string::npos) continue;
    const bool is_tuple = line[line.find('=') + 2] == '(';
    std::string kernel = kernels[0].name;
    if (kernels.size() == 2) kernel = is_tuple ? "tessera_dkv" : "tessera_dq";
    const Result<std::string> text = ReadFile(file);
    if (!text) return tl::unexpected(text.error());
    Result<Schedule> schedule = ReadSchedule(*text);
    if (!schedule) return tl::unexpected(schedule.error());
    schedules.emplace(kernel, std::move(*schedule));
  }
  return schedules;
}

// ---- one tile

std::optional<double> Least(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

KernelCost CostOf(const ProgramText& program, std::string kernel, const Shape& s, TileSize tile, int64_t rows,
                  const ScheduledKernel& scheduled, KernelBundles bundles) {
  const bool is_forward = program.pass == "forward";
  const Tables tables(program, is_forward ? "forward" : kernel == "tessera_dkv" ? "dkv" : "dq");
  const Rounds rounds = RoundsOf(tables, rows, scheduled.walks_by_two);
  KernelCost cost{.pass = program.pass, .kernel = std::move(kernel), .bundles = std::move(bundles)};
  const double units = static_cast<double>(tile.q * tile.kv) / kUnit;
  const auto of = [&](const char* what) -> std::optional<double> {
    const auto found = cost.bundles.find(what);
    if (found == cost.bundles.end()) return std::nullopt;
    return static_cast<double>(found->second) / units;
  };
  const double alone = of("round").value_or(0) / 2;  // in a row's middle a round has two tiles
  const auto body = [&](const char* one, const char* two) {
    const std::optional<double> whole = of(one);
    const std::optional<double> pair = of(two);
    return Least(whole ? std::optional(*whole + alone) : whole, pair ? std::optional(*pair / 2) : pair);
  };
  cost.full = body("full", "two full");
  cost.masked = body("span", "two span");
  cost.range = body("range", "");
  cost.floor = FloorOf(s, cost.kernel);
  cost.tiles = rounds.tiles;
  cost.plan = static_cast<double>(rounds.rows * cost.bundles.find("row")->second);
  if (const auto chunk = cost.bundles.find("chunk"); chunk != cost.bundles.end()) {
    cost.plan += static_cast<double>(chunk->second * rounds.chunks * s.batch * s.num_kv_heads);
  }
  for (const auto& [what, count] : rounds.what) {
    cost.plan += static_cast<double>(cost.bundles.find(what)->second * count);
  }
  return cost;
}

// What a compiler that was asked in vain says, or nothing; fills in what it costs.
std::optional<Error> Compiled(const Problem& problem, RunOptions run, const ProgramText& program, TileSize tile,
                              const std::string& folder, std::vector<KernelCost>& costs) {
  const Shape& s = problem.contract.shape;
  const bool is_forward = program.pass == "forward";
  run.forward = is_forward;
  run.backward = !is_forward;
  const std::set<std::string> before = FilesIn(folder);
  const RunOutcome compiled =
      Compile(TheEngine(), problem.contract, problem.batch, problem.target, run, problem.inputs);
  if (compiled.error) return compiled.error;
  std::set<std::string> files = FilesIn(folder);
  for (const std::string& file : before) files.erase(file);
  Result<std::map<std::string, Schedule>> schedules = SchedulesOf(files, program.kernels);
  if (!schedules) return schedules.error();
  for (const KernelText& kernel : program.kernels) {
    const auto found = schedules->find(kernel.name);
    if (found == schedules->end()) {
      return Error{ErrorCode::kFileRead, "the compiler wrote no schedule of " + kernel.name, folder, {}};
    }
    const Tables tables(program, is_forward ? "forward" : kernel.name == "tessera_dkv" ? "dkv" : "dq");
    const int64_t chunks = tables.Of("begins").NumElements() / tables.Of("kinds").shape[0] - 1;
    const bool is_bf16 = s.dtype == DType::kBf16;
    ScheduledKernel scheduled{.walks_by_two = is_forward && is_bf16 && tables.Of("kinds").shape[1] > 1,
                              .has_range = is_forward && is_bf16 && problem.contract.score.softcap == 0,
                              .general_parts = tile.kv / 128};
    if (!is_forward && kernel.name != "tessera_dq") {
      const int64_t keys = tables.Of("kv_live").shape[1] / chunks;
      const int64_t dk = keys * s.dim_qk / 1024;
      const int64_t dv = keys * s.dim_v / 1024;
      scheduled.chunk_registers = {dk, dv, dk + dv};
    }
    Result<KernelBundles> bundles = CountBundles(found->second, scheduled);
    if (!bundles) return bundles.error();
    costs.push_back(CostOf(program, kernel.name, s, tile, CeilDiv(s.q_len, tile.q), scheduled, std::move(*bundles)));
  }
  return std::nullopt;
}

// A tile that the kernels refuse has its reason; any other error is the command's.
Result<TileCost> CostOfTile(const Problem& problem, RunOptions run, TileSize wish, const std::string& folder) {
  const Shape& s = problem.contract.shape;
  const auto padded = [](int64_t tile, int64_t len) { return CeilDiv(std::min(tile, len), 128) * 128; };
  TileCost cost{.tile = wish, .refused = {}, .kernels = {}};
  const TileSize tile{padded(wish.q, s.q_len), padded(wish.kv, s.kv_len)};
  run.plan.tile = wish;
  const auto programs =
      LowerPrograms(TheEngine(), problem.contract, problem.batch, problem.target, run, problem.inputs);
  if (!programs) {
    if (programs.error().code != ErrorCode::kLaneRefused) return tl::unexpected(programs.error());
    cost.refused = programs.error().message;
    return cost;
  }
  for (const ProgramText& program : *programs) {
    const bool are_several = std::any_of(program.kernels.begin(), program.kernels.end(), [](const KernelText& kernel) {
      return std::isdigit(static_cast<unsigned char>(kernel.name.back())) != 0;
    });
    if (are_several) {
      cost.refused = fmt::format("its lists are shared by {} calls, which are not counted", program.kernels.size());
      return cost;
    }
  }
  for (const ProgramText& program : *programs) {
    if (auto error = Compiled(problem, run, program, tile, folder, cost.kernels)) return tl::unexpected(*error);
  }
  return cost;
}

// ---- what is printed

std::string Number(const std::optional<double>& value) {
  return value ? fmt::format("{:.0f}", *value) : std::string("-");
}

void PrintWords(const Options& options, const std::vector<TileCost>& tiles) {
  Print(
      fmt::format("bundles of libtpu's schedules for {}, no TPU: a schedule, not a measured time\n\n"
                  "{:<11} {:<17} {:>6} {:>9} {:>7} {:>6} {:>9} {:>15}\n",
                  options.topology, "tile", "kernel", "full", "in range", "masked", "floor", "tiles", "whole plan"));
  for (const TileCost& of : tiles) {
    const std::string tile = fmt::format("{}x{}", of.tile.q, of.tile.kv);
    if (!of.refused.empty()) Print(fmt::format("{:<11} {}\n", tile, of.refused));
    double sum = 0;
    for (const KernelCost& cost : of.kernels) {
      Print(fmt::format("{:<11} {:<17} {:>6} {:>9} {:>7} {:>6} {:>9} {:>15}\n", tile, cost.kernel, Number(cost.full),
                        Number(cost.range), Number(cost.masked), Number(cost.floor), Grouped(cost.tiles),
                        Grouped(std::llround(cost.plan))));
      sum += cost.plan;
    }
    if (of.kernels.size() > 1)
      Print(fmt::format("{:<11} {:<17} {:>57}\n", tile, "all of them", Grouped(std::llround(sum))));
  }
  Print("\nfull, in range, masked and floor: of 512x512 scores; the plan: of all heads, no tile in range\n");
}

void PrintJson(const Options& options, const std::vector<TileCost>& tiles) {
  std::vector<std::string> list;
  for (const TileCost& of : tiles) {
    std::vector<std::string> kernels;
    for (const KernelCost& cost : of.kernels) {
      JsonObject object;
      object.Text("pass", cost.pass).Text("kernel", cost.kernel);
      for (const auto& [name, value] : {std::pair("full", cost.full), std::pair("in_range", cost.range),
                                        std::pair("masked", cost.masked), std::pair("floor", cost.floor)}) {
        if (value) object.Real(name, *value);
      }
      JsonObject rounds;
      for (const auto& [name, bundles] : cost.bundles) rounds.Int(name, bundles);
      object.Int("tiles", cost.tiles).Real("plan", cost.plan).Raw("bundles", rounds.Done());
      kernels.push_back(object.Done());
    }
    JsonObject object;
    object.Text("tile", fmt::format("{}x{}", of.tile.q, of.tile.kv)).Text("refused", of.refused);
    list.push_back(object.Raw("kernels", JsonList(kernels)).Done());
  }
  JsonObject object;
  object.Text("what",
              "bundles of the compiler's schedule, of 512x512 scores and of the whole plan: not a measured time");
  Print(object.Text("topology", options.topology).Raw("tiles", JsonList(list)).Done() + "\n");
}

int CostCommand(Options options) {
  RunOptions& run = options.run;
  UseKernelOptions(run, options.inference);
  ProblemArguments& arguments = options.problem;
  if (!arguments.target_option->IsGiven()) arguments.target = options.topology.substr(0, options.topology.find(':'));
  if (Status ok = DeclareEnvironment(); !ok) return Report(ok.error(), options.json);
  const ScheduleFolder schedules;
  auto problem = ReadProblem(arguments);
  if (!problem) return Report(problem.error(), options.json);
  problem->target.topology = options.topology;
  run.plan = problem->options;
  run.xla.keep_programs = false;
  std::vector<TileSize> wishes = {problem->target.forward, {512, 512}, {1024, 1024}};
  if (problem->options.tile) wishes = {*problem->options.tile};
  std::vector<TileCost> tiles;
  const Shape& s = problem->contract.shape;
  for (const TileSize& wish : wishes) {
    // A tile beyond all tokens is the one before once more.
    if (!tiles.empty() && (tiles.back().tile.q >= s.q_len || tiles.back().tile.kv >= s.kv_len)) break;
    const Progress progress(fmt::format("compiling at {}x{}", wish.q, wish.kv), options.progress, nullptr);
    Result<TileCost> cost = CostOfTile(*problem, run, wish, schedules.path());
    if (!cost) return Report(cost.error(), options.json);
    tiles.push_back(std::move(*cost));
  }
  if (options.json) PrintJson(options, tiles);
  if (!options.json) PrintWords(options, tiles);
  const bool is_any = std::any_of(tiles.begin(), tiles.end(), [](const TileCost& of) { return of.refused.empty(); });
  return is_any ? kGood : kRefused;
}

}  // namespace

void AddTpuCost(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  RunOptions& run = options->run;
  run.lane = "xla_pallas";
  run.backward = true;
  Command* sub = app.AddCommand("tpu-cost", "Count the TPU compiler's bundles of a contract's kernels, tile by tile");
  AddContract(*sub, options->problem.contract)->Required();
  sub->AddOption("--topology", options->topology, "Chips of the target, as its compiler calls them")
      ->TypeName("T")
      ->ShowDefault();
  AddXlaOptions(*sub, run);
  AddKernelOptions(*sub, run, options->inference);
  AddProblemOptions(*sub, options->problem);
  AddRouteOptions(*sub, options->problem);
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->AddFlag("--progress", options->progress, "Report progress also when standard error is no terminal");
  sub->Footer(kFooter);
  sub->OnParsed([options, &action] { action = [options] { return CostCommand(*options); }; });
}

}  // namespace tessera::program
