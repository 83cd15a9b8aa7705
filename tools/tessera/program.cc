// See program.h.
#include "program.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>

#include "hints.h"
#include "json_text.h"
#include "shorthand.h"

namespace tessera::program {

namespace {

// As much as a contract may have; what has more is refused by its parser, whatever follows.
constexpr int64_t kContractBytes = int64_t{1} << 24;
constexpr std::array<std::string_view, 4> kLanesWithoutPlugin = {"cuda", "cpu", "call_jax", "reference"};
constexpr uint64_t kMostThreads = 4096;  // as docs/limits.md says; the engine refuses more too

}  // namespace

namespace {

// Options of the command line that stand before a default of the engine's.
struct Overrule {
  Option* option = nullptr;
  std::string EngineOptions::*value = nullptr;
};
std::vector<Overrule>& Overrules() {
  static std::vector<Overrule> overrules;
  return overrules;
}

}  // namespace

const Engine& TheEngine() {
  static const Engine& engine = *new Engine([] {
    for (const Overrule& overrule : Overrules()) {
      if (overrule.option->IsGiven()) EngineDefaults().*overrule.value = "auto";
    }
    return EngineDefaults();
  }());
  return engine;
}

Option* AddLaneOption(Command& app, RunOptions& run) {
  Option* lane = app.AddOption("--lane", run.lane, "Run on this lane or not at all (default: TESSERA_LANE, else auto)");
  lane->TypeName("LANE")->ShowDefault();
  Overrules().push_back({lane, &EngineOptions::lane});
  return lane;
}

EngineOptions& EngineDefaults() {
  static EngineOptions options = OptionsFromEnvironment();
  return options;
}

void ForgetRequestDefaults() {
  const EngineOptions given = std::move(EngineDefaults());
  EngineDefaults() = {.machine_isa = given.machine_isa, .xla_folder = given.xla_folder, .xla_flags = given.xla_flags};
}

int ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kLaneRefused:
    case ErrorCode::kStrictFallback:
      return kRefused;
    case ErrorCode::kCheckFailed:
    case ErrorCode::kTrainDiverged:
    case ErrorCode::kStageInvariant:
    case ErrorCode::kShardAudit:
    case ErrorCode::kShardProgram:
      return kCheckFailed;
    default:
      return kBadInput;
  }
}

int Report(const Error& error, bool json) {
  std::string text = ToText(error);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  PrintError(Colour::kBad, "tessera:", " " + text + "\n");
  if (json) {
    std::vector<std::string> violations;
    for (const Violation& violation : error.violations) {
      violations.push_back(JsonObject().Text("field", violation.field).Text("expected", violation.expected).Done());
    }
    JsonObject inner;
    inner.Text("code", CodeText(error.code)).Text("message", error.message).Text("where", error.where);
    inner.Raw("violations", JsonList(violations));
    Print(JsonObject().Raw("error", inner.Done()).Done() + "\n");
  }
  return ExitCodeOf(error.code);
}

std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string Milliseconds(int64_t ns) {
  const double ms = static_cast<double>(ns) * 1e-6;
  if (ms < 1) return fmt::format("{:.3f} ms", ms);
  if (ms < 1000) return fmt::format("{:.1f} ms", ms);
  return fmt::format("{:.2f} s", ms * 1e-3);
}

std::string Bytes(int64_t bytes) { return Grouped(bytes) + (bytes == 1 ? " byte" : " bytes"); }

std::string Indented(std::string_view text, std::string_view margin) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) out += margin;
    out += text.substr(0, end);
    out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string ToAscii(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, char>, 6> kGlyphs = {
      {{"█", '#'}, {"▓", '%'}, {"▒", '+'}, {"░", '-'}, {"·", '.'}, {"│", '|'}}};
  std::string out;
  while (!text.empty()) {
    size_t size = 1;
    char c = text[0];
    for (const auto& [glyph, plain] : kGlyphs) {
      if (text.substr(0, glyph.size()) != glyph) continue;
      size = glyph.size();
      c = plain;
    }
    out += c;
    text.remove_prefix(size);
  }
  return out;
}

