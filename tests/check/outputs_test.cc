// The check of outputs: its values are the dense oracle's, and an error beyond its tolerance is found wherever it is.
#include <gtest/gtest.h>

#include <cmath>

#include "cases/cases.h"
#include "check/expected.h"
#include "check/tolerance.h"
#include "oracle/oracle.h"
#include "support/engine.h"
#include "support/random_batch.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

struct Pair {
  const char* name;
  const check::ExpectedTensor& got;
  const OracleTensor& want;
};

// Both compute in double precision, in other orders: the bound of that arithmetic, from each side.
void ExpectSame(const Pair& pair) {
  ASSERT_EQ(pair.got.shape, pair.want.shape) << pair.name;
  for (size_t i = 0; i < pair.want.value.size(); ++i) {
    const double got = pair.got.value[i];
    const double want = pair.want.value[i];
    if (std::isnan(want) || std::isinf(want)) {
      EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << pair.name << " " << i;
    } else {
      ASSERT_NEAR(got, want, 2.0 * pair.got.bound[i]) << pair.name << " " << i;
    }
  }
}

MaskSample RandomSample(std::mt19937_64& rng) {
  MaskSample sample = RandomMaskSample(rng, 40);
  Contract& contract = sample.contract;
  contract.shape.dim_qk = RandomInt(rng, 1, 9);
  contract.shape.dim_v = RandomInt(rng, 1, 9);
  contract.shape.dtype = static_cast<DType>(RandomInt(rng, 0, 2));
  contract.score.softcap = RandomInt(rng, 0, 1) == 0 ? 0.0 : 1.5;
  contract.score.sink_logits = RandomInt(rng, 0, 2) == 0;
  return sample;
}

TEST(Expect, AnyContract_GivesTheOraclesValues) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round);
    const MaskSample sample = RandomSample(rng);
    const TensorMap inputs = MakeInputs(sample.contract, seed + static_cast<uint64_t>(round), true);
    const Result<OracleBackwardResult> want = OracleBackward(sample.contract, sample.batch, inputs);
    ASSERT_TRUE(want.has_value()) << ToText(want.error());
    const Result<check::Expected> got = check::Expect({sample.contract, sample.batch, inputs, /*backward=*/true});
    ASSERT_TRUE(got.has_value()) << ToText(got.error());
    ExpectSame({"o", got->o, want->forward.o});
    ExpectSame({"lse", got->lse, want->forward.lse});
    ExpectSame({"max", got->max, want->forward.max});
    ExpectSame({"dq", got->dq, want->dq});
    ExpectSame({"dk", got->dk, want->dk});
    ExpectSame({"dv", got->dv, want->dv});
    ExpectSame({"dsink_logits", got->dsink, want->dsink});
    if (HasFatalFailure()) return;
  }
}

// Every output of every case, right, then with one element three times its tolerance away.
TEST(CheckOutputs, PlantedError_IsFoundInEveryOutput) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(testing::Message() << "TESSERA_SEED=" << seed << " round " << round);
    const MaskSample sample = RandomSample(rng);
    const Layout layout = round % 2 == 0 ? Layout::kBhtd : Layout::kBthd;
    const TensorMap inputs = MakeInputs(sample.contract, seed + static_cast<uint64_t>(round), true, layout);
    RunOptions run;
    run.lane = round % 3 == 0 ? "reference" : "auto";
    run.backward = run.row_max = true;
    run.layout = layout;
    const RunOutcome outcome = tessera::Run(sample.contract, sample.batch, inputs, *FindTarget("cpu"), run);
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    CheckOptions options;
    options.layout = layout;
    options.arithmetic = outcome.receipt.executed == "reference" ? Arithmetic::Double() : Arithmetic::Single();
    const auto check = [&](const TensorMap& outputs) {
      return CheckOutputs(sample.contract, sample.batch, inputs, outputs, options).value();
    };
    const CheckReport right = check(outcome.outputs);
    ASSERT_TRUE(right.pass) << right.text;
    ASSERT_EQ(right.outputs.size(), outcome.outputs.size());
    const check::Expected want = check::Expect({sample.contract, sample.batch, inputs, true}, options).value();
    const std::map<std::string, const check::ExpectedTensor*> expected = {
        {"o", &want.o},   {"lse", &want.lse}, {"max", &want.max},           {"dq", &want.dq},
        {"dk", &want.dk}, {"dv", &want.dv},   {"dsink_logits", &want.dsink}};
    for (const auto& [name, tensor] : outcome.outputs) {
      TensorMap outputs = outcome.outputs;
      const auto at = static_cast<int64_t>(rng() % static_cast<uint64_t>(tensor.NumElements()));
      const double value = expected.at(name)->value[static_cast<size_t>(at)];
      const double bound = expected.at(name)->bound[static_cast<size_t>(at)];
      const double off = 3.0 * (bound + check::CastErrorOf(tensor.type).Of(value));
      outputs.at(name).Set(at, std::isinf(value) ? -1e30 : value + (rng() % 2 == 0 ? off : -off));
      const CheckReport planted = check(outputs);
      EXPECT_FALSE(planted.pass) << name << " " << at << "\n" << planted.text;
      for (const Comparison& output : planted.outputs) EXPECT_EQ(output.pass, output.name != name) << output.text;
    }
  }
}

// What a user would see: a lane that runs another mask than the contract's.
TEST(CheckOutputs, LaneWithAnotherMask_IsFound) {
  const uint64_t seed = PrintedSeed();
  const Case built = *BuildCase("causal-1k-f32", seed);
  Contract wrong = built.contract;
  wrong.mask.heads = {*ParseMaskExpr("causal and window(1, 0)")};
  const TensorMap inputs = MakeInputs(built.contract, seed, true);
  RunOptions run;
  run.backward = true;
  run.keep_bound = true;
  const RunOutcome outcome = tessera::Run(wrong, built.batch, inputs, *FindTarget("cpu"), run);
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  CheckOptions options;
  options.arithmetic = Arithmetic::Single();
  EXPECT_FALSE(CheckOutputs(built.contract, built.batch, inputs, outcome.outputs, options)->pass);
  ASSERT_TRUE(outcome.bound.has_value());
  EXPECT_FALSE(CheckMask(built.contract, built.batch, outcome.bound->plan().view())->pass);
  EXPECT_TRUE(CheckMask(outcome.bound->contract(), built.batch, outcome.bound->plan().view())->pass);
}

}  // namespace
}  // namespace tessera
