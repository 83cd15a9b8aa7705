// A run on one page: the folder is locked, a checkpoint is looked for, the data becomes rows, the model is compiled,
// and steps are made until there are enough or somebody wants it to end.
#include "tessera/train.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <map>

#include "base/try.h"
#include "io/file_lock.h"
#include "model/barriers.h"
#include "tessera/io.h"
#include "tessera/version.h"
#include "train/calibration.h"
#include "train/checkpoint.h"
#include "train/corpus.h"
#include "train/goodput.h"
#include "train/log.h"
#include "train/programs.h"
#include "train/schedule.h"
#include "train/telemetry.h"

namespace tessera {
namespace train {
namespace {

constexpr int64_t kMaxBigramVocab = 4096;  // its table has the square of it

// The tier (docs/training.md) that is tested where programs run on this machine's processor; elsewhere what a plugin
// does in its own products is not ours to promise.
std::string DeterminismOf(const TrainOptions& options) {
  if (options.trainer.compile_only) return "none";
  return options.target.kind == TargetKind::kCpu ? "same_machine" : "same_target";
}

// Of this process so far.
double PeakGib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);
}

// Which devices share what, as far as the need of memory depends on it.
void AddMesh(const Mesh& mesh, CalibrationInputs& inputs) {
  Parallelism& parallelism = inputs.parallelism;
  for (const MeshAxis& axis : mesh.axes) {
    if (axis.name == kDataAxis) {
      parallelism.dp = axis.size;
    } else if (axis.name == kModelAxis) {
      parallelism.tp = axis.size;
    } else if (axis.name == kExpertAxis) {
      parallelism.ep = axis.size;
    } else {
      inputs.features.push_back(fmt::format("{}={}", axis.name, axis.size));
    }
  }
}

class Run {
 public:
  Run(const Engine& engine, const RunFile& run, const TrainOptions& options)
      : engine_(engine), run_(run), options_(options), model_(run.model) {}

  Result<TrainReceipt> CompileOnly() {
    if (WantsStop()) return EndEarly();
    // The texts need no plugin, and are there for other compilers also where none is.
    const ModelPrograms texts = TESSERA_TRY(LowerModel(engine_, model_, options_.target, OfTrainer()));
    TESSERA_TRY(WritePrograms(options_.folder, texts));
    for (const Substitute& one : texts.substitutes) {
      if (one.name != "none") Note(fmt::format("{} {}: {}", one.key, one.name, one.reason));
    }
    if (WantsStop()) return EndEarly();
    if (Status made = meter_.During(SpanKind::kCompilation, [&] { return Compile(); }); !made) {
      if (is_stopped_) return EndEarly();
      return tl::unexpected(made.error());
    }
    Describe();
    receipt_.mode = "compile_only";
    receipt_.ended = "finished";
    receipt_.checks = {true, true, true, false, true};
    receipt_.goodput = meter_.Now();
    TESSERA_TRY(WriteReceipt());
    return receipt_;
  }

  Result<TrainReceipt> Go() {
    TESSERA_TRY(FindCheckpoint());
    TESSERA_TRY(meter_.During(SpanKind::kDataLoading, [&] { return OpenData(); }));
    if (WantsStop()) return EndEarly();
    model_.rows = RowsToTry();
    if (Status made = meter_.During(SpanKind::kCompilation, [&] { return Compile(); }); !made) {
      if (is_stopped_) return EndEarly();  // its programs were not wanted any more
      return tl::unexpected(made.error());
    }
    if (start_) TESSERA_TRY(trainer_->SetState(start_->state));
    start_.reset();
    Describe();
    if (WantsStop()) return EndEarly();
    if (Status made = MakeSteps(); !made) {
      if (is_stopped_ && !trainer_) return EndEarly();  // while programs of half the size were made
      // What was reached is told all the same; the error is what the caller gets.
      receipt_.ended = fmt::format("{}: {}", CodeText(made.error().code), made.error().message);
      Finish(receipt_.ended);
      if (Status told = WriteReceipt(); !told) Note(ToText(told.error()));
      return tl::unexpected(made.error());
    }
    return receipt_;
  }

