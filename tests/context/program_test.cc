// Programs of several CPU devices against the program of one: every bit of a forward, and what the collectives carry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "lanes/xla/operands.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "pjrt/plugin_test.h"
#include "shard/context_program.h"
#include "shard/one_device.h"
#include "support/proves.h"
#include "support/quick_xla.h"
#include "support/seed.h"

namespace tessera::shard {
namespace {

using testing::HasSubstr;

constexpr int64_t kTile = 16;

Contract ContractOf(const std::string& mask, int64_t tokens, int64_t batch = 1) {
  Contract contract;
  contract.shape = {.batch = batch,
                    .q_len = tokens,
                    .kv_len = tokens,
                    .num_q_heads = 8,
                    .num_kv_heads = 4,
                    .dim_qk = 8,
                    .dim_v = 4,
                    .dtype = DType::kF32};
  contract.mask.heads = {ParseMaskExpr(mask).value()};
  contract.score.scale = 0.35;
  contract.tiles = {kTile, kTile};
  contract.tiles_reason = "short lengths";
  return contract;
}

Batch RandomDocuments(std::mt19937_64& random, const Shape& shape) {
  Batch batch;
  batch.doc_lengths.emplace();
  for (int64_t b = 0; b < shape.batch; ++b) {
    std::vector<int32_t> lengths;
    for (int64_t left = shape.q_len; left > 0;) {
      const auto length = std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % 70));
      lengths.push_back(static_cast<int32_t>(length));
      left -= length;
    }
    batch.doc_lengths->push_back(lengths);
  }
  return batch;
}

struct Inputs {
  std::vector<float> q, k, v;
  std::vector<float> sinks = {};  // where the contract has them
};
Inputs RandomInputs(std::mt19937_64& random, const Shape& s) {
  const auto draw = [&](int64_t heads, int64_t dim) {
    std::normal_distribution<float> normal;
    std::vector<float> out(static_cast<size_t>(s.batch * heads * s.q_len * dim));
    for (float& x : out) x = normal(random);
    return out;
  };
  return {draw(s.num_q_heads, s.dim_qk), draw(s.num_kv_heads, s.dim_qk), draw(s.num_kv_heads, s.dim_v)};
}

// [batch, heads, tokens, dim] in the plan's order, or back in the given one.
std::vector<float> Reordered(const ContextPlan& plan, const std::vector<float>& from, int64_t heads, bool is_back) {
  const int64_t len = plan.contract.shape.q_len;
  const auto dim = static_cast<int64_t>(from.size()) / (plan.contract.shape.batch * heads * len);
  std::vector<float> to(from.size());
  for (size_t b = 0; b < plan.rows.size(); ++b) {
    for (const Piece& piece : is_back ? InverseOrder(plan.rows[b].order) : plan.rows[b].order) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = (static_cast<int64_t>(b) * heads + h) * len;
        std::copy_n(from.begin() + (head + piece.start) * dim, piece.count * dim,
                    to.begin() + (head + piece.offset) * dim);
      }
    }
  }
  return to;
}

ContextOptions OptionsOf(int64_t shards, CutForm form, Exchange exchange) {
  ContextOptions options;
  options.shards = shards;
  options.form = form;
  options.exchange = exchange;
  options.plan.tile = TileSize{kTile, kTile};
  options.gradients = GradientWay::kReturned;  // kinds_test.cc has those that bring rows
  return options;
}

class ContextProgramTest : public pjrt::PluginTest {
 protected:
  pjrt::Client& client() const { return ClientOf(8); }

