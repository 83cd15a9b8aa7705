// What every subcommand shares: exit codes, one message per mistake, the arguments that name a problem, and progress.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "batch_arguments.h"
#include "output.h"
#include "progress.h"
#include "tessera/tessera.h"

namespace tessera::program {

inline constexpr int kGood = 0;
inline constexpr int kCheckFailed = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kRefused = 3;

// Set by the subcommand that was named; main runs it after all arguments have been read.
using Action = std::function<int()>;

void AddPlan(Command& app, Action& action);
void AddExplain(Command& app, Action& action);
void AddRoute(Command& app, Action& action);
void AddRun(Command& app, Action& action);
void AddCompile(Command& app, Action& action);
void AddEmit(Command& app, Action& action);
void AddTpuCost(Command& app, Action& action);
void AddVerify(Command& app, Action& action);
void AddBench(Command& app, Action& action);
void AddLanes(Command& app, Action& action);
void AddReceipt(Command& app, Action& action);
void AddLedger(Command& app, Action& action);
void AddExport(Command& app, Action& action);
void AddView(Command& app, Action& action);
void AddBridge(Command& app, Action& action);
void AddRows(Command& app, Action& action);
void AddShard(Command& app, Action& action);
void AddShardRun(Command& shard, Action& action);
void AddShardCompile(Command& shard, Action& action);
void AddTrain(Command& app, Action& action);
void AddNew(Command& app, Action& action);
void AddError(Command& app, Action& action);
void AddDemo(Command& app, Action& action);
// What describes the others, and so is added last.
void AddCompletion(Command& app, Action& action);
void AddMan(Command& app, Action& action);

// The program's one engine, made on first use. Never destroyed: a plugin's threads may outlive main.
const Engine& TheEngine();
// What it is made with: the environment's, until the engine is made. What the command line names by --lane or --isa,
// also "auto", is not the environment's to say.
EngineOptions& EngineDefaults();
// Before TheEngine() is first asked for: a receipt leaves nothing open that the environment could fill, so that only
// what says where things are stays of it.
void ForgetRequestDefaults();
Option* AddLaneOption(Command& app, RunOptions& run);

int ExitCodeOf(ErrorCode code);
// Prints "tessera: TSR-..." on standard error and, with `json`, the same as a document on standard output.
int Report(const Error& error, bool json);

std::string Grouped(int64_t number);   // 1234567 -> "1,234,567"
std::string Milliseconds(int64_t ns);  // "0.42 ms", "12.3 s"
std::string Bytes(int64_t bytes);      // "12,345 bytes"
std::string Indented(std::string_view text, std::string_view margin);
std::string ToAscii(std::string_view text);  // the map's glyphs as plain characters
int TerminalColumns();

// The arguments that name a problem and how it is planned.
struct ProblemArguments {
  std::string contract;
  std::string contract_text;  // stands in for the file when not empty
  BatchArguments batch;
  std::string target = "cpu";
  std::string tile;
  std::vector<std::string> disable;
  bool verify_stages = false;
  bool widen_class = false;
  std::string inputs;  // what a routed contract makes its picks from: a file, else the seed
  uint64_t seed = 1;
  const Option* inputs_option = nullptr;  // where only a contract that routes has use for them
  const Option* seed_option = nullptr;
  const Option* target_option = nullptr;
};
struct Problem {
  Contract contract;
  Batch batch;
  Target target;
  PlanOptions options;
  TensorMap inputs;  // of a routed contract
};
// The contract itself, which standard input or the argument (shorthand.h) can be; `also` says what else it can be.
Option* AddContract(Command& app, std::string& contract, const std::string& also = {});
void AddProblemOptions(Command& app, ProblemArguments& arguments);
// Those of them that do not depend on a machine.
void AddBatchOptions(Command& app, ProblemArguments& arguments);
void AddSeed(Command& app, uint64_t& seed, const std::string& about);
// --inputs and --seed, where only a routed contract has use for them.
void AddRouteOptions(Command& app, ProblemArguments& arguments);
Result<PlanResult> PlanProblem(const Problem& problem);
// "note          head 0 lets query 0 see key 3, ...", a line for each leak of the contract's mask; mostly nothing.
std::string LeakNotes(const Contract& contract);
// --plugin and what else the lanes that go through XLA can be told.
void AddXlaOptions(Command& app, RunOptions& run);
// Which of our TPU kernels a program has. UseKernelOptions makes `inference`, whose option it gives, part of the run.
Option* AddKernelOptions(Command& app, RunOptions& run, bool& inference);
void UseKernelOptions(RunOptions& run, bool inference);
Status CheckKernelOptions(const Command& app, std::string_view lane);
// Those, --isa and --threads: what a lane works with.
void AddWorkOptions(Command& app, RunOptions& run);
// Given by name, they are errors where the lane that is to run makes no use of a plugin.
Status CheckXlaOptions(const Command& app, const Contract& contract, const Target& target, const RunOptions& run);
Result<Problem> ReadProblem(const ProblemArguments& arguments);
// A file, "-" for standard input, or a contract in one argument (shorthand.h).
Result<Contract> ReadContractArgument(const std::string& argument);
Result<TileSize> ParseTile(const std::string& text);
// Two whole numbers with this character between them, as numbers of options are written.
std::optional<std::pair<int64_t, int64_t>> ParsePair(const std::string& text, char between);
bool IsPlanFile(const std::string& path);

// What a run's inputs and outputs take together; in floating point, because it can exceed 64 bits.
double TensorBytes(const Contract& contract, bool backward);
// Refuses what cannot fit this machine's memory before anything is allocated.
Status CheckTensorMemory(const Contract& contract, bool backward);
// From a file that is no larger than these tensors could make it, or from the seed.
struct InputArguments {
  std::string file;
  uint64_t seed = 1;
  bool backward = false;
  Layout layout = Layout::kBhtd;
};
Result<TensorMap> ReadInputs(const Contract& contract, const InputArguments& arguments);

class Stopwatch {
 public:
  int64_t Ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::program
