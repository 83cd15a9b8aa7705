// A cut bound for many calls: what is brought by one program and walked in parts has the bits of one device.
#include <gtest/gtest.h>

#include <random>

#include "pjrt/plugin_test.h"
#include "shard/cut_call.h"
#include "shard/one_device.h"
#include "support/proves.h"
#include "support/quick_xla.h"
#include "support/seed.h"
#include "tessera/dtype.h"

namespace tessera::shard {
namespace {

constexpr int64_t kCallTile = 16;

class CutCallTest : public pjrt::PluginTest {
 protected:
  pjrt::Client& client() const { return ClientOf(4); }

  static Contract ContractOf(const std::string& mask, int64_t tokens, DType dtype) {
    Contract contract;
    contract.shape = {.batch = 2,
                      .q_len = tokens,
                      .kv_len = tokens,
                      .num_q_heads = 8,
                      .num_kv_heads = 4,
                      .dim_qk = 8,
                      .dim_v = 4,
                      .dtype = dtype};
    contract.mask.heads = {ParseMaskExpr(mask).value()};
    contract.score.scale = 0.35;
    contract.tiles = {kCallTile, kCallTile};
    contract.tiles_reason = "short lengths";
    return contract;
  }
  std::vector<std::byte> Draw(int64_t count, DType dtype) {
    std::normal_distribution<float> normal;
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = normal(random_);
    return Rounded(out, dtype);
  }
  struct Inputs {
    std::vector<std::byte> q, k, v;
    WholeTensors Whole() const { return {q, k, v}; }
  };
  Inputs Draw(const Contract& contract) {
    const Shape& s = contract.shape;
    const int64_t rows = s.batch * s.q_len;
    return {Draw(rows * s.num_q_heads * s.dim_qk, s.dtype), Draw(rows * s.num_kv_heads * s.dim_qk, s.dtype),
            Draw(rows * s.num_kv_heads * s.dim_v, s.dtype)};
  }
  Batch Documents(const Shape& s) {
    Batch batch;
    batch.doc_lengths.emplace();
    for (int64_t b = 0; b < s.batch; ++b) {
      std::vector<int32_t>& lengths = batch.doc_lengths->emplace_back();
      for (auto left = static_cast<int32_t>(s.q_len); left > 0; left -= lengths.back()) {
        lengths.push_back(std::min<int32_t>(left, 1 + static_cast<int32_t>(random_() % 60)));
      }
    }
    return batch;
  }
  static std::shared_ptr<const ContextPlan> Planned(const Contract& contract, const Batch& batch, Exchange exchange,
                                                    std::optional<CutForm> form) {
    ContextOptions options;
    options.shards = 4;
    options.exchange = exchange;
    options.form = form;
    options.plan.tile = TileSize{kCallTile, kCallTile};
    return std::make_shared<const ContextPlan>(
        PlanContext(contract, batch, FindTarget("cpu").value(), options).value());
  }
  void ExpectBitsOfOne(const std::shared_ptr<const ContextPlan>& plan, std::span<const float> sinks = {}) {
    SCOPED_TRACE(plan->reason);
    // Every other on devices of its own, which are fewer than threads and than shards.
    const auto call = CutCall::Make(client(), plan, 3, kQuickly, ++num_calls_ % 2 == 0 ? &ClientOf(2) : nullptr);
    ASSERT_TRUE(call.has_value()) << ToText(call.error());
    std::vector<std::byte> o;
    std::vector<float> lse;
    for (int i = 0; i < 2; ++i) {  // what the call before left is not seen
      const Inputs in = Draw(plan->contract);
      const ContextOutputs want = ForwardOnOne(client(), *plan, in.Whole(), sinks, kQuickly).value();
      o.assign(want.o.size(), std::byte{0xff});
      lse.assign(want.lse.size(), -7.0F);
      const Status done = call->Forward(in.Whole(), sinks, {o, lse});
      ASSERT_TRUE(done) << ToText(done.error());
      EXPECT_TRUE(o == want.o);
      EXPECT_EQ(std::memcmp(lse.data(), want.lse.data(), lse.size() * sizeof(float)), 0);
    }
    const auto carried = call->Carried();
    ASSERT_TRUE(carried.has_value()) << ToText(carried.error());
    int64_t bytes = 0;
    for (const CarriedCollective& one : *carried) bytes += one.bytes_per_trip * one.trips;
    // What heads give back stays where it is: the host reads it there.
    if (plan->exchange != Exchange::kHeads) {
      EXPECT_EQ(bytes, plan->BytesOf(plan->exchange).total);
    }
  }

  int num_calls_ = 0;
  std::mt19937_64 random_{PrintedSeed()};
};

TEST_F(CutCallTest, EveryExchange_GivesTheBitsOfOneDevice) {
  Proves("R79");
  const int64_t tokens = 150 + static_cast<int64_t>(random_() % 20);
  const Contract contract = ContractOf("causal and documents and (window(60, 0) or sink(3, document))", tokens,
                                       random_() % 2 == 0 ? DType::kF32 : DType::kBf16);
  const Batch batch = Documents(contract.shape);
  for (const Exchange exchange : {Exchange::kSparse, Exchange::kAllGather, Exchange::kHeads}) {
    ExpectBitsOfOne(Planned(contract, batch, exchange, random_() % 2 == 0 ? CutForm::kReordered : CutForm::kZigzag));
  }
}

TEST_F(CutCallTest, Sinks_WindowsAndEmptyShards) {
  Contract contract = ContractOf("causal and window(20, 0)", 33, DType::kF32);  // three tiles for four shards
  contract.score.sink_logits = true;
  contract.score.softcap = 3.0;
  const std::vector<float> sinks = {0.5F, -1.0F, 2.0F, 0.0F, -3.0F, 1.0F, 0.25F, -0.75F};
  ExpectBitsOfOne(Planned(contract, {}, Exchange::kSparse, CutForm::kContiguous), sinks);
  ExpectBitsOfOne(Planned(contract, {}, Exchange::kHeads, CutForm::kContiguous), sinks);
}

TEST_F(CutCallTest, WhatItRefuses) {
  const Contract contract = ContractOf("causal", 128, DType::kF32);
  const auto ring = CutCall::Make(client(), Planned(contract, {}, Exchange::kRing, CutForm::kZigzag), 2, kQuickly);
  ASSERT_FALSE(ring.has_value());
  EXPECT_EQ(ring.error().code, ErrorCode::kContextCut);
  const auto call =
      CutCall::Make(client(), Planned(contract, {}, Exchange::kSparse, CutForm::kContiguous), 2, kQuickly);
  ASSERT_TRUE(call.has_value()) << ToText(call.error());
  Inputs in = Draw(contract);
  const Shape& s = contract.shape;
  std::vector<float> lse(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len), -7.0F);
  std::vector<std::byte> o(lse.size() * static_cast<size_t>(s.dim_v) * sizeof(float));
  in.k.resize(in.k.size() - 4);
  const Status few = call->Forward(in.Whole(), {}, {o, lse});
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, ErrorCode::kTensorMismatch);
  EXPECT_EQ(few.error().where, "k");
  EXPECT_TRUE(std::all_of(lse.begin(), lse.end(), [](float x) { return x == -7.0F; }));
  const std::vector<float> sinks(8, 0.0F);
  EXPECT_FALSE(call->Forward(Draw(contract).Whole(), sinks, {o, lse}));
}

}  // namespace
}  // namespace tessera::shard
