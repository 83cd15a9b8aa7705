// A model over the devices of a mesh: the same numbers as on one device, the same state, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "model/layout.h"
#include "model/model_fixture.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class MeshTrainers : public ModelTest {
 protected:
  Result<Trainer> Over(const ModelSpec& spec, const std::string& mesh, const std::string& attention = "auto",
                       uint64_t seed = 1) const {
    TrainerOptions options = Options(attention, seed);
    if (!mesh.empty()) options.mesh = ParseMesh(mesh).value();
    return Make(spec, options);
  }
  // Four rows, and heads that every mesh below divides.
  static ModelSpec Spec(ModelSpec spec) {
    spec.rows = 4;
    return spec;
  }
};

// Distance of two gradients over the larger norm: sums of a few hundred terms in another order.
void ExpectNear(const TensorMap& got, const TensorMap& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    EXPECT_LE(Distance(got.at(name), tensor), tolerance * (Norm(tensor) + 1e-3)) << name;
  }
}

// Sums over n terms in another order differ by at most n roundings of the largest partial sum; here no sum has more
// than 4 rows * 24 tokens terms, products of them a handful deep.
constexpr double kGradientTolerance = 96 * 16 * 0x1p-24;

TEST_F(MeshTrainers, Gradients_AsOnOneDevice) {
  Proves("R79 R80");
  std::mt19937_64 rng(PrintedSeed());
  struct Case {
    const char* mesh;
    const char* attention;
  };
  for (const ModelSpec& spec : {Spec(TinySpec()), Spec(FullSpec())}) {
    Result<Trainer> one = Over(spec, "", "xla_chunked");
    ASSERT_TRUE(one) << ToText(one.error());
    const RowBatch rows = DrawRows(rng, spec);
    const Result<GradientsResult> want = one->Gradients(rows);
    ASSERT_TRUE(want) << ToText(want.error());
    for (const Case& c : {Case{"data=2,model=2", "cpu"}, Case{"model=2,data=2", "xla_chunked"},
                          Case{"data=2,context=4", "auto"}, Case{"context=2,model=2", "auto"}}) {
      SCOPED_TRACE(c.mesh);
      Result<Trainer> trainer = Over(spec, c.mesh, c.attention);
      ASSERT_TRUE(trainer) << ToText(trainer.error());
      const Result<GradientsResult> got = trainer->Gradients(rows);
      ASSERT_TRUE(got) << ToText(got.error());
      EXPECT_EQ(got->tokens, want->tokens);
      EXPECT_NEAR(got->loss_sum, want->loss_sum, std::abs(want->loss_sum) * kGradientTolerance);
      ExpectNear(got->gradients, want->gradients, kGradientTolerance);
      const Result<EvalResult> loss = trainer->Evaluate(rows);
      ASSERT_TRUE(loss) << ToText(loss.error());
      EXPECT_NEAR(loss->loss_sum, want->loss_sum, std::abs(want->loss_sum) * kGradientTolerance);
    }
  }
}

// Where key heads divide by the devices, heads are traded for tokens and every sum is as on one device.
TEST_F(MeshTrainers, HeadsForTokens_AsOnOneDevice) {
  Proves("R79");
  std::mt19937_64 rng(PrintedSeed());
  ModelSpec spec = Spec(TinySpec());
  spec.num_kv_heads = 4;
  spec.row_tokens = 40;
  spec.output_gate = true;
  // f32 is the sharp one. In bf16 a sum that falls on the other side of a rounding is 2^-8 apart, at every layer and in
  // what is left after sums cancel: as far as two paths of one model may lie apart (Models.InBf16_PathsAgree...).
  for (const auto& [dtype, tolerance] : {std::pair(DType::kF32, kGradientTolerance), std::pair(DType::kBf16, 0.12)}) {
    spec.dtype = dtype;
    const RowBatch rows = DrawRows(rng, spec);
    Result<Trainer> one = Over(spec, "", "xla_chunked");
    ASSERT_TRUE(one) << ToText(one.error());
    const Result<GradientsResult> want = one->Gradients(rows);
    ASSERT_TRUE(want) << ToText(want.error());
    Result<Trainer> trainer = Over(spec, "context=4");
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    const Result<GradientsResult> got = trainer->Gradients(rows);
    ASSERT_TRUE(got) << ToText(got.error());
    EXPECT_NEAR(got->loss_sum, want->loss_sum, want->loss_sum * tolerance);
    ExpectNear(got->gradients, want->gradients, tolerance);
    const std::vector<std::string>& collectives = trainer->sharding()->programs[0].collectives;
    EXPECT_THAT(collectives, testing::Contains(HasSubstr("all-to-all")));
    EXPECT_THAT(collectives, testing::Not(testing::Contains(HasSubstr("all-gather"))));
  }
}

