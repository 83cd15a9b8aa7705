// `tessera emit`: what a TPU user takes to a runtime of their own, as one folder: the StableHLO programs of forward and
// backward, the text of every kernel in them, the list of operands with the plan's tables as a file, and a receipt.
// Nothing is compiled and nothing runs. The folder appears whole or not at all.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "json_text.h"
#include "program.h"
#include "shorthand.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  RunOptions run;
  std::string out;
  bool json = false;
  bool inference = false;
  const Command* command = nullptr;
};

constexpr const char* kFooter =
    "The folder gets forward.mlir and backward.mlir (StableHLO), NAME.mosaic for each kernel inside of them,\n"
    "operands.json (what each program takes and gives, in order, and where it comes from), tables.safetensors (the\n"
    "plan's tables, by those names) and receipt.json. docs/tpu.md says how to run them. No plugin is needed.\n\n"
    "Examples:\n"
    "  tessera emit examples/causal.toml --out causal_v6e\n"
    "  tessera emit examples/causal.toml --target v5e --tile 256x256 --out causal_v5e\n"
    "  tessera emit examples/causal.toml --chips 2 --out causal_2_chips";

struct File {
  std::string name;
  std::string text;
};

std::string Dims(const std::vector<int64_t>& dims) {
  std::vector<std::string> numbers;
  for (const int64_t dim : dims) numbers.push_back(std::to_string(dim));
  return JsonList(numbers);
}

std::string Operands(const std::vector<ProgramOperand>& operands, int64_t chips) {
  std::vector<std::string> list;
  for (const ProgramOperand& operand : operands) {
    JsonObject object;
    object.Text("name", operand.name)
        .Text("type", ToText(operand.tensor.type))
        .Raw("shape", Dims(operand.tensor.shape));
    object.Text("source", operand.source).Text("about", operand.about);
    if (operand.source == "contract") object.Real("value", operand.tensor.At(0));
    if (operand.source == "plan") object.Text("file", "tables.safetensors");
    if (chips > 1) object.Int("chip_axis", operand.chip_axis);
    list.push_back(object.Done());
  }
  return JsonList(list);
}

// Of XLA's ExecutableBuildOptions, by its names: what a program of several chips must be compiled with.
std::string CompileOptionsOf(int64_t chips) {
  JsonObject object;
  object.Int("num_replicas", 1).Int("num_partitions", chips);
  return object.Bool("use_spmd_partitioning", true).Bool("use_shardy_partitioner", true).Done();
}

std::string OperandsDocument(const std::vector<ProgramText>& programs) {
  std::vector<std::string> list;
  for (const ProgramText& program : programs) {
    std::vector<std::string> kernels;
    for (const KernelText& kernel : program.kernels) kernels.push_back(JsonString(kernel.name + ".mosaic"));
    JsonObject object;
    object.Text("pass", program.pass).Text("file", program.pass + ".mlir").Text("module", program.name);
    object.Int("parts", program.parts).Int("chips", program.chips).Raw("kernels", JsonList(kernels));
    if (program.chips > 1) object.Raw("compile_options", CompileOptionsOf(program.chips));
    object.Raw("operands", Operands(program.operands, program.chips));
    list.push_back(object.Raw("results", Operands(program.results, program.chips)).Done());
  }
  return JsonObject().Raw("programs", JsonList(list)).Done() + "\n";
}

FileUse UseOf(const File& file) {
  return {.name = file.name, .bytes = static_cast<int64_t>(file.text.size()), .digest = FileDigest(file.text)};
}

Status WriteFolder(const std::string& folder, const std::vector<File>& files) {
  for (const File& file : files) {
    if (Status ok = WriteFile(folder + "/" + file.name, file.text); !ok) return ok;
  }
  return {};
}

Status FailFolder(const std::string& path, const std::error_code& error) {
  return Fail(ErrorCode::kFileWrite, fmt::format("cannot make the folder: {}", error.message()), path);
}

