// What changes from step to step of a run, as plain functions of the step's number: nothing here has a state, so that a
// run that goes on needs to know no more than where it was.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/train.h"

namespace tessera::train {

// Linear from 0 over the warm-up, then half a cosine down to final_rate of it at the last step. `step` counts from 1.
double LearningRateAt(const TrainSpec& spec, int64_t step);

// To the nearest integer, and of two that are equally near to the even one, which std::round does not do.
int64_t RoundHalfEven(double value);
// Micro-batches of a step: linear from max(1, most / 8) to `most` over the warm-up's steps. `step` counts from 0.
struct MicroBatchWarmup {
  int64_t most = 1;
  int64_t steps = 0;
};
int64_t MicroBatchesAt(const MicroBatchWarmup& warmup, int64_t step);

// Of a program with so many barriers (model/barriers.h).
std::string_view ExecutionMode(int64_t barriers);  // "barrier_split", "compiled_fwd_bwd"

// Why a program found no memory, by the words of its message; the first rule that fits.
enum class RetryClass : uint8_t {
  kCompileTimeHbmOom,
  kProgramAllocationFailure,
  kBufferAllocationFailure,
  kXlaResourceExhausted
};
std::string_view ToText(RetryClass retry_class);
std::optional<RetryClass> ClassifyFailure(std::string_view message);
inline constexpr int64_t kRetryLimit = 2;
// Such a failure is tried again smaller only on a device of XLA's and at the beginning of a run: later the same program
// has run before, and what it lacks is somebody else's doing.
struct FailedStep {
  std::string_view message;
  bool is_xla = true;
  int64_t step = 0;     // counted from 0
  int64_t retries = 0;  // that were made
};
bool MayRetry(const FailedStep& failure);

// Candidates with those that are known to fail behind the others, each part in its order.
std::vector<std::string> RankCandidates(std::span<const std::string> candidates, std::span<const std::string> failed);

}  // namespace tessera::train