// Each batch is cut anew: its documents change places among the devices and only tiles that somebody needs go, all by
// the tables that one compiled program takes.
TEST_F(MeshTrainers, PlacedDocuments_AsOnOneDevice) {
  Proves("R79 R83");
  std::mt19937_64 rng(PrintedSeed());
  struct Case {
    const char* mesh;
    std::optional<CutForm> cut;
    std::optional<Exchange> exchange;
    const char* reason;
  };
  ModelSpec spec = Spec(FullSpec());
  spec.row_tokens = 64;
  ModelSpec windows = Spec(TinySpec());
  windows.row_tokens = 64;
  windows.masks = {"causal and window(5, 0)"};
  const std::pair<ModelSpec, std::vector<Case>> models[] = {
      {spec,
       {{"data=2,context=4", {}, {}, "by batch: the least cost; sparse"},
        {"context=2,data=2", CutForm::kReordered, Exchange::kAllGather, "reordered: asked for; allgather: asked for"},
        {"data=2,context=2,model=2", CutForm::kZigzag, Exchange::kSparse, "zigzag: asked for; sparse: asked for"}}},
      {windows,
       {{"context=2", {}, {}, "contiguous: least to do for the largest shard of whole rows; sparse: at most"}}}};
  for (const auto& [model, cases] : models) {
    Result<Trainer> one = Over(model, "", "xla_chunked");
    ASSERT_TRUE(one) << ToText(one.error());
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(c.mesh) + ", " + c.reason);
      TrainerOptions options = Options();
      options.mesh = ParseMesh(c.mesh).value();
      options.cut = c.cut;
      options.exchange = c.exchange;
      Result<Trainer> trainer = Make(model, options);
      ASSERT_TRUE(trainer) << ToText(trainer.error());
      constexpr int64_t kBatches = 4;
      for (int64_t i = 0; i < kBatches; ++i) {
        const RowBatch rows = DrawRows(rng, model);
        const Result<GradientsResult> want = one->Gradients(rows);
        ASSERT_TRUE(want) << ToText(want.error());
        const Result<GradientsResult> got = trainer->Gradients(rows);
        ASSERT_TRUE(got) << ToText(got.error());
        EXPECT_EQ(got->tokens, want->tokens);
        EXPECT_NEAR(got->loss_sum, want->loss_sum, std::abs(want->loss_sum) * kGradientTolerance);
        ExpectNear(got->gradients, want->gradients, kGradientTolerance);
        // The same bits again.
        EXPECT_EQ(Digest(trainer->Gradients(rows)->gradients), Digest(got->gradients));
      }
      EXPECT_EQ(trainer->compiles(), 2);
      const ContextUse& use = trainer->sharding()->context.value();
      EXPECT_THAT(use.reason, HasSubstr(c.reason));
      int64_t batches = 0;
      for (const int64_t count : use.batches) batches += count;
      EXPECT_EQ(batches, 2 * kBatches * options.mesh->SizeOf(kDataAxis));
      if (c.cut) {
        EXPECT_EQ(use.batches[static_cast<size_t>(*c.cut)], batches);
      }
      EXPECT_GT(use.allgather_bytes, 0);
      EXPECT_GE(use.worst_balance, 1.0);
      if (use.exchange == Exchange::kSparse) {
        EXPECT_LT(use.bytes, use.allgather_bytes);
      } else {
        EXPECT_EQ(use.bytes, use.allgather_bytes);
      }
      std::printf("%s: %s; %.4f of an all-gather's bytes, largest shard %.3f of the mean\n", c.mesh, use.reason.c_str(),
                  static_cast<double>(use.bytes) / static_cast<double>(use.allgather_bytes), use.worst_balance);
    }
  }
}