  struct Outputs {
    std::vector<float> o, lse;
  };
  // A program of the lane's own on one device, in the plan's order: its outputs as they come.
  std::vector<std::vector<float>> RunLane(const stablehlo::ProgramSpec& spec, const stablehlo::Program& program,
                                          const ContextPlan& plan,
                                          const std::map<std::string, std::vector<float>>& tensors) const {
    const lanes::xla::PlanTables tables = lanes::xla::MakeTables(spec, plan.plan->view(), program.inputs);
    const auto scale = static_cast<float>(plan.contract.score.scale);
    pjrt::CompileOptions options;
    options.overrides = kQuickly;
    std::vector<std::span<const std::byte>> bytes;
    for (const stablehlo::NamedType& input : program.inputs) {
      const bool is_float = stablehlo::IsFloat(input.type.element);
      options.inputs.push_back({is_float                                          ? pjrt::ElementType::kF32
                                : input.type.element == stablehlo::Element::kUi32 ? pjrt::ElementType::kU32
                                                                                  : pjrt::ElementType::kS32,
                                input.type.dims});
      if (input.name == "scale") {
        bytes.push_back(std::as_bytes(std::span(&scale, 1)));
      } else {
        bytes.push_back(is_float ? std::as_bytes(std::span(tensors.at(input.name)))
                                 : std::as_bytes(std::span(tables.at(input.name))));
      }
    }
    std::unique_ptr<pjrt::Executable>& kept = kept_[program.text];
    if (!kept) kept = std::make_unique<pjrt::Executable>(client().Compile(program.text, options).value());
    std::vector<pjrt::Buffer> buffers;
    for (size_t i = 0; i < bytes.size(); ++i) buffers.push_back(client().Upload(options.inputs[i], bytes[i]).value());
    std::vector<const pjrt::Buffer*> args;
    for (const pjrt::Buffer& buffer : buffers) args.push_back(&buffer);
    std::vector<std::vector<float>> out;
    const std::vector<pjrt::Buffer> results = kept->Execute(args).value();
    for (const pjrt::Buffer& result : results) {
      std::vector<float>& values = out.emplace_back(static_cast<size_t>(result.type().bytes()) / sizeof(float));
      EXPECT_TRUE(result.Download(std::as_writable_bytes(std::span(values))));
    }
    return out;
  }
  static std::map<std::string, std::vector<float>> Placed(const ContextPlan& plan, const Inputs& in) {
    const Shape& s = plan.contract.shape;
    return {{"q", Reordered(plan, in.q, s.num_q_heads, false)},
            {"k", Reordered(plan, in.k, s.num_kv_heads, false)},
            {"v", Reordered(plan, in.v, s.num_kv_heads, false)},
            {"sink_logits", in.sinks}};
  }

  // The lane's own forward, in the given order.
  Outputs OneDevice(const ContextPlan& plan, const Inputs& in) const {
    const Shape& s = plan.contract.shape;
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(plan.contract, plan.plan->view(), TargetKind::kTpu);
    const auto out = RunLane(spec, stablehlo::LowerForward(spec).value(), plan, Placed(plan, in));
    return {Reordered(plan, out[0], s.num_q_heads, true), Reordered(plan, out[1], s.num_q_heads, true)};
  }

