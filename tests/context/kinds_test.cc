// Kinds of masks, scores and types over several CPU devices: the bits of one device, whatever a cut does to them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "io/bitmap.h"
#include "pjrt/plugin_test.h"
#include "shard/context_program.h"
#include "shard/difference.h"
#include "shard/gradient_bounds.h"
#include "shard/one_device.h"
#include "support/proves.h"
#include "support/quick_xla.h"
#include "support/seed.h"

namespace tessera::shard {
namespace {

constexpr int64_t kTile = 16;
constexpr int64_t kTokens = 96;
constexpr int64_t kShards = 3;
using Flags = std::map<std::string, pjrt::OptionValue>;

Contract ContractOf(const std::vector<std::string>& masks, DType dtype = DType::kF32, int64_t tokens = kTokens) {
  Contract contract;
  contract.shape = {.batch = 1,
                    .q_len = tokens,
                    .kv_len = tokens,
                    .num_q_heads = 6,
                    .num_kv_heads = 3,
                    .dim_qk = 8,
                    .dim_v = 4,
                    .dtype = dtype};
  for (const std::string& mask : masks) contract.mask.heads.push_back(ParseMaskExpr(mask).value());
  contract.score.scale = 0.35;
  contract.tiles = {kTile, kTile};
  contract.tiles_reason = "short lengths";
  return contract;
}

class ContextKindsTest : public pjrt::PluginTest {
 protected:
  pjrt::Client& client() const { return ClientOf(kShards); }

  struct Inputs {
    std::vector<std::byte> q, k, v, dout;
    WholeTensors Forward() const { return {q, k, v}; }
  };
  Inputs Draw(const Contract& contract) {
    const Shape& s = contract.shape;
    const auto draw = [&](int64_t heads, int64_t dim) {
      std::normal_distribution<float> normal;
      std::vector<float> out(static_cast<size_t>(s.batch * heads * s.q_len * dim));
      for (float& x : out) x = normal(random_);
      return Rounded(out, s.dtype);
    };
    return {draw(s.num_q_heads, s.dim_qk), draw(s.num_kv_heads, s.dim_qk), draw(s.num_kv_heads, s.dim_v),
            draw(s.num_q_heads, s.dim_v)};
  }

  static ContextPlan Planned(const Contract& contract, const Batch& batch, CutForm form, Exchange exchange,
                             std::optional<GradientWay> gradients = {}) {
    ContextOptions options;
    options.gradients = gradients;
    options.shards = kShards;
    options.form = form;
    options.exchange = exchange;
    options.plan.tile = TileSize{kTile, kTile};
    return PlanContext(contract, batch, FindTarget("cpu").value(), options).value();
  }

