// The run file: [data] and [train] are read here, [model] by the model's own reader.
#include <fmt/format.h>

#include <cmath>

#include "base/try.h"
#include "io/document.h"
#include "io/tree_reader.h"
#include "tessera/train.h"

namespace tessera {
namespace {

class RunReader : public TreeReader {
 public:
  // Each reads a member where there is one.
  template <class T>
  void Take(const DocumentValue& table, const std::string& at, const char* name, T& out) {
    known_.emplace_back(name);
    if (const DocumentValue* value = table.Find(name); value != nullptr) Read(*value, Place(at, name), out);
  }
  void TakeTexts(const DocumentValue& table, const std::string& at, const char* name, std::vector<std::string>& out) {
    known_.emplace_back(name);
    const DocumentValue* value = table.Find(name);
    if (value == nullptr || !IsArray(*value, Place(at, name))) return;
    out.resize(value->items.size());
    for (size_t i = 0; i < out.size(); ++i) Read(value->items[i], fmt::format("{}[{}]", Place(at, name), i), out[i]);
  }
  void End(const DocumentValue& table, const std::string& at) {
    RefuseOthers(table, at, known_);
    known_.clear();
  }
  void Within(const std::string& field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) Violate(field, fmt::format("{} to {}, found {}", low, high, value));
  }
  void Within(const std::string& field, double value, double low, double high) {
    if (!(value >= low && value <= high)) Violate(field, fmt::format("{} to {}, found {}", low, high, value));
  }

 private:
  std::vector<std::string> known_;
};

constexpr int64_t kMaxSteps = int64_t{1} << 31;
constexpr int64_t kMaxMicroBatches = 1 << 16;
constexpr int64_t kMaxHeldOut = 1 << 20;
constexpr int64_t kMaxKeep = 1 << 20;

void ReadData(const DocumentValue& table, RunReader& reader, DataSpec& data) {
  reader.Take(table, "data", "folder", data.folder);
  reader.TakeTexts(table, "data", "files", data.files);
  reader.TakeTexts(table, "data", "exclude", data.exclude);
  reader.Take(table, "data", "held_out", data.held_out);
  std::string packer(ToText(data.packer));
  reader.Take(table, "data", "packer", packer);
  reader.Take(table, "data", "rows", data.rows);
  reader.Take(table, "data", "held_out_rows", data.held_out_rows);
  reader.End(table, "data");
  if (packer == ToText(Packer::kGreedy)) {
    data.packer = Packer::kGreedy;
  } else if (packer != ToText(Packer::kBestFit)) {
    reader.Violate("data.packer", fmt::format("\"greedy\" or \"best_fit\", found \"{}\"", packer));
  }
  reader.Within("data.held_out", data.held_out, 2, kMaxHeldOut);
  const bool has_rows = !data.rows.empty() || !data.held_out_rows.empty();
  if (has_rows && !data.files.empty()) reader.Violate("data", "files, or rows and held_out_rows: not both");
  if (has_rows && (data.rows.empty() || data.held_out_rows.empty()))
    reader.Violate("data", "rows and held_out_rows together");
  if (!has_rows && data.files.empty()) reader.Violate("data.files", "at least one pattern, or rows and held_out_rows");
}

void ReadTrain(const DocumentValue& table, RunReader& reader, TrainSpec& train) {
  reader.Take(table, "train", "steps", train.steps);
  reader.Take(table, "train", "micro_batches", train.micro_batches);
  reader.Take(table, "train", "micro_batch_warmup", train.micro_batch_warmup);
  reader.Take(table, "train", "barrier_every", train.barrier_every);
  reader.Take(table, "train", "learning_rate", train.learning_rate);
  reader.Take(table, "train", "warmup_steps", train.warmup_steps);
  reader.Take(table, "train", "final_rate", train.final_rate);
  reader.Take(table, "train", "beta1", train.optimizer.beta1);
  reader.Take(table, "train", "beta2", train.optimizer.beta2);
  reader.Take(table, "train", "eps", train.optimizer.eps);
  reader.Take(table, "train", "weight_decay", train.optimizer.weight_decay);
  reader.Take(table, "train", "clip_norm", train.optimizer.clip_norm);
  auto seed = static_cast<int64_t>(train.seed);
  reader.Take(table, "train", "seed", seed);
  reader.Take(table, "train", "log_every", train.log_every);
  reader.Take(table, "train", "eval_every", train.eval_every);
  reader.Take(table, "train", "eval_rows", train.eval_rows);
  reader.Take(table, "train", "checkpoint_every", train.checkpoint_every);
  reader.Take(table, "train", "keep", train.keep);
  reader.Take(table, "train", "telemetry", train.telemetry);
  reader.End(table, "train");
  train.seed = static_cast<uint64_t>(seed);
  reader.Within("train.steps", train.steps, 1, kMaxSteps);
  reader.Within("train.micro_batches", train.micro_batches, 1, kMaxMicroBatches);
  reader.Within("train.micro_batch_warmup", train.micro_batch_warmup, 0, kMaxSteps);
  reader.Within("train.barrier_every", train.barrier_every, 0, kMaxSteps);
  reader.Within("train.learning_rate", train.learning_rate, 0.0, 1e6);
  reader.Within("train.warmup_steps", train.warmup_steps, 0, kMaxSteps);
  reader.Within("train.final_rate", train.final_rate, 0.0, 1.0);
  for (const auto& [name, value] :
       {std::pair{"train.beta1", train.optimizer.beta1}, std::pair{"train.beta2", train.optimizer.beta2}}) {
    if (!(value >= 0.0 && value < 1.0)) reader.Violate(name, fmt::format("0 or more and below 1, found {}", value));
  }
  if (!(train.optimizer.eps > 0.0)) reader.Violate("train.eps", "above 0");
  reader.Within("train.weight_decay", train.optimizer.weight_decay, 0.0, 1e6);
  reader.Within("train.clip_norm", train.optimizer.clip_norm, 0.0, 1e30);
  reader.Within("train.seed", seed, 0, INT64_MAX);
  reader.Within("train.log_every", train.log_every, 1, kMaxSteps);
  reader.Within("train.eval_every", train.eval_every, 0, kMaxSteps);
  reader.Within("train.eval_rows", train.eval_rows, 0, kMaxSteps);
  reader.Within("train.checkpoint_every", train.checkpoint_every, 0, kMaxSteps);
  reader.Within("train.keep", train.keep, 1, kMaxKeep);
}

std::string Below(const std::string& folder, const std::string& name) {
  if (name.empty() || name.front() == '/' || folder.empty()) return name;
  return folder + "/" + name;
}

}  // namespace