int TerminalColumns() {
  winsize size{};
  if (isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) {
    return size.ws_col;
  }
  return 80;
}

Option* AddContract(Command& app, std::string& contract, const std::string& also) {
  const std::string about = "Contract (.toml or .json, - = standard input, or in short causal:8192:h8/2:d128:bf16)";
  return app.AddOption("contract", contract, about + also)->ReadsOrInput("FILE");
}

void AddSeed(Command& app, uint64_t& seed, const std::string& about) {
  app.AddNumber("--seed", seed, {}, about)->TypeName("N")->ShowDefault();
}

void AddBatchOptions(Command& app, ProblemArguments& arguments) {
  AddBatchArguments(app, arguments.batch);
  app.AddOption("--disable", arguments.disable, "Skip a planner stage by name (may be repeated)")
      ->TypeName("STAGE")
      ->Repeated();
  app.AddFlag("--verify-stages", arguments.verify_stages, "Run every stage's own check");
  app.AddFlag("--widen-class", arguments.widen_class,
              "A batch that does not fit its class gets a wider class, not an error");
}

void AddProblemOptions(Command& app, ProblemArguments& arguments) {
  AddBatchOptions(app, arguments);
  arguments.target_option = app.AddOption("--target", arguments.target, "Machine to plan for: cpu, h200, v6e, v5e, v5p")
                                ->TypeName("NAME")
                                ->ShowDefault();
  app.AddOption("--tile", arguments.tile,
                "Tile for every direction, as QxKV (default: the target's, else the contract's)")
      ->TypeName("QxKV");
}

void AddRouteOptions(Command& app, ProblemArguments& arguments) {
  Option* inputs =
      app.AddOption("--inputs", arguments.inputs, "Tensors q and k, where the contract routes")->Reads("F.safetensors");
  AddSeed(app, arguments.seed, "Make them from this seed");
  Option* seed = app.Find("--seed")->Excludes(inputs);
  arguments.inputs_option = inputs;
  arguments.seed_option = seed;
}

void AddXlaOptions(Command& app, RunOptions& run) {
  app.AddOption("--plugin", run.xla.plugin,
                "PJRT plugin of the XLA lane (default: TESSERA_PJRT_PLUGIN, else installed)")
      ->Reads("FILE.so");
  app.AddNumber("--device", run.xla.device, {}, "Which of the plugin's devices")->TypeName("N")->ShowDefault();
  app.AddFlag("--interpret", run.xla.interpret,
              "Run a TPU lane's kernels in the interpreter: a proof of numbers, slow");
  app.AddNumber("--xla-level", run.xla.optimization, {0, 3},
                "XLA's optimisation level, 0 to 3 (default: the plugin's own)")
      ->TypeName("N");
}

Option* AddKernelOptions(Command& app, RunOptions& run, bool& inference) {
  app.AddOption(
         "--tpu-backward", run.xla.tpu_backward,
         "Of TPU kernels: fused = one for dq, dk and dv; apart = one for dq, one for dk and dv; auto = by the plan")
      ->OneOf({"auto", "fused", "apart"})
      ->TypeName("WHICH")
      ->ShowDefault();
  return app.AddFlag("--inference", inference,
                     "The forward alone, and nothing but o: TPU kernels then have no statistics");
}

void UseKernelOptions(RunOptions& run, bool inference) {
  if (!inference) return;
  run.backward = false;
  run.xla.statistics = false;
}

void AddWorkOptions(Command& app, RunOptions& run) {
  Option* isa = app.AddOption("--isa", run.isa,
                              "Run with this instruction set or not at all (default: TESSERA_ISA, else the best)");
  isa->TypeName("ISA")->ShowDefault();
  Overrules().push_back({isa, &EngineOptions::isa});
  AddXlaOptions(app, run);
  app.AddNumber("--threads", run.threads, {1, kMostThreads},
                "Threads, 1 or more (default: as many as the target has workers)")
      ->TypeName("N");
}

