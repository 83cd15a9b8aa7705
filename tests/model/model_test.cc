// Models as a whole: gradients, isolation, updates.
#include <gtest/gtest.h>

#include <cstring>

#include "model/model_fixture.h"
#include "support/peers.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using Models = ModelTest;

// Sums over tens of tokens in f32, in another order.
constexpr double kCloseF32 = 2e-5;

void ExpectClose(const GradientsResult& got, const GradientsResult& want, double tolerance = kCloseF32) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, tolerance * std::abs(want.loss_sum));
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, tensor] : want.gradients) {
    EXPECT_LE(Distance(got.gradients.at(name), tensor), tolerance * Norm(tensor) + 1e-7) << name;
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

// What a definition may have or not, one bit each.
constexpr uint64_t kParts = 31;
void Choose(uint64_t parts, ModelSpec& spec) {
  if ((parts & 1) == 0) spec.softcap = 0.0;
  if ((parts & 2) == 0) spec.final_softcap = 0.0;
  spec.sink_logits = (parts & 4) != 0;
  spec.output_gate = (parts & 8) != 0;
  spec.structure = (parts & 16) != 0;
}

// A definition of any small sizes: rows that no tile divides, groups of any number of heads.
ModelSpec DrawSpec(std::mt19937_64& rng) {
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(rng);
  };
  ModelSpec spec = FullSpec();
  spec.vocab = draw(5, 40);
  spec.layers = draw(1, 3);
  spec.width = draw(6, 24);
  spec.num_kv_heads = draw(1, 3);
  spec.num_q_heads = spec.num_kv_heads * draw(1, 3);
  spec.head_dim = 2 * draw(1, 4);
  spec.mlp_width = draw(8, 40);
  spec.rows = draw(1, 3);
  spec.row_tokens = draw(5, 41);
  spec.masks[1] = "causal and documents and window(" + std::to_string(draw(0, spec.row_tokens)) + ", 0)";
  return spec;
}

// In bf16 what is allowed comes from JAX's own numbers with rounded operands, and a little for what it rounds
// elsewhere.
TEST_F(Models, EqualToJax_LossAndEveryGradient) {
  Proves("R84 R47 R78");
  const std::string python = PeersPython();
  if (python.empty()) GTEST_SKIP() << kNoPeers;
  std::mt19937_64 rng(PrintedSeed());
  struct Precision {
    DType dtype;
    const char* tolerance;
    uint64_t parts;
  };
  // Twice in f32, so that each part is in one and not in the other.
  const uint64_t drawn = rng() & kParts;
  for (const Precision& precision : {Precision{DType::kF32, R"({"loss": 1e-5, "gradient": 1e-5})", drawn},
                                     Precision{DType::kF32, R"({"loss": 1e-5, "gradient": 1e-5})", ~drawn},
                                     Precision{DType::kBf16, R"({"loss": 1e-3, "gradient": 2e-2})", kParts}}) {
    ModelSpec spec = precision.dtype == DType::kF32 ? DrawSpec(rng) : FullSpec();
    Choose(precision.parts, spec);
    spec.dtype = precision.dtype;
    SCOPED_TRACE(ToToml(spec));
    Result<Trainer> trainer = Make(spec, Options("cpu", rng()));
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    const TensorMap state = Shaken(rng, trainer->State().value());
    ASSERT_TRUE(trainer->SetState(state));
    const RowBatch rows = DrawRows(rng, spec);
    const GradientsResult gradients = trainer->Gradients(rows).value();
    const TemporaryFolder folder;
    WriteWhole(folder.File("spec.toml"), ToToml(spec));
    WriteWhole(folder.File("tolerance.json"), precision.tolerance);
    ASSERT_TRUE(WriteSafetensors(folder.File("case.safetensors"), CaseOf(rows, state, gradients)));
    const ProgramResult jax = RunProgram({python, "-B", TESSERA_SOURCE_DIR "/tests/model/jax_model.py", folder.path()});
    EXPECT_EQ(jax.exit_code, 0) << jax.out << jax.err;
  }
}

// The derivative along a direction by five points, whose error is of the fifth order.
double Slope(Trainer& trainer, const TensorMap& state, const RowBatch& rows, const std::string& name,
             const std::vector<double>& direction, double step) {
  const auto at = [&](double distance) {
    TensorMap moved = state;
    Tensor& tensor = moved.at(name);
    for (size_t i = 0; i < direction.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      tensor.Set(index, tensor.At(index) + distance * direction[i]);
    }
    EXPECT_TRUE(trainer.SetState(moved));
    return trainer.Evaluate(rows).value().loss_sum;
  };
  return (8.0 * (at(step) - at(-step)) - (at(2.0 * step) - at(-2.0 * step))) / (12.0 * step);
}

TEST_F(Models, FiniteDifferences_AreTheGradients) {
  Proves("R84");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = FullSpec();
  Result<Trainer> trainer = Make(spec, Options("cpu", rng()));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  const TensorMap state = Shaken(rng, trainer->State().value());
  ASSERT_TRUE(trainer->SetState(state));
  const RowBatch rows = DrawRows(rng, spec);
  const GradientsResult gradients = trainer->Gradients(rows).value();
  for (const auto& [name, gradient] : gradients.gradients) {
    // Along the gradient, where the slope is its norm: a step changes the loss by about a twentieth of a nat, or moves
    // the tensor by a hundredth of its size.
    const double norm = Norm(gradient);
    if (norm < 1e-4) continue;
    std::vector<double> direction = Numbers(gradient);
    for (double& value : direction) value /= norm;
    const double step = std::min(0.05 / norm, 0.01 * (Norm(state.at(name)) + 1.0));
    // The loss is a sum in f32, each of its five values off by some units in its last place.
    const double rounding = 1e-6 * (gradients.loss_sum + 1.0) * 1.5 / step;
    EXPECT_NEAR(Slope(*trainer, state, rows, name, direction, step), norm, 0.02 * norm + rounding) << name;
  }
}

