// What stands for each key of the layer spec: beside the definition's own operations, by name, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lanes/cpu/isa.h"
#include "model/rounding.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using Names = std::map<std::string, std::string>;

const Names kPlain = {{"norm", "none"},       {"linear_qkv", "none"}, {"linear_proj", "none"},  {"linear_fc1", "none"},
                      {"linear_fc2", "none"}, {"attention", "cpu"},   {"layernorm_mlp", "none"}};

// Of each key another.
const Names kOther = {
    {"norm", "cpu"},       {"linear_qkv", "cpu"},        {"linear_proj", "cpu"},         {"linear_fc1", "cpu"},
    {"linear_fc2", "cpu"}, {"attention", "xla_chunked"}, {"layernorm_mlp", "recomputed"}};

TrainerOptions With(const Names& names, uint64_t seed) {
  TrainerOptions options;
  options.seed = seed;
  options.substitutes = names;
  options.xla.optimization = 0;
  return options;
}

// Widths that no vector and no tile divides.
ModelSpec OddSpec(DType dtype) {
  ModelSpec spec = FullSpec();
  spec.width = 19;
  spec.mlp_width = 37;
  spec.dtype = dtype;
  return spec;
}

class Substitutes : public ModelTest {
 protected:
  // The definition alone, in f32 and in bf16, and what rounding does to it.
  void Begin(uint64_t seed) {
    rng_.seed(seed);
    seed_ = rng_();
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      plain_.push_back(Made(dtype, kPlain));
      ASSERT_TRUE(plain_.back()) << ToText(plain_.back().error());
    }
    for (int i = 0; i < 3; ++i) batches_.push_back(DrawRows(rng_, OddSpec(DType::kF32)));
    auto scale = RoundingScale::Measure(*plain_[0], *plain_[1], batches_);
    ASSERT_TRUE(scale) << ToText(scale.error());
    scale_ = *scale;
  }
  Result<Trainer> Made(DType dtype, const Names& names) const { return Make(OddSpec(dtype), With(names, seed_)); }
  Trainer& Plain(DType dtype) { return *plain_[dtype == DType::kBf16 ? 1 : 0]; }

  std::mt19937_64 rng_;
  uint64_t seed_ = 0;
  std::vector<Result<Trainer>> plain_;
  std::vector<RowBatch> batches_;
  RoundingScale scale_;
};

TEST_F(Substitutes, EachKeyAlone_AgreesOnLossAndEveryGradient) {
  Proves("R84 R47");
  ASSERT_NO_FATAL_FAILURE(Begin(PrintedSeed()));
  std::vector<std::pair<DType, Names>> cases = {{DType::kF32, kOther}};  // at once: f32 is the finer comparison
  for (const auto& [key, name] : kOther) {
    cases.emplace_back(DType::kBf16, kPlain);
    cases.back().second[key] = name;
  }
  for (const auto& [dtype, names] : cases) {
    Result<Trainer> trainer = Made(dtype, names);
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    std::string told;
    for (const Substitute& one : trainer->substitutes()) {
      EXPECT_EQ(one.name, names.at(one.key)) << one.key;
      told += one.key + " " + one.name + ", ";
    }
    SCOPED_TRACE(told + std::string(ToText(dtype)));
    for (const RowBatch& rows : batches_) {
      const Result<GradientsResult> got = trainer->Gradients(rows);
      ASSERT_TRUE(got) << ToText(got.error());
      ExpectWithin(scale_, dtype, *got, Plain(dtype).Gradients(rows).value());
    }
  }
}

// The losses of a run with every substitute lie over those of one with none: as far apart as rounding puts the latter
// from f32, at a rate at which Adam, which gives gradients that are nothing but rounding the size of all others, moves
// nothing far.
TEST_F(Substitutes, AllTogether_LossesLieOverEachOther) {
  Proves("R84");
  ASSERT_NO_FATAL_FAILURE(Begin(PrintedSeed()));
  Result<Trainer> all = Made(DType::kBf16, kOther);
  ASSERT_TRUE(all) << ToText(all.error());
  double drift = 0.0;
  for (int64_t step = 1; step <= 8; ++step) {
    const RowBatch rows = DrawRows(rng_, OddSpec(DType::kF32));
    const std::vector<const RowBatch*> one = {&rows};
    const StepScalars scalars{1e-3, step};
    const double exact = Plain(DType::kF32).Step(one, scalars).value().loss;
    const double plain = Plain(DType::kBf16).Step(one, scalars).value().loss;
    const double loss = all->Step(one, scalars).value().loss;
    drift = std::max(drift, std::abs(plain - exact));
    EXPECT_NEAR(loss, plain, drift + scale_.Loss(DType::kBf16) * exact) << step;
  }
}

// A tolerance that a wrong program would not notice is none: a mask that is off by one token does.
TEST_F(Substitutes, AnotherWindow_IsFarBeyondTheTolerance) {
  ASSERT_NO_FATAL_FAILURE(Begin(PrintedSeed()));
  ModelSpec spec = OddSpec(DType::kBf16);
  spec.masks[1] = "causal and documents and window(4, 0)";
  Result<Trainer> wrong = Make(spec, With(kPlain, seed_));
  ASSERT_TRUE(wrong) << ToText(wrong.error());
  int far = 0;
  for (const RowBatch& rows : batches_) {
    const GradientsResult want = Plain(DType::kBf16).Gradients(rows).value();
    const GradientsResult got = wrong->Gradients(rows).value();
    for (const auto& [name, gradient] : want.gradients) {
      far += Distance(got.gradients.at(name), gradient) > scale_.Gradient(name, DType::kBf16) * Norm(gradient) ? 1 : 0;
    }
  }
  EXPECT_GT(far, 3);
}

