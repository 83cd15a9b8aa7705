// Telemetry: its arithmetic, that it looks at the model that is trained, and that a run does not notice it.
#include "train/telemetry.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "files.h"
#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "train/corpus.h"

namespace tessera::train {
namespace {

TEST(Telemetry, Classes_AtTheFourThresholds) {
  Proves("R87");
  const auto name = [](double sink, const Spikes& spikes) { return ToText(Classify(sink, spikes)); };
  EXPECT_EQ(name(0.3, {50.0, 0.001, 10.0}), "CLEAN") << "at a threshold is not beyond it";
  EXPECT_EQ(name(0.31, {}), "SINK_ONLY");
  EXPECT_EQ(name(0.0, {50.1, 0.0, 0.0}), "SPIKE_ONLY");
  EXPECT_EQ(name(0.0, {0.0, 0.0011, 0.0}), "SPIKE_ONLY");
  EXPECT_EQ(name(0.0, {0.0, 0.0, 10.1}), "SPIKE_ONLY");
  EXPECT_EQ(name(0.9, {60.0, 0.0, 0.0}), "BOTH");
}

TEST(Telemetry, Spikes_OfKnownValues) {
  std::vector<float> values(10000, 1.0F);
  for (size_t i = 0; i < values.size(); i += 2) values[i] = -1.0F;
  Spikes spikes = MeasureSpikes(values);
  EXPECT_NEAR(spikes.excess_kurtosis, -2.0, 1e-9);  // of two equal points
  EXPECT_EQ(spikes.outliers, 0.0);
  values[7] = -100.0F;
  spikes = MeasureSpikes(values);
  EXPECT_EQ(spikes.max_magnitude, 100.0);
  EXPECT_NEAR(spikes.outliers, 1e-4, 1e-12);
  EXPECT_GT(spikes.excess_kurtosis, 10.0);
  EXPECT_EQ(MeasureSpikes(std::vector<float>(5, 2.0F)).excess_kurtosis, 0.0);
  EXPECT_EQ(MeasureSpikes({}).max_magnitude, 0.0);
}

TEST(Telemetry, ProbeQueries_AreAllOrSpread) {
  EXPECT_THAT(ProbeQueries(3), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(ProbeQueries(10, 4), testing::ElementsAre(0, 2, 5, 7));
  EXPECT_EQ(ProbeQueries(4096).size(), 128U);
}

ModelSpec Small() {
  ModelSpec spec;
  spec.vocab = 40;
  spec.layers = 2;
  spec.width = 16;
  spec.num_q_heads = 2;
  spec.head_dim = 8;
  spec.mlp_width = 16;
  spec.row_tokens = 48;
  spec.masks = {"causal and documents", "causal and documents and window(9, 0)"};
  return spec;
}

RowBatch AnyRow(const ModelSpec& spec, std::mt19937_64& random) {
  DocumentSet set;
  while (set.token_begins.back() + 24 < spec.row_tokens) {
    Document document;
    document.tokens.resize(2 + random() % 22);
    for (int32_t& token : document.tokens) token = static_cast<int32_t>(random() % 40);
    set.Add(document);
  }
  const TemporaryFolder folder;
  PackedRows rows;
  rows.Clear(spec.row_tokens);
  FillRows(set, PlanRows(set, spec.row_tokens, Packer::kGreedy), {0, 1}, 1, rows);
  PackOptions options;
  options.documents.row_tokens = spec.row_tokens;
  WriteWhole(folder.File("r"), ToShard(rows, options));
  RowBatch batch;
  ReadRows(*RowShard::Open(folder.File("r")), {0, 1}, 1, batch);
  return batch;
}

// The place of each token in its document; -1 in padding.
std::vector<int64_t> PlacesOf(const RowBatch& row) {
  std::vector<int64_t> places;
  for (size_t i = 0; i < row.doc_ids.size(); ++i) {
    const bool goes_on = i > 0 && row.doc_ids[i] == row.doc_ids[i - 1];
    places.push_back(row.doc_ids[i] < 0 ? -1 : goes_on ? places.back() + 1 : 0);
  }
  return places;
}

// Where queries and keys are zero every token that is seen has the same share: a query at a place of its document gives
// 1 / (place + 1) to the first, if its window reaches so far.
struct UniformShares {
  double mean = 0.0;
  double deviation = 0.0;
  double row = 0.0;  // the mean over queries of the row's first document
};
UniformShares UniformOf(const RowBatch& row, const std::vector<int64_t>& queries, int64_t window) {
  const std::vector<int64_t> places = PlacesOf(row);
  std::vector<double> shares;
  std::vector<double> first;
  for (const int64_t query : queries) {
    const int64_t place = places[static_cast<size_t>(query)];
    if (place < 0 || place > window) continue;
    shares.push_back(1.0 / static_cast<double>(place + 1));
    if (row.doc_ids[static_cast<size_t>(query)] == row.doc_ids[0]) first.push_back(shares.back());
  }
  UniformShares uniform;
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
  };
  uniform.mean = mean(shares);
  uniform.row = mean(first);
  for (double& share : shares) share = (share - uniform.mean) * (share - uniform.mean);
  uniform.deviation = std::sqrt(mean(shares));
  return uniform;
}

TensorMap WithoutScores(const ModelSpec& spec, uint64_t seed) {
  TensorMap parameters = InitialParameters(spec, seed);
  for (auto& [name, tensor] : parameters) {
    if (name.ends_with(".qkv")) tensor = Tensor::Zeros(tensor.type, tensor.shape);
  }
  return parameters;
}

TEST(Telemetry, SinkRatio_OfUniformAttention_IsExact) {
  Proves("R87");
  std::mt19937_64 random(PrintedSeed());
  const ModelSpec spec = Small();
  const RowBatch row = AnyRow(spec, random);
  const TensorMap parameters = WithoutScores(spec, random());
  for (const int64_t most : {spec.row_tokens, int64_t{16}}) {
    const auto probe = ProbeModel(TestEngine(), spec, parameters, row, most);
    ASSERT_TRUE(probe) << ToText(probe.error());
    const std::vector<int64_t> queries = ProbeQueries(spec.row_tokens, most);
    for (const auto& [layer, window] : {std::pair<size_t, int64_t>{0, spec.row_tokens}, {1, 9}}) {
      const UniformShares uniform = UniformOf(row, queries, window);
      EXPECT_NEAR(probe->layers[layer].document_sink_ratio, uniform.mean, 1e-12) << layer;
      EXPECT_NEAR(probe->layers[layer].sink_ratio, uniform.row, 1e-12) << layer;
    }
  }
}

// One query in eight of a long row: what the mean of so many shares is off by, as their own deviation says.
TEST(Telemetry, SampledQueries_AgreeWithAll_WithinTheirNoise) {
  Proves("R87");
  std::mt19937_64 random(PrintedSeed());
  ModelSpec spec = Small();
  spec.layers = 1;
  spec.row_tokens = 1024;
  const RowBatch row = AnyRow(spec, random);
  const auto probe = ProbeModel(TestEngine(), spec, WithoutScores(spec, random()), row);
  ASSERT_TRUE(probe) << ToText(probe.error());
  const UniformShares all = UniformOf(row, ProbeQueries(1024, 1024), 1024);
  EXPECT_NEAR(probe->layers[0].document_sink_ratio, all.mean,
              6.0 * all.deviation / std::sqrt(static_cast<double>(kProbeQueries)));
  EXPECT_EQ(ProbeQueries(1024).size(), static_cast<size_t>(kProbeQueries));
}

// Attention of two heads that is far from uniform, in double and by its definition alone.
TEST(Telemetry, SinkRatio_IsThatOfItsDefinition) {
  Proves("R87");
  std::mt19937_64 random(PrintedSeed());
  ModelSpec spec = Small();
  spec.layers = 1;
  const RowBatch row = AnyRow(spec, random);
  TensorMap parameters = InitialParameters(spec, random());
  const auto width = static_cast<size_t>(spec.width);
  const auto dim = static_cast<size_t>(spec.head_dim);
  Tensor& qkv = parameters.at("layers.0.qkv");
  for (int64_t i = 0; i < qkv.NumElements(); ++i) qkv.Set(i, 4.0 * qkv.At(i));
  const Tensor& table = parameters.at("wte");
  const Tensor& weight = parameters.at("layers.0.attention_norm");
  const std::vector<int64_t> places = PlacesOf(row);
  const size_t columns = (static_cast<size_t>(spec.num_q_heads) + 2 * static_cast<size_t>(spec.num_kv_heads)) * dim;
  // A head's vector of a token, turned by the token's place.
  const auto head = [&](size_t token, size_t first) {
    std::vector<double> x(width);
    double squares = 0.0;
    for (size_t i = 0; i < width; ++i) {
      x[i] = table.At(row.input_ids[token] * spec.width + static_cast<int64_t>(i));
      squares += x[i] * x[i];
    }
    std::vector<double> flat(dim);
    for (size_t i = 0; i < width; ++i) {
      x[i] *= weight.At(static_cast<int64_t>(i)) / std::sqrt(squares / static_cast<double>(width) + spec.norm_eps);
      for (size_t d = 0; d < dim; ++d) flat[d] += x[i] * qkv.At(static_cast<int64_t>(i * columns + first * dim + d));
    }
    std::vector<double> turned(dim);
    for (size_t d = 0; d < dim / 2; ++d) {
      const double angle = static_cast<double>(places[token]) *
                           std::pow(spec.rope_base, -2.0 * static_cast<double>(d) / static_cast<double>(dim));
      turned[d] = flat[d] * std::cos(angle) - flat[d + dim / 2] * std::sin(angle);
      turned[d + dim / 2] = flat[d + dim / 2] * std::cos(angle) + flat[d] * std::sin(angle);
    }
    return turned;
  };
  double sum = 0.0;
  double farthest = 0.0;
  int count = 0;
  for (size_t h = 0; h < static_cast<size_t>(spec.num_q_heads); ++h) {
    const size_t group = static_cast<size_t>(spec.num_q_heads / spec.num_kv_heads);
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] < 0) continue;
      const std::vector<double> q = head(i, h);
      const size_t first = i - static_cast<size_t>(places[i]);
      double all = 0.0;
      double sink = 0.0;
      for (size_t j = first; j <= i; ++j) {
        const std::vector<double> k = head(j, static_cast<size_t>(spec.num_q_heads) + h / group);
        double score = 0.0;
        for (size_t d = 0; d < dim; ++d) score += q[d] * k[d] / std::sqrt(static_cast<double>(dim));
        all += std::exp(score);
        if (j == first) sink = std::exp(score);
      }
      sum += sink / all;
      farthest = std::max(farthest, std::abs(sink / all - 1.0 / static_cast<double>(places[i] + 1)));
      ++count;
    }
  }
  EXPECT_GT(farthest, 0.1) << "it is far from uniform";
  const auto probe = ProbeModel(TestEngine(), spec, parameters, row);
  ASSERT_TRUE(probe) << ToText(probe.error());
  EXPECT_NEAR(probe->layers[0].document_sink_ratio, sum / count, 1e-5);
}

