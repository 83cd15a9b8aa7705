// What a run's need of memory depends on, as one signature, so that what is known of one run is found by the next like
// it: which sizes of a micro-batch there was no memory for, and how far an estimate was off.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

struct Parallelism {
  int64_t tp = 1, ep = 1, dp = 1;
  int64_t device_batch = 1;  // rows of a micro-batch
  int64_t accum = 1;         // micro-batches of a step
  bool ckpt = false;         // activations are computed again in the backward
  bool fsdp = false;
};
struct CalibrationInputs {
  std::string code, hardware, model;
  Parallelism parallelism = {};
  std::vector<std::string> features = {};  // in any order
};
// The inputs as JSON without spaces, keys and features in order; and the SHA-256 of it.
std::string CalibrationText(const CalibrationInputs& inputs);
std::string CalibrationSignature(const CalibrationInputs& inputs);

// What was expected and what was taken at the start of a run.
inline constexpr int64_t kStartupSchemaVersion = 1;
// Peak less estimate, to two decimals.
double StartupDelta(double peak, double estimate);

// Signatures of a run's folder for which there was no memory, oldest first; one line each.
std::vector<std::string> ReadFailed(const std::string& folder);
void AddFailed(const std::string& folder, const std::string& signature);  // as well as it can

}  // namespace tessera::train