 private:
  void Note(std::string_view text) const {
    if (options_.on_note) options_.on_note(text);
  }

  // Once somebody wants the run to end, that stays so.
  bool WantsStop() {
    is_stopped_ = is_stopped_ || (options_.should_stop && options_.should_stop());
    return is_stopped_;
  }
  StopFunction Stop() {
    return [this] { return WantsStop(); };
  }

  // Before the first step of this process there is nothing to keep; what earlier ones told stays.
  Result<TrainReceipt> EndEarly() {
    Note("interrupted before the first step");
    receipt_.mode = options_.trainer.compile_only ? "compile_only" : "train";
    receipt_.model_digest = Digest(run_.model);
    receipt_.data_digest = identity_.data;
    receipt_.target = options_.target.name;
    receipt_.first_step = step_ + 1;
    receipt_.last_step = step_;
    receipt_.determinism = "none";
    TellVocabulary();
    Finish("interrupted");
    if (step_ == 0) TESSERA_TRY(WriteReceipt());
    return receipt_;
  }

  Status FindCheckpoint() {
    const std::vector<int64_t> steps = ListCheckpoints(options_.folder);
    if (steps.empty()) return {};
    if (!options_.resume) {
      return Fail(ErrorCode::kCheckpointMismatch,
                  "there is a run already: --resume goes on with it, or name another folder", options_.folder);
    }
    start_path_ = options_.folder + "/" + CheckpointName(steps.back());
    auto read = ReadCheckpoint(start_path_);
    if (!read && steps.size() > 1)
      read.error().message += fmt::format("; without this file a run goes on from {}", CheckpointName(steps.end()[-2]));
    start_ = TESSERA_TRY(std::move(read));
    step_ = start_->step;
    place_ = start_->place;
    tokens_ = start_->tokens;
    if (auto log = ReadFile(options_.folder + "/log.jsonl"); log) points_ = ParseLog(*log, step_);
    return {};
  }

  Status OpenData() {
    const Corpus corpus = TESSERA_TRY(PrepareCorpus(run_, options_.folder, start_.has_value(), Stop()));
    if (WantsStop()) return {};
    train_rows_ = TESSERA_TRY(RowSource::Open(corpus.train, run_.model, Stop()));
    held_out_rows_ = TESSERA_TRY(RowSource::Open(corpus.held_out, run_.model, Stop()));
    if (WantsStop()) return {};
    identity_ = {Digest(run_.model), corpus.digest, ScheduleDigest(run_.train)};
    if (start_) TESSERA_TRY(CheckIdentity(start_->identity, identity_, start_path_));
    if (run_.model.vocab <= kMaxBigramVocab)
      receipt_.bigram_loss =
          BigramLoss(train_rows_->shards(), held_out_rows_->shards(), run_.model.vocab, NumHeldOutRows());
    order_.emplace(train_rows_->rows(), run_.train.seed);
    receipt_.tokenizer = corpus.tokenizer;
    receipt_.packer = corpus.packer;
    Note(fmt::format("{} rows of {} tokens to train on, {} held out", train_rows_->rows(), run_.model.row_tokens,
                     held_out_rows_->rows()));
    if (receipt_.bigram_loss)
      Note(
          fmt::format("a bigram model of the same rows: {:.3f} nats a token on those held out", *receipt_.bigram_loss));
    return {};
  }

  // Whoever calls comes before the run file.
  std::map<std::string, std::string> AskedSubstitutes() const {
    std::map<std::string, std::string> asked = options_.trainer.substitutes;
    for (const auto& [key, name] : run_.substitutes) {
      if (key != "attention" || options_.trainer.attention == "auto") asked.emplace(key, name);
    }
    return asked;
  }

  TrainerOptions OfTrainer() {
    TrainerOptions options = options_.trainer;
    options.optimizer = run_.train.optimizer;
    options.seed = run_.train.seed;
    options.barrier_every = run_.train.barrier_every;
    options.should_stop = [this] { return WantsStop(); };
    options.substitutes = AskedSubstitutes();
    return options;
  }