// What telemetry looks at is the model: its loss is the program's.
TEST(TelemetryRuns, TheHostsModel_HasTheLossOfTheProgram) {
  Proves("R87");
  std::mt19937_64 random(PrintedSeed());
  ModelSpec spec = Small();
  const uint64_t choice = random();
  spec.output_gate = (choice & 1) != 0;
  spec.sink_logits = (choice & 2) != 0;
  spec.structure = (choice & 4) != 0;
  spec.softcap = (choice & 8) != 0 ? 5.0 : 0.0;
  spec.final_softcap = (choice & 16) != 0 ? 10.0 : 0.0;
  auto trainer = Trainer::Create(TestEngine(), spec, *FindTarget("cpu"), {.seed = random()});
  if (!trainer) GTEST_SKIP() << ToText(trainer.error()) << "; script/setup --xla installs a plugin";
  const RowBatch row = AnyRow(spec, random);
  const auto evaluated = trainer->Evaluate(row);
  ASSERT_TRUE(evaluated) << ToText(evaluated.error());
  const auto probe = ProbeModel(TestEngine(), spec, *trainer->State(), row);
  ASSERT_TRUE(probe) << ToText(probe.error());
  EXPECT_NEAR(probe->loss_sum, evaluated->loss_sum, 1e-4 * evaluated->loss_sum);
}

