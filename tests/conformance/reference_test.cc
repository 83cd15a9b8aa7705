// The reference lane called directly: what it checks before it writes, strides, a given delta, and several threads.
#include "lanes/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <thread>

#include "conformance/conformance.h"

namespace tessera::conformance {
namespace {

// Everything a direct call needs, dense in [B,H,T,D].
struct Direct {
  Contract contract;
  Target target = *FindTarget("cpu");
  Plan plan;
  TensorMap tensors;
  std::vector<float> lse, row_max, delta, sink, dsink;
  std::vector<std::byte> workspace;

  TensorRef Ref(const char* name) {
    Tensor& t = tensors.at(name);
    return {t.type, t.bytes.data(), t.shape[1] * t.shape[2] * t.shape[3], t.shape[2] * t.shape[3], t.shape[3]};
  }
  LaneCall Call() {
    void* data = workspace.data();
    size_t size = workspace.size();
    std::align(kWorkspaceAlignment, 0, data, size);
    return {.workspace = {static_cast<std::byte*>(data), size}};
  }
  // Bound to the contract and the plan as they are.
  Result<std::unique_ptr<BoundLane>> Bind() {
    static constexpr Pass kBoth[] = {Pass::kForward, Pass::kBackward};
    return MakeReferenceLane()->Bind({contract, plan.view(), target, kBoth});
  }
  Result<int64_t> RunForward(const ForwardArgs& args) { return Bind().value()->Forward(args, Call()); }
  Result<int64_t> RunBackward(const BackwardArgs& args) { return Bind().value()->Backward(args, Call()); }
  ForwardArgs Forward() { return {Ref("q"), Ref("k"), Ref("v"), sink, Ref("o"), lse, row_max}; }
  BackwardArgs Backward() {
    return {Ref("q"), Ref("k"), Ref("v"),  Ref("o"),  Ref("do"), sink,
            lse,      delta,    Ref("dq"), Ref("dk"), Ref("dv"), dsink};
  }
};

Direct MakeDirect(const Small& small, uint64_t seed) {
  Direct direct;
  direct.contract = MakeContract(small);
  Result<PlanResult> made = MakePlan(direct.contract, {}, *FindTarget("cpu"));
  EXPECT_TRUE(made.has_value()) << (made ? "" : ToText(made.error()));
  if (made) direct.plan = std::move(made->plan);
  direct.tensors = MakeInputs(direct.contract, seed, true);
  const auto like = [&](const char* name) {
    return Tensor::Zeros(direct.tensors.at(name).type, direct.tensors.at(name).shape);
  };
  direct.tensors["o"] = like("do");
  direct.tensors["dq"] = like("q");
  direct.tensors["dk"] = like("k");
  direct.tensors["dv"] = like("v");
  direct.lse.resize(static_cast<size_t>(small.batch * small.num_q_heads * small.q_len));
  direct.row_max = direct.lse;
  if (small.sink_logits) {
    for (int64_t h = 0; h < small.num_q_heads; ++h) {
      direct.sink.push_back(static_cast<float>(direct.tensors.at("sink_logits").At(h)));
    }
    direct.dsink.resize(direct.sink.size());
  }
  const std::unique_ptr<BoundLane> bound = direct.Bind().value();
  direct.workspace.resize(static_cast<size_t>(
      std::max(bound->WorkspaceBytes(Pass::kForward), bound->WorkspaceBytes(Pass::kBackward)) + kWorkspaceAlignment));
  return direct;
}

TEST(Reference, BadForwardArguments_RefusedBeforeAnyWrite) {
  Direct direct = MakeDirect({}, 1);
  const auto expect_refused = [&](const ForwardArgs& args, const std::string& field) {
    const Result<int64_t> result = direct.RunForward(args);
    ASSERT_FALSE(result.has_value()) << field;
    EXPECT_EQ(result.error().code, ErrorCode::kTensorMismatch);
    ASSERT_EQ(result.error().violations.size(), 1U) << ToText(result.error());
    EXPECT_EQ(result.error().violations[0].field, field);
  };
  for (const char* name : {"q", "k", "v", "o"}) {
    ForwardArgs args = direct.Forward();
    TensorRef& ref = std::string(name) == "q"   ? args.q
                     : std::string(name) == "k" ? args.k
                     : std::string(name) == "v" ? args.v
                                                : args.o;
    ref.data = nullptr;
    expect_refused(args, name);
  }
  ForwardArgs args = direct.Forward();
  args.k.type = ElementType::kBf16;
  expect_refused(args, "k");
  args = direct.Forward();
  args.o.token_stride = 1;
  expect_refused(args, "o");
  args = direct.Forward();
  args.lse = args.lse.subspan(1);
  expect_refused(args, "lse");
  const std::vector<float> unwanted(2);
  args = direct.Forward();
  args.sink_logits = unwanted;
  expect_refused(args, "sink_logits");
  direct.workspace.resize(8);
  expect_refused(direct.Forward(), "workspace");
  EXPECT_TRUE(direct.tensors.at("o") == Tensor::Zeros(ElementType::kF32, direct.tensors.at("o").shape));
}

TEST(Reference, BadBackwardArguments_AllReportedAtOnce) {
  Direct direct = MakeDirect({.sink_logits = true}, 1);
  BackwardArgs args = direct.Backward();
  args.lse = {};
  args.dk.data = nullptr;
  args.dsink_logits = args.dsink_logits.first(1);
  const Result<int64_t> result = direct.RunBackward(args);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().violations.size(), 3U) << ToText(result.error());
}

TEST(Reference, PlanOfAnotherShape_Refused) {
  Direct direct = MakeDirect({}, 1);
  direct.plan = std::move(MakeDirect({.q_len = 30, .kv_len = 30}, 1).plan);
  const Result<std::unique_ptr<BoundLane>> result = direct.Bind();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kPlanMismatch);
}

