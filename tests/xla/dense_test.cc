// Dense attention, which benchmarks hold the lane against, computes what the lanes compute: a peer that is wrong proves
// nothing.
#include "lanes/xla/stablehlo/program.h"
#include "xla/direct_program.h"
#include "xla/xla_fixture.h"

namespace tessera {
namespace {

class Dense : public XlaTest {
 protected:
  TensorMap RunOnce(const Result<stablehlo::Program>& program, const Operands& operands) {
    EXPECT_TRUE(program.has_value()) << ToText(program.error());
    return program ? DirectProgram(plugin_, *program).Run(operands) : TensorMap();
  }
};

TEST_F(Dense, EveryMaskItKnows_EqualsReference) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  struct Mask {
    const char* text;
    bool causal, window, documents;
  };
  for (const Mask& mask : {Mask{"full", false, false, false},
                           {"causal", true, false, false},
                           {"causal and window(9, 0)", true, true, false},
                           {"causal and documents", true, false, true},
                           {"causal and window(9, 0) and documents", true, true, true}}) {
    SCOPED_TRACE(mask.text);
    Contract contract = MakeContract(mask.text, 50);
    contract.shape.batch = 2;
    contract.shape.num_q_heads = 4;
    contract.shape.num_kv_heads = 2;
    contract.shape.dim_v = 24;
    Batch batch;
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < 2 * 50; ++t) ids.push_back(t % 50 == 0 ? 0 : ids.back() + (rng() % 7 == 0 ? 1 : 0));
    if (mask.documents) batch.doc_ids = IdRows{2, 50, ids};
    const TensorMap inputs = MakeInputs(contract, seed, true);
    TensorMap want = tessera::Run(contract, batch, inputs, Cpu(), Options("reference")).outputs;
    ASSERT_EQ(want.count("dq"), 1U);
    // The backward gets what the lane's gets: log-sum-exp, and the sum of o * do.
    const Tensor lse = want.at("lse");
    want.erase("lse");
    std::vector<float> delta(static_cast<size_t>(lse.NumElements()), 0.0F);
    for (int64_t i = 0; i < want.at("o").NumElements(); ++i) {
      delta[static_cast<size_t>(i / contract.shape.dim_v)] +=
          static_cast<float>(want.at("o").At(i) * inputs.at("do").At(i));
    }
    Operands operands = {{"scale", ToBytes(std::vector<float>{static_cast<float>(contract.score.scale)})},
                         {"window_left", ToBytes(std::vector<int32_t>{9})},
                         {"documents", ToBytes(ids)}};
    for (const auto& [name, tensor] : inputs) operands[name] = tensor.bytes;
    const stablehlo::DenseSpec spec{contract.shape, mask.causal, mask.window, mask.documents};
    operands["lse"] = lse.bytes;
    operands["delta"] = ToBytes(delta);
    using stablehlo::DenseKind;
    ExpectClose(RunOnce(LowerDense(spec, DenseKind::kStep), operands), want);
    ExpectClose(RunOnce(LowerDense(spec, DenseKind::kForward), operands), {{"o", want.at("o")}});
    want.erase("o");
    ExpectClose(RunOnce(LowerDense(spec, DenseKind::kBackward), operands), want);
  }
}

}  // namespace
}  // namespace tessera