Status CheckKernelOptions(const Command& app, std::string_view lane) {
  const std::string name = "--tpu-backward";
  if (lane == "xla_pallas" || lane == "auto" || app.Find(name) == nullptr) return {};
  return app.Refuse(fmt::format("the lane {}", lane), {name});
}

Status CheckXlaOptions(const Command& app, const Contract& contract, const Target& target, const RunOptions& run) {
  std::vector<std::string> names = {"--plugin", "--device", "--xla-level"};
  if (app.Find("--tpu-backward") != nullptr) names.emplace_back("--tpu-backward");
  if (app.Refuse("", names)) return {};
  auto attention = TheEngine().Prepare(contract, target, run);
  if (!attention) return {};  // what is wrong is said when it is run
  // The lane that the table names, or the caller, answers for itself: also when it refuses for what the plugin is.
  std::string lane = run.lane == "auto" ? TheEngine().options().lane : run.lane;
  if (lane == "auto") lane = attention->selection().lane;
  const auto& own = kLanesWithoutPlugin;
  if (std::find(own.begin(), own.end(), lane) == own.end()) return CheckKernelOptions(app, lane);
  return app.Refuse(fmt::format("the lane {}", lane), names);
}

// "causal" for "causal:8192": a mask without a length names a file that is not there.
Error WithLengthHint(Error error, const std::string& argument) {
  std::error_code ignored;
  if (std::filesystem::exists(argument, ignored)) return error;
  const auto text = TextOfShorthand(argument + ":8192");
  if (!text || !ParseContract(*text)) return error;
  error.message += fmt::format("; a contract in one argument has a length too: {}:8192", argument);
  return error;
}

Result<Contract> ReadContractArgument(const std::string& argument) {
  std::string text;
  std::string folder = ".";
  const bool is_shorthand = IsShorthand(argument);
  if (is_shorthand) {
    auto made = TextOfShorthand(argument);
    if (!made) return tl::unexpected(made.error());
    text = std::move(*made);
  } else if (argument == "-") {
    std::array<char, 65536> chunk;
    while (const size_t got = std::fread(chunk.data(), 1, chunk.size(), stdin)) {
      text.append(chunk.data(), got);
      if (text.size() > static_cast<size_t>(kContractBytes)) break;  // ParseContract says what is wrong with it
    }
    if (std::ferror(stdin) != 0) {
      return Fail(ErrorCode::kFileRead, fmt::format("cannot read: {}", std::strerror(errno)), "standard input");
    }
  } else {
    auto read = ReadFile(argument, kContractBytes);
    if (!read) return tl::unexpected(WithLengthHint(read.error(), argument));
    text = std::move(*read);
    folder = std::filesystem::path(argument).parent_path().string();
  }
  if (Status ok = DeclareBitmaps(text, folder); !ok) return tl::unexpected(ok.error());
  auto contract = ParseContract(text, folder.empty() ? "." : folder);
  if (contract || argument == "-") return contract;
  Error error = is_shorthand ? contract.error() : WithFileHint(contract.error(), argument, FileUse::kContract);
  error.where = error.where.empty() ? argument : fmt::format("{}, {}", argument, error.where);
  return tl::unexpected(std::move(error));
}

Result<TileSize> ParseTile(const std::string& text) {
  const auto pair = ParsePair(text, 'x');
  if (pair) return TileSize{pair->first, pair->second};
  return Fail(ErrorCode::kBadArgument,
              fmt::format("'{}' is not a tile: two numbers joined by x, such as 128x512", text), "--tile");
}