std::map<std::string, Substitute> ByKey(const std::vector<Substitute>& all) {
  std::map<std::string, Substitute> by_key;
  for (const Substitute& one : all) by_key[one.key] = one;
  return by_key;
}

// Left to the library, a product is our own where it was measured to be faster, and the reason says so either way.
TEST_F(Substitutes, LeftOpen_ByTargetAndTypeWithAReason) {
  Proves("R84 R85");
  const auto chosen = [&](const char* target, DType dtype) {
    ModelSpec spec = TinySpec();
    spec.dtype = dtype;
    const Result<ModelPrograms> lowered = LowerModel(engine(), spec, FindTarget(target).value());
    EXPECT_TRUE(lowered) << ToText(lowered.error());
    return ByKey(lowered->substitutes);
  };
  for (const auto& [key, one] : chosen("v6e", DType::kBf16)) {
    if (key == "attention") continue;
    EXPECT_EQ(one.name, "none") << key;
    EXPECT_THAT(one.reason, HasSubstr(key == "layernorm_mlp" ? "recomputed takes less" : "not for a tpu"));
  }
  EXPECT_THAT(chosen("cpu", DType::kF32).at("linear_fc1").reason, HasSubstr("f32"));
  bool has_amx = false;
  for (const lanes::cpu::Isa& isa : lanes::cpu::Isas()) has_amx |= isa.name == "amx" && isa.available;
  const Substitute product = chosen("cpu", DType::kBf16).at("linear_fc1");
  EXPECT_EQ(product.name, has_amx ? "cpu" : "none") << product.reason;
  EXPECT_THAT(product.reason, HasSubstr(has_amx ? "products of bf16 with amx" : "no matrix unit"));
}

TEST_F(Substitutes, OnAMachineWithLess_KernelsOfThat) {
  Proves("R84");
  if (lanes::cpu::Isas().size() < 2) GTEST_SKIP() << "one instruction set is built";
  const lanes::cpu::Isa least = lanes::cpu::Isas().back();
  EngineOptions options = OptionsFromEnvironment();
  options.isa = std::string(least.name);
  const Engine engine(options);
  TrainerOptions asked;
  asked.substitutes = {{"linear_qkv", "cpu"}, {"norm", "cpu"}};
  const Result<ModelPrograms> lowered = LowerModel(engine, TinySpec(), Cpu(), asked);
  ASSERT_TRUE(lowered) << ToText(lowered.error());
  EXPECT_THAT(ByKey(lowered->substitutes).at("linear_qkv").reason, HasSubstr(std::string(least.name)));
  EXPECT_THAT(ByKey(lowered->substitutes).at("norm").reason, HasSubstr(std::string(least.name)));
}

TEST_F(Substitutes, WhatCannotBe_IsRefusedByName) {
  const auto refused = [&](const char* target, const Names& names, const std::string& attention = "auto") {
    TrainerOptions options;
    options.attention = attention;
    options.substitutes = names;
    const Result<ModelPrograms> lowered = LowerModel(engine(), TinySpec(), FindTarget(target).value(), options);
    EXPECT_FALSE(lowered);
    return lowered ? std::string() : ToText(lowered.error());
  };
  EXPECT_THAT(refused("v6e", {{"linear_qkv", "cpu"}}), HasSubstr("TSR-L002 at linear_qkv: not for a tpu"));
  EXPECT_THAT(refused("h200", {{"norm", "cpu"}}), HasSubstr("TSR-L002 at norm: not for a gpu"));
  EXPECT_THAT(refused("cpu", {{"attention", "cuda"}}), HasSubstr("TSR-L002 at attention: not for a cpu"));
  EXPECT_THAT(refused("cpu", {{"linear_qkv", "recomputed"}}), HasSubstr("one of auto, none, cpu expected"));
  EXPECT_THAT(refused("cpu", {{"linear", "cpu"}}), HasSubstr("norm, linear_qkv, linear_proj, linear_fc1, linear_fc2"));
  EXPECT_THAT(refused("cpu", {{"attention", "cpu"}}, "xla_chunked"), HasSubstr("are asked for at once"));
  EXPECT_TRUE(ParseSubstitutes("norm=cpu,layernorm_mlp=recomputed"));
  for (const char* text : {"", "norm", "=cpu", "norm=cpu,norm=none", "norm=cpu,", "norm=", "wte=cpu"}) {
    EXPECT_FALSE(ParseSubstitutes(text)) << text;
  }
}

// Less is kept from forward to backward.
TEST_F(Substitutes, RecomputedMlp_TakesLessMemory) {
  Proves("R84");
  ModelSpec spec = TinySpec();
  spec.layers = 4;
  spec.mlp_width = 512;
  spec.row_tokens = 256;
  int64_t bytes[2] = {};
  for (const char* name : {"none", "recomputed"}) {
    Result<Trainer> trainer = Make(spec, With({{"layernorm_mlp", name}}, 1));
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    bytes[name == std::string("none") ? 0 : 1] = trainer->programs()[0].temp_bytes;
  }
  EXPECT_LT(bytes[1], bytes[0] * 3 / 4) << "of " << bytes[0];
}

}  // namespace
}  // namespace tessera
