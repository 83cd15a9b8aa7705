// Training runs: a run file says which model, which data and how long; a run leaves checkpoints, a receipt and a page
// in its folder. docs/training.md explains them by examples/tiny_code.toml.
//
// Goals: equal run files, sources and machine give equal bits, interrupted or not; nothing that is in the folder is
// ever half written; every number of a receipt was measured. Not a goal: training on several machines.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/model.h"
#include "tessera/rows.h"
#include "tessera/target.h"

#pragma GCC visibility push(default)
namespace tessera {

// [data]: texts that are read as bytes, or rows that are packed already.
struct DataSpec {
  std::string folder = ".";          // names are of files below it
  std::vector<std::string> files;    // patterns: `*` is any text, also across folders
  std::vector<std::string> exclude;  // the same: of those files, the ones that are left out
  int64_t held_out = 16;             // one file in so many, by a digest of its name, is not trained on
  Packer packer = Packer::kBestFit;
  std::string rows;  // in place of files: a folder of row shards, and that of the held-out ones
  std::string held_out_rows;
  bool operator==(const DataSpec&) const = default;
};
// [train].
struct TrainSpec {
  int64_t steps = 0;
  int64_t micro_batches = 1;       // of [model]'s rows each, in one step
  int64_t micro_batch_warmup = 0;  // steps over which their number rises from an eighth
  int64_t barrier_every = 0;       // as TrainerOptions has it
  double learning_rate = 1e-3;
  int64_t warmup_steps = 0;
  double final_rate = 0.1;  // of the learning rate, at the last step
  OptimizerOptions optimizer = {};
  uint64_t seed = 1;
  int64_t log_every = 10;
  int64_t eval_every = 0;        // 0: at the end only
  int64_t eval_rows = 0;         // 0: all that are held out
  int64_t checkpoint_every = 0;  // 0: at the end only
  int64_t keep = 2;              // checkpoints
  bool telemetry = false;        // on logging steps: sinks and spikes of each layer
  bool operator==(const TrainSpec&) const = default;
};
struct RunFile {
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  std::map<std::string, std::string> substitutes = {};  // as TrainerOptions has them, whose own come first
};
// TOML or JSON. Names of [data] are taken from `folder`, that of the run file. TSR-T101 with every violation.
Result<RunFile> ParseRunFile(std::string_view text, const std::string& folder);

// Where time went (docs/training.md): goodput = min(1, step / wall), 0 without a step; idle = max(0, wall - all spans).
enum class SpanKind : uint8_t { kStep, kCheckpoint, kEval, kCompilation, kDataLoading };
inline constexpr size_t kNumSpans = 5;
std::string_view ToText(SpanKind kind);
struct Goodput {
  double wall_s = 0.0;
  std::array<double, kNumSpans> spans_s = {};
  double goodput = 0.0;
  double idle_s = 0.0;
};
Goodput MakeGoodput(const std::array<double, kNumSpans>& spans_s, double wall_s);

// What one layer did with one row (docs/training.md, telemetry).
struct LayerTelemetry {
  double sink_ratio = 0.0;           // share of attention on the row's first token ...
  double document_sink_ratio = 0.0;  // ... and on that of a query's own document
  double max_magnitude = 0.0;        // of the residual stream behind the layer, as the next
  double outliers = 0.0;             // fraction of values beyond six standard deviations
  double excess_kurtosis = 0.0;
  std::string telemetry_class = {};  // "CLEAN", "SINK_ONLY", "SPIKE_ONLY", "BOTH"
  bool operator==(const LayerTelemetry&) const = default;
};
// One line of a run's log: a logging step, or one with an evaluation.
struct LogPoint {
  int64_t step = 0;   // 1, 2, ...
  double loss = 0.0;  // nats per token, of this step
  double grad_norm = 0.0;
  double learning_rate = 0.0;
  int64_t tokens = 0;  // trained in the run until here
  double tokens_per_s = 0.0;
  double goodput = 0.0;
  std::optional<double> held_out_loss = {};
  std::vector<LayerTelemetry> layers = {};  // with telemetry
  bool operator==(const LogPoint&) const = default;
};

inline constexpr int64_t kTrainReceiptVersion = 1;
struct TrainChecks {
  bool all_losses_finite = false;
  bool no_nan_loss = false;
  bool exit_code_zero = false;
  bool has_steps = false;
  bool no_oom = false;
  bool operator==(const TrainChecks&) const = default;
};
struct TrainReceipt {
  std::string model_digest;
  std::string data_digest;
  std::string state_digest;  // of parameters and moments at the end; empty where nothing was run
  std::string target;
  std::string mode;        // "train", "compile_only"
  std::string ended;       // "finished", "interrupted", or the error that ended it
  int64_t first_step = 0;  // that this process made: 1, or where it went on
  int64_t steps = 0;       // that this process made
  int64_t last_step = 0;
  int64_t tokens = 0;  // trained by this process
  int64_t vocab = 0;
  int64_t padded_vocab = 0;
  int64_t vocab_multiple = 0;
  std::string tokenizer;
  std::string packer;
  int64_t compiles = 0;              // by this process, for every size of a micro-batch that was tried
  std::vector<ProgramUse> programs;  // one for each: whether it was compiled or on disk, and its key
  int64_t retries = 0;
  int64_t micro_batch_rows = 0;    // after retries
  std::string calibration;         // SHA-256 of what the need of memory depends on (docs/training.md)
  double estimated_gib = 0.0;      // of the programs: arguments, outputs and temporaries of the largest
  std::optional<double> peak_gib;  // of the process after the first step, where programs run on the host
  std::vector<std::string> contract_keys;
  std::vector<std::string> class_keys;
  std::vector<Substitute> substitutes;
  std::vector<std::string> notes;
  std::string plugin;
  std::string execution_mode;
  std::string determinism;  // a tier's name (docs/training.md)
  std::optional<double> first_loss;
  std::optional<double> last_loss;
  std::optional<double> held_out_loss;
  std::optional<double> bigram_loss;
  std::vector<LayerTelemetry> telemetry;  // of the last logging step, where there was any
  double tokens_per_s = 0.0;              // in steps after the first
  Goodput goodput;
  TrainChecks checks;
  std::optional<ShardingUse> sharding = {};  // over a mesh; every number above is then of all devices
};
std::string ToJson(const TrainReceipt& receipt);
// Every rule that a receipt keeps; TSR-R005 with those that this text breaks.
Status CheckTrainReceipt(std::string_view json);

enum class TrainPhase : uint8_t { kCompile, kStep };
struct TrainOptions {
  std::string folder;  // of the run; made where it is not there
  Target target;
  TrainerOptions trainer = {};  // attention, plugin, threads, mesh, compile_only; the rest is the run file's
  bool resume = false;          // from the newest checkpoint
  int64_t max_steps = 0;        // of this call; 0: as many as the run file says
  // Asked between steps, and between and within everything that comes before the first: a signal may answer it. Once it
  // says yes the run ends, and it is not asked again.
  std::function<bool()> should_stop = {};
  // Asked before programs are compiled and before every step, with the rows of a micro-batch: an error is as if the
  // device had given it, so that one of memory is tried again with fewer rows.
  std::function<Status(TrainPhase phase, int64_t rows)> may_go_on = {};
  std::function<void(const LogPoint&)> on_point = {};
  std::function<void(std::string_view)> on_note = {};  // what happens, for people
};
// The folder has then train.json (the receipt), log.jsonl, train.html, checkpoints and, where files were read, rows.
Result<TrainReceipt> Train(const Engine& engine, const RunFile& run, const TrainOptions& options);

// For a program whose one job is to train: memory that a step gives back is kept for the next one, where an allocator
// would give it to the system and take it again page by page. It is a setting of the whole process, so that nothing in
// the library calls it; to be called before other threads are there. Where the C library is not glibc it does nothing.
void KeepFreedMemory();

}  // namespace tessera
#pragma GCC visibility pop
