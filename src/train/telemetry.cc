#include "train/telemetry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/try.h"
#include "check/mask_test.h"
#include "model/contracts.h"
#include "model/names.h"
#include "tessera/run.h"

namespace tessera::train {
namespace {

constexpr std::array<std::string_view, 4> kClassNames = {"CLEAN", "SINK_ONLY", "SPIKE_ONLY", "BOTH"};

using Matrix = std::vector<float>;  // [tokens, columns], row-major

std::span<const float> Floats(const Tensor& tensor) {
  return {reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)};
}

// The model for one row of tokens.
class HostModel {
 public:
  HostModel(const Engine& engine, const ModelSpec& spec, const TensorMap& parameters, const RowBatch& row)
      : engine_(engine), spec_(spec), parameters_(parameters), row_(row), tokens_(static_cast<size_t>(row.row_tokens)) {
    spec_.rows = 1;
    spec_.row_tokens = row.row_tokens;
    spec_.dtype = DType::kF32;
    for (size_t i = 0; i < tokens_; ++i) {
      const bool begins = i == 0 || row.doc_ids[i] != row.doc_ids[i - 1];
      first_.push_back(begins ? i : first_.back());
    }
  }

  Result<ModelProbe> Probe(int64_t most_queries) {
    most_queries_ = most_queries;
    ModelProbe probe;
    Matrix x = Embed();
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      LayerProbe& one = probe.layers.emplace_back();
      TESSERA_TRY(Layer(layer, x, one));
      one.spikes = MeasureSpikes(x);
    }
    probe.loss_sum = Loss(x);
    return probe;
  }

 private:
  std::span<const float> Parameter(const std::string& name) const { return Floats(parameters_.at(name)); }
  std::span<const float> OfLayer(int64_t layer, std::string_view what) const {
    return Parameter(model::LayerName(layer, what));
  }

