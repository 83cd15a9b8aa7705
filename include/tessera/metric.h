// A number about a run on several devices that says whose it is: of all of them, or marked as one device's own. A
// reduction that cannot be made is an error and never one device's number in place of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

struct Metric {
  std::string name;
  double value = 0.0;
  std::optional<int64_t> device = {};  // whose alone it is; nothing: it is of all devices
  int64_t num_devices = 1;
};
std::string ToText(const Metric& metric);  // "loss 2.5", "loss 2.5 (device 3 of 8 alone)"

enum class Reduction : uint8_t { kSum, kMean, kMax };

// What a device contributes: a sum over `count` things.
struct MetricPart {
  double sum = 0.0;
  int64_t count = 1;
};

// Over one part from each device, in their order: the sum of sums, that over all counts, or the largest of
// sum over count. NaN stays NaN, whatever it is compared with. A device without a part, or with an error in its place,
// leaves no global value: every such device is named (TSR-S008).
Result<Metric> ReduceMetric(std::string name, Reduction reduction, std::span<const Result<MetricPart>> parts);
// Marked as that device's own.
Result<Metric> LocalMetric(std::string name, int64_t device, std::span<const Result<MetricPart>> parts);

}  // namespace tessera
#pragma GCC visibility pop