// Written beside its place under another name, and then moved there.
Status WriteWhole(const std::string& out, const std::vector<File>& files) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path place = fs::path(out).has_filename() ? fs::path(out) : fs::path(out).parent_path();
  if (fs::exists(place, error) && !(fs::is_directory(place, error) && fs::is_empty(place, error))) {
    return Fail(ErrorCode::kFileWrite, "it is there already, and not an empty folder", out);
  }
  if (place.has_parent_path()) fs::create_directories(place.parent_path(), error);
  if (error) return FailFolder(out, error);
  const std::string beside = fmt::format("{}.partial.{}", place.string(), getpid());
  if (!fs::create_directory(beside, error)) return FailFolder(beside, error);
  Status written = WriteFolder(beside, files);
  if (written) {
    fs::rename(beside, place, error);
    if (!error) return {};
    written = FailFolder(out, error);
  }
  fs::remove_all(beside, error);
  return written;
}

int EmitCommand(Options options) {
  UseKernelOptions(options.run, options.inference);
  if (Status ok = CheckKernelOptions(*options.command, options.run.lane); !ok) return Report(ok.error(), options.json);
  if (Status ok = DeclareEnvironment(); !ok) return Report(ok.error(), options.json);
  auto problem = ReadProblem(options.problem);
  if (!problem) return Report(problem.error(), options.json);
  options.run.plan = problem->options;
  options.run.digests = true;
  options.run.contract_source = SourceOf(options.problem.contract);
  options.run.batch_source = SourceOf(options.problem.batch);
  if (!problem->inputs.empty()) {
    options.run.input_source = options.problem.inputs.empty() ? fmt::format("seed {}", options.problem.seed)
                                                              : "file " + options.problem.inputs;
  }
  EmitOutcome emitted =
      Emit(TheEngine(), problem->contract, problem->batch, problem->target, options.run, problem->inputs);
  if (emitted.run.error) return Report(*emitted.run.error, options.json);
  std::vector<File> files;
  TensorMap tables;
  for (const ProgramText& program : emitted.programs) {
    files.push_back({program.pass + ".mlir", program.text});
    for (const KernelText& kernel : program.kernels) files.push_back({kernel.name + ".mosaic", kernel.text});
    for (const ProgramOperand& operand : program.operands) {
      if (operand.source == "plan") tables[operand.name] = operand.tensor;
    }
  }
  files.push_back({"operands.json", OperandsDocument(emitted.programs)});
  files.push_back({"tables.safetensors", ToSafetensors(tables)});
  Receipt& receipt = emitted.run.receipt;
  for (const File& file : files) receipt.files.push_back(UseOf(file));
  files.push_back({"receipt.json", ToJson(receipt) + "\n"});
  if (Status ok = WriteWhole(options.out, files); !ok) return Report(ok.error(), options.json);
  if (options.json) {
    Print(files.back().text);
    return kGood;
  }
  for (const File& file : files) Print(fmt::format("wrote {}/{}\n", options.out, file.name));
  Print(ToLine(receipt) + "\n");
  return kGood;
}

}  // namespace

void AddEmit(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  RunOptions& run = options->run;
  run.lane = "xla_pallas";
  run.backward = true;
  options->problem.target = "v6e";
  Command* sub =
      app.AddCommand("emit", "Write a contract's TPU programs and kernels, with their operands, to a folder");
  AddContract(*sub, options->problem.contract)->Required();
  sub->AddOption("--out", options->out, "The folder, which must be new or empty")->WritesInto("DIR", "")->Required();
  sub->AddOption("--lane", run.lane, "Whose programs; auto = those of the lane that the target's table leads to")
      ->TypeName("LANE")
      ->ShowDefault();
  sub->AddNumber("--chips", run.chips, {1}, "How many chips share the heads, or the rows of the batch")
      ->TypeName("N")
      ->ShowDefault();
  AddProblemOptions(*sub, options->problem);
  AddRouteOptions(*sub, options->problem);
  AddKernelOptions(*sub, run, options->inference);
  sub->AddFlag("--json", options->json, "Print the receipt as one JSON document");
  sub->Footer(kFooter);
  options->command = sub;
  sub->OnParsed([options, &action] { action = [options] { return EmitCommand(*options); }; });
}

}  // namespace tessera::program