  // [tokens, inner] times [inner, outer].
  static Matrix Product(const Matrix& x, std::span<const float> w, size_t inner) {
    const size_t outer = w.size() / inner;
    const size_t rows = x.size() / inner;
    Matrix y(rows * outer);
    for (size_t i = 0; i < rows; ++i) {
      float* out = y.data() + i * outer;
      for (size_t k = 0; k < inner; ++k) {
        const float factor = x[i * inner + k];
        for (size_t j = 0; j < outer; ++j) out[j] += factor * w[k * outer + j];
      }
    }
    return y;
  }
  Matrix Normalised(const Matrix& x, std::span<const float> weight) const {
    const size_t width = weight.size();
    Matrix y(x.size());
    for (size_t i = 0; i < tokens_; ++i) {
      double squares = 0.0;
      for (size_t j = 0; j < width; ++j) squares += double{x[i * width + j]} * double{x[i * width + j]};
      const auto scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + spec_.norm_eps));
      for (size_t j = 0; j < width; ++j) y[i * width + j] = x[i * width + j] * scale * weight[j];
    }
    return y;
  }
  static float Sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

  Matrix Embed() const {
    const auto width = static_cast<size_t>(spec_.width);
    const std::span<const float> table = Parameter(std::string(model::kEmbedding));
    Matrix x(tokens_ * width);
    for (size_t i = 0; i < tokens_; ++i)
      std::copy_n(table.begin() + int64_t{row_.input_ids[i]} * spec_.width, width,
                  x.begin() + static_cast<int64_t>(i * width));
    if (!spec_.structure) return x;
    const auto inner = static_cast<size_t>(spec_.structure_width);
    Matrix sum(tokens_ * inner);
    for (size_t part = 0; part < model::kStructureParts.size(); ++part) {
      const std::span<const float> rows = Parameter(std::string(model::kStructureParts[part].name));
      for (size_t i = 0; i < tokens_; ++i) {
        const int64_t id = std::min<int64_t>(row_.structure[part][i], model::kStructureParts[part].ids - 1);
        for (size_t j = 0; id >= 0 && j < inner; ++j) sum[i * inner + j] += rows[static_cast<size_t>(id) * inner + j];
      }
    }
    const Matrix more = Product(sum, Parameter(std::string(model::kStructureOut)), inner);
    for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    return x;
  }

  // Queries, keys or values of some heads, turned by their place in the document, as [1, heads, tokens, dim].
  struct Heads {
    int64_t first = 0;
    int64_t count = 0;
    bool turned = false;
  };
  Tensor Taken(const Matrix& qkv, const Heads& heads) const {
    const auto dim = static_cast<size_t>(spec_.head_dim);
    const size_t half = dim / 2;
    const size_t all = qkv.size() / tokens_;
    Tensor tensor = Tensor::Zeros(ElementType::kF32, {1, heads.count, row_.row_tokens, spec_.head_dim});
    auto* out = reinterpret_cast<float*>(tensor.bytes.data());
    for (size_t head = 0; head < static_cast<size_t>(heads.count); ++head) {
      for (size_t i = 0; i < tokens_; ++i, out += dim) {
        const float* in = qkv.data() + i * all + (static_cast<size_t>(heads.first) + head) * dim;
        if (!heads.turned) {
          std::copy_n(in, dim, out);
          continue;
        }
        for (size_t d = 0; d < half; ++d) {
          const double turn = static_cast<double>(i - first_[i]) *
                              std::pow(spec_.rope_base, -static_cast<double>(d) / static_cast<double>(half));
          const auto cosine = static_cast<float>(std::cos(turn));
          const auto sine = static_cast<float>(std::sin(turn));
          out[d] = in[d] * cosine - in[half + d] * sine;
          out[half + d] = in[half + d] * cosine + in[d] * sine;
        }
      }
    }
    return tensor;
  }

  Status Layer(int64_t layer, Matrix& x, LayerProbe& probe) const {
    const Matrix normed = Normalised(x, OfLayer(layer, "attention_norm"));
    const Matrix qkv = Product(normed, OfLayer(layer, "qkv"), static_cast<size_t>(spec_.width));
    TensorMap inputs;
    inputs["q"] = Taken(qkv, {0, spec_.num_q_heads, true});
    inputs["k"] = Taken(qkv, {spec_.num_q_heads, spec_.num_kv_heads, true});
    inputs["v"] = Taken(qkv, {spec_.num_q_heads + spec_.num_kv_heads, spec_.num_kv_heads, false});
    if (spec_.sink_logits) inputs["sink_logits"] = parameters_.at(model::LayerName(layer, "sink_logits"));
    const std::string& mask = spec_.masks[static_cast<size_t>(layer) % spec_.masks.size()];
    const Contract contract = TESSERA_TRY(model::ContractOf(spec_, mask));
    // What the row says to the mask, each where that names it.
    const MaskFacts facts = TESSERA_TRY(DescribeMask(contract));
    Batch batch;
    if (facts.names_documents) batch.doc_ids = IdRows{1, row_.row_tokens, row_.doc_ids};
    if (facts.names_valid) batch.valid_tokens = std::vector<int64_t>{row_.valid_token_count[0]};
    const RunOutcome outcome = Run(engine_, contract, batch, inputs, TESSERA_TRY(FindTarget("cpu")));
    if (outcome.error) return tl::unexpected(*outcome.error);
    TESSERA_TRY(ProbeSinks(contract, batch, inputs, probe));
    Matrix attended = Joined(outcome.outputs.at("o"));
    if (spec_.output_gate) {
      const Matrix gate = Product(normed, OfLayer(layer, "gate"), static_cast<size_t>(spec_.width));
      for (size_t i = 0; i < attended.size(); ++i) attended[i] *= Sigmoid(gate[i]);
    }
    const Matrix projected = Product(attended, OfLayer(layer, "proj"), attended.size() / tokens_);
    for (size_t i = 0; i < x.size(); ++i) x[i] += projected[i];
    Mlp(layer, x);
    return {};
  }

  void Mlp(int64_t layer, Matrix& x) const {
    const auto inner = static_cast<size_t>(spec_.mlp_width);
    const Matrix normed = Normalised(x, OfLayer(layer, "mlp_norm"));
    const Matrix both = Product(normed, OfLayer(layer, "fc1"), static_cast<size_t>(spec_.width));
    Matrix activated(tokens_ * inner);
    for (size_t i = 0; i < tokens_; ++i) {
      for (size_t j = 0; j < inner; ++j) {
        const float gate = both[i * 2 * inner + j];
        activated[i * inner + j] = gate * Sigmoid(gate) * both[i * 2 * inner + inner + j];
      }
    }
    const Matrix out = Product(activated, OfLayer(layer, "fc2"), inner);
    for (size_t i = 0; i < x.size(); ++i) x[i] += out[i];
  }

  // [1, heads, tokens, dim] as [tokens, heads * dim].
  Matrix Joined(const Tensor& o) const {
    const auto heads = static_cast<size_t>(spec_.num_q_heads);
    const auto dim = static_cast<size_t>(spec_.head_dim);
    const std::span<const float> in = Floats(o);
    Matrix out(in.size());
    for (size_t head = 0; head < heads; ++head) {
      for (size_t i = 0; i < tokens_; ++i)
        std::copy_n(in.data() + (head * tokens_ + i) * dim, dim, out.data() + (i * heads + head) * dim);
    }
    return out;
  }

  // Sums over heads and probed queries.
  struct Share {
    double sum = 0.0;
    int64_t count = 0;
    double Mean() const { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
  };

  Status ProbeSinks(const Contract& contract, const Batch& batch, const TensorMap& inputs, LayerProbe& probe) const {
    const check::MaskTest mask = TESSERA_TRY(check::MaskTest::Make(contract, batch, 0));
    const auto dim = static_cast<size_t>(spec_.head_dim);
    const std::span<const float> q = Floats(inputs.at("q"));
    const std::span<const float> k = Floats(inputs.at("k"));
    std::vector<uint8_t> seen(tokens_);
    std::vector<double> scores(tokens_);
    Share row_sink;
    Share document_sink;
    for (int64_t head = 0; head < spec_.num_q_heads; ++head) {
      const auto kv_head = static_cast<size_t>(head * spec_.num_kv_heads / spec_.num_q_heads);
      for (const int64_t query : ProbeQueries(row_.row_tokens, most_queries_)) {
        const auto i = static_cast<size_t>(query);
        mask.Row(head, query, seen);
        double max = -INFINITY;
        for (size_t j = 0; j < tokens_; ++j) {
          if (seen[j] == 0) continue;
          const float* a = q.data() + (static_cast<size_t>(head) * tokens_ + i) * dim;
          const float* b = k.data() + (kv_head * tokens_ + j) * dim;
          double dot = 0.0;
          for (size_t d = 0; d < dim; ++d) dot += double{a[d]} * double{b[d]};
          scores[j] = dot * contract.score.scale;
          if (spec_.softcap > 0.0) scores[j] = spec_.softcap * std::tanh(scores[j] / spec_.softcap);
          max = std::max(max, scores[j]);
        }
        double sum = 0.0;
        if (spec_.sink_logits) {
          const double logit = double{Floats(inputs.at("sink_logits"))[static_cast<size_t>(head)]};
          max = std::max(max, logit);
          sum = std::exp(logit - max);
        }
        for (size_t j = 0; j < tokens_; ++j) sum += seen[j] == 0 ? 0.0 : std::exp(scores[j] - max);
        const auto add = [&](size_t key, Share& share) {
          if (seen[key] == 0) return;
          share.sum += std::exp(scores[key] - max) / sum;
          ++share.count;
        };
        add(0, row_sink);
        add(first_[i], document_sink);
      }
    }
    probe.sink_ratio = row_sink.Mean();
    probe.document_sink_ratio = document_sink.Mean();
    return {};
  }

  double Loss(const Matrix& x) const {
    const Matrix normed = Normalised(x, Parameter(std::string(model::kFinalNorm)));
    const Matrix logits = Product(normed, Parameter(std::string(model::kHead)), static_cast<size_t>(spec_.width));
    const size_t padded = logits.size() / tokens_;
    double nats = 0.0;
    for (size_t i = 0; i < tokens_; ++i) {
      if (row_.loss_mask[i] == 0) continue;
      const auto logit = [&](size_t j) {
        const double raw = double{logits[i * padded + j]};
        return spec_.final_softcap > 0.0 ? spec_.final_softcap * std::tanh(raw / spec_.final_softcap) : raw;
      };
      double max = -INFINITY;
      for (size_t j = 0; j < static_cast<size_t>(spec_.vocab); ++j) max = std::max(max, logit(j));
      double sum = 0.0;
      for (size_t j = 0; j < static_cast<size_t>(spec_.vocab); ++j) sum += std::exp(logit(j) - max);
      nats += max + std::log(sum) - logit(static_cast<size_t>(row_.target_ids[i]));
    }
    return nats;
  }

  const Engine& engine_;
  ModelSpec spec_;
  const TensorMap& parameters_;
  const RowBatch& row_;
  size_t tokens_;
  std::vector<size_t> first_;  // of each token's document
  int64_t most_queries_ = kProbeQueries;
};