  struct Gradients {
    std::vector<float> dq, dk, dv, dsink;
  };
  struct OfOutput {
    std::vector<float> dout, lse, delta;
  };
  // And its backward.
  Gradients OneDeviceBack(const ContextPlan& plan, const Inputs& in, const OfOutput& of) const {
    const Shape& s = plan.contract.shape;
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(plan.contract, plan.plan->view(), TargetKind::kTpu);
    std::map<std::string, std::vector<float>> tensors = Placed(plan, in);
    tensors["do"] = Reordered(plan, of.dout, s.num_q_heads, false);
    tensors["lse"] = Reordered(plan, of.lse, s.num_q_heads, false);
    tensors["delta"] = Reordered(plan, of.delta, s.num_q_heads, false);
    const auto out = RunLane(spec, stablehlo::LowerBackward(spec).value(), plan, tensors);
    Gradients gradients{Reordered(plan, out[0], s.num_q_heads, true),
                        Reordered(plan, out[1], s.num_kv_heads, true),
                        Reordered(plan, out[2], s.num_kv_heads, true),
                        {}};
    if (!plan.contract.score.sink_logits) return gradients;
    gradients.dsink.resize(static_cast<size_t>(s.num_q_heads), 0.0F);
    const size_t of_head = out[4].size() / static_cast<size_t>(s.batch * s.num_q_heads);
    for (size_t i = 0; i < out[4].size(); ++i) {
      gradients.dsink[i / of_head % static_cast<size_t>(s.num_q_heads)] += out[4][i];
    }
    return gradients;
  }
  static Gradients RunBack(const ContextRunner& runner, const ContextPlan& plan, const Inputs& in, const OfOutput& of) {
    const WholeTensors whole = {std::as_bytes(std::span(in.q)),
                                std::as_bytes(std::span(in.k)),
                                std::as_bytes(std::span(in.v)),
                                std::as_bytes(std::span(of.dout)),
                                of.lse,
                                of.delta};
    const Result<ContextGradients> done = runner.Backward(plan, CutTensors(plan, whole).value(), in.sinks);
    EXPECT_TRUE(done.has_value()) << (done ? "" : ToText(done.error()));
    if (!done) return {};
    return {done->dq, done->dk, done->dv, done->dsink_logits};
  }
  // Of a random gradient of the output.
  OfOutput Back(std::mt19937_64& random, const ContextPlan& plan, const Inputs& in) const {
    const Outputs forward = OneDevice(plan, in);
    OfOutput of{.dout = forward.o, .lse = forward.lse, .delta = {}};
    std::normal_distribution<float> normal;
    const auto dim = static_cast<size_t>(plan.contract.shape.dim_v);
    for (size_t row = 0; row < of.lse.size(); ++row) {
      float sum = 0.0F;
      for (size_t d = 0; d < dim; ++d) {
        of.dout[row * dim + d] = normal(random);
        sum += of.dout[row * dim + d] * forward.o[row * dim + d];
      }
      of.delta.push_back(sum);
    }
    return of;
  }
  // A key's gradient is the same terms added in another order: tiles' products are the same bits, and of `tiles` sums
  // of them each rounds what is at most the sum of all.
  static void ExpectClose(const std::vector<float>& got, const std::vector<float>& want, double tiles) {
    ASSERT_EQ(got.size(), want.size());
    double most = 0.0;
    for (const float x : want) most = std::max(most, std::abs(static_cast<double>(x)));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2 * tiles * tiles * 0x1p-24 * most) << i;
  }

  static Outputs Run(const ContextRunner& runner, const ContextPlan& plan, const Inputs& in) {
    const WholeTensors whole = {std::as_bytes(std::span(in.q)), std::as_bytes(std::span(in.k)),
                                std::as_bytes(std::span(in.v))};
    const std::vector<ShardTensors> shards = CutTensors(plan, whole).value();
    const Result<ContextOutputs> done = runner.Forward(plan, shards, in.sinks);
    EXPECT_TRUE(done.has_value()) << (done ? "" : ToText(done.error()));
    if (!done) return {};
    for (size_t d = 0; plan.exchange != Exchange::kHeads && d < done->tiles.size(); ++d) {
      EXPECT_EQ(done->tiles[d], plan.loads[d].tiles);
    }
    Outputs out;
    out.o.resize(done->o.size() / sizeof(float));
    std::memcpy(out.o.data(), done->o.data(), done->o.size());
    out.lse = done->lse;
    return out;
  }

  static ContextPlan Planned(const Contract& contract, const Batch& batch, const ContextOptions& options) {
    return PlanContext(contract, batch, FindTarget("cpu").value(), options).value();
  }

  static void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
  }
  // What the compiled collectives carried, against what the plan says they do.
  static void ExpectCarried(const ContextRunner& runner, const ContextPlan& plan) {
    const Result<std::vector<CarriedCollective>> carried = runner.Carried(plan);
    ASSERT_TRUE(carried.has_value()) << ToText(carried.error());
    int64_t bytes = 0;
    for (const CarriedCollective& one : *carried) bytes += one.bytes_per_trip * one.trips;
    EXPECT_EQ(bytes, plan.BytesOf(plan.exchange).total);
  }

 private:
  mutable std::map<std::string, std::unique_ptr<pjrt::Executable>> kept_;  // batches of a class share it
};

