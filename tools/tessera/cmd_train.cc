// `tessera train`: a run file to a trained model, with what a run leaves in its folder.
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "program.h"
#include "tessera/train.h"

namespace tessera::program {
namespace {

struct Options {
  std::string file;
  std::string out;
  std::string target = "cpu";
  std::string topology;
  std::string attention = "auto";
  std::string substitutes;
  std::string plugin;
  std::string mesh;
  std::optional<int64_t> max_device_bytes;
  std::string cut;
  std::string exchange;
  int64_t steps = 0;
  int64_t threads = 0;
  bool resume = false;
  bool compile_only = false;
  bool json = false;
};

constexpr int64_t kMaxRunFileBytes = 1 << 20;

constexpr const char* kFooter =
    "A run file says which model, which data and how long: docs/training.md explains it by examples/tiny_code.toml. "
    "Ctrl-C\n"
    "ends a run after the step at hand, with a checkpoint; --resume goes on from it, to the same bits. Before the "
    "first\n"
    "step there is nothing to keep, and the run ends at once.\n\n"
    "Examples:\n"
    "  tessera train examples/tiny_code.toml\n"
    "  tessera train examples/tiny_code.toml --steps 20 --out run\n"
    "  tessera train examples/tiny_code.toml --out run --resume\n"
    "  tessera train examples/tiny_code.toml --out wide --mesh data=2,model=2\n"
    "  tessera train examples/tiny_code.toml --target v6e --compile-only --out compiled\n"
    "  tessera train examples/tiny_code.toml --target v6e --topology v6e:2x2 --compile-only --mesh data=2,model=2 "
    "--out four";

// Set by a signal, read between steps and while a run is prepared. A second one has nothing to add: the run is ending.
std::atomic<bool>& IsStopWanted() {
  static std::atomic<bool> is_wanted = false;
  return is_wanted;
}
static_assert(std::atomic<bool>::is_always_lock_free, "a handler of signals may write nothing else");

void CatchSignals() {
  IsStopWanted() = false;
  struct sigaction action {};
  action.sa_handler = [](int) { IsStopWanted() = true; };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

std::string Line(const LogPoint& point, int64_t steps) {
  std::string text = fmt::format("step {:>6}/{}  loss {:.4f}", point.step, steps, point.loss);
  if (point.held_out_loss) text += fmt::format("  held out {:.4f}", *point.held_out_loss);
  return text +
         fmt::format("  {} tokens/s  goodput {:.3f}", Grouped(static_cast<int64_t>(point.tokens_per_s)), point.goodput);
}

std::string Summary(const TrainReceipt& receipt, const std::string& folder) {
  if (receipt.mode == "compile_only" && receipt.ended == "finished") {
    std::string text = fmt::format("{} programs compiled for {} by {}, {:.1f} s", receipt.compiles, receipt.target,
                                   receipt.plugin, receipt.goodput.wall_s);
    for (const ProgramUse& program : receipt.programs) {
      text += fmt::format("\n  {}: {:.1f} s", program.pass, static_cast<double>(program.compile_ns) * 1e-9);
      if (program.code_bytes >= 0) text += fmt::format(", {} bytes of code", Grouped(program.code_bytes));
      if (!program.fingerprint.empty()) text += ", fingerprint " + program.fingerprint;
    }
    return text + fmt::format("\nin {}: train.json (receipt), programs.json, texts of the programs", folder);
  }
  std::string text =
      fmt::format("{} after step {}: {} programs compiled, {} tokens/s, goodput {:.3f} of {:.1f} s", receipt.ended,
                  receipt.last_step, receipt.compiles, Grouped(static_cast<int64_t>(receipt.tokens_per_s)),
                  receipt.goodput.goodput, receipt.goodput.wall_s);
  if (receipt.sharding) {
    text += fmt::format("\nover {}, fingerprint {}", ToText(receipt.sharding->mesh), receipt.sharding->fingerprint);
    if (const std::optional<ContextUse>& use = receipt.sharding->context; use && use->allgather_bytes > 0) {
      text += fmt::format(
          "\ntokens over context: {}; {:.4f} of an all-gather's bytes, largest shard {:.3f} of the mean", use->reason,
          static_cast<double>(use->bytes) / static_cast<double>(use->allgather_bytes), use->worst_balance);
    }
  }
  if (receipt.held_out_loss) text += fmt::format("\nheld-out loss {:.4f} nats a token", *receipt.held_out_loss);
  if (receipt.held_out_loss && receipt.bigram_loss)
    text += fmt::format(", a bigram model of the same rows {:.4f}", *receipt.bigram_loss);
  if (!receipt.state_digest.empty()) text += fmt::format("\nparameters and moments {}", receipt.state_digest);
  return text + fmt::format("\nin {}: train.json (receipt), train.html (plots), checkpoints", folder);
}

// Inputs that a run file names are inputs as much as the file itself.
Status DeclareData(const RunFile& run) {
  for (const std::string& folder : {run.data.rows, run.data.held_out_rows}) {
    if (folder.empty()) continue;
    if (Status ok = DeclarePath({.name = "rows of the run file", .path = folder + "/rows.json"}); !ok) return ok;
  }
  return {};
}

int TrainCommand(const Command& command, Options options) {
  if (options.compile_only) {
    const Status used = command.Refuse("--compile-only", {"--resume", "--steps"});
    if (!used) return Report(used.error(), options.json);
  }
  const std::filesystem::path path(options.file);
  if (options.out.empty()) {
    options.out = path.stem().string() + ".run";
    if (Status ok = DeclarePath({.name = "the folder of the run", .path = options.out, .role = PathRole::kFolder}); !ok)
      return Report(ok.error(), options.json);
  }
  auto text = ReadFile(options.file, kMaxRunFileBytes);
  if (!text) return Report(text.error(), options.json);
  auto run = ParseRunFile(*text, path.parent_path().string());
  if (!run) {
    Error error = run.error();
    error.where = error.where.empty() ? options.file : options.file + ", " + error.where;
    return Report(error, options.json);
  }
  if (Status ok = DeclareData(*run); !ok) return Report(ok.error(), options.json);
  std::optional<Mesh> mesh;
  if (!options.mesh.empty()) {
    auto parsed = ParseMesh(options.mesh);
    if (!parsed) return Report(parsed.error(), options.json);
    mesh = std::move(*parsed);
  }
  if (options.max_device_bytes && !mesh) {
    return Report(Error{ErrorCode::kBadArgument, "--max-device-bytes is about the devices of a --mesh", "train"},
                  options.json);
  }
  std::optional<CutForm> cut;
  if (!options.cut.empty()) {
    const auto parsed = ParseCutForm(options.cut);
    if (!parsed) return Report(parsed.error(), options.json);
    cut = *parsed;
  }
  std::optional<Exchange> exchange;
  if (!options.exchange.empty()) {
    const auto parsed = ParseExchange(options.exchange);
    if (!parsed) return Report(parsed.error(), options.json);
    exchange = *parsed;
  }
  std::map<std::string, std::string> substitutes;
  if (!options.substitutes.empty()) {
    auto parsed = ParseSubstitutes(options.substitutes);
    if (!parsed) return Report(parsed.error(), options.json);
    substitutes = std::move(*parsed);
  }
  auto target = FindTarget(options.target);
  if (!target) return Report(target.error(), options.json);
  if (!options.topology.empty()) {
    if (!options.compile_only || !options.topology.starts_with(options.target + ":")) {
      return Report(
          Error{ErrorCode::kBadArgument,
                options.compile_only
                    ? fmt::format("\"{}\" is no topology of the target {}: write one as v6e:2x2 for --target v6e",
                                  options.topology, options.target)
                    : "a topology is of chips that are not here: give --compile-only too",
                "--topology"},
          options.json);
    }
    target->topology = options.topology;
  }
  TrainOptions train;
  train.folder = options.out;
  train.target = *target;
  train.trainer.attention = options.attention;
  train.trainer.substitutes = std::move(substitutes);
  train.trainer.xla.plugin = options.plugin;
  train.trainer.threads = options.threads;
  train.trainer.mesh = std::move(mesh);
  train.trainer.max_device_bytes = options.max_device_bytes;
  train.trainer.cut = cut;
  train.trainer.exchange = exchange;
  train.trainer.compile_only = options.compile_only;
  train.resume = options.resume;
  train.max_steps = options.steps;
  train.should_stop = [] { return IsStopWanted().load(); };
  train.on_note = [&](std::string_view note) { PrintError(std::string(note) + "\n"); };
  train.on_point = [&](const LogPoint& point) { PrintError(Line(point, run->train.steps) + "\n"); };
  CatchSignals();
  KeepFreedMemory();
  auto receipt = Train(TheEngine(), *run, train);
  if (!receipt) return Report(receipt.error(), options.json);
  Say(options.json, Summary(*receipt, options.out));
  if (options.json) Print(ToJson(*receipt));
  return kGood;
}

}  // namespace

void AddTrain(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("train", "Train a model on packed rows, from a run file");
  sub->AddOption("file", options->file, "The run file")->Reads("FILE.toml")->Required();
  sub->AddOption("--out", options->out, "The folder of the run (default: the run file's name and .run)")
      ->WritesInto("DIR", "");
  sub->AddFlag("--resume", options->resume, "Go on from the folder's newest checkpoint");
  sub->AddNumber("--steps", options->steps, {1, 1U << 31}, "Make so many steps and end as if interrupted")
      ->TypeName("N");
  sub->AddOption("--target", options->target, "Machine to train on: cpu, h200, v6e, v5e, v5p")->ShowDefault();
  sub->AddOption("--topology", options->topology, "With --compile-only: the target's chips that are meant, as v6e:2x2")
      ->TypeName("T");
  sub->AddFlag("--compile-only", options->compile_only, "Make the programs, for a machine that need not be here");
  sub->AddOption("--attention", options->attention, "What attention runs on: auto, or a substitute's name")
      ->TypeName("NAME")
      ->ShowDefault();
  sub->AddOption("--substitutes", options->substitutes, "What else stands for keys of the layer spec, by name")
      ->TypeName("KEY=NAME,..");
  sub->AddOption("--plugin", options->plugin, "PJRT plugin (default: TESSERA_PJRT_PLUGIN, else installed)")
      ->Reads("FILE.so");
  sub->AddOption("--mesh", options->mesh, "Devices that share rows (data), tokens (context), heads and columns (model)")
      ->TypeName("AXIS=N,..");
  sub->AddNumber("--max-device-bytes", options->max_device_bytes, {.low = 0, .high = INT64_MAX},
                 "With --mesh: refuse programs that need more bytes on a device")
      ->TypeName("N");
  sub->AddOption("--cut", options->cut, "Tokens over context: contiguous, zigzag, reordered (default: the cheapest)")
      ->TypeName("FORM");
  sub->AddOption("--exchange", options->exchange, "Keys over context: allgather, heads, sparse (default: the cheapest)")
      ->TypeName("NAME");
  sub->AddNumber("--threads", options->threads, {1, 1024}, "Threads of attention (default: all of the target's)")
      ->TypeName("N");
  sub->AddFlag("--json", options->json, "Print the receipt as one JSON document");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] { action = [options, sub] { return TrainCommand(*sub, *options); }; });
}

}  // namespace tessera::program
