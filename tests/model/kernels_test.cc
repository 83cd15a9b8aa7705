// A model's program for a TPU, run on the CPU plugin: its kernels are calls of the host's interpreter there, and
// nothing else of the text changes. So tables, padding and the way in and out of the kernels are proven with the
// numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/state.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/state.h"
#include "model/batch.h"
#include "model/choose.h"
#include "model/definition.h"
#include "model/device.h"
#include "model/model_fixture.h"
#include "support/interpreted_kernels.h"

namespace tessera {
namespace {

using Models = ModelTest;
using testing::HasSubstr;

ModelSpec KernelSpec() {
  ModelSpec spec = FullSpec();
  spec.num_q_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 64;
  spec.row_tokens = 300;  // two tiles of which the second is not full
  spec.masks = {"causal and documents", "causal and documents and (window(37, 0) or sink(2, document))"};
  return spec;
}

// The operands of a gradients program, as a Trainer puts them.
void PutOperands(const ModelSpec& spec, const TensorMap& state, const RowBatch& rows, model::DeviceArrays& arrays) {
  using stablehlo::Element;
  for (const ParameterInfo& info : ParametersOf(spec)) {
    ASSERT_TRUE(arrays.Put({info.name, {Element::kF32, info.dims}}, state.at(info.name).bytes));
    const Tensor zeros = Tensor::Zeros(ElementType::kF32, info.dims);
    ASSERT_TRUE(arrays.Put({model::GradientName(info.name), {Element::kF32, info.dims}}, zeros.bytes));
  }
  const std::vector<int64_t> tokens = {spec.rows, spec.row_tokens};
  const model::RowOperands operands = model::ToOperands(spec, rows).value();
  const auto ints = [&](std::string_view name, const std::vector<int32_t>& values) {
    ASSERT_TRUE(arrays.Put({std::string(name), {Element::kI32, tokens}}, std::as_bytes(std::span(values))));
  };
  const auto floats = [&](std::string_view name, std::vector<int64_t> dims, const std::vector<float>& values) {
    ASSERT_TRUE(arrays.Put({std::string(name), {Element::kF32, std::move(dims)}}, std::as_bytes(std::span(values))));
  };
  ints(model::kInputIds, rows.input_ids);
  ints(model::kTargetIds, rows.target_ids);
  ints(model::kPositions, operands.positions);
  for (size_t i = 0; i < rows.structure.size(); ++i) ints(model::StructureInput(i), rows.structure[i]);
  floats(model::kLossMask, tokens, operands.loss_mask);
  floats(model::kRotations, {spec.row_tokens, 2 * spec.head_dim}, model::Rotations(spec));
  const int32_t keep = 0;
  ASSERT_TRUE(arrays.Put({std::string(model::kKeep), {Element::kI32, {}}}, std::as_bytes(std::span(&keep, 1))));
}

TEST_F(Models, TpuKernelsInsideTheProgram_GiveTheSameGradients) {
  Proves("R84");
  std::mt19937_64 rng(PrintedSeed());
  const ModelSpec spec = KernelSpec();
  const Target v6e = FindTarget("v6e").value();
  TrainerOptions options = Options("auto", rng());
  const model::Layout layout = model::MakeLayout(spec, {}).value();
  const Result<model::Chosen> chosen =
      model::ChooseAttention(engine(), layout, v6e, {options.attention, options}, nullptr);
  ASSERT_TRUE(chosen) << ToText(chosen.error());
  ASSERT_EQ(chosen->name, "xla_pallas") << chosen->reason;
  Result<stablehlo::Program> program = model::LowerGradients(layout, *chosen->attention);
  ASSERT_TRUE(program) << ToText(program.error());
  const Result<std::vector<KernelText>> texts = chosen->attention->Kernels(true);
  ASSERT_TRUE(texts) << ToText(texts.error());
  Result<InterpretedProgram> interpreted = InterpretKernels(std::move(program->text));
  ASSERT_TRUE(interpreted) << ToText(interpreted.error());
  program->text = std::move(interpreted->text);
  ASSERT_EQ(interpreted->calls, texts->size());
  ASSERT_EQ(interpreted->calls, 4U) << "forward and backward of two masks";

  const std::shared_ptr<EngineState>& state = EngineAccess::Of(engine());
  lanes::xla::Session session;
  const Decision open = state->xla->clients.Open(options.xla, TargetKind::kCpu, &session);
  ASSERT_TRUE(open.accepted) << open.detail;
  ASSERT_TRUE(RegisterInterpreter(session.client->plugin()));
  const Result<lanes::xla::FoundProgram> made =
      state->xla->programs.Make(session, {*program, "gradients", options.xla});
  ASSERT_TRUE(made) << ToText(made.error());

  Result<Trainer> trainer = Make(spec, Options("cpu", options.seed));
  ASSERT_TRUE(trainer) << ToText(trainer.error());
  const RowBatch rows = DrawRows(rng, spec);
  const GradientsResult want = trainer->Gradients(rows).value();
  model::DeviceArrays arrays(state, session);
  PutOperands(spec, trainer->State().value(), rows, arrays);
  const Result<std::unique_ptr<model::BoundAttention>> bound = chosen->attention->Bind(rows, true);
  ASSERT_TRUE(bound) << ToText(bound.error());
  const std::vector<stablehlo::NamedType> inputs = chosen->attention->Inputs(true);
  for (size_t i = 0; i < inputs.size(); ++i) ASSERT_TRUE(arrays.Put(inputs[i], (*bound)->operands[0][i]));
  const Status ran = arrays.Run(*made->program);
  ASSERT_TRUE(ran) << ToText(ran.error());
  float loss = 0.0F;
  std::memcpy(&loss, arrays.Get("loss").value().data(), sizeof(loss));
  EXPECT_NEAR(loss, want.loss_sum, 2e-5 * want.loss_sum);
  for (const auto& [name, gradient] : want.gradients) {
    const Tensor got{ElementType::kF32, gradient.shape, arrays.Get(model::GradientName(name)).value()};
    EXPECT_LE(Distance(got, gradient), 1e-4 * Norm(gradient) + 1e-6) << name;
  }
}

TEST_F(Models, LoweredWithoutAPlugin_EveryTargetHasItsText) {
  Proves("R84");
  ModelSpec spec = KernelSpec();
  const auto attention = [&](const char* target) {
    const Result<ModelPrograms> lowered = LowerModel(engine(), spec, FindTarget(target).value());
    EXPECT_TRUE(lowered) << ToText(lowered.error());
    EXPECT_EQ(lowered->programs.size(), 3U);
    EXPECT_EQ(lowered->substitutes.size(), 7U);
    for (const ProgramText& program : lowered->programs) {
      const bool has_calls = program.text.find("tpu_custom_call") != std::string::npos;
      EXPECT_EQ(has_calls, !program.kernels.empty()) << target << " " << program.pass;
    }
    return lowered->programs[0].lane + ": " + lowered->substitutes[5].reason;
  };
  EXPECT_THAT(attention("cpu"), HasSubstr("cpu: our kernels"));
  EXPECT_THAT(attention("v6e"), HasSubstr("xla_pallas: our TPU kernels"));
  EXPECT_THAT(attention("h200"), HasSubstr("not cuda: "));  // f32, whatever else is missing here
  spec.head_dim = 24;
  EXPECT_THAT(attention("v6e"), HasSubstr("not xla_pallas: tpu.head_dim: 24"));
  TrainerOptions options;
  options.attention = "cuda";
  const Result<ModelPrograms> refused = LowerModel(engine(), spec, Cpu(), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLaneRefused);
}

}  // namespace
}  // namespace tessera