TEST_F(ContextProgramTest, EveryExchange_GivesTheBitsOfOneDevice) {
  Proves("R79");
  std::mt19937_64 random(PrintedSeed());
  const Contract contract = ContractOf("causal and documents and (window(60, 0) or sink(3, document))", 160, 2);
  const Batch batch = RandomDocuments(random, contract.shape);
  const Inputs in = RandomInputs(random, contract.shape);
  const CutForm form = kCutForms[random() % kCutForms.size()];
  for (const Exchange exchange : {Exchange::kAllGather, Exchange::kHeads, Exchange::kSparse}) {
    SCOPED_TRACE(std::string(ToText(exchange)) + " " + std::string(ToText(form)));
    const ContextPlan plan = Planned(contract, batch, OptionsOf(2, form, exchange));
    const Result<ContextRunner> runner = ContextRunner::Make(client(), plan, kQuickly);
    ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
    const Outputs got = Run(*runner, plan, in);
    const Outputs want = OneDevice(plan, in);
    ExpectSameBits(got.o, want.o);
    ExpectSameBits(got.lse, want.lse);
    ExpectCarried(*runner, plan);
  }
}

// dK and dV go back to who has the keys: by heads every bit is one device's, by gather and sparse those of dQ, and
// keys' gradients are within a bound; run again, all are the same bits. With sinks and without.
TEST_F(ContextProgramTest, EveryExchange_GivesTheGradientsOfOneDevice) {
  Proves("R79");
  std::mt19937_64 random(PrintedSeed());
  for (const bool has_sinks : {false, true}) {
    Contract contract = ContractOf("causal and documents and (window(60, 0) or sink(3, document))", 160, 2);
    contract.score.sink_logits = has_sinks;
    const Batch batch = RandomDocuments(random, contract.shape);
    Inputs in = RandomInputs(random, contract.shape);
    if (has_sinks) in.sinks = {0.5F, -1.0F, 2.0F, 0.0F, -3.0F, 1.0F, 0.25F, -0.75F};
    const CutForm form = kCutForms[random() % kCutForms.size()];
    for (const Exchange exchange : {Exchange::kAllGather, Exchange::kHeads, Exchange::kSparse}) {
      SCOPED_TRACE(std::string(ToText(exchange)) + " " + std::string(ToText(form)) + (has_sinks ? " sinks" : ""));
      const ContextPlan plan = Planned(contract, batch, OptionsOf(2, form, exchange));
      const OfOutput of = Back(random, plan, in);
      const Result<ContextRunner> runner = ContextRunner::Make(client(), plan, kQuickly, ContextPass::kBackward);
      ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
      const Gradients got = RunBack(*runner, plan, in, of);
      const Gradients want = OneDeviceBack(plan, in, of);
      ExpectSameBits(got.dq, want.dq);
      if (exchange == Exchange::kHeads) {
        ExpectSameBits(got.dk, want.dk);
        ExpectSameBits(got.dv, want.dv);
      }
      constexpr double kTiles = 10 * 2;  // of a row, and of the heads of a group
      ExpectClose(got.dk, want.dk, kTiles);
      ExpectClose(got.dv, want.dv, kTiles);
      ExpectClose(got.dsink, want.dsink, kTiles);
      const Gradients again = RunBack(*runner, plan, in, of);
      ExpectSameBits(again.dk, got.dk);
      ExpectSameBits(again.dv, got.dv);
      // What was brought once more, and f32 back: the same tiles, here as wide.
      const Result<std::vector<CarriedCollective>> carried = runner->Carried(plan);
      ASSERT_TRUE(carried.has_value()) << ToText(carried.error());
      int64_t bytes = 0;
      for (const CarriedCollective& one : *carried) bytes += one.bytes_per_trip * one.trips;
      EXPECT_EQ(bytes, plan.BytesOf(exchange).backward);
      if (!has_sinks) continue;
      const Result<ContextRunner> forward = ContextRunner::Make(client(), plan, kQuickly);
      ASSERT_TRUE(forward.has_value()) << ToText(forward.error());
      ExpectSameBits(Run(*forward, plan, in).o, OneDevice(plan, in).o);
    }
  }
}