  CalibrationInputs Calibration(int64_t rows) const {
    CalibrationInputs inputs{.code = kVersion, .hardware = options_.target.name, .model = Digest(run_.model)};
    if (options_.trainer.mesh) AddMesh(*options_.trainer.mesh, inputs);
    inputs.parallelism.device_batch = rows / inputs.parallelism.dp;
    inputs.parallelism.accum = run_.train.micro_batches * run_.model.rows / rows;
    inputs.features.push_back("attention=" + options_.trainer.attention);
    for (const auto& [key, name] : AskedSubstitutes()) inputs.features.push_back(fmt::format("{}={}", key, name));
    if (run_.train.barrier_every > 0) inputs.features.push_back(fmt::format("barriers={}", run_.train.barrier_every));
    return inputs;
  }

  // The rows of a micro-batch, or a half or a quarter of them where the folder knows that there was no memory for more.
  int64_t RowsToTry() const {
    std::vector<std::string> candidates;
    std::map<std::string, int64_t> rows_of;
    int64_t rows = run_.model.rows;
    for (int64_t halvings = 0; halvings <= kRetryLimit; ++halvings) {
      candidates.push_back(CalibrationSignature(Calibration(rows)));
      rows_of[candidates.back()] = rows;
      if (rows % 2 != 0) break;
      rows /= 2;
    }
    const std::vector<std::string> ranked = RankCandidates(candidates, ReadFailed(options_.folder));
    return rows_of.at(ranked.front());
  }

  Status MayGoOn(TrainPhase phase) const {
    return options_.may_go_on ? options_.may_go_on(phase, model_.rows) : Status();
  }

  Status CompileOnce() {
    TESSERA_TRY(MayGoOn(TrainPhase::kCompile));
    trainer_ = TESSERA_TRY(Trainer::Create(engine_, model_, options_.target, OfTrainer()));
    return {};
  }

  Status Compile() {
    while (true) {
      Status made = CompileOnce();
      if (made) break;
      if (!Halve(made.error().message)) return made;
    }
    has_oom_ = false;
    for (const std::string& note : trainer_->notes()) Note(note);
    if (const std::optional<ShardingUse>& over = trainer_->sharding(); over) {
      Note(fmt::format("over {}: {} devices, {} bytes on each, {:.1f} % replicated, fingerprint {}", ToText(over->mesh),
                       over->mesh.NumDevices(), over->figures.device_bytes, 100.0 * over->figures.ReplicatedFraction(),
                       over->fingerprint));
    }
    return {};
  }

  // A program for which there was no memory is made again for micro-batches of half as many rows, twice as many of
  // them. Whether that is worth a try.
  bool Halve(const std::string& message) {
    has_oom_ = has_oom_ || ClassifyFailure(message).has_value();
    if (!MayRetry({message, true, receipt_.steps, receipt_.retries}) || model_.rows % 2 != 0) return false;
    AddFailed(options_.folder, CalibrationSignature(Calibration(model_.rows)));
    model_.rows /= 2;
    ++receipt_.retries;
    Note(fmt::format("{}: once more with {} rows in a micro-batch", ToText(*ClassifyFailure(message)), model_.rows));
    return true;
  }

  void Describe() {
    receipt_.mode = "train";
    receipt_.model_digest = Digest(run_.model);
    receipt_.data_digest = identity_.data;
    receipt_.target = options_.target.name;
    receipt_.first_step = step_ + 1;
    receipt_.last_step = step_;
    TellVocabulary();
    receipt_.contract_keys = trainer_->contract_keys();
    receipt_.class_keys = trainer_->class_keys();
    receipt_.substitutes = trainer_->substitutes();
    receipt_.notes = trainer_->notes();
    receipt_.plugin =
        trainer_->device().platform_version.empty() ? trainer_->device().plugin : trainer_->device().platform_version;
    receipt_.execution_mode =
        ExecutionMode(static_cast<int64_t>(model::BarriersAfter(run_.model.layers, run_.train.barrier_every).size()));
    receipt_.determinism = DeterminismOf(options_);
    TellPrograms();
    receipt_.micro_batch_rows = model_.rows;
    receipt_.calibration = CalibrationSignature(Calibration(model_.rows));
    receipt_.sharding = trainer_->sharding();
  }

