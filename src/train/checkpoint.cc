#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/hash.h"
#include "base/try.h"
#include "io/safetensors.h"
#include "tessera/io.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr const char* kVersion = "2";
constexpr const char* kDigest = "digest";

tl::unexpected<Error> Damaged(std::string why, const std::string& path) {
  return Fail(ErrorCode::kCheckpointInvalid, std::move(why), path);
}

std::optional<int64_t> ParseNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

// A member of the metadata; absent is what no checkpoint of ours is.
Result<std::string> TextOf(const TensorMetadata& metadata, const std::string& key, const std::string& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return Damaged(fmt::format("its metadata has no '{}'", key), path);
  return found->second;
}
Result<int64_t> NumberOf(const TensorMetadata& metadata, const std::string& key, const std::string& path) {
  const std::string text = TESSERA_TRY(TextOf(metadata, key, path));
  const std::optional<int64_t> number = ParseNumber(text);
  if (!number) return Damaged(fmt::format("its metadata has '{}' as {}", text, key), path);
  return *number;
}

// Of the tensors and of everything that the metadata says beside them.
std::string DigestOf(const TensorMetadata& metadata, const TensorMap& state) {
  Hasher hasher;
  for (const auto& [key, value] : metadata) {
    if (key == kDigest) continue;
    hasher.Text(key);
    hasher.Text(value);
  }
  hasher.Text(Digest(state));
  return Hex(hasher.Finish());
}

Status CheckFinite(const TensorMap& state, const std::string& path) {
  for (const auto& [name, tensor] : state) {
    if (tensor.type != ElementType::kF32) continue;
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      if (!std::isfinite(tensor.At(i)))
        return Damaged(fmt::format("element {} of {} is {}", i, name, tensor.At(i)), path);
    }
  }
  return {};
}

}  // namespace

std::string ScheduleDigest(const TrainSpec& spec) {
  Hasher hasher;
  for (const int64_t value :
       {spec.steps, spec.micro_batches, spec.micro_batch_warmup, spec.warmup_steps, static_cast<int64_t>(spec.seed)})
    hasher.Int(value);
  if (spec.barrier_every > 0) hasher.Int(spec.barrier_every);  // it may round otherwise
  const OptimizerOptions& optimizer = spec.optimizer;
  for (const double value : {spec.learning_rate, spec.final_rate, optimizer.beta1, optimizer.beta2, optimizer.eps,
                             optimizer.weight_decay, optimizer.clip_norm})
    hasher.Real(value);
  return Hex(hasher.Finish());
}

std::string CheckpointName(int64_t step) { return fmt::format("{}{:08}{}", kPrefix, step, kSuffix); }

Status WriteCheckpoint(const std::string& folder, const Checkpoint& checkpoint) {
  std::vector<TensorBytes> tensors;
  for (const auto& [name, tensor] : checkpoint.state) {
    tensors.push_back(
        {name, tensor.type, tensor.shape, {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}});
  }
  TensorMetadata metadata = {{"tessera_checkpoint", kVersion},
                             {"step", std::to_string(checkpoint.step)},
                             {"place", std::to_string(checkpoint.place)},
                             {"tokens", std::to_string(checkpoint.tokens)},
                             {"model", checkpoint.identity.model},
                             {"data", checkpoint.identity.data},
                             {"schedule", checkpoint.identity.schedule}};
  metadata[kDigest] = DigestOf(metadata, checkpoint.state);
  return WriteFile(folder + "/" + CheckpointName(checkpoint.step), ToSafetensors(std::move(tensors), metadata));
}

Result<Checkpoint> ReadCheckpoint(const std::string& path) {
  const std::string bytes = TESSERA_TRY(ReadFile(path));
  Checkpoint checkpoint = TESSERA_TRY(ParseCheckpoint(bytes, path));
  const std::string name = fs::path(path).filename().string();
  if (name == CheckpointName(checkpoint.step)) return checkpoint;
  return Damaged(fmt::format("it is of step {}, which its name does not say", checkpoint.step), path);
}

Result<Checkpoint> ParseCheckpoint(std::string_view bytes, const std::string& path) {
  auto view = ViewSafetensors(bytes, path);
  if (!view) return Damaged(view.error().message, path);
  const TensorMetadata& metadata = view->metadata;
  const std::string version = TESSERA_TRY(TextOf(metadata, "tessera_checkpoint", path));
  if (version != kVersion) return Damaged(fmt::format("it is of version {}, and {} is read", version, kVersion), path);
  Checkpoint checkpoint;
  checkpoint.step = TESSERA_TRY(NumberOf(metadata, "step", path));
  checkpoint.place = TESSERA_TRY(NumberOf(metadata, "place", path));
  checkpoint.tokens = TESSERA_TRY(NumberOf(metadata, "tokens", path));
  checkpoint.identity.model = TESSERA_TRY(TextOf(metadata, "model", path));
  checkpoint.identity.data = TESSERA_TRY(TextOf(metadata, "data", path));
  checkpoint.identity.schedule = TESSERA_TRY(TextOf(metadata, "schedule", path));
  for (const TensorBytes& tensor : view->tensors) {
    const auto* begin = reinterpret_cast<const std::byte*>(tensor.bytes.data());
    checkpoint.state[tensor.name] = {tensor.type, tensor.shape, {begin, begin + tensor.bytes.size()}};
  }
  const std::string digest = TESSERA_TRY(TextOf(metadata, kDigest, path));
  if (DigestOf(metadata, checkpoint.state) != digest)
    return Damaged("its tensors, or what it says of them, are not those that it was written with", path);
  TESSERA_TRY(CheckFinite(checkpoint.state, path));
  return checkpoint;
}

Status CheckIdentity(const RunIdentity& found, const RunIdentity& wanted, const std::string& where) {
  std::vector<Violation> violations;
  const auto compare = [&](const char* what, const std::string& there, const std::string& here) {
    if (there != here) violations.push_back({what, fmt::format("{} in the checkpoint, {} now", there, here)});
  };
  compare("model", found.model, wanted.model);
  compare("data", found.data, wanted.data);
  compare("schedule", found.schedule, wanted.schedule);
  if (violations.empty()) return {};
  return Fail(ErrorCode::kCheckpointMismatch, std::move(violations), where);
}

std::vector<int64_t> ListCheckpoints(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const std::optional<int64_t> step =
        ParseNumber(std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()));
    if (step && CheckpointName(*step) == name) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void RemoveOldCheckpoints(const std::string& folder, int64_t keep) {
  const std::vector<int64_t> steps = ListCheckpoints(folder);
  std::error_code ignored;
  for (size_t i = 0; i + static_cast<size_t>(keep) < steps.size(); ++i)
    fs::remove(folder + "/" + CheckpointName(steps[i]), ignored);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".tessera-") && name.ends_with(".tmp")) fs::remove(entry.path(), ignored);
  }
}

}  // namespace tessera::train