// A ring merges shards by their log-sum-exp: within roundings of one device's forward, the same bits again, and only
// hops that somebody needs.
TEST_F(ContextProgramTest, Ring_WithinABound_AndOnlyTheHopsItNeeds) {
  Proves("R79");
  std::mt19937_64 random(PrintedSeed());
  struct Case {
    const char* mask;
    CutForm form;
    size_t hops;
  };
  for (const Case& c : {Case{"causal", CutForm::kContiguous, 3}, Case{"causal", CutForm::kZigzag, 3},
                        Case{"window(20, 0)", CutForm::kContiguous, 1}}) {
    SCOPED_TRACE(c.mask + std::string(" ") + std::string(ToText(c.form)));
    const Contract contract = ContractOf(c.mask, 128);
    const Inputs in = RandomInputs(random, contract.shape);
    const ContextPlan plan = Planned(contract, {}, OptionsOf(4, c.form, Exchange::kRing));
    const Result<ContextRunner> runner = ContextRunner::Make(client(), plan, kQuickly);
    ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
    EXPECT_EQ(runner->spec().steps.size(), c.hops);
    ExpectCarried(*runner, plan);
    const Outputs got = Run(*runner, plan, in);
    const Outputs want = OneDevice(plan, in);
    // An exponential of a difference of log-sum-exps for each of four shards, and as many products and sums.
    for (size_t i = 0; i < got.o.size(); ++i) ASSERT_NEAR(got.o[i], want.o[i], 64 * 0x1p-24 * 4) << i;
    for (size_t i = 0; i < got.lse.size(); ++i) {
      ASSERT_NEAR(got.lse[i], want.lse[i], 16 * 0x1p-24 * (1 + std::abs(want.lse[i]))) << i;
    }
    ExpectSameBits(Run(*runner, plan, in).o, got.o);
    const OfOutput of = Back(random, plan, in);
    const Result<ContextRunner> back = ContextRunner::Make(client(), plan, kQuickly, ContextPass::kBackward);
    ASSERT_TRUE(back.has_value()) << ToText(back.error());
    const Gradients gradients = RunBack(*back, plan, in, of);
    const Gradients wanted = OneDeviceBack(plan, in, of);
    ExpectClose(gradients.dq, wanted.dq, 8 * 2);
    ExpectClose(gradients.dk, wanted.dk, 8 * 2);
    ExpectClose(gradients.dv, wanted.dv, 8 * 2);
    int64_t bytes = 0;
    const std::vector<CarriedCollective> carried = back->Carried(plan).value();
    for (const CarriedCollective& one : carried) bytes += one.bytes_per_trip * one.trips;
    EXPECT_EQ(bytes, 2 * plan.BytesOf(Exchange::kRing).total);
  }
  // A program of fewer hops does not serve a batch that needs more.
  const Contract contract = ContractOf("causal and documents", 128);
  Batch short_documents;
  short_documents.doc_lengths = IntRows{{40, 40, 48}};
  const ContextOptions options = OptionsOf(4, CutForm::kContiguous, Exchange::kRing);
  const ContextRunner few =
      ContextRunner::Make(client(), Planned(contract, short_documents, options), kQuickly).value();
  Batch one_document;
  one_document.doc_lengths = IntRows{{128}};
  const ContextPlan longer = Planned(contract, one_document, options);
  const Inputs in = RandomInputs(random, contract.shape);
  const WholeTensors whole = {std::as_bytes(std::span(in.q)), std::as_bytes(std::span(in.k)),
                              std::as_bytes(std::span(in.v))};
  const auto refused = few.Forward(longer, CutTensors(longer, whole).value());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(CodeText(refused.error().code), "TSR-S021");
  const ContextPlan shorter = Planned(contract, short_documents, options);
  const Outputs got = Run(few, shorter, in);
  const Outputs want = OneDevice(shorter, in);
  for (size_t i = 0; i < got.o.size(); ++i) ASSERT_NEAR(got.o[i], want.o[i], 64 * 0x1p-24 * 4) << i;
}

