// `tessera shard run` and `tessera shard compile`: attention over several devices, run and held against one device, or
// compiled for chips that are not here.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "json_text.h"
#include "program.h"
#include "tessera/shard_run.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  std::string mesh;
  std::string topology;
  std::string axis = std::string(kContextAxis);
  std::string lane = "xla_pallas";
  std::string cut;
  std::string exchange;
  std::string gradients;
  std::string inputs;
  std::string emit;
  std::string receipt;
  RunOptions run;
  std::optional<int64_t> lost;
  std::optional<int64_t> max_device_bytes;
  bool json = false;
  bool progress = false;
};

constexpr const char* kRunFooter =
    "Tokens are cut over the devices of the mesh's one axis, context. The plan says which keys travel; what the "
    "compiled\n"
    "collectives carry is read back from the program. The same plan is run by one device too, and every output "
    "compared:\n"
    "bit for bit but around a ring and for gradients that are given back. docs/context_parallel.md explains it. "
    "Examples:\n"
    "  tessera shard run causal,documents:1024:h8/4:d32:f32 --documents 300,500,224 --tile 32x32 --mesh context=4\n"
    "  tessera shard run causal:512:h8:d32:f32 --tile 32x32 --mesh context=8 --cut zigzag --exchange ring --backward\n"
    "  tessera shard run causal:512:h8:d32:f32 --tile 32x32 --mesh context=4 --lose 2";
constexpr const char* kCompileFooter =
    "For chips that are not here: needs libtpu (script/setup --tpu) and no TPU; --emit by itself needs neither. Chips\n"
    "share tokens (context), heads (model) or rows of the batch (data). Examples:\n"
    "  tessera shard compile window=1023:8192:h8:d128:bf16 --topology v6e:2x2\n"
    "  tessera shard compile causal:8192:h16:d128:bf16 --topology v6e:4x4 --axis model --backward\n"
    "  tessera shard compile causal:8192:h8:d128:bf16 --topology v6e:2x2 --exchange heads --emit programs";

Result<ContextOptions> ContextOf(const Options& options, const Problem& problem) {
  ContextOptions context;
  context.plan = problem.options;
  if (!options.cut.empty()) {
    auto form = ParseCutForm(options.cut);
    if (!form) return tl::unexpected(form.error());
    context.form = *form;
  }
  if (!options.exchange.empty()) {
    auto exchange = ParseExchange(options.exchange);
    if (!exchange) return tl::unexpected(exchange.error());
    context.exchange = *exchange;
  }
  if (!options.gradients.empty()) {
    auto way = ParseGradientWay(options.gradients);
    if (!way) return tl::unexpected(way.error());
    context.gradients = *way;
  }
  return context;
}

// A mesh of one axis, and that context: heads and rows of the batch need no exchange.
Result<int64_t> ShardsOf(const std::string& text) {
  auto mesh = ParseMesh(text);
  if (!mesh) return tl::unexpected(mesh.error());
  if (mesh->axes.size() == 1 && mesh->Has(kContextAxis)) return mesh->NumDevices();
  return Fail(ErrorCode::kMeshInvalid, fmt::format("expected one axis, as context=4, found {}", text), "--mesh");
}

int Finish(const Options& options, const Result<ShardReceipt>& done) {
  if (!done) return Report(done.error(), options.json);
  const std::string json = ToJson(*done) + "\n";
  if (!options.receipt.empty()) {
    if (Status written = WriteFile(options.receipt, json); !written) return Report(written.error(), options.json);
    Say(options.json, "wrote " + options.receipt);
  }
  Print(options.json ? json : Summary(*done));
  if (done->IsGood()) return kGood;
  return Report(Error{ErrorCode::kCheckFailed, "the outputs of several devices are not those of one", "shard run"},
                false);
}

int RunCommand(const Options& options) {
  if (Status ok = DeclareEnvironment(); !ok) return Report(ok.error(), options.json);
  auto problem = ReadProblem(options.problem);
  if (!problem) return Report(problem.error(), options.json);
  auto shards = ShardsOf(options.mesh);
  if (!shards) return Report(shards.error(), options.json);
  auto context = ContextOf(options, *problem);
  if (!context) return Report(context.error(), options.json);
  context->shards = *shards;
  if (Status fits = CheckTensorMemory(problem->contract, options.run.backward); !fits) {
    return Report(fits.error(), options.json);
  }
  auto inputs = ReadInputs(problem->contract, {options.inputs, options.problem.seed, options.run.backward});
  if (!inputs) return Report(inputs.error(), options.json);
  RunMeter meter;
  const Progress progress("running over several devices", options.progress, &meter);
  return Finish(options, RunShards(TheEngine(), problem->contract, problem->batch, *inputs, problem->target,
                                   {.context = *context,
                                    .backward = options.run.backward,
                                    .xla = options.run.xla,
                                    .max_device_bytes = options.max_device_bytes,
                                    .lost = options.lost,
                                    .meter = &meter}));
}

Status Emit(const Options& options, const std::vector<ShardText>& texts) {
  const auto file = [&](const ShardText& text) {
    return (std::filesystem::path(options.emit) / (text.name + ".mlir")).string();
  };
  for (const ShardText& text : texts) {
    const NamedPath path{.name = "--emit", .path = file(text), .role = PathRole::kOutput};
    if (Status ok = DeclarePath(path); !ok) return ok;
  }
  std::error_code error;
  std::filesystem::create_directories(options.emit, error);
  if (error)
    return Fail(ErrorCode::kFileWrite, fmt::format("cannot make the folder: {}", error.message()), options.emit);
  for (const ShardText& text : texts) {
    if (Status written = WriteFile(file(text), text.text); !written) return written;
    Say(options.json, "wrote " + file(text));
  }
  return {};
}