Result<RunFile> ParseRunFile(std::string_view text, const std::string& folder) {
  auto parsed = ParseDocument(text);
  if (!parsed) return Fail(ErrorCode::kRunFileInvalid, parsed.error().message, parsed.error().where);
  RunReader reader;
  RunFile run;
  if (reader.IsTable(*parsed, "")) {
    int64_t version = 0;
    if (const DocumentValue* value = reader.Find(*parsed, "", "version"); value != nullptr) {
      reader.Read(*value, "version", version);
      reader.Within("version", version, 1, 1);
    }
    if (const DocumentValue* table = reader.Find(*parsed, "", "data");
        table != nullptr && reader.IsTable(*table, "data"))
      ReadData(*table, reader, run.data);
    if (const DocumentValue* table = reader.Find(*parsed, "", "train");
        table != nullptr && reader.IsTable(*table, "train"))
      ReadTrain(*table, reader, run.train);
    if (const DocumentValue* table = parsed->Find("substitutes"); table != nullptr) {
      reader.Read(*table, "substitutes", run.substitutes);
      for (const auto& one : run.substitutes) {
        if (const Status known = CheckSubstitutes({one}); !known)
          reader.Violate("substitutes." + one.first, known.error().message);
      }
    }
    reader.RefuseOthers(*parsed, "", {"version", "model", "data", "train", "substitutes"});
  }
  auto model = ParseModel(text);
  if (model) {
    run.model = std::move(*model);
  } else {
    for (const Violation& violation : model.error().violations) reader.violations.push_back(violation);
    if (model.error().violations.empty()) reader.Violate("model", model.error().message);
  }
  if (!reader.violations.empty()) return Fail(ErrorCode::kRunFileInvalid, std::move(reader.violations));
  run.data.folder = Below(folder, run.data.folder);
  run.data.rows = Below(folder, run.data.rows);
  run.data.held_out_rows = Below(folder, run.data.held_out_rows);
  return run;
}

}  // namespace tessera