// One compiled backward for batches of new documents, a value that is not finite in one of them.
TEST_F(ContextProgramTest, Backward_OneCompilation_AndNotANumberStaysAtHome) {
  std::mt19937_64 random(PrintedSeed());
  const Contract contract = ContractOf("causal and documents", 128);
  const ContextOptions options = OptionsOf(3, CutForm::kContiguous, Exchange::kSparse);
  const Inputs in = RandomInputs(random, contract.shape);
  std::optional<ContextRunner> runner;
  for (int i = 0; i < 2; ++i) {
    Batch batch;
    const auto first = static_cast<int32_t>(20 + random() % 60);
    batch.doc_lengths = IntRows{{first, 128 - first}};
    const ContextPlan plan = Planned(contract, batch, options);
    if (!runner) runner = ContextRunner::Make(client(), plan, kQuickly, ContextPass::kBackward).value();
    const OfOutput of = Back(random, plan, in);
    const Gradients clean = RunBack(*runner, plan, in, of);
    ExpectClose(clean.dk, OneDeviceBack(plan, in, of).dk, 8 * 2);
    Inputs poisoned = in;
    const Shape& s = contract.shape;
    for (int64_t h = 0; h < s.num_kv_heads; ++h) {
      poisoned.k[static_cast<size_t>((h * s.q_len + 5) * s.dim_qk)] = std::numeric_limits<float>::quiet_NaN();
    }
    const Gradients got = RunBack(*runner, plan, poisoned, of);
    for (int64_t h = 0; h < s.num_kv_heads; ++h) {
      for (int64_t t = first; t < s.q_len; ++t) {
        const auto at = static_cast<size_t>((h * s.q_len + t) * s.dim_qk);
        EXPECT_EQ(got.dk[at], clean.dk[at]) << t;
      }
    }
    EXPECT_TRUE(std::isnan(got.dq[static_cast<size_t>((first - 1) * s.dim_qk)]));
  }
}

TEST_F(ContextProgramTest, OneCompilation_ServesNewDocuments) {
  std::mt19937_64 random(PrintedSeed());
  const Contract contract = ContractOf("causal and documents", 192);
  const ContextOptions options = OptionsOf(3, CutForm::kReordered, Exchange::kSparse);
  const Inputs in = RandomInputs(random, contract.shape);
  const Result<ContextRunner> runner =
      ContextRunner::Make(client(), Planned(contract, RandomDocuments(random, contract.shape), options), kQuickly);
  ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
  for (int i = 0; i < 4; ++i) {
    const ContextPlan plan = Planned(contract, RandomDocuments(random, contract.shape), options);
    const Outputs got = Run(*runner, plan, in);
    const Outputs want = OneDevice(plan, in);
    ExpectSameBits(got.o, want.o);
    ExpectSameBits(got.lse, want.lse);
    ExpectCarried(*runner, plan);
  }
}

// XLA's compiler for CPUs would widen collectives of bf16: what is compiled says what is carried.
TEST_F(ContextProgramTest, HalfFloats_AreCarriedAsTheyAre) {
  Contract contract = ContractOf("causal", 64);
  contract.shape.dtype = DType::kBf16;
  for (const Exchange exchange : {Exchange::kAllGather, Exchange::kHeads, Exchange::kSparse}) {
    SCOPED_TRACE(ToText(exchange));
    const ContextPlan plan = Planned(contract, {}, OptionsOf(2, CutForm::kContiguous, exchange));
    const Result<ContextRunner> runner = ContextRunner::Make(client(), plan, kQuickly);
    ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
    ExpectCarried(*runner, plan);
  }
}

