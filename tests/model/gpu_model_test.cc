// Models on a GPU, with XLA's CUDA plugin: attention by our kernels inside the program against the loops of the
// program's own and against this machine's processor. Skipped where there is no such plugin or GPU; TESSERA_PJRT_PLUGIN
// names one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>

#include "model/model_fixture.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class GpuModels : public testing::Test {
 protected:
  void SetUp() override {
    const Result<Trainer> any = Make(Spec(), "xla_chunked");
    if (!any) GTEST_SKIP() << ToText(any.error()) << "; TESSERA_PJRT_PLUGIN names XLA's CUDA plugin";
  }
  static ModelSpec Spec() {
    ModelSpec spec = FullSpec();
    spec.num_q_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim = 64;
    spec.row_tokens = 300;
    spec.dtype = DType::kBf16;
    return spec;
  }
  static const Engine& TheEngine() {
    static const Engine* const kEngine = new Engine;
    return *kEngine;
  }
  static Result<Trainer> Make(const ModelSpec& spec, const std::string& attention) {
    TrainerOptions options;
    options.attention = attention;
    options.seed = 5;
    return Trainer::Create(TheEngine(), spec, FindTarget("h200").value(), options);
  }
};

// bf16 as in Models.InBf16_PathsAgreeWithEachOtherAndWithF32.
TEST_F(GpuModels, OurKernelsInTheProgram_GiveTheGradientsOfItsLoops) {
  Proves("R84 R47");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = Spec();
  Result<Trainer> ours = Make(spec, "auto");
  ASSERT_TRUE(ours) << ToText(ours.error());
  ASSERT_EQ(ours->substitutes()[5].name, "cuda") << ours->substitutes()[5].reason;
  EXPECT_EQ(ours->device().kind, "gpu");
  Result<Trainer> loops = Make(spec, "xla_chunked");
  ASSERT_TRUE(loops) << ToText(loops.error());
  for (int i = 0; i < 5; ++i) {
    const RowBatch rows = DrawRows(rng, spec);
    const Result<GradientsResult> got = ours->Gradients(rows);
    ASSERT_TRUE(got) << ToText(got.error());
    const Result<GradientsResult> want = loops->Gradients(rows);
    ASSERT_TRUE(want) << ToText(want.error());
    EXPECT_NEAR(got->loss_sum, want->loss_sum, 0.01 * want->loss_sum);
    for (const auto& [name, gradient] : want->gradients) {
      EXPECT_LE(Distance(got->gradients.at(name), gradient), 0.12 * Norm(gradient) + 1e-6) << name;
    }
  }
}

// The overlay: losses of a run beside each other at every step, one compile each, and the same bits again.
TEST_F(GpuModels, Losses_LieOverEachOther) {
  Proves("R84 R91");
  const uint64_t seed = PrintedSeed();
  const ModelSpec spec = Spec();
  std::map<std::string, std::vector<double>> losses;
  for (const std::string name : {"cuda", "again", "xla_chunked"}) {
    std::mt19937_64 rng(seed);
    Result<Trainer> trainer = Make(spec, name == "again" ? "cuda" : name);
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    for (int64_t step = 1; step <= 20; ++step) {
      const RowBatch rows = DrawRows(rng, spec);
      const RowBatch* one = &rows;
      const Result<StepResult> stepped = trainer->Step({&one, 1}, {1e-3, step});
      ASSERT_TRUE(stepped) << ToText(stepped.error());
      ASSERT_TRUE(stepped->updated);
      losses[name].push_back(stepped->loss);
    }
    EXPECT_EQ(trainer->compiles(), 2);
  }
  EXPECT_EQ(losses["cuda"], losses["again"]);
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(losses["cuda"][i], losses["xla_chunked"][i], 0.02);
}

// A model of some size: what a step takes with either, for people.
TEST_F(GpuModels, PackedRows_AStepOfEach) {
  std::mt19937_64 rng(PrintedSeed());
  ModelSpec spec = Spec();
  spec.vocab = 256;
  spec.layers = 4;
  spec.width = 512;
  spec.mlp_width = 1376;
  spec.head_dim = 128;
  spec.row_tokens = 4096;
  spec.structure = false;
  spec.masks = {"causal and documents and window(1023, 0)", "causal and documents"};
  const RowBatch rows = DrawRows(rng, spec);
  const RowBatch* one = &rows;
  for (const std::string name : {"cuda", "xla_chunked"}) {
    Result<Trainer> trainer = Make(spec, name);
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    double best = 1e9;
    for (int64_t step = 1; step <= 10; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      const Result<StepResult> stepped = trainer->Step({&one, 1}, {1e-4, step});
      ASSERT_TRUE(stepped) << ToText(stepped.error());
      EXPECT_TRUE(stepped->loss_finite && stepped->grads_finite);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::printf("%s: %.2f ms a step of %lld tokens\n", name.c_str(), 1e3 * best,
                static_cast<long long>(spec.rows * spec.row_tokens));
  }
}

// What the lane has no form for runs in the program's loops, with the reason.
TEST_F(GpuModels, F32_FallsBackWithTheReason) {
  ModelSpec spec = Spec();
  spec.dtype = DType::kF32;
  const Result<Trainer> trainer = Make(spec, "auto");
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  EXPECT_EQ(trainer->substitutes()[5].name, "xla_chunked");
  EXPECT_THAT(trainer->substitutes()[5].reason, HasSubstr("not cuda: "));
  EXPECT_FALSE(Make(spec, "cuda"));
}

}  // namespace
}  // namespace tessera
