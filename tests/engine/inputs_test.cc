// A run's tensors: what is refused before any work, and inputs made from a seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/fixtures.h"
#include "engine/tensors.h"
#include "support/proves.h"

namespace tessera {
namespace {

std::vector<std::string> FieldsOf(const RunOutcome& outcome) {
  std::vector<std::string> fields;
  if (outcome.error) {
    for (const Violation& v : outcome.error->violations) fields.push_back(v.field);
  }
  std::sort(fields.begin(), fields.end());
  return fields;
}

RunOutcome RunWith(const Contract& contract, const TensorMap& inputs, const RunOptions& options = {}) {
  return tessera::Run(contract, {}, inputs, TargetNamed("cpu"), options);
}

TEST(Inputs, EveryWrongTensor_IsListedBeforeAnyWork) {
  const Contract contract = SmallContract({.sink_logits = true});
  TensorMap inputs = MakeInputs(contract, 1, true);
  inputs.erase("k");
  inputs["q"] = Tensor::Zeros(ElementType::kBf16, inputs["q"].shape);
  inputs["v"] = Tensor::Zeros(ElementType::kF32, {1, 1, 48, 5});
  inputs["sink_logits"] = Tensor::Zeros(ElementType::kF32, {1});
  inputs["do"].bytes.pop_back();
  inputs["bias"] = Tensor::Zeros(ElementType::kF32, {1});
  const RunOutcome outcome = RunWith(contract, inputs, Ask{.backward = true});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kTensorMismatch);
  EXPECT_EQ(FieldsOf(outcome), (std::vector<std::string>{"bias", "do", "k", "q", "sink_logits", "v"}));
  EXPECT_EQ(outcome.receipt.failed_at, "inputs");
  EXPECT_EQ(outcome.receipt.input_digest, Digest(inputs));
  EXPECT_TRUE(outcome.receipt.plan_fingerprint.empty()) << "nothing was planned";
  EXPECT_TRUE(outcome.outputs.empty());
  ExpectSound(outcome.receipt);
}

TEST(Inputs, SinkLogitsAndDo_MustMatchTheRequestBothWays) {
  const Contract plain = SmallContract();
  const Contract sinks = SmallContract({.sink_logits = true});
  EXPECT_EQ(FieldsOf(RunWith(plain, MakeInputs(sinks, 1, false))), std::vector<std::string>{"sink_logits"});
  EXPECT_EQ(FieldsOf(RunWith(sinks, MakeInputs(plain, 1, false))), std::vector<std::string>{"sink_logits"});
  EXPECT_EQ(FieldsOf(RunWith(plain, MakeInputs(plain, 1, true))), std::vector<std::string>{"do"});
  EXPECT_EQ(FieldsOf(RunWith(plain, MakeInputs(plain, 1, false), Ask{.backward = true})),
            std::vector<std::string>{"do"});
  EXPECT_FALSE(RunWith(sinks, MakeInputs(sinks, 1, true), Ask{.backward = true}).error.has_value());
}

TEST(Inputs, OtherLayout_IsRefused) {
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, 1, false, Layout::kBthd);
  EXPECT_EQ(FieldsOf(RunWith(contract, inputs)), (std::vector<std::string>{"k", "q", "v"}));
  EXPECT_FALSE(RunWith(contract, inputs, Ask{.layout = Layout::kBthd}).error.has_value());
}

TEST(Inputs, ThreadsBelowOne_AreRefused) {
  const Contract contract = SmallContract();
  for (const int64_t threads : {0, -1}) {
    const RunOutcome outcome = RunWith(contract, MakeInputs(contract, 1, false), Ask{.threads = threads});
    ASSERT_TRUE(outcome.error.has_value()) << threads;
    EXPECT_EQ(outcome.error->code, ErrorCode::kBadArgument);
    EXPECT_EQ(outcome.receipt.failed_at, "request");
    ExpectSound(outcome.receipt);
  }
}

TEST(Inputs, InvalidContract_IsRefusedWithEveryViolation) {
  Contract contract = SmallContract();
  contract.shape.dim_v = 0;
  contract.score.softcap = -1;
  EXPECT_TRUE(MakeInputs(contract, 1, false).empty());
  const RunOutcome outcome = RunWith(contract, {});
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kContractInvalid);
  EXPECT_GE(outcome.error->violations.size(), 2u);
  EXPECT_EQ(outcome.receipt.failed_at, "contract");
  ExpectSound(outcome.receipt);
}

TEST(MakeInputs, Bytes_AreTheSameOnEveryMachine) {
  const struct {
    DType dtype;
    const char* digest;
  } golden[] = {{DType::kF32, "500bdea7cb7baa04bbca732aad289c41"},
                {DType::kBf16, "d5ef645fd979ef2f3acbeeb81d38bda4"},
                {DType::kF16, "347cd998c52fda1c402b084a30ef7216"}};
  for (const auto& g : golden) {
    const Contract contract = SmallContract({.len = 20, .sink_logits = true, .dtype = g.dtype});
    EXPECT_EQ(Digest(MakeInputs(contract, 7, true)), g.digest) << ToText(g.dtype);
  }
}

TEST(MakeInputs, Layouts_HoldTheSameValues) {
  const Contract contract = SmallContract({.len = 5, .batch = 2, .num_q_heads = 4, .num_kv_heads = 2});
  const TensorMap bhtd = MakeInputs(contract, 9, true, Layout::kBhtd);
  const TensorMap bthd = MakeInputs(contract, 9, true, Layout::kBthd);
  const Tensor& a = bhtd.at("q");
  const Tensor& b = bthd.at("q");
  const TensorRef va = DenseView(a, Layout::kBhtd);
  const TensorRef vb = DenseView(b, Layout::kBthd);
  EXPECT_NE(a.bytes, b.bytes);
  for (int64_t batch = 0; batch < 2; ++batch) {
    for (int64_t head = 0; head < 4; ++head) {
      for (int64_t token = 0; token < 5; ++token) {
        for (int64_t d = 0; d < 8; ++d) {
          EXPECT_EQ(a.At(batch * va.batch_stride + head * va.head_stride + token * va.token_stride + d),
                    b.At(batch * vb.batch_stride + head * vb.head_stride + token * vb.token_stride + d));
        }
      }
    }
  }
}

TEST(MakeInputs, Values_AreModerateAndCentred) {
  const Contract contract = SmallContract({.len = 512});
  const TensorMap inputs = MakeInputs(contract, 11, true);
  for (const auto& [name, tensor] : inputs) {
    double sum = 0;
    double squares = 0;
    const double n = static_cast<double>(tensor.NumElements());
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      const double x = tensor.At(i);
      ASSERT_LE(std::abs(x), 4.0);
      sum += x;
      squares += x * x;
    }
    // The seed is fixed, so these bounds (many standard errors wide) hold always or never.
    EXPECT_LT(std::abs(sum / n), 0.15) << name;
    EXPECT_NEAR(std::sqrt(squares / n), 1.155, 0.1) << name;
  }
}

TEST(MakeInputs, SeedAndName_ChooseTheStream) {
  const Contract contract = SmallContract();
  const TensorMap one = MakeInputs(contract, 1, false);
  const TensorMap two = MakeInputs(contract, 2, false);
  const TensorMap with_do = MakeInputs(contract, 1, true);
  EXPECT_NE(one.at("q"), two.at("q"));
  EXPECT_NE(one.at("q").bytes, one.at("k").bytes);
  EXPECT_EQ(one.at("q"), with_do.at("q")) << "a backward leaves the other inputs as they were";
  EXPECT_EQ(one.count("do"), 0u);
}

}  // namespace
}  // namespace tessera
