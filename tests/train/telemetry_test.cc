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

// With one probed query in three the mean is of a third of the terms: within what a mean of so many terms of [0, 1] can
// differ, which Hoeffding bounds by sqrt(ln(2 / p) / 2n); p = 1e-9 makes it no chance.
TEST(Telemetry, SampledQueries_AgreeWithAll) {
  Proves("R87");
  std::mt19937_64 random(PrintedSeed());
  const ModelSpec spec = Small();
  const RowBatch row = AnyRow(spec, random);
  const TensorMap parameters = InitialParameters(spec, random());
  const auto all = ProbeModel(TestEngine(), spec, parameters, row, spec.row_tokens);
  const auto sampled = ProbeModel(TestEngine(), spec, parameters, row, 16);
  ASSERT_TRUE(all && sampled);
  EXPECT_EQ(all->loss_sum, sampled->loss_sum);
  const double bound = std::sqrt(std::log(2e9) / (2.0 * 16));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(all->layers[i].document_sink_ratio, sampled->layers[i].document_sink_ratio, bound);
    EXPECT_GT(all->layers[i].document_sink_ratio, 0.0);
    EXPECT_LE(all->layers[i].document_sink_ratio, 1.0);
    EXPECT_EQ(all->layers[i].spikes.max_magnitude, sampled->layers[i].spikes.max_magnitude);
  }
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
  const auto digest = [&](const std::string& out, const std::string& more) -> std::string {
    TrainOptions options;
    options.folder = folder.File(out);
    options.target = *FindTarget("cpu");
    options.on_point = [&](const LogPoint& point) { points.push_back(point); };
    const auto receipt = Train(TestEngine(), ParsedRun(RunText(more), folder.path()), options);
    if (!receipt) return ToText(receipt.error());
    EXPECT_LE(receipt->compiles, 3);
    return receipt->state_digest;
  };
  const std::string off = digest("off", "");
  if (off.find("TSR-L008") != std::string::npos) GTEST_SKIP() << off;
  ASSERT_EQ(points.size(), 3U);
  EXPECT_TRUE(points[0].layers.empty());
  EXPECT_EQ(digest("on", "telemetry = true\n"), off);
  ASSERT_EQ(points.size(), 6U);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(points[3 + i].layers.size(), 1U);
    EXPECT_EQ(points[3 + i].loss, points[i].loss);
  }
}

}  // namespace
}  // namespace tessera::train