  static void ExpectGood(const ShardDifference& one) {
    EXPECT_TRUE(one.is_good) << one.name << ": " << one.different << " of " << one.elements << " differ, "
                             << one.largest << " of " << one.bound;
  }
  void ExpectForward(const ContextRunner& runner, const ContextPlan& plan, const Inputs& in, const Flags& flags) {
    const auto got = runner.Forward(plan, CutTensors(plan, in.Forward()).value());
    const auto want = ForwardOnOne(client(), plan, in.Forward(), {}, flags);
    ASSERT_TRUE(got.has_value()) << ToText(got.error());
    ASSERT_TRUE(want.has_value()) << ToText(want.error());
    const DType dtype = plan.contract.shape.dtype;
    ExpectGood(SameBits("o", ToFloats(got->o, dtype), ToFloats(want->o, dtype)));
    ExpectGood(SameBits("lse", got->lse, want->lse));
  }
  void ExpectBoth(const Contract& contract, const Batch& batch, CutForm form, Exchange exchange,
                  const Flags& flags = kQuickly) {
    const bool has_rows = exchange != Exchange::kHeads && random_() % 2 == 0;
    const GradientWay way = has_rows ? GradientWay::kRows : GradientWay::kReturned;
    SCOPED_TRACE(std::string(ToText(exchange)) + " " + std::string(ToText(form)) + " " + std::string(ToText(way)));
    const ContextPlan plan = Planned(contract, batch, form, exchange, way);
    Inputs in = Draw(contract);
    const auto forward = ContextRunner::Make(client(), plan, flags);
    ASSERT_TRUE(forward.has_value()) << ToText(forward.error());
    ExpectForward(*forward, plan, in, flags);
    const auto one = BackwardOfOne::Make(client(), plan, flags);
    const auto back = ContextRunner::Make(client(), plan, flags, ContextPass::kBackward);
    ASSERT_TRUE(one.has_value()) << ToText(one.error());
    ASSERT_TRUE(back.has_value()) << ToText(back.error());
    const ContextOutputs outputs = ForwardOnOne(client(), plan, in.Forward(), {}, flags).value();
    const DType dtype = contract.shape.dtype;
    const std::vector<float> o = ToFloats(outputs.o, dtype);
    const std::vector<float> dout = ToFloats(in.dout, dtype);
    const auto dim = static_cast<size_t>(contract.shape.dim_v);
    std::vector<float> delta(outputs.lse.size(), 0.0F);
    for (size_t i = 0; i < o.size(); ++i) delta[i / dim] += o[i] * dout[i];
    WholeTensors whole = in.Forward();
    whole.dout = in.dout;
    whole.lse = outputs.lse;
    whole.delta = delta;
    const auto got = back->Backward(plan, CutTensors(plan, whole).value());
    const auto want = one->Run(whole, {});
    const auto bounds = BoundGradients(*one, plan, whole, {});
    ASSERT_TRUE(got.has_value() && want.has_value() && bounds.has_value());
    ExpectGood(SameBits("dq", got->dq, want->dq));
    ExpectGood(has_rows ? SameBits("dk", got->dk, want->dk) : WithinBounds("dk", got->dk, want->dk, bounds->dk));
    ExpectGood(has_rows ? SameBits("dv", got->dv, want->dv) : WithinBounds("dv", got->dv, want->dv, bounds->dv));
    // A bound is no more than a little of what it is about, and a wrong key's share is more.
    std::vector<float> wrong = want->dv;
    for (float& x : wrong) x *= 1.001F;
    EXPECT_FALSE(WithinBounds("dv", wrong, want->dv, bounds->dv).is_good);
    wrong = want->dk;
    for (float& x : wrong) x *= 1.01F;
    EXPECT_FALSE(WithinBounds("dk", wrong, want->dk, bounds->dk).is_good);
  }
  CutForm InOrder() { return random_() % 2 == 0 ? CutForm::kContiguous : CutForm::kZigzag; }