// The row's first tokens: a document that goes on behind them is cut there.
RowBatch Shortened(const RowBatch& row, int64_t tokens) {
  RowBatch out = row;
  const auto size = static_cast<size_t>(tokens);
  out.row_tokens = tokens;
  for (std::vector<int32_t>* ids : {&out.input_ids, &out.target_ids, &out.doc_ids}) ids->resize(size);
  out.loss_mask.resize(size);
  for (std::vector<int32_t>& column : out.structure) column.resize(size);
  out.valid_token_count[0] = std::min(out.valid_token_count[0], static_cast<int32_t>(tokens));
  return out;
}

}  // namespace

Spikes MeasureSpikes(std::span<const float> values) {
  Spikes spikes;
  if (values.empty()) return spikes;
  const auto count = static_cast<double>(values.size());
  double mean = 0.0;
  for (const float value : values) mean += double{value} / count;
  double second = 0.0;
  double fourth = 0.0;
  for (const float value : values) {
    const double square = (double{value} - mean) * (double{value} - mean);
    second += square / count;
    fourth += square * square / count;
    spikes.max_magnitude = std::max(spikes.max_magnitude, std::abs(double{value}));
  }
  if (second <= 0.0) return spikes;
  spikes.excess_kurtosis = fourth / (second * second) - 3.0;
  const double limit = 6.0 * std::sqrt(second);
  for (const float value : values) spikes.outliers += std::abs(double{value} - mean) > limit ? 1.0 / count : 0.0;
  return spikes;
}

