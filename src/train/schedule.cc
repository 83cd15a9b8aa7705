#include "train/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace tessera::train {

double LearningRateAt(const TrainSpec& spec, int64_t step) {
  if (step < spec.warmup_steps)
    return spec.learning_rate * static_cast<double>(step) / static_cast<double>(spec.warmup_steps);
  const int64_t rest = spec.steps - spec.warmup_steps;
  const double done = rest <= 0 ? 1.0 : static_cast<double>(step - spec.warmup_steps) / static_cast<double>(rest);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(1.0, done)));
  return spec.learning_rate * (spec.final_rate + (1.0 - spec.final_rate) * cosine);
}

int64_t RoundHalfEven(double value) {
  const double below = std::floor(value);
  const double rest = value - below;
  const auto whole = static_cast<int64_t>(below);
  if (rest != 0.5) return rest < 0.5 ? whole : whole + 1;
  return whole % 2 == 0 ? whole : whole + 1;
}

int64_t MicroBatchesAt(const MicroBatchWarmup& warmup, int64_t step) {
  if (step >= warmup.steps) return warmup.most;
  const int64_t least = std::max<int64_t>(1, warmup.most / 8);
  // One division, so that a half is a half.
  const double more = static_cast<double>((warmup.most - least) * step) / static_cast<double>(warmup.steps);
  return RoundHalfEven(static_cast<double>(least) + more);
}

std::string_view ExecutionMode(int64_t barriers) { return barriers > 0 ? "barrier_split" : "compiled_fwd_bwd"; }

namespace {

constexpr std::array<std::string_view, 4> kClassNames = {"CompileTimeHbmOom", "ProgramAllocationFailure",
                                                         "BufferAllocationFailure", "XlaResourceExhausted"};

// In order: a message of a later rule may have the words of an earlier one beside its own.
struct FailureRule {
  std::string_view words;
  RetryClass retry_class;
};
constexpr std::array<FailureRule, 8> kFailureRules = {{
    {"Ran out of memory in memory space hbm", RetryClass::kCompileTimeHbmOom},
    {"Compile time HBM", RetryClass::kCompileTimeHbmOom},
    {"Error allocating program", RetryClass::kProgramAllocationFailure},
    {"Error loading program", RetryClass::kProgramAllocationFailure},
    {"Error allocating device buffer", RetryClass::kBufferAllocationFailure},
    {"Failed to allocate", RetryClass::kBufferAllocationFailure},
    {"RESOURCE_EXHAUSTED", RetryClass::kXlaResourceExhausted},
    {"Out of memory", RetryClass::kXlaResourceExhausted},
}};

}  // namespace

std::string_view ToText(RetryClass retry_class) { return kClassNames[static_cast<size_t>(retry_class)]; }

std::optional<RetryClass> ClassifyFailure(std::string_view message) {
  for (const FailureRule& rule : kFailureRules)
    if (message.find(rule.words) != std::string_view::npos) return rule.retry_class;
  return std::nullopt;
}

bool MayRetry(const FailedStep& failure) {
  return failure.is_xla && failure.step <= 1 && failure.retries < kRetryLimit && ClassifyFailure(failure.message);
}

std::vector<std::string> RankCandidates(std::span<const std::string> candidates, std::span<const std::string> failed) {
  std::vector<std::string> ranked(candidates.begin(), candidates.end());
  std::stable_partition(ranked.begin(), ranked.end(), [&](const std::string& candidate) {
    return std::find(failed.begin(), failed.end(), candidate) == failed.end();
  });
  return ranked;
}

}  // namespace tessera::train