// A value that is not finite reaches its own document alone, whichever devices have it; shards may have no tokens.
TEST_F(ContextProgramTest, NotANumber_StaysInItsDocument_AndShardsMayBeEmpty) {
  std::mt19937_64 random(PrintedSeed());
  const Contract contract = ContractOf("causal and documents", 64);
  Batch batch;
  batch.doc_lengths = IntRows{{20, 44}};
  const ContextPlan plan = Planned(contract, batch, OptionsOf(3, CutForm::kContiguous, Exchange::kSparse));
  EXPECT_TRUE(plan.rows[0].rows[2].empty());
  const Result<ContextRunner> runner = ContextRunner::Make(client(), plan, kQuickly);
  ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
  Inputs in = RandomInputs(random, contract.shape);
  const Outputs clean = Run(*runner, plan, in);
  const Shape& s = contract.shape;
  for (int64_t h = 0; h < s.num_kv_heads; ++h) {
    in.k[static_cast<size_t>((h * s.q_len + 5) * s.dim_qk)] = std::numeric_limits<float>::quiet_NaN();
    in.v[static_cast<size_t>((h * s.q_len + 6) * s.dim_v)] = std::numeric_limits<float>::infinity();
  }
  const Outputs got = Run(*runner, plan, in);
  for (int64_t h = 0; h < s.num_q_heads; ++h) {
    for (int64_t t = 20; t < s.q_len; ++t) {
      const auto at = static_cast<size_t>(h * s.q_len + t);
      EXPECT_EQ(got.lse[at], clean.lse[at]);
      for (size_t d = 0; d < 4; ++d) EXPECT_EQ(got.o[at * 4 + d], clean.o[at * 4 + d]);
    }
    EXPECT_TRUE(std::isnan(got.o[static_cast<size_t>((h * s.q_len + 19) * 4)]));
  }
}

// Rows that end within a tile, by their length and by their valid counts, what is past them being no number; the bits
// of one device by every exchange that promises them, and of a ring the same tokens within a bound. Of two batch rows
// one is nearly empty, so that shards are.
TEST_F(ContextProgramTest, EndsOfTokens_AreThoseOfOneDevice) {
  Proves("R79");
  std::mt19937_64 random(PrintedSeed());
  constexpr const char* kMasks[] = {"causal and documents and valid", "full and valid", "window(20, 9)"};
  for (const char* mask : {kMasks[random() % 3]}) {
    const Contract contract = ContractOf(mask, 113, 2);
    const Shape& s = contract.shape;
    Batch batch;
    std::vector<int64_t> valid = {113, 113};
    const auto has = [&](const char* term) { return std::string_view(mask).find(term) != std::string_view::npos; };
    if (has("documents")) batch.doc_lengths = IntRows{{40, 50, 23}, {113}};
    if (has("valid")) batch.valid_tokens = valid = {static_cast<int64_t>(70 + random() % 40), 5};
    Inputs in = RandomInputs(random, s);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t t = valid[static_cast<size_t>(b)]; t < s.q_len; ++t) {
        const auto spoil = [&](std::vector<float>& x, int64_t heads, int64_t dim) {
          for (int64_t h = 0; h < heads; ++h) {
            std::fill_n(x.begin() + ((b * heads + h) * s.q_len + t) * dim, dim,
                        std::numeric_limits<float>::quiet_NaN());
          }
        };
        spoil(in.q, s.num_q_heads, s.dim_qk);
        spoil(in.k, s.num_kv_heads, s.dim_qk);
        spoil(in.v, s.num_kv_heads, s.dim_v);
      }
    }
    const WholeTensors whole = {std::as_bytes(std::span(in.q)), std::as_bytes(std::span(in.k)),
                                std::as_bytes(std::span(in.v))};
    const CutForm form = random() % 2 == 0 ? CutForm::kContiguous : CutForm::kZigzag;
    for (const Exchange exchange : {Exchange::kSparse, kExchanges[random() % 3]}) {
      SCOPED_TRACE(std::string(mask) + " " + std::string(ToText(exchange)) + " " + std::string(ToText(form)));
      const ContextPlan plan = Planned(contract, batch, OptionsOf(2, form, exchange));
      const Result<ContextRunner> runner = ContextRunner::Make(client(), plan, kQuickly);
      ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
      const Outputs got = Run(*runner, plan, in);
      const Result<ContextOutputs> one = ForwardOnOne(client(), plan, whole, {}, kQuickly);
      ASSERT_TRUE(one.has_value()) << ToText(one.error());
      std::vector<float> want(got.o.size());
      ASSERT_EQ(one->o.size(), want.size() * sizeof(float));
      std::memcpy(want.data(), one->o.data(), one->o.size());
      if (exchange != Exchange::kRing) {
        ExpectSameBits(got.o, want);
        ExpectSameBits(got.lse, one->lse);
      }
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.o[i], want[i], 64 * 0x1p-24 * 4) << i;
      const auto past = static_cast<size_t>((s.num_q_heads * s.q_len + s.q_len - 1) * s.dim_v);  // of the second row
      EXPECT_TRUE(!batch.valid_tokens || got.o[past] == 0.0F);
      ExpectCarried(*runner, plan);
    }
    if (batch.doc_lengths) continue;
    const ContextPlan plan = Planned(contract, batch, OptionsOf(2, form, Exchange::kSparse));
    const Result<ContextOutputs> forward = ForwardOnOne(client(), plan, whole, {}, kQuickly);
    std::vector<float> dout(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len * s.dim_v));
    std::normal_distribution<float> normal;
    for (float& x : dout) x = normal(random);
    std::vector<float> delta(forward->lse.size(), 0.0F);
    std::vector<float> o(dout.size());
    std::memcpy(o.data(), forward->o.data(), forward->o.size());
    for (size_t i = 0; i < o.size(); ++i) delta[i / static_cast<size_t>(s.dim_v)] += o[i] * dout[i];
    WholeTensors back = whole;
    back.dout = std::as_bytes(std::span(dout));
    back.lse = forward->lse;
    back.delta = delta;
    const Result<ContextRunner> runner = ContextRunner::Make(client(), plan, kQuickly, ContextPass::kBackward);
    ASSERT_TRUE(runner.has_value()) << ToText(runner.error());
    const Result<ContextGradients> got = runner->Backward(plan, CutTensors(plan, back).value());
    const Result<ContextGradients> want = BackwardOnOne(client(), plan, back, {}, kQuickly);
    ASSERT_TRUE(got.has_value() && want.has_value());
    ExpectSameBits(got->dq, want->dq);
    ExpectClose(got->dk, want->dk, 8 * 2);
    ExpectClose(got->dv, want->dv, 8 * 2);
  }
}