  std::mt19937_64 random_{PrintedSeed()};
};

// bf16, as XLA compiles it when told nothing.
TEST_F(ContextKindsTest, Bf16_AtThePluginsOwnLevel) {
  Proves("R79");
  Batch batch;
  batch.doc_lengths = IntRows{{30, 41, 25}};
  ExpectBoth(ContractOf({"causal and documents"}, DType::kBf16), batch, InOrder(), Exchange::kSparse, {});
}

TEST_F(ContextKindsTest, Bf16_HeadsAndGather) {
  ExpectBoth(ContractOf({"causal"}, DType::kBf16), {}, InOrder(),
             random_() % 2 == 0 ? Exchange::kHeads : Exchange::kAllGather);
}

TEST_F(ContextKindsTest, Softcap_AndAPrefix) {
  Contract contract = ContractOf({"causal or prefix(37)"});
  contract.score.softcap = 2.5;
  ExpectBoth(contract, {}, InOrder(), Exchange::kSparse);
}

TEST_F(ContextKindsTest, HeadsWithMasksOfTheirOwn) {
  const Contract contract =
      ContractOf({"causal", "window(20, 0)", "full", "window(9, 9)", "causal and sink(3)", "full"});
  ExpectBoth(contract, {}, InOrder(), Exchange::kHeads);
}

TEST_F(ContextKindsTest, Bitmap_OneForEachHead) {
  Contract contract = ContractOf({"causal"});
  Bitmap bitmap{.heads = contract.shape.num_q_heads, .q_len = kTokens, .kv_len = kTokens, .cells = {}, .digest = {}};
  for (int64_t i = 0; i < bitmap.heads * kTokens * kTokens; ++i) bitmap.cells.push_back(random_() % 3 == 0 ? 1 : 0);
  bitmap.digest = BitmapDigest(bitmap);
  MaskTerm& term = contract.mask.heads[0].term;
  term.kind = TermKind::kBitmap;
  term.path = "no_file.npy";
  term.bitmap = std::make_shared<const Bitmap>(std::move(bitmap));
  ExpectBoth(contract, {}, InOrder(), Exchange::kAllGather);
}

// One program for several sets of picks.
TEST_F(ContextKindsTest, Picks_OneCompilation) {
  const Contract contract = ContractOf({"causal and blocks"});
  const auto draw = [&] {
    Picks picks{.block_tokens = kTile, .shape = {1, kTokens / kTile, contract.shape.num_kv_heads, 2}, .blocks = {}};
    for (int64_t row = 0; row < kTokens / kTile; ++row) {
      for (int64_t head = 0; head < contract.shape.num_kv_heads; ++head) {
        picks.blocks.push_back(static_cast<int32_t>(row));
        picks.blocks.push_back(row == 0 ? -1 : static_cast<int32_t>(random_() % static_cast<uint64_t>(row)));
      }
    }
    Batch batch;
    batch.picks = std::move(picks);
    return batch;
  };
  std::optional<ContextRunner> runner;
  for (int i = 0; i < 3; ++i) {
    const ContextPlan plan = Planned(contract, draw(), CutForm::kContiguous, Exchange::kSparse);
    if (!runner) runner = ContextRunner::Make(client(), plan, kQuickly).value();
    ExpectForward(*runner, plan, Draw(contract), kQuickly);
  }
}

// Rows brought to who has the keys: every bit of every gradient is one device's, for each batch of one compilation, and
// what is carried is what was planned. Values that are no number among them, shards without tokens, sinks.
TEST_F(ContextKindsTest, RowsBrought_ManyBatches_OneCompilation) {
  Proves("R79");
  for (const bool is_sparse : {true, false}) {
    Contract contract = ContractOf({"causal and documents and (window(40, 0) or sink(2, document))"}, DType::kF32, 71);
    contract.shape.batch = 2;
    contract.score.sink_logits = is_sparse;
    const std::vector<float> sinks = {0.5F, -1.0F, 2.0F, 0.0F, -3.0F, 1.0F};
    const std::span<const float> own_sinks = is_sparse ? std::span<const float>(sinks) : std::span<const float>();
    const Exchange exchange = is_sparse ? Exchange::kSparse : Exchange::kAllGather;
    std::optional<ContextRunner> runner;
    for (int i = 0; i < 3; ++i) {
      Batch batch;
      batch.doc_lengths.emplace();
      for (int64_t b = 0; b < contract.shape.batch; ++b) {
        const auto first = static_cast<int32_t>(1 + random_() % 70);
        batch.doc_lengths->push_back({first, 71 - first});
      }
      const CutForm form = i == 0 ? CutForm::kReordered : InOrder();
      const ContextPlan plan = Planned(contract, batch, form, exchange, GradientWay::kRows);
      EXPECT_EQ(plan.gradients, GradientWay::kRows);
      if (!runner) runner = ContextRunner::Make(client(), plan, kQuickly, ContextPass::kBackward).value();
      Inputs in = Draw(contract);
      WholeTensors whole = in.Forward();
      const ContextOutputs outputs = ForwardOnOne(client(), plan, whole, own_sinks, kQuickly).value();
      std::vector<float> delta(outputs.lse.size());
      std::normal_distribution<float> normal;
      for (float& x : delta) x = normal(random_);
      if (i == 2) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        std::memcpy(in.k.data(), &nan, sizeof(nan));  // the first token of the first row's first document
        std::memcpy(in.dout.data(), &nan, sizeof(nan));
      }
      whole = in.Forward();
      whole.dout = in.dout;
      whole.lse = outputs.lse;
      whole.delta = delta;
      const auto got = runner->Backward(plan, CutTensors(plan, whole).value(), own_sinks);
      ASSERT_TRUE(got.has_value()) << ToText(got.error());
      const ContextGradients want = BackwardOnOne(client(), plan, whole, own_sinks, kQuickly).value();
      ExpectGood(SameBits("dq", got->dq, want.dq));
      ExpectGood(SameBits("dk", got->dk, want.dk));
      ExpectGood(SameBits("dv", got->dv, want.dv));
      int64_t bytes = 0;
      const std::vector<CarriedCollective> carried = runner->Carried(plan).value();
      for (const CarriedCollective& one : carried) bytes += one.bytes_per_trip * one.trips;
      EXPECT_EQ(bytes, plan.BytesOf(exchange).backward_by_rows);
    }
  }
}

// By bytes: rows where few query heads share a key head and what goes back would be wider than what comes.
TEST_F(ContextKindsTest, GradientsGoTheWayOfFewerBytes) {
  Contract contract = ContractOf({"causal"}, DType::kBf16);
  contract.shape.num_q_heads = 3;
  const ContextPlan few = Planned(contract, {}, CutForm::kContiguous, Exchange::kAllGather);
  EXPECT_EQ(few.gradients, GradientWay::kRows) << few.gradients_reason;
  EXPECT_LT(few.BytesOf(Exchange::kAllGather).backward_by_rows, few.BytesOf(Exchange::kAllGather).backward);
  contract.shape.num_q_heads = 12;
  const ContextPlan many = Planned(contract, {}, CutForm::kContiguous, Exchange::kSparse);
  EXPECT_EQ(many.gradients, GradientWay::kReturned) << many.gradients_reason;
  const ContextPlan heads = Planned(contract, {}, CutForm::kContiguous, Exchange::kHeads);
  EXPECT_EQ(heads.gradients, GradientWay::kReturned);
  ContextOptions options;
  options.shards = kShards;
  options.exchange = Exchange::kRing;
  options.gradients = GradientWay::kRows;
  options.plan.tile = TileSize{kTile, kTile};
  const auto ring = PlanContext(contract, {}, FindTarget("cpu").value(), options);
  ASSERT_FALSE(ring.has_value());
  EXPECT_EQ(ring.error().code, ErrorCode::kContextCut);
  EXPECT_EQ(ring.error().where, "gradients");
}

// Rows that end within a tile, and valid counts that differ: what each batch has of ends is data too.
TEST_F(ContextKindsTest, EndsOfTokens_ManyBatches_OneCompilation) {
  Proves("R79");
  const Contract contract = ContractOf({"causal and documents and valid"}, DType::kF32, 89);
  std::optional<ContextRunner> runner;
  for (int i = 0; i < 8; ++i) {
    Batch batch;
    std::vector<int32_t> lengths;
    // One document in the first batch, in which there are fewest ends.
    for (int32_t left = 89; left > 0; left -= lengths.back()) {
      lengths.push_back(i == 0 ? left : std::min<int32_t>(left, 1 + static_cast<int32_t>(random_() % (90 / i))));
    }
    batch.doc_lengths = IntRows{lengths};
    batch.valid_tokens = std::vector<int64_t>{i == 0 ? 89 : static_cast<int64_t>(random_() % 90)};
    const ContextPlan plan = Planned(contract, batch, CutForm::kContiguous, Exchange::kSparse);
    if (!runner) runner = ContextRunner::Make(client(), plan, kQuickly).value();
    ExpectForward(*runner, plan, Draw(contract), kQuickly);
  }
}

}  // namespace
}  // namespace tessera::shard