TEST_F(MeshTrainers, ACutThatAModelCannotHave_IsRefused) {
  Proves("R80");
  const auto refuse = [&](const ModelSpec& spec, std::optional<CutForm> cut, std::optional<Exchange> exchange,
                          const char* text) {
    TrainerOptions options = Options();
    options.mesh = ParseMesh("context=2").value();
    options.cut = cut;
    options.exchange = exchange;
    const Result<Trainer> trainer = Make(spec, options);
    ASSERT_FALSE(trainer) << text;
    EXPECT_EQ(CodeText(trainer.error().code), "TSR-S020");
    EXPECT_THAT(ToText(trainer.error()), HasSubstr(text));
  };
  ModelSpec spec = TinySpec();
  refuse(spec, {}, Exchange::kRing, "a ring's hops are compiled");
  refuse(FullSpec(), {}, Exchange::kHeads, "sink logits are not traded");
  spec.num_kv_heads = 1;
  refuse(spec, {}, Exchange::kHeads, "1 key heads do not divide by 2 shards");
  spec.masks = {"causal"};
  refuse(spec, CutForm::kReordered, {}, "the mask has no documents");
}

// Every number moved by one rounding, up or down.
TensorMap Shaken(TensorMap state, std::mt19937_64& rng) {
  for (auto& [name, tensor] : state) {
    for (size_t i = 0; i < tensor.bytes.size(); i += sizeof(float)) {
      float value = 0.0F;
      std::memcpy(&value, tensor.bytes.data() + i, sizeof(value));
      if (name.rfind("v.", 0) == 0 && value == 0.0F) continue;  // a square
      value = std::nextafter(value, rng() % 2 == 0 ? INFINITY : -INFINITY);
      std::memcpy(tensor.bytes.data() + i, &value, sizeof(value));
    }
  }
  return state;
}

// Adam divides small gradients by their own size, so that rounding grows with the steps; how fast is measured on one
// device, whose state is moved by a rounding after every step.
TEST_F(MeshTrainers, FiftySteps_TheLossOfOneDevice) {
  Proves("R79 R83 B15");
  const uint64_t seed = PrintedSeed();
  const ModelSpec spec = Spec(TinySpec());
  constexpr int64_t kSteps = 50;
  const auto run = [&](Trainer& trainer, bool is_shaken) {
    std::mt19937_64 rng(seed);
    std::mt19937_64 shakes(seed + 1);
    std::vector<double> losses;
    for (int64_t step = 1; step <= kSteps; ++step) {
      const RowBatch rows = DrawRows(rng, spec);
      const RowBatch* pointer = &rows;
      const Result<StepResult> stepped = trainer.Step(std::span(&pointer, 1), {1e-3, step});
      EXPECT_TRUE(stepped) << ToText(stepped.error());
      if (!stepped) return losses;
      losses.push_back(stepped->loss);
      if (is_shaken) {
        EXPECT_TRUE(trainer.SetState(Shaken(trainer.State().value(), shakes)));
      }
    }
    return losses;
  };
  Trainer one = Over(spec, "", "xla_chunked").value();
  const TensorMap start = one.State().value();
  const std::vector<double> want = run(one, false);
  ASSERT_TRUE(one.SetState(start));
  const std::vector<double> shaken = run(one, true);
  ASSERT_EQ(shaken.size(), want.size());
  for (const std::string mesh : {"data=2,model=2", "data=2,context=4"}) {
    SCOPED_TRACE(mesh);
    Result<Trainer> trainer = Over(spec, mesh);
    ASSERT_TRUE(trainer) << ToText(trainer.error());
    EXPECT_EQ(trainer->compiles(), 2);
    const std::vector<double> got = run(*trainer, false);
    ASSERT_EQ(got.size(), want.size());
    double moved = 0.0;
    double off = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      moved = std::max(moved, std::abs(shaken[i] - want[i]));
      off = std::max(off, std::abs(got[i] - want[i]));
      EXPECT_LE(std::abs(got[i] - want[i]), 8 * moved + want[i] * kGradientTolerance) << "step " << i + 1;
    }
    std::printf("%s: the loss is at most %.3g off; a rounding a step moves it by %.3g\n", mesh.c_str(), off, moved);
    EXPECT_EQ(trainer->compiles(), 2);
    ASSERT_TRUE(trainer->sharding().has_value());
    EXPECT_EQ(trainer->sharding()->fingerprint.size(), 32U);
    ASSERT_EQ(trainer->sharding()->programs.size(), 2U);
    EXPECT_FALSE(trainer->sharding()->programs[0].collectives.empty());
    for (const ProgramUse& use : trainer->programs()) {
      EXPECT_EQ(use.key.rfind(trainer->sharding()->fingerprint + "-" + mesh + "-", 0), 0U);
    }
    // The state of a mesh is one device's: it goes on there, and on another mesh.
    const TensorMap state = trainer->State().value();
    ASSERT_TRUE(one.SetState(state));
    EXPECT_EQ(Digest(one.State().value()), Digest(state));
    std::mt19937_64 rng(seed + 2);
    const RowBatch rows = DrawRows(rng, spec);
    EXPECT_NEAR(one.Evaluate(rows)->loss_sum, trainer->Evaluate(rows)->loss_sum,
                trainer->Evaluate(rows)->loss_sum * kGradientTolerance);
  }
}