TEST(TelemetryRuns, OnOrOff_TheRunHasTheSameBits) {
  Proves("R86 B20 R90");
  const TemporaryFolder folder;
  WriteTexts(folder.File("texts"));
  std::vector<LogPoint> points;
  std::vector<std::string> programs;  // a digest of each one's text
  const auto digest = [&](const std::string& out, const std::string& more) -> std::string {
    TrainOptions options;
    options.folder = folder.File(out);
    options.target = *FindTarget("cpu");
    options.on_point = [&](const LogPoint& point) { points.push_back(point); };
    const auto receipt = Train(TestEngine(), ParsedRun(RunText(more), folder.path()), options);
    if (!receipt) return ToText(receipt.error());
    EXPECT_LE(receipt->compiles, 3);
    for (const ProgramUse& program : receipt->programs) programs.push_back(program.key);
    return receipt->state_digest;
  };
  const std::string off = digest("off", "");
  if (off.find("TSR-L008") != std::string::npos) GTEST_SKIP() << off;
  ASSERT_EQ(points.size(), 3U);
  EXPECT_TRUE(points[0].layers.empty());
  EXPECT_EQ(digest("on", "telemetry = true\n"), off);
  ASSERT_EQ(points.size(), 6U);
  // It is in no program: those of both runs are the same texts.
  ASSERT_EQ(programs.size() % 2, 0U);
  const auto half = programs.begin() + static_cast<std::ptrdiff_t>(programs.size() / 2);
  EXPECT_EQ(std::vector<std::string>(programs.begin(), half), std::vector<std::string>(half, programs.end()));
  const std::string json = ReadWhole(folder.File("on/train.json"));
  EXPECT_THAT(json, testing::HasSubstr("\"class\": \"" + points.back().layers.at(0).telemetry_class + "\""));
  EXPECT_THAT(ReadWhole(folder.File("on/log.jsonl")), testing::HasSubstr("\"class\":"));
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(points[3 + i].layers.size(), 1U);
    const LayerTelemetry& layer = points[3 + i].layers[0];
    const double sink = std::max(layer.sink_ratio, layer.document_sink_ratio);
    EXPECT_EQ(layer.telemetry_class,
              ToText(Classify(sink, {layer.max_magnitude, layer.outliers, layer.excess_kurtosis})));
    EXPECT_EQ(points[3 + i].loss, points[i].loss);
  }
}

}  // namespace
}  // namespace tessera::train