  void TellVocabulary() {
    receipt_.vocab = run_.model.vocab;
    receipt_.padded_vocab = run_.model.PaddedVocab();
    receipt_.vocab_multiple = run_.model.vocab_multiple;
  }

  // Those of this process, also for micro-batches of a size that there was no memory for.
  void TellPrograms() {
    receipt_.programs = discarded_;
    if (trainer_) {
      const std::vector<ProgramUse>& made = trainer_->programs();
      receipt_.programs.insert(receipt_.programs.end(), made.begin(), made.end());
    }
    receipt_.compiles = static_cast<int64_t>(receipt_.programs.size());
  }

  // The micro-batches of a step, and where the order of rows is after them.
  struct StepBatches {
    std::vector<RowBatch> batches;
    int64_t place = 0;
  };
  StepBatches ReadBatches(int64_t steps_before, int64_t place) {
    const int64_t count = MicroBatchesAt({run_.train.micro_batches, run_.train.micro_batch_warmup}, steps_before);
    const int64_t rows = count * run_.model.rows;
    StepBatches read{{}, place};
    for (int64_t first = 0; first < rows; first += model_.rows) {
      std::vector<int64_t> chosen;
      for (int64_t i = 0; i < model_.rows; ++i) chosen.push_back(order_->At(read.place++));
      read.batches.push_back(train_rows_->Read(chosen));
    }
    return read;
  }
  // Those of this step, which were read while the last one was made; then a thread reads those of the next.
  StepBatches TakeBatches() {
    StepBatches taken = ahead_.valid() ? ahead_.get() : ReadBatches(step_, place_);
    if (step_ + 1 < run_.train.steps) {
      ahead_ = std::async(std::launch::async,
                          [this, step = step_ + 1, place = taken.place] { return ReadBatches(step, place); });
    }
    return taken;
  }

  Result<StepResult> StepOnce() {
    TESSERA_TRY(MayGoOn(TrainPhase::kStep));
    const StepBatches taken = meter_.During(SpanKind::kDataLoading, [&] { return TakeBatches(); });
    std::vector<const RowBatch*> pointers;
    for (const RowBatch& batch : taken.batches) pointers.push_back(&batch);
    const StepScalars scalars{LearningRateAt(run_.train, step_ + 1), step_ + 1};
    const int64_t compiles = trainer_->compiles();
    const Clock clock;
    auto result = trainer_->Step(pointers, scalars);
    // A call that made a program is not a step as the others are.
    const bool has_compiled = trainer_->compiles() != compiles;
    meter_.Add(has_compiled ? SpanKind::kCompilation : SpanKind::kStep, clock.Ns());
    if (!result) return result;
    if (!has_compiled) timed_tokens_ += result->tokens;
    place_ = taken.place;
    return result;
  }

  Result<StepResult> StepOrRetry() {
    while (true) {
      auto result = StepOnce();
      if (result) return result;
      if (ahead_.valid()) ahead_.get();  // of a step that is not made next
      auto state = trainer_->State();
      if (!Halve(result.error().message) || !state) return result;
      discarded_.insert(discarded_.end(), trainer_->programs().begin(), trainer_->programs().end());
      trainer_.reset();
      TESSERA_TRY(meter_.During(SpanKind::kCompilation, [&] { return Compile(); }));
      TESSERA_TRY(trainer_->SetState(*state));
      receipt_.micro_batch_rows = model_.rows;
      receipt_.calibration = CalibrationSignature(Calibration(model_.rows));
    }
  }

  // Those that a loss on held-out rows is of, the bigram model's too.
  int64_t NumHeldOutRows() const {
    const int64_t all = held_out_rows_->rows();
    return run_.train.eval_rows == 0 ? all : std::min(run_.train.eval_rows, all);
  }

  // Nothing where somebody wants the run to end before all rows are through.
  Result<std::optional<double>> HeldOutLoss() {
    const int64_t rows = NumHeldOutRows();
    EvalResult sum;
    for (int64_t first = 0; first < rows; first += model_.rows) {
      if (WantsStop()) return std::nullopt;
      std::vector<int64_t> chosen;
      for (int64_t i = first; i < first + model_.rows; ++i) chosen.push_back(i < rows ? i : -1);
      const EvalResult one = TESSERA_TRY(trainer_->Evaluate(held_out_rows_->Read(chosen)));
      sum.loss_sum += one.loss_sum;
      sum.tokens += one.tokens;
    }
    return sum.tokens == 0 ? 0.0 : sum.loss_sum / static_cast<double>(sum.tokens);
  }