TEST_F(ContextProgramTest, WhatDoesNotBelongTogether_IsRefused) {
  const Contract contract = ContractOf("causal", 64);
  const ContextPlan plan = Planned(contract, {}, OptionsOf(2, CutForm::kContiguous, Exchange::kAllGather));
  const ContextRunner runner = ContextRunner::Make(client(), plan, kQuickly).value();
  std::mt19937_64 random(1);
  const Inputs in = RandomInputs(random, contract.shape);
  const WholeTensors whole = {std::as_bytes(std::span(in.q)), std::as_bytes(std::span(in.k)),
                              std::as_bytes(std::span(in.v))};
  std::vector<ShardTensors> shards = CutTensors(plan, whole).value();
  const auto expect = [](const auto& result, std::string_view code, const std::string& part) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(CodeText(result.error().code), code);
    EXPECT_THAT(ToText(result.error()), HasSubstr(part));
  };
  const ContextPlan other = Planned(contract, {}, OptionsOf(4, CutForm::kContiguous, Exchange::kAllGather));
  expect(runner.Forward(other, CutTensors(other, whole).value()), "TSR-S021", "one of 2 devices");
  expect(runner.Forward(plan, std::span(shards).first(1)), "TSR-S022", "expected the tensors of 2 shards, found 1");
  shards[1].k.clear();
  expect(runner.Forward(plan, shards), "TSR-S022", "shard 1");
  expect(runner.Backward(plan, shards), "TSR-S021", "other pass");
  const float sink = 1.0F;
  expect(runner.Forward(plan, shards, std::span(&sink, 1)), "TSR-R001", "expected 0 sink logits, found 1");
  const ContextPlan many = Planned(contract, {}, OptionsOf(16, CutForm::kContiguous, Exchange::kAllGather));
  expect(ContextRunner::Make(client(), many), "TSR-S002", "16 shards need as many devices, and there are 8");
  Contract with_sinks = contract;
  with_sinks.score.sink_logits = true;
  const ContextPlan ring = Planned(with_sinks, {}, OptionsOf(2, CutForm::kContiguous, Exchange::kRing));
  expect(ContextRunner::Make(client(), ring), "TSR-S020", "a ring would count sink logits");
  expect(CutTensors(plan, {whole.q, whole.k, {}}), "TSR-R001", "found 0");
}

}  // namespace
}  // namespace tessera::shard