TEST(Reference, PaddedStrides_SameBitsAndNothingElseWritten) {
  const uint64_t seed = PrintedSeed();
  Direct direct = MakeDirect({.q_len = 40, .kv_len = 40, .dim_v = 5}, seed);
  ASSERT_TRUE(direct.RunForward(direct.Forward()).has_value());
  constexpr int64_t kToken = 9;
  const Tensor dense = direct.tensors.at("o");
  std::vector<float> padded(2 * 40 * kToken + 7, -77.0F);
  ForwardArgs args = direct.Forward();
  args.o.data = reinterpret_cast<std::byte*>(padded.data());
  args.o.token_stride = kToken;
  args.o.head_stride = 40 * kToken + 3;
  ASSERT_TRUE(direct.RunForward(args).has_value());
  int64_t written = 0;
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t t = 0; t < 40; ++t) {
      for (int64_t d = 0; d < 5; ++d) {
        float& value = padded[static_cast<size_t>(h * args.o.head_stride + t * kToken + d)];
        EXPECT_EQ(static_cast<double>(value), dense.At((h * 40 + t) * 5 + d));
        value = -77.0F;
        ++written;
      }
    }
  }
  EXPECT_EQ(written, dense.NumElements());
  for (const float value : padded) EXPECT_EQ(value, -77.0F) << "a write outside the rows";
}

TEST(Reference, SeveralThreads_SameBits) {
  const uint64_t seed = PrintedSeed();
  const Small small{.q_len = 60, .kv_len = 60, .sink_logits = true};
  std::vector<Direct> runs;
  for (int n = 0; n < 4; ++n) runs.push_back(MakeDirect(small, seed));
  std::vector<std::thread> threads;
  for (Direct& run : runs) {
    threads.emplace_back([&run] {
      EXPECT_TRUE(run.RunForward(run.Forward()).has_value());
      EXPECT_TRUE(run.RunBackward(run.Backward()).has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Direct& run : runs) EXPECT_TRUE(run.tensors == runs[0].tensors);
}

TEST(Reference, KeysSplitOverTwoRuns_AddUpToTheWhole) {
  const uint64_t seed = PrintedSeed();
  constexpr int64_t kLen = 32;
  constexpr int64_t kHalf = 16;
  Direct whole = MakeDirect({.mask = "full", .q_len = kLen, .kv_len = kLen, .num_q_heads = 1}, seed);
  ASSERT_TRUE(whole.RunForward(whole.Forward()).has_value());
  ASSERT_TRUE(whole.RunBackward(whole.Backward()).has_value());
  std::vector<double> dq(static_cast<size_t>(kLen * 8), 0.0);
  for (int64_t part = 0; part < 2; ++part) {
    Direct half = MakeDirect({.mask = "full", .q_len = kLen, .kv_len = kHalf, .num_q_heads = 1}, seed);
    for (const char* name : {"q", "do"}) half.tensors.at(name) = whole.tensors.at(name);
    for (const char* name : {"k", "v"}) {
      for (int64_t i = 0; i < kHalf * 8; ++i) {
        half.tensors.at(name).Set(i, whole.tensors.at(name).At(part * kHalf * 8 + i));
      }
    }
    // The statistics of the whole row, and delta from its output: what a caller that split the keys has gathered.
    half.lse = whole.lse;
    for (int64_t i = 0; i < kLen; ++i) {
      double delta = 0.0;
      for (int64_t d = 0; d < 8; ++d)
        delta += whole.tensors.at("o").At(i * 8 + d) * whole.tensors.at("do").At(i * 8 + d);
      half.delta.push_back(static_cast<float>(delta));
    }
    BackwardArgs args = half.Backward();
    args.o = {};  // not needed when delta is given
    ASSERT_TRUE(half.RunBackward(args).has_value());
    for (const char* name : {"dk", "dv"}) {
      for (int64_t i = 0; i < kHalf * 8; ++i) {
        const double want = whole.tensors.at(name).At(part * kHalf * 8 + i);
        EXPECT_NEAR(half.tensors.at(name).At(i), want, 1e-5 * (1.0 + std::abs(want))) << name << " " << i;
      }
    }
    for (size_t i = 0; i < dq.size(); ++i) dq[i] += half.tensors.at("dq").At(static_cast<int64_t>(i));
  }
  for (size_t i = 0; i < dq.size(); ++i) {
    const double want = whole.tensors.at("dq").At(static_cast<int64_t>(i));
    EXPECT_NEAR(dq[i], want, 1e-5 * (1.0 + std::abs(want))) << i;
  }
}

TEST(Reference, TilesExecuted_AreTheTilesOfThePlan) {
  const RunOutcome outcome = RunSetting(
      MakeSetting("reference", MakeContract({.mask = "causal and window(20, 0)", .q_len = 200, .kv_len = 200}), {}, 1));
  const Receipt& receipt = outcome.receipt;
  EXPECT_EQ(receipt.tiles_executed, receipt.tiles.partial + receipt.tiles.full);
  EXPECT_EQ(receipt.tiles_executed_backward, receipt.tiles_backward.partial + receipt.tiles_backward.full);
  EXPECT_GT(receipt.tiles.empty, receipt.tiles_executed) << "a window must skip most of the square";
  EXPECT_EQ(receipt.kernel, "reference_f64");
}

}  // namespace
}  // namespace tessera::conformance