std::optional<std::pair<int64_t, int64_t>> ParsePair(const std::string& text, char between) {
  const size_t at = text.find(between);
  if (at == std::string::npos) return std::nullopt;
  constexpr NumberRange kAny{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  const std::string first = text.substr(0, at);
  const std::string second = text.substr(at + 1);
  if (!NumberProblem(first, kAny).empty() || !NumberProblem(second, kAny).empty()) return std::nullopt;
  return std::pair<int64_t, int64_t>(std::stoll(first), std::stoll(second));
}

Result<Problem> ReadProblem(const ProblemArguments& arguments) {
  auto contract = arguments.contract_text.empty() ? ReadContractArgument(arguments.contract)
                                                  : ParseContract(arguments.contract_text);
  if (!contract) return tl::unexpected(contract.error());
  Problem problem;
  problem.contract = std::move(*contract);
  auto target = FindTarget(arguments.target);
  if (!target) return tl::unexpected(target.error());
  problem.target = std::move(*target);
  if (!arguments.tile.empty()) {
    auto tile = ParseTile(arguments.tile);
    if (!tile) return tl::unexpected(tile.error());
    problem.options.tile = *tile;
  }
  problem.options.disable = arguments.disable;
  problem.options.verify_stages = arguments.verify_stages;
  problem.options.widen_class = arguments.widen_class;
  auto batch = ReadBatchArguments(arguments.batch, problem.contract);
  if (!batch) return tl::unexpected(batch.error());
  problem.batch = std::move(*batch);
  for (const Option* option : {arguments.inputs_option, arguments.seed_option}) {
    if (problem.contract.routing || option == nullptr || !option->IsGiven()) continue;
    return Fail(ErrorCode::kBadArgument,
                fmt::format("{} has no use with a contract that does not route", option->Name()), option->Name());
  }
  if (problem.contract.routing) {
    auto inputs = ReadInputs(problem.contract, {.file = arguments.inputs, .seed = arguments.seed});
    if (!inputs) return tl::unexpected(inputs.error());
    problem.inputs = std::move(*inputs);
  }
  return problem;
}

Result<PlanResult> PlanProblem(const Problem& problem) {
  return RouteInputsOf(problem.contract, problem.inputs)
      .and_then([&](const RouteInputs& route) {
        return MakePlan(problem.contract, problem.batch, problem.target, problem.options, &route);
      })
      .map_error([&](const Error& error) { return WithBatchAdvice(error, problem.batch); });
}

std::string LeakNotes(const Contract& contract) {
  std::string text;
  for (const MaskLeak& leak : FindLeaks(contract).value_or(std::vector<MaskLeak>())) {
    text += fmt::format("note          {}\n", ToText(leak));
  }
  return text;
}

Result<TensorMap> ReadInputs(const Contract& contract, const InputArguments& arguments) {
  if (!arguments.file.empty()) {
    // Room for tensors of a wrong shape, so that the message can name them; not for whatever somebody put there.
    constexpr double kLargest = 0x1p36;
    const double limit = std::min(4 * TensorBytes(contract, arguments.backward) + 0x1p30, kLargest);
    return ReadSafetensors(arguments.file, static_cast<int64_t>(limit)).map_error([&](const Error& error) {
      return WithFileHint(error, arguments.file, FileUse::kTensors);
    });
  }
  if (auto fits = CheckTensorMemory(contract, arguments.backward); !fits) return tl::unexpected(fits.error());
  try {
    return MakeInputs(contract, arguments.seed, arguments.backward, arguments.layout);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kTooLarge, "this machine gives no memory for the inputs", "shape");
  }
}

bool IsPlanFile(const std::string& path) {
  constexpr std::string_view kSuffix = ".plan";
  return path.size() > kSuffix.size() && path.compare(path.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0;
}

double TensorBytes(const Contract& contract, bool backward) {
  const Shape& shape = contract.shape;
  const auto tokens = [&](int64_t heads, int64_t length, int64_t dim) {
    return static_cast<double>(shape.batch) * static_cast<double>(heads) * static_cast<double>(length) *
           static_cast<double>(dim) * static_cast<double>(BytesOf(shape.dtype));
  };
  const double once = tokens(shape.num_q_heads, shape.q_len, shape.dim_qk + shape.dim_v) +
                      tokens(shape.num_kv_heads, shape.kv_len, shape.dim_qk + shape.dim_v);
  return backward ? 2 * once : once;
}

Status CheckTensorMemory(const Contract& contract, bool backward) {
  const double needed = TensorBytes(contract, backward);
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (needed <= memory) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("the tensors need {:.0f} GiB and this machine has {:.0f} GiB", needed / (1 << 30),
                          memory / (1 << 30)),
              "shape");
}

}  // namespace tessera::program
