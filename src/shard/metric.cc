#include "tessera/metric.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera {
namespace {

double ValueOf(const MetricPart& part) { return part.sum / static_cast<double>(part.count); }

Violation WhyNot(size_t device, const Result<MetricPart>& part) {
  const std::string field = fmt::format("device {}", device);
  if (!part) return {field, fmt::format("a part: {} {}", CodeText(part.error().code), part.error().message)};
  return {field, fmt::format("a part over at least one thing, got {}", part->count)};
}

bool IsGood(const Result<MetricPart>& part, bool needs_count) {
  return part && (needs_count ? part->count >= 1 : part->count >= 0);
}

}  // namespace

std::string ToText(const Metric& metric) {
  std::string text = fmt::format("{} {}", metric.name, metric.value);
  if (metric.device) text += fmt::format(" (device {} of {} alone)", *metric.device, metric.num_devices);
  return text;
}

Result<Metric> ReduceMetric(std::string name, Reduction reduction, std::span<const Result<MetricPart>> parts) {
  std::vector<Violation> violations;
  if (parts.empty()) violations.push_back({"devices", "at least one"});
  double sum = 0.0;
  double largest = -INFINITY;
  int64_t count = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    // A device may have had nothing to add to a sum or a mean; the largest of nothing is no number.
    if (!IsGood(parts[i], reduction == Reduction::kMax)) {
      violations.push_back(WhyNot(i, parts[i]));
      continue;
    }
    sum += parts[i]->sum;
    if (__builtin_add_overflow(count, parts[i]->count, &count)) violations.push_back({"devices", "fewer things"});
    if (reduction != Reduction::kMax) continue;
    const double value = ValueOf(*parts[i]);
    if (std::isnan(value) || value > largest) largest = value;  // no number is above NaN, so that one stays
  }
  if (reduction == Reduction::kMean && violations.empty() && count == 0) {
    violations.push_back({"devices", "a mean over at least one thing"});
  }
  if (!violations.empty()) return Fail(ErrorCode::kMetricIncomplete, std::move(violations), name);
  double value = sum;
  if (reduction == Reduction::kMean) value = sum / static_cast<double>(count);
  if (reduction == Reduction::kMax) value = largest;
  return Metric{std::move(name), value, {}, static_cast<int64_t>(parts.size())};
}

Result<Metric> LocalMetric(std::string name, int64_t device, std::span<const Result<MetricPart>> parts) {
  if (device < 0 || device >= static_cast<int64_t>(parts.size())) {
    return Fail(ErrorCode::kMetricIncomplete, fmt::format("no device {} among {}", device, parts.size()), name);
  }
  const Result<MetricPart>& part = parts[static_cast<size_t>(device)];
  if (!IsGood(part, true)) {
    return Fail(ErrorCode::kMetricIncomplete, {WhyNot(static_cast<size_t>(device), part)}, name);
  }
  return Metric{std::move(name), ValueOf(*part), device, static_cast<int64_t>(parts.size())};
}

}  // namespace tessera