TEST_F(MeshTrainers, WhatDoesNotFit_IsRefusedBeforeCompiling) {
  Proves("R80 R81");
  struct Case {
    const char* mesh;
    const char* code;
    const char* text;
  };
  const ModelSpec spec = Spec(TinySpec());
  for (const Case& c : {Case{"data=3", "TSR-S005", "model.rows"}, Case{"model=4", "TSR-S005", "model.num_kv_heads"},
                        Case{"data=2,expert=2", "TSR-S005", "no experts"}, Case{"context=64", "TSR-S002", "64 devices"},
                        Case{"context=16", "TSR-S020", "24 tokens"}}) {
    const Result<Trainer> trainer = Over(spec, c.mesh);
    ASSERT_FALSE(trainer) << c.mesh;
    EXPECT_EQ(CodeText(trainer.error().code), c.code);
    EXPECT_THAT(ToText(trainer.error()), HasSubstr(c.text));
  }
  // A mesh of one device is one device.
  const Result<Trainer> alone = Over(spec, "data=1,model=1");
  ASSERT_TRUE(alone) << ToText(alone.error());
  EXPECT_FALSE(alone->sharding().has_value());
  const Result<Trainer> host = Over(spec, "data=2,context=2", "cpu");
  ASSERT_FALSE(host);
  EXPECT_EQ(CodeText(host.error().code), "TSR-L002");
}

// Every number of a parameter is on some device, and comes back to its place.
TEST(Layouts, Pieces_CoverEveryParameter) {
  Proves("R80 R81");
  std::mt19937_64 rng(PrintedSeed());
  ModelSpec spec = FullSpec();
  spec.rows = 4;
  for (const char* mesh : {"data=2,model=2", "model=2", "context=4,model=2", "data=4"}) {
    model::Layout layout = model::MakeLayout(spec, ParseMesh(mesh).value()).value();
    ASSERT_TRUE(model::SetOperands(layout, {}));
    for (const ParameterInfo& info : ParametersOf(spec)) {
      Tensor whole = Tensor::Zeros(ElementType::kF32, info.dims);
      for (std::byte& byte : whole.bytes) byte = static_cast<std::byte>(rng());
      std::vector<std::byte> back(whole.bytes.size());
      const auto own = LocalDims(*layout.table->Find(info.name), *layout.mesh);
      ASSERT_TRUE(own);
      int64_t count = 1;
      for (const int64_t dim : *own) count *= dim;
      for (int64_t device = 0; device < layout.NumDevices(); ++device) {
        const model::Pieces pieces = layout.PiecesOf(info.name, device);
        const std::vector<std::byte> cut = model::CutOut({info.dims}, whole.bytes, pieces);
        ASSERT_EQ(static_cast<int64_t>(cut.size()), count * 4) << info.name;
        model::PutBack({info.dims}, cut, pieces, back);
      }
      EXPECT_EQ(back, whole.bytes) << info.name << " on " << mesh;
    }
  }
  // Whole heads of each: queries 0 and 1, key 0, value 0 on the first of two.
  model::Layout layout = model::MakeLayout(spec, ParseMesh("model=2").value()).value();
  ASSERT_TRUE(model::SetOperands(layout, {}));
  const model::Pieces first = layout.PiecesOf("m.layers.0.qkv", 0);
  EXPECT_EQ(first[1], (std::vector<model::Range>{{0, 8}, {16, 4}, {24, 4}}));
  EXPECT_EQ(layout.PiecesOf("layers.1.fc1", 1)[1], (std::vector<model::Range>{{12, 12}, {36, 12}}));
}

}  // namespace
}  // namespace tessera
