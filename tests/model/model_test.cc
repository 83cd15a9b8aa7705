// Models as a whole: gradients, isolation, updates.
#include <gtest/gtest.h>

#include "model/model_fixture.h"

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

}  // namespace
}  // namespace tessera
