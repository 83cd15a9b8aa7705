// A Trainer: what it compiles, how it moves parameters, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/model_fixture.h"

namespace tessera {
namespace {

using Trainers = ModelTest;
using testing::HasSubstr;

std::vector<const RowBatch*> Pointers(const std::vector<RowBatch>& batches) {
  std::vector<const RowBatch*> pointers;
  for (const RowBatch& batch : batches) pointers.push_back(&batch);
  return pointers;
}

// With either attention, and the two losses beside each other at every step.
TEST_F(Trainers, ManyBatches_OneCompile) {
  Proves("R71 R84 R91");
  const uint64_t seed = PrintedSeed();
  const ModelSpec spec = TinySpec();
  std::vector<double> losses;
  for (const std::string attention : {"cpu", "xla_chunked"}) {
    std::mt19937_64 rng(seed);
    Result<Trainer> trainer = Make(spec, Options(attention, rng()));
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    EXPECT_EQ(trainer->compiles(), 2);
    for (int64_t step = 1; step <= 8; ++step) {
      const std::vector<RowBatch> batches = {DrawRows(rng, spec)};
      const Result<StepResult> stepped = trainer->Step(Pointers(batches), {1e-3 / static_cast<double>(step), step});
      ASSERT_TRUE(stepped) << ToText(stepped.error());
      ASSERT_TRUE(trainer->Evaluate(batches[0]));
      // Adam divides small gradients by their own size, so that rounding grows with the steps.
      if (attention == "cpu") losses.push_back(stepped->loss);
      EXPECT_NEAR(stepped->loss, losses[static_cast<size_t>(step - 1)], 1e-3);
    }
    EXPECT_EQ(trainer->compiles(), 3);
    EXPECT_EQ(trainer->programs().size(), 3U);
    EXPECT_EQ(trainer->contract_keys().size(), 2U);
    EXPECT_EQ(trainer->class_keys().size(), 2U);
  }
}

// Windows of one class are data as documents are: whoever goes on with another window has the programs that are there.
TEST_F(Trainers, AnotherWindowOfTheClass_CompilesNothing) {
  Proves("R91");
  std::mt19937_64 rng(PrintedSeed());
  ModelSpec spec = TinySpec();
  ModelSpec wider = spec;
  wider.masks[1] = "causal and documents and window(9, 0)";
  RowBatch rows = EmptyRows(spec);
  for (int64_t row = 0; row < spec.rows; ++row) AddDocument(DrawDocument(rng, spec, spec.row_tokens), row, rows);
  const uint64_t seed = rng();
  for (const std::string attention : {"cpu", "xla_chunked"}) {
    Result<Trainer> first = Make(spec, Options(attention, seed));
    ASSERT_TRUE(first) << ToText(first.error());
    const std::vector<const RowBatch*> batches = {&rows};
    ASSERT_TRUE(first->Step(batches, {1e-2, 1}));
    const double narrow = first->Evaluate(rows).value().loss_sum;
    Result<Trainer> second = Make(wider, Options(attention, seed));
    ASSERT_TRUE(second) << ToText(second.error());
    ASSERT_TRUE(second->SetState(first->State().value()));
    EXPECT_NE(second->Evaluate(rows).value().loss_sum, narrow) << "a window is not passed over";
    ASSERT_TRUE(second->Step(batches, {1e-2, 2}));
    EXPECT_EQ(second->class_keys(), first->class_keys());
    EXPECT_EQ(second->contract_keys()[0], first->contract_keys()[0]);
    EXPECT_NE(second->contract_keys()[1], first->contract_keys()[1]);
    ASSERT_EQ(second->programs().size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(second->programs()[i].source, "disk") << attention << second->programs()[i].note;
      EXPECT_EQ(second->programs()[i].key, first->programs()[i].key);
    }
  }
}

// Barriers stand where the schedule has them, once forward and once backward, and change no number.
TEST_F(Trainers, Barriers_CutTheProgramAndChangeNothing) {
  Proves("R89");
  std::mt19937_64 rng(PrintedSeed());
  ModelSpec spec = TinySpec();
  spec.layers = 5;
  TrainerOptions options = Options("cpu", 7);
  const auto barriers = [&] {
    const std::string text = LowerModel(engine(), spec, Cpu(), options).value().programs[0].text;
    int64_t count = 0;
    for (size_t at = 0; (at = text.find("optimization_barrier", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(barriers(), 0);
  Result<Trainer> whole = Make(spec, options);
  ASSERT_TRUE(whole) << ToText(whole.error());
  options.barrier_every = 2;
  EXPECT_EQ(barriers(), 4) << "after layers 2 and 4, both ways";
  Result<Trainer> cut = Make(spec, options);
  ASSERT_TRUE(cut) << ToText(cut.error());
  const RowBatch rows = DrawRows(rng, spec);
  const GradientsResult want = whole->Gradients(rows).value();
  const GradientsResult got = cut->Gradients(rows).value();
  EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-6 * want.loss_sum);
  for (const auto& [name, gradient] : want.gradients) {
    EXPECT_LE(Distance(got.gradients.at(name), gradient), 1e-5 * Norm(gradient) + 1e-7) << name;
  }
  options.barrier_every = -1;
  EXPECT_FALSE(Make(spec, options));
}

TEST_F(Trainers, SevenKeys_EachWithAReason) {
  Proves("R84 R85");
  const Result<Trainer> trainer = Make(TinySpec(), Options());
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  std::vector<std::string> keys;
  for (const Substitute& one : trainer->substitutes()) {
    keys.push_back(one.key);
    EXPECT_EQ(one.name, one.key == "attention" ? "cpu" : "none");
    EXPECT_FALSE(one.reason.empty());
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"norm", "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2",
                                            "attention", "layernorm_mlp"}));
  ASSERT_EQ(trainer->notes().size(), 3U);
  EXPECT_THAT(trainer->notes()[0], HasSubstr("f32 everywhere"));
  EXPECT_THAT(trainer->notes()[1], HasSubstr("use_te_all_linears"));
  EXPECT_THAT(trainer->notes()[2], HasSubstr("temporal_, lora_: of this model wte,"));
  EXPECT_THAT(trainer->notes()[2], HasSubstr("lm_head"));
  EXPECT_THAT(trainer->notes()[2], testing::Not(HasSubstr("layers.0")));
}

// AdamW in double from the same gradients: decay first, then the moments, then the step.
struct Expected {
  double parameter, first, second;
};
Expected Move(const Expected& before, double gradient, const OptimizerOptions& o, const StepScalars& now, bool decays) {
  const auto step = static_cast<double>(now.step);
  Expected after = before;
  if (decays) after.parameter *= 1.0 - now.learning_rate * o.weight_decay;
  after.first = o.beta1 * before.first + (1.0 - o.beta1) * gradient;
  after.second = o.beta2 * before.second + (1.0 - o.beta2) * gradient * gradient;
  const double root = std::sqrt(after.second) / std::sqrt(1.0 - std::pow(o.beta2, step));
  after.parameter -= now.learning_rate / (1.0 - std::pow(o.beta1, step)) * after.first / (root + o.eps);
  return after;
}

TEST_F(Trainers, AdamW_AsWrittenDown) {
  Proves("B19");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = TinySpec();
  for (const double clip : {0.0, 0.05, 1e6}) {
    TrainerOptions options = Options("cpu", rng());
    options.optimizer.clip_norm = clip;
    options.optimizer.eps = 1e-4;  // so that gradients that are nothing but rounding do not decide a step's sign
    Result<Trainer> trainer = Make(spec, options);
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    for (int64_t step = 1; step <= 2; ++step) {
      const std::vector<RowBatch> batches = {DrawRows(rng, spec)};
      const TensorMap before = trainer->State().value();
      const GradientsResult gradients = trainer->Gradients(batches[0]).value();
      const auto tokens = static_cast<double>(gradients.tokens);
      double norm = 0.0;
      for (const auto& [name, gradient] : gradients.gradients) norm += std::pow(Norm(gradient) / tokens, 2);
      norm = std::sqrt(norm);
      const double shrink = clip > 0 && norm > clip ? clip / norm : 1.0;
      const StepScalars now{0.01, step};
      const StepResult result = trainer->Step(Pointers(batches), now).value();
      EXPECT_TRUE(result.updated);
      EXPECT_NEAR(result.grad_norm, norm, 1e-5 * norm);
      EXPECT_EQ(result.tokens, gradients.tokens);
      const TensorMap after = trainer->State().value();
      for (const ParameterInfo& info : ParametersOf(spec)) {
        const Tensor& gradient = gradients.gradients.at(info.name);
        for (int64_t i = 0; i < gradient.NumElements(); ++i) {
          const Expected want =
              Move({before.at(info.name).At(i), before.at("m." + info.name).At(i), before.at("v." + info.name).At(i)},
                   gradient.At(i) / tokens * shrink, options.optimizer, now, info.has_decay);
          // The clipping factor comes from a sum over all parameters in f32, a few thousand terms one after the other;
          // a step is at most a few learning rates.
          const double g = std::abs(gradient.At(i) / tokens * shrink);
          const double first_size = std::abs(before.at("m." + info.name).At(i)) + g;
          ASSERT_NEAR(after.at(info.name).At(i), want.parameter, 4e-6 * (std::abs(want.parameter) + 1.0)) << info.name;
          ASSERT_NEAR(after.at("m." + info.name).At(i), want.first, 4e-5 * first_size + 1e-12) << info.name;
          ASSERT_NEAR(after.at("v." + info.name).At(i), want.second, 1e-4 * want.second + 1e-12) << info.name;
        }
      }
    }
  }
}

TEST_F(Trainers, MicroBatches_AddUp) {
  Proves("R90");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = TinySpec();
  std::vector<RowBatch> batches = {DrawRows(rng, spec), DrawRows(rng, spec), DrawRows(rng, spec)};
  Result<Trainer> trainer = Make(spec, Options("cpu", 3));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  double loss = 0.0;
  int64_t tokens = 0;
  double square = 0.0;
  TensorMap sum;
  for (const RowBatch& batch : batches) {
    const GradientsResult one = trainer->Gradients(batch).value();
    loss += one.loss_sum;
    tokens += one.tokens;
    for (const auto& [name, gradient] : one.gradients) {
      auto [at, is_new] = sum.emplace(name, gradient);
      for (int64_t i = 0; !is_new && i < gradient.NumElements(); ++i)
        at->second.Set(i, at->second.At(i) + gradient.At(i));
    }
  }
  for (const auto& [name, gradient] : sum) square += std::pow(Norm(gradient) / static_cast<double>(tokens), 2);
  const StepResult result = trainer->Step(Pointers(batches), {0.01, 1}).value();
  EXPECT_EQ(result.tokens, tokens);
  EXPECT_NEAR(result.loss, loss / static_cast<double>(tokens), 1e-6);
  EXPECT_NEAR(result.grad_norm, std::sqrt(square), 1e-5 * std::sqrt(square));
}

TEST_F(Trainers, RepeatedOrResumed_SameBits) {
  Proves("R90");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = TinySpec();
  std::vector<RowBatch> batches;
  for (int i = 0; i < 4; ++i) batches.push_back(DrawRows(rng, spec));
  const auto step = [&](Trainer& trainer, int64_t number) {
    const std::vector<RowBatch> one = {batches[static_cast<size_t>(number - 1)]};
    return trainer.Step(Pointers(one), {0.01, number}).value().loss;
  };
  Result<Trainer> first = Make(spec, Options("cpu", 9));
  ASSERT_TRUE(first) << ToText(first.error());
  step(*first, 1);
  step(*first, 2);
  const TensorMap half = first->State().value();
  const double third = step(*first, 3);
  const double fourth = step(*first, 4);
  TrainerOptions options = Options("cpu", 10);  // other parameters, until they are set
  options.threads = 1;
  Result<Trainer> second = Make(spec, options);
  ASSERT_TRUE(second) << ToText(second.error());
  ASSERT_TRUE(second->SetState(half));
  EXPECT_EQ(step(*second, 3), third);
  EXPECT_EQ(step(*second, 4), fourth);
  EXPECT_TRUE(second->State().value() == first->State().value());
}

TEST_F(Trainers, NothingTrained_NothingMoves) {
  Proves("R64");
  const ModelSpec spec = TinySpec();
  Result<Trainer> trainer = Make(spec, Options("cpu", 3));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  const TensorMap before = trainer->State().value();
  const std::vector<RowBatch> batches = {EmptyRows(spec)};
  const StepResult result = trainer->Step(Pointers(batches), {0.01, 1}).value();
  EXPECT_EQ(result.tokens, 0);
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_FALSE(result.updated);
  EXPECT_TRUE(result.loss_finite);
  EXPECT_TRUE(trainer->State().value() == before);
}

TEST_F(Trainers, GradientNotFinite_LeavesEverything) {
  Proves("B19");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = TinySpec();
  Result<Trainer> trainer = Make(spec, Options("cpu", 3));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  TensorMap state = trainer->State().value();
  for (int64_t i = 0; i < state.at("lm_head").NumElements(); ++i) state.at("lm_head").Set(i, i % 2 == 0 ? 3e38 : -3e38);
  ASSERT_TRUE(trainer->SetState(state));
  const std::vector<RowBatch> batches = {DrawRows(rng, spec)};
  const StepResult result = trainer->Step(Pointers(batches), {0.01, 1}).value();
  EXPECT_FALSE(result.loss_finite && result.grads_finite);
  EXPECT_FALSE(result.updated);
  EXPECT_TRUE(trainer->State().value() == state);
}

TEST_F(Trainers, BadRows_AreRefusedWithTheirPlace) {
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = TinySpec();
  Result<Trainer> trainer = Make(spec, Options("cpu", 3));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  const RowBatch good = DrawRows(rng, spec);
  const auto refused = [&](const RowBatch& rows) {
    const Result<EvalResult> result = trainer->Evaluate(rows);
    EXPECT_FALSE(result);
    return result ? std::string() : ToText(result.error());
  };
  RowBatch rows = good;
  rows.rows = 1;
  EXPECT_THAT(refused(rows), HasSubstr("TSR-T002: 2 rows of 24 tokens expected, got 1 of 24"));
  rows = good;
  rows.input_ids[30] = 21;
  EXPECT_THAT(refused(rows), HasSubstr("TSR-T002 at input_ids, row 1, token 6: 21 is none of a vocabulary of 21"));
  rows = good;
  rows.target_ids[0] = -1;
  EXPECT_THAT(refused(rows), HasSubstr("TSR-T002 at target_ids, row 0, token 0"));
  rows = good;
  rows.doc_ids.pop_back();
  EXPECT_THAT(refused(rows), HasSubstr("TSR-T002 at doc_ids"));
  rows = good;
  rows.doc_ids.assign(rows.doc_ids.size(), 1);
  rows.doc_ids[1] = 2;  // and 1 again after it
  EXPECT_THAT(refused(rows), HasSubstr("TSR-C007"));
  EXPECT_TRUE(trainer->Evaluate(good));
  EXPECT_FALSE(trainer->Step({}, {0.1, 1}));
  const RowBatch* one[] = {&good};
  EXPECT_FALSE(trainer->Step(one, {0.1, 0}));
  EXPECT_FALSE(trainer->Step(one, {std::numeric_limits<double>::quiet_NaN(), 1}));
}

TEST_F(Trainers, BadState_IsRefusedAndNothingChanges) {
  const ModelSpec spec = TinySpec();
  Result<Trainer> trainer = Make(spec, Options("cpu", 3));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  const TensorMap good = trainer->State().value();
  const auto refused = [&](const TensorMap& state) {
    const Status status = trainer->SetState(state);
    EXPECT_FALSE(status);
    return status ? std::string() : ToText(status.error());
  };
  TensorMap state = good;
  state.erase("m.wte");
  EXPECT_THAT(refused(state), HasSubstr("TSR-T003"));
  EXPECT_THAT(refused(state), HasSubstr("m.wte: expected F32 [24, 16], found nothing"));
  state = good;
  state.at("wte").shape = {16, 24};
  EXPECT_THAT(refused(state), HasSubstr("found F32 [16, 24]"));
  state = good;
  state.at("v.lm_head").Set(3, std::numeric_limits<double>::infinity());
  EXPECT_THAT(refused(state), HasSubstr("v.lm_head: expected finite numbers"));
  state = good;
  state.emplace("bias", Tensor::Zeros(ElementType::kF32, {1}));
  EXPECT_THAT(refused(state), HasSubstr("bias: no parameter or moment of this model"));
  EXPECT_TRUE(trainer->State().value() == good);
}

TEST_F(Trainers, BadRequests_AreRefused) {
  Result<Trainer> trainer = Make(TinySpec(), Options("cuda_magic"));
  ASSERT_FALSE(trainer);
  EXPECT_EQ(trainer.error().code, ErrorCode::kLaneUnknown);
  TrainerOptions options = Options();
  options.optimizer.beta1 = 1.0;
  options.optimizer.eps = 0.0;
  trainer = Make(TinySpec(), options);
  ASSERT_FALSE(trainer);
  EXPECT_EQ(trainer.error().violations.size(), 2U);
  ModelSpec spec = TinySpec();
  spec.layers = 0;
  trainer = Make(spec, Options());
  ASSERT_FALSE(trainer);
  EXPECT_EQ(trainer.error().code, ErrorCode::kModelInvalid);
  options = Options();
  options.xla.plugin = "/no/such/plugin.so";
  trainer = Make(TinySpec(), options);
  ASSERT_FALSE(trainer);
  EXPECT_EQ(trainer.error().code, ErrorCode::kPluginUnusable);
}

}  // namespace
}  // namespace tessera
