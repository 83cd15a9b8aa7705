// How many keys of a tile a TPU kernel takes at once is a parameter of each: other texts, and the contract's numbers.
// Nothing here ran on a TPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/interpreted.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/lowerings.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

namespace xla = lanes::xla;
constexpr Pass kBoth[] = {Pass::kForward, Pass::kBackward};

std::span<float> Floats(Tensor& tensor) {
  return {reinterpret_cast<float*>(tensor.bytes.data()), static_cast<size_t>(tensor.NumElements())};
}

struct Ran {
  TensorMap outputs;
  std::string texts;
};

// Both passes by the interpreter. Whatever goes wrong fails the test.
Ran RunWith(int64_t sub_tile_kv, const Contract& contract, const Plan& plan, const TensorMap& inputs) {
  const Target target = FindTarget("v6e").value();
  const xla::Lowering& lowering = *xla::FindLowering("xla_pallas");
  const PlanView view = plan.view();
  stablehlo::ProgramSpec spec = stablehlo::SpecOf(contract, view, target.kind);
  spec.sub_tile_kv = sub_tile_kv;
  xla::FitTarget(spec, target);
  Ran ran;
  for (const Pass pass : kBoth) {
    const Result<std::vector<KernelText>> kernels = lowering.kernels(spec, pass);
    EXPECT_TRUE(kernels) << ToText(kernels.error());
    for (const KernelText& kernel : *kernels) ran.texts += kernel.text;
  }
  const Shape& s = contract.shape;
  const auto zeros = [&](const char* name, ElementType type, std::vector<int64_t> dims) -> Tensor& {
    return ran.outputs[name] = Tensor::Zeros(type, std::move(dims));
  };
  const ElementType type = inputs.at("q").type;
  Tensor& o = zeros("o", type, {s.batch, s.num_q_heads, s.q_len, s.dim_v});
  Tensor& lse = zeros("lse", ElementType::kF32, {s.batch, s.num_q_heads, s.q_len});
  Tensor& dq = zeros("dq", type, inputs.at("q").shape);
  Tensor& dk = zeros("dk", type, inputs.at("k").shape);
  Tensor& dv = zeros("dv", type, inputs.at("v").shape);

  const auto bound = xla::BindInterpreted(lowering, {contract, view, target, kBoth}, spec, 1);
  EXPECT_TRUE(bound) << ToText(bound.error());
  if (!bound) return ran;
  // A multiple of the alignment that a workspace has.
  struct alignas(kWorkspaceAlignment) Line {
    std::byte bytes[kWorkspaceAlignment];
  };
  const int64_t bytes = std::max((*bound)->WorkspaceBytes(Pass::kForward), (*bound)->WorkspaceBytes(Pass::kBackward));
  std::vector<Line> workspace(static_cast<size_t>(bytes) / sizeof(Line) + 1);
  const LaneCall call{.workspace = {workspace[0].bytes, static_cast<size_t>(bytes)}};
  const TensorRef q = DenseView(inputs.at("q")), k = DenseView(inputs.at("k")), v = DenseView(inputs.at("v"));
  const auto forward = (*bound)->Forward(
      {.q = q, .k = k, .v = v, .sink_logits = {}, .o = DenseView(o), .lse = Floats(lse), .row_max = {}}, call);
  EXPECT_TRUE(forward) << ToText(forward.error());
  const auto backward = (*bound)->Backward({.q = q,
                                            .k = k,
                                            .v = v,
                                            .o = DenseView(o),
                                            .dout = DenseView(inputs.at("do")),
                                            .sink_logits = {},
                                            .lse = Floats(lse),
                                            .delta = {},
                                            .dq = DenseView(dq),
                                            .dk = DenseView(dk),
                                            .dv = DenseView(dv),
                                            .dsink_logits = {}},
                                           call);
  EXPECT_TRUE(backward) << ToText(backward.error());
  return ran;
}

TEST(Blocks, AnyNumberOfKeysAtOnce_MatchesTheOracle) {
  Proves("R36 R37 R40");
  const uint64_t seed = PrintedSeed();
  for (const double softcap : {0.0, 3.0}) {  // with one the forward's blocks are those of bounded scores
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      Contract contract;
      contract.shape = {1, 700, 700, 2, 1, 64, 64, dtype};
      contract.mask.heads = {ParseMaskExpr("causal and window(400, 0)").value()};
      contract.score = {.scale = 0.125, .softcap = softcap};
      PlanOptions options;
      options.tile = TileSize{256, 512};
      const Result<PlanResult> made = MakePlan(contract, {}, FindTarget("v6e").value(), options);
      ASSERT_TRUE(made) << ToText(made.error());
      const TensorMap inputs = MakeInputs(contract, seed, true);
      std::set<std::string> texts;
      for (const int64_t keys : {0, 128, 256, 512}) {
        SCOPED_TRACE(keys);
        const Ran ran = RunWith(keys, contract, made->plan, inputs);
        if (keys > 0) texts.insert(ran.texts);
        CheckOptions check;
        check.arithmetic = Arithmetic::Single();
        const Result<CheckReport> report = CheckOutputs(contract, {}, inputs, ran.outputs, check);
        ASSERT_TRUE(report) << ToText(report.error());
        EXPECT_TRUE(report->pass) << report->text;
      }
      EXPECT_EQ(texts.size(), 3U) << "another number of keys is another text";
    }
  }
}

}  // namespace
}  // namespace tessera
