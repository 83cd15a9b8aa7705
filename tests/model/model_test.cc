// Models as a whole: gradients, isolation, updates.
#include <gtest/gtest.h>

#include <cstring>

#include "model/model_fixture.h"
#include "support/peers.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using Models = ModelTest;

// Substitutes round in another order, and nothing else: the sums of a gradient are over tens of tokens in f32.
constexpr double kCloseF32 = 2e-5;

void ExpectClose(const GradientsResult& got, const GradientsResult& want, double tolerance = kCloseF32) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, tolerance * std::abs(want.loss_sum));
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, tensor] : want.gradients) {
    EXPECT_LE(Distance(got.gradients.at(name), tensor), tolerance * Norm(tensor) + 1e-7) << name;
  }
}

TEST_F(Models, SubstitutesAgree_OnLossAndEveryGradient) {
  Proves("R84 R47");
  std::mt19937_64 rng(PrintedSeed());
  for (const ModelSpec& spec : {TinySpec(), FullSpec()}) {
    const uint64_t seed = rng();
    Result<Trainer> cpu = Make(spec, Options("cpu", seed));
    ASSERT_TRUE(cpu) << ToText(cpu.error());
    Result<Trainer> chunked = Make(spec, Options("xla_chunked", seed));
    ASSERT_TRUE(chunked) << ToText(chunked.error());
    for (int i = 0; i < 3; ++i) {
      const RowBatch rows = DrawRows(rng, spec);
      const Result<GradientsResult> a = cpu->Gradients(rows);
      ASSERT_TRUE(a) << ToText(a.error());
      const Result<GradientsResult> b = chunked->Gradients(rows);
      ASSERT_TRUE(b) << ToText(b.error());
      ExpectClose(*a, *b);
    }
  }
}

TensorMap CaseOf(const RowBatch& rows, const TensorMap& state, const GradientsResult& gradients) {
  TensorMap out;
  const std::vector<int64_t> shape = {rows.rows, rows.row_tokens};
  const auto ints = [&](const std::string& name, const auto& values) {
    Tensor tensor = Tensor::Zeros(ElementType::kI32, shape);
    for (size_t i = 0; i < values.size(); ++i) {
      const int32_t value = values[i];
      std::memcpy(tensor.bytes.data() + i * sizeof(value), &value, sizeof(value));
    }
    out.emplace(name, std::move(tensor));
  };
  ints("input_ids", rows.input_ids);
  ints("target_ids", rows.target_ids);
  ints("loss_mask", rows.loss_mask);
  ints("doc_ids", rows.doc_ids);
  for (size_t i = 0; i < rows.structure.size(); ++i) ints("structure_" + std::to_string(i), rows.structure[i]);
  for (const auto& [name, gradient] : gradients.gradients) {
    out.emplace("p." + name, state.at(name));
    out.emplace("g." + name, gradient);
  }
  Tensor loss = Tensor::Zeros(ElementType::kF32, {});
  loss.Set(0, gradients.loss_sum);
  out.emplace("loss", std::move(loss));
  return out;
}

// Parameters as a run has them after a while: none is zero or one any more.
TensorMap Shaken(std::mt19937_64& rng, TensorMap state) {
  std::normal_distribution<double> noise(0.0, 0.1);
  for (auto& [name, tensor] : state) {
    if (name.rfind("m.", 0) == 0 || name.rfind("v.", 0) == 0) continue;
    for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.Set(i, tensor.At(i) + noise(rng));
  }
  return state;
}

TEST_F(Models, EqualToJax_LossAndEveryGradient) {
  Proves("R84 R47 R78");
  const std::string python = PeersPython();
  if (python.empty()) GTEST_SKIP() << kNoPeers;
  std::mt19937_64 rng(PrintedSeed());
  for (const ModelSpec& spec : {TinySpec(), FullSpec()}) {
    Result<Trainer> trainer = Make(spec, Options("cpu", rng()));
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    const TensorMap state = Shaken(rng, trainer->State().value());
    ASSERT_TRUE(trainer->SetState(state));
    const RowBatch rows = DrawRows(rng, spec);
    const GradientsResult gradients = trainer->Gradients(rows).value();
    const TemporaryFolder folder;
    WriteWhole(folder.File("spec.toml"), ToToml(spec));
    WriteWhole(folder.File("tolerance.json"), R"({"loss": 1e-5, "gradient": 1e-5})");
    ASSERT_TRUE(WriteSafetensors(folder.File("case.safetensors"), CaseOf(rows, state, gradients)));
    const ProgramResult jax = RunProgram({python, "-B", TESSERA_SOURCE_DIR "/tests/model/jax_model.py", folder.path()});
    EXPECT_EQ(jax.exit_code, 0) << jax.out << jax.err;
  }
}

}  // namespace
}  // namespace tessera