std::vector<DrawnDocument> DrawDocuments(std::mt19937_64& rng, const ModelSpec& spec, int64_t count, int64_t most) {
  std::vector<DrawnDocument> documents;
  std::uniform_int_distribution<int64_t> length(2, most);
  for (int64_t i = 0; i < count; ++i) documents.push_back(DrawDocument(rng, spec, length(rng)));
  return documents;
}

TEST_F(Models, PackedAgainstAlone_SameLossAndGradients) {
  Proves("R66 R64 R67");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = FullSpec();
  Result<Trainer> trainer = Make(spec, Options("cpu", rng()));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  ASSERT_TRUE(trainer->SetState(Shaken(rng, trainer->State().value())));
  const std::vector<DrawnDocument> documents = DrawDocuments(rng, spec, 6, spec.row_tokens / 3);
  RowBatch packed = EmptyRows(spec);
  GradientsResult alone;
  for (size_t i = 0; i < documents.size(); ++i) {
    AddDocument(documents[i], static_cast<int64_t>(i / 3), packed);
    RowBatch rows = EmptyRows(spec);  // the other row is empty, and so is the rest of this one
    AddDocument(documents[i], 0, rows);
    const GradientsResult one = trainer->Gradients(rows).value();
    alone.loss_sum += one.loss_sum;
    alone.tokens += one.tokens;
    for (const auto& [name, gradient] : one.gradients) {
      auto [at, is_new] = alone.gradients.emplace(name, gradient);
      for (int64_t k = 0; !is_new && k < gradient.NumElements(); ++k) {
        at->second.Set(k, at->second.At(k) + gradient.At(k));
      }
    }
  }
  ExpectClose(trainer->Gradients(packed).value(), alone);
}

TEST_F(Models, AnotherDocumentChanged_NotABitHere) {
  Proves("R66 B28");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = FullSpec();
  Result<Trainer> trainer = Make(spec, Options("cpu", rng()));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  ASSERT_TRUE(trainer->SetState(Shaken(rng, trainer->State().value())));
  const std::vector<DrawnDocument> documents = DrawDocuments(rng, spec, 4, spec.row_tokens / 3);
  RowBatch rows = EmptyRows(spec);
  for (size_t i = 0; i < 3; ++i) AddDocument(documents[i], 0, rows);
  AddDocument(documents[3], 1, rows);
  // Only the middle document is trained.
  const auto begin = documents[0].tokens.size();
  const auto end = begin + documents[1].tokens.size();
  for (size_t i = 0; i < rows.loss_mask.size(); ++i) rows.loss_mask[i] = i >= begin && i + 1 < end ? 1 : 0;
  const GradientsResult before = trainer->Gradients(rows).value();
  for (size_t i = 0; i < rows.input_ids.size(); ++i) {
    if (i >= begin && i < end) continue;
    rows.input_ids[i] = (rows.input_ids[i] + 7) % static_cast<int32_t>(spec.vocab);
  }
  const GradientsResult after = trainer->Gradients(rows).value();
  EXPECT_EQ(before.loss_sum, after.loss_sum);
  for (const auto& [name, gradient] : before.gradients) {
    EXPECT_EQ(Numbers(gradient), Numbers(after.gradients.at(name))) << name;
  }
}

TEST_F(Models, StructureEmbedding_BeginsAsNothing) {
  Proves("R76");
  std::mt19937_64 rng(PrintedSeed());
  ModelSpec spec = FullSpec();
  const RowBatch rows = DrawRows(rng, spec);
  Result<Trainer> with = Make(spec, Options("cpu", 5));
  ASSERT_TRUE(with) << ToText(with.error());
  spec.structure = false;
  Result<Trainer> without = Make(spec, Options("cpu", 5));
  ASSERT_TRUE(without) << ToText(without.error());
  const GradientsResult a = with->Gradients(rows).value();
  const GradientsResult b = without->Gradients(rows).value();
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  for (const auto& [name, gradient] : b.gradients) {
    EXPECT_EQ(Numbers(gradient), Numbers(a.gradients.at(name))) << name;
  }
  // And it learns: the matrix behind the tables has a gradient.
  EXPECT_GT(Norm(a.gradients.at("structure_emb.out")), 0.0);
}

TEST_F(Models, VocabularyPadding_CountsNothing) {
  Proves("R78");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = TinySpec();
  ASSERT_EQ(spec.PaddedVocab(), 24);
  Result<Trainer> trainer = Make(spec, Options("cpu", rng()));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  const RowBatch rows = DrawRows(rng, spec);
  TensorMap state = trainer->State().value();
  const GradientsResult before = trainer->Gradients(rows).value();
  for (int64_t row = 0; row < spec.width; ++row) {
    for (int64_t column = spec.vocab; column < spec.PaddedVocab(); ++column) {
      EXPECT_EQ(before.gradients.at("lm_head").At(row * spec.PaddedVocab() + column), 0.0);
      state.at("lm_head").Set(row * spec.PaddedVocab() + column, 100.0);
    }
  }
  for (int64_t i = spec.vocab * spec.width; i < spec.PaddedVocab() * spec.width; ++i) {
    EXPECT_EQ(before.gradients.at("wte").At(i), 0.0);
  }
  ASSERT_TRUE(trainer->SetState(state));
  EXPECT_EQ(trainer->Evaluate(rows).value().loss_sum, before.loss_sum);
}

}  // namespace
}  // namespace tessera