  static bool IsEvery(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

  Status MakeSteps() {
    const TrainSpec& spec = run_.train;
    const int64_t last = options_.max_steps > 0 ? std::min(spec.steps, step_ + options_.max_steps) : spec.steps;
    if (step_ == spec.steps) {  // gone on with after its end
      Note("every step of this run is made");
      receipt_.held_out_loss = TESSERA_TRY(meter_.During(SpanKind::kEval, [&] { return HeldOutLoss(); }));
    }
    while (step_ < last && !WantsStop()) {
      const StepResult result = TESSERA_TRY(StepOrRetry());
      ++step_;
      ++receipt_.steps;
      if (receipt_.steps == 1 && options_.target.kind == TargetKind::kCpu) receipt_.peak_gib = PeakGib();
      receipt_.last_step = step_;
      receipt_.tokens += result.tokens;
      tokens_ += result.tokens;
      receipt_.last_loss = result.loss;
      if (!receipt_.first_loss) receipt_.first_loss = result.loss;
      if (!result.loss_finite || !result.grads_finite) {
        has_nan_ = std::isnan(result.loss);
        all_finite_ = false;
        return Fail(ErrorCode::kTrainDiverged,
                    fmt::format("the {} of step {} is not finite; the last checkpoint is as it was",
                                result.loss_finite ? "gradient" : "loss", step_),
                    options_.folder);
      }
      if (IsEvery(step_, spec.log_every) || IsEvery(step_, spec.eval_every) || step_ == spec.steps)
        TESSERA_TRY(Log(result));
      if (step_ == last || WantsStop()) break;
      if (IsEvery(step_, spec.checkpoint_every)) {
        // A full disk may have room again later, and what was written before is untouched.
        if (Status written = Save(); !written) Note("no checkpoint: " + ToText(written.error()));
      }
    }
    return End(is_stopped_ || step_ < spec.steps);
  }

  Status End(bool is_interrupted) {
    const TensorMap state = TESSERA_TRY(trainer_->State());
    receipt_.state_digest = Digest(state);
    if (receipt_.steps > 0) TESSERA_TRY(Save());
    Finish(is_interrupted ? "interrupted" : "finished");
    // Whoever made the last step has told more of it than can be told now.
    if (const auto told = ReadFile(options_.folder + "/train.json");
        receipt_.steps == 0 && told && IsFinishedWith(*told, receipt_.state_digest))
      return {};
    return WriteReceipt();
  }

  Status Log(const StepResult& result) {
    LogPoint point;
    point.step = step_;
    point.loss = result.loss;
    point.grad_norm = result.grad_norm;
    point.learning_rate = LearningRateAt(run_.train, step_);
    point.tokens = tokens_;
    point.tokens_per_s = TokensPerSecond();
    if (IsEvery(step_, run_.train.eval_every) || step_ == run_.train.steps) {
      const int64_t compiles = trainer_->compiles();
      const Clock clock;
      point.held_out_loss = TESSERA_TRY(HeldOutLoss());
      meter_.Add(trainer_->compiles() != compiles ? SpanKind::kCompilation : SpanKind::kEval, clock.Ns());
      receipt_.held_out_loss = point.held_out_loss;
    }
    if (run_.train.telemetry) {
      point.layers = TESSERA_TRY(meter_.During(SpanKind::kEval, [&] { return Telemetry(); }));
    }
    point.goodput = meter_.Now().goodput;
    points_.push_back(point);
    if (options_.on_point) options_.on_point(point);
    return {};
  }

  // Of the first held-out row, every time: what changes is the model.
  Result<std::vector<LayerTelemetry>> Telemetry() {
    const TensorMap parameters = TESSERA_TRY(trainer_->Parameters());
    const ModelProbe probe = TESSERA_TRY(ProbeModel(engine_, model_, parameters, held_out_rows_->Read({0})));
    std::vector<LayerTelemetry> layers;
    for (const LayerProbe& layer : probe.layers) {
      const double sink = std::max(layer.sink_ratio, layer.document_sink_ratio);
      layers.push_back({layer.sink_ratio, layer.document_sink_ratio, layer.spikes.max_magnitude, layer.spikes.outliers,
                        layer.spikes.excess_kurtosis, std::string(ToText(Classify(sink, layer.spikes)))});
    }
    receipt_.telemetry = layers;
    return layers;
  }

  double TokensPerSecond() const {
    const double seconds = meter_.Seconds(SpanKind::kStep);
    return seconds > 0.0 ? static_cast<double>(timed_tokens_) / seconds : 0.0;
  }

  Status Save() {
    return meter_.During(SpanKind::kCheckpoint, [&]() -> Status {
      Checkpoint checkpoint{identity_, step_, place_, tokens_, TESSERA_TRY(trainer_->State())};
      TESSERA_TRY(WriteFile(options_.folder + "/log.jsonl", ToJsonl(points_)));
      TESSERA_TRY(WriteCheckpoint(options_.folder, checkpoint));
      RemoveOldCheckpoints(options_.folder, run_.train.keep);
      return {};
    });
  }

  void Finish(const std::string& ended) {
    receipt_.ended = ended;
    TellPrograms();
    int64_t bytes = 0;
    for (const ProgramUse& program : receipt_.programs)
      bytes = std::max(bytes, program.argument_bytes + program.output_bytes + program.temp_bytes);
    constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
    receipt_.estimated_gib = static_cast<double>(bytes) / kGib;
    if (trainer_) receipt_.sharding = trainer_->sharding();
    receipt_.tokens_per_s = TokensPerSecond();
    receipt_.goodput = meter_.Now();
    const bool is_good = ended == "finished" || ended == "interrupted";
    receipt_.checks = {.all_losses_finite = all_finite_,
                       .no_nan_loss = !has_nan_,
                       .exit_code_zero = is_good,
                       .has_steps = receipt_.steps > 0,
                       .no_oom = !has_oom_};
  }

  Status WriteReceipt() const {
    const std::string json = ToJson(receipt_);
    TESSERA_TRY(CheckTrainReceipt(json));
    TESSERA_TRY(WriteFile(options_.folder + "/train.json", json));
    return WriteFile(options_.folder + "/train.html", ToHtml(receipt_, points_));
  }

  const Engine& engine_;
  const RunFile& run_;
  const TrainOptions& options_;
  ModelSpec model_;  // with the rows of a micro-batch that there is memory for
  GoodputMeter meter_;
  TrainReceipt receipt_;
  RunIdentity identity_;
  std::optional<Checkpoint> start_;
  std::string start_path_;
  std::optional<RowSource> train_rows_;
  std::optional<RowSource> held_out_rows_;
  std::optional<RowOrder> order_;
  std::optional<Trainer> trainer_;
  std::vector<LogPoint> points_;
  int64_t step_ = 0;  // that were made, by this process and those before
  int64_t place_ = 0;
  int64_t tokens_ = 0;
  int64_t timed_tokens_ = 0;
  bool all_finite_ = true;
  bool has_nan_ = false;
  bool has_oom_ = false;
  bool is_stopped_ = false;
  std::vector<ProgramUse> discarded_;  // of trainers that there was no memory for
  std::future<StepBatches> ahead_;     // reads from the rows above, so that it goes first
};

}  // namespace
}  // namespace train

Result<TrainReceipt> Train(const Engine& engine, const RunFile& run, const TrainOptions& options) {
  if (options.folder.empty()) return Fail(ErrorCode::kBadArgument, "a run needs a folder", "train");
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return Fail(ErrorCode::kFileWrite, "cannot make the folder: " + error.message(), options.folder);
  const std::optional<FileLock> lock = TESSERA_TRY(FileLock::TryTake(options.folder + "/train.json", 0));
  if (!lock) return Fail(ErrorCode::kRunBusy, "another process works in this folder", options.folder);
  train::Run work(engine, run, options);
  return options.trainer.compile_only ? work.CompileOnly() : work.Go();
}

}  // namespace tessera