std::string_view ToText(TelemetryClass telemetry_class) { return kClassNames[static_cast<size_t>(telemetry_class)]; }

TelemetryClass Classify(double sink_ratio, const Spikes& spikes) {
  const bool is_sink = sink_ratio > kSinkThreshold;
  const bool is_spike = spikes.max_magnitude > kMagnitudeThreshold || spikes.excess_kurtosis > kKurtosisThreshold ||
                        spikes.outliers > kOutlierThreshold;
  if (is_sink) return is_spike ? TelemetryClass::kBoth : TelemetryClass::kSinkOnly;
  return is_spike ? TelemetryClass::kSpikeOnly : TelemetryClass::kClean;
}

std::vector<int64_t> ProbeQueries(int64_t queries, int64_t most) {
  const int64_t count = std::min(queries, most);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i) chosen.push_back(i * queries / count);
  return chosen;
}

Result<ModelProbe> ProbeModel(const Engine& engine, const ModelSpec& spec, const TensorMap& parameters,
                              const RowBatch& row, int64_t most_queries) {
  if (row.row_tokens <= kProbeKeys) return HostModel(engine, spec, parameters, row).Probe(most_queries);
  const RowBatch part = Shortened(row, kProbeKeys);
  return HostModel(engine, spec, parameters, part).Probe(most_queries);
}

}  // namespace tessera::train
