// What attention and activations do while a model is trained, on logging steps and at no other time: parameters are
// read back once and one row goes through the model here, on the host, so that the compiled programs know nothing of it
// and a run with it has the bits of one without.
//
// Two streams, each of its own: how much attention goes to the first token (sinks), and how far single activations
// stand out (spikes).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/train.h"

namespace tessera::train {

inline constexpr int64_t kProbeQueries = 128;
inline constexpr int64_t kProbeKeys = 2048;

// Of all values together; a value beyond six standard deviations stands out.
struct Spikes {
  double max_magnitude = 0.0;
  double outliers = 0.0;         // fraction
  double excess_kurtosis = 0.0;  // 0 for a normal distribution
};
Spikes MeasureSpikes(std::span<const float> values);

enum class TelemetryClass : uint8_t { kClean, kSinkOnly, kSpikeOnly, kBoth };
std::string_view ToText(TelemetryClass telemetry_class);  // "CLEAN", ...
inline constexpr double kSinkThreshold = 0.3;
inline constexpr double kMagnitudeThreshold = 50.0;
inline constexpr double kKurtosisThreshold = 10.0;
inline constexpr double kOutlierThreshold = 0.001;
// Beyond a threshold, not at it.
TelemetryClass Classify(double sink_ratio, const Spikes& spikes);

// The queries that are looked at: all where there are no more than kProbeQueries, else so many at equal distances.
std::vector<int64_t> ProbeQueries(int64_t queries, int64_t most = kProbeQueries);

struct LayerProbe {
  // The mean share of attention that goes to the row's first token, and to the first of a query's own document, over
  // heads and probed queries that may see it.
  double sink_ratio = 0.0;
  double document_sink_ratio = 0.0;
  Spikes spikes;  // of the residual stream behind the layer
};
struct ModelProbe {
  std::vector<LayerProbe> layers;
  double loss_sum = 0.0;  // of the row, which shows that this is the model
};
// `row` is a batch of one row, of which no more than kProbeKeys tokens are looked at; `most_queries` is for tests.
Result<ModelProbe> ProbeModel(const Engine& engine, const ModelSpec& spec, const TensorMap& parameters,
                              const RowBatch& row, int64_t most_queries = kProbeQueries);

}  // namespace tessera::train