int CompileCommand(Options options) {
  ProblemArguments& arguments = options.problem;
  const std::string target = options.topology.substr(0, options.topology.find(':'));
  if (!arguments.target_option->IsGiven()) arguments.target = target;
  if (arguments.target != target || target.size() == options.topology.size()) {
    return Report(Error{ErrorCode::kBadArgument,
                        fmt::format("\"{}\" is no topology of the target {}: write one as v6e:2x2", options.topology,
                                    arguments.target),
                        "--topology"},
                  options.json);
  }
  if (Status ok = DeclareEnvironment(); !ok) return Report(ok.error(), options.json);
  auto problem = ReadProblem(arguments);
  if (!problem) return Report(problem.error(), options.json);
  problem->target.topology = options.topology;
  auto context = ContextOf(options, *problem);
  if (!context) return Report(context.error(), options.json);
  RunMeter meter;
  const ShardCompileOptions compile{.run = {.context = *context,
                                            .backward = options.run.backward,
                                            .xla = options.run.xla,
                                            .max_device_bytes = options.max_device_bytes,
                                            .meter = &meter},
                                    .axis = options.axis,
                                    .lane = options.lane};
  if (!options.emit.empty()) {
    auto texts = LowerShards(TheEngine(), problem->contract, problem->batch, problem->target, compile);
    if (!texts) return Report(texts.error(), options.json);
    if (Status emitted = Emit(options, *texts); !emitted) return Report(emitted.error(), options.json);
  }
  const Progress progress("compiling", options.progress, &meter);
  const Result<ShardReceipt> done =
      CompileShards(TheEngine(), problem->contract, problem->batch, problem->target, compile);
  // The texts are what was asked for, and no plugin was named.
  const bool is_only_emit = !done && !options.emit.empty() && options.receipt.empty() &&
                            options.run.xla.plugin.empty() && done.error().code == ErrorCode::kPluginUnusable;
  if (!is_only_emit) return Finish(options, done);
  if (options.json) Print(JsonObject().Bool("compiled", false).Text("why_not", done.error().message).Done() + "\n");
  Say(options.json, "nothing was compiled: " + done.error().message);
  return kGood;
}

void AddCommon(Command& verb, Options& options) {
  AddContract(verb, options.problem.contract)->Required();
  verb.AddOption("--cut", options.cut, "contiguous, zigzag or reordered (default: the cheapest that the mask allows)")
      ->TypeName("CUT");
  verb.AddOption("--exchange", options.exchange, "allgather, heads, ring or sparse (default: the cheapest)")
      ->TypeName("HOW");
  verb.AddFlag("--backward", options.run.backward, "Also the gradients");
  verb.AddOption("--gradients", options.gradients,
                 "Of keys: returned to who has them, or rows brought there (default: the one of fewer bytes)")
      ->TypeName("HOW");
  verb.AddNumber("--max-device-bytes", options.max_device_bytes, {.low = 0, .high = INT64_MAX},
                 "Refuse programs whose arguments, results and temporary bytes are more on a device")
      ->TypeName("N");
  verb.AddOption("--receipt", options.receipt, "Write the receipt to this file")->Writes("F.json");
  AddProblemOptions(verb, options.problem);
  verb.AddOption("--plugin", options.run.xla.plugin,
                 "PJRT plugin (default: TESSERA_PJRT_PLUGIN, else the installed one)")
      ->Reads("FILE.so");
  verb.AddFlag("--json", options.json, "Print one JSON document: the receipt");
  verb.AddFlag("--progress", options.progress, "Report progress also when standard error is no terminal");
}

}  // namespace

void AddShardRun(Command& shard, Action& action) {
  auto options = std::make_shared<Options>();
  Command* verb = shard.AddCommand("run", "Run attention over several devices and hold it against one");
  AddCommon(*verb, *options);
  verb->AddOption("--mesh", options->mesh, "The devices, as context=4")->TypeName("AXES")->Required();
  Option* inputs = verb->AddOption("--inputs", options->inputs, "Tensors q, k, v, ...")->Reads("F.safetensors");
  AddSeed(*verb, options->problem.seed, "Make them from this seed");
  verb->Find("--seed")->Excludes(inputs);
  verb->AddNumber("--xla-level", options->run.xla.optimization, {0, 3},
                  "XLA's optimisation level, 0 to 3 (default: the plugin's own)")
      ->TypeName("N");
  verb->AddNumber("--lose", options->lost, {0, kMaxShards - 1},
                  "Withhold this shard's tensors, to see that the launch is refused")
      ->TypeName("SHARD");
  verb->Footer(kRunFooter);
  verb->OnParsed([options, &action] { action = [options] { return RunCommand(*options); }; });
}

void AddShardCompile(Command& shard, Action& action) {
  auto options = std::make_shared<Options>();
  Command* verb = shard.AddCommand("compile", "Compile attention for the chips of a topology and run nothing");
  AddCommon(*verb, *options);
  verb->AddOption("--topology", options->topology, "The chips, as their compiler calls them: v6e:2x2")
      ->TypeName("T")
      ->Required();
  verb->AddOption("--axis", options->axis, "What chips share: context (tokens), model (heads) or data (rows)")
      ->TypeName("AXIS")
      ->ShowDefault();
  verb->AddOption("--lane", options->lane, "xla_pallas (our kernels) or, over context, xla_chunked (plain StableHLO)")
      ->TypeName("LANE")
      ->ShowDefault();
  verb->AddOption("--emit", options->emit, "Write the StableHLO text of each program into this folder")
      ->WritesInto("DIR", ".mlir");
  verb->Footer(kCompileFooter);
  verb->OnParsed([options, &action] { action = [options] { return CompileCommand(*options); }; });
}

}  // namespace tessera::program
