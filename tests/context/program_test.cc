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
#include "support/proves.h"
#include "support/seed.h"

namespace tessera::shard {
namespace {

using testing::HasSubstr;

constexpr int64_t kTile = 16;
const std::map<std::string, pjrt::OptionValue> kQuickly = {{"xla_backend_optimization_level", int64_t{0}}};

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
  return options;
}

class ContextProgramTest : public pjrt::PluginTest {
 protected:
  void SetUp() override {
    PluginTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    // One for all tests, never destroyed.
    static const Result<std::unique_ptr<pjrt::Client>>& client =
        *new Result<std::unique_ptr<pjrt::Client>>(pjrt::Client::Create(plugin(), {.cpu_devices = 8}));
    ASSERT_TRUE(client) << ToText(client.error());
    client_ = client->get();
  }
  pjrt::Client& client() const { return *client_; }

  struct Outputs {
    std::vector<float> o, lse;
  };
  // The lane's own program, on one device, in the plan's order; outputs in the given one.
  Outputs OneDevice(const ContextPlan& plan, const Inputs& in) const {
    const Shape& s = plan.contract.shape;
    const stablehlo::ProgramSpec spec = stablehlo::SpecOf(plan.contract, plan.plan->view(), TargetKind::kTpu);
    const stablehlo::Program program = stablehlo::LowerForward(spec).value();
    const lanes::xla::PlanTables tables = lanes::xla::MakeTables(spec, plan.plan->view(), program.inputs);
    const Inputs placed = {Reordered(plan, in.q, s.num_q_heads, false), Reordered(plan, in.k, s.num_kv_heads, false),
                           Reordered(plan, in.v, s.num_kv_heads, false)};
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
      if (input.name == "q") {
        bytes.push_back(std::as_bytes(std::span(placed.q)));
      } else if (input.name == "k") {
        bytes.push_back(std::as_bytes(std::span(placed.k)));
      } else if (input.name == "v") {
        bytes.push_back(std::as_bytes(std::span(placed.v)));
      } else if (input.name == "scale") {
        bytes.push_back(std::as_bytes(std::span(&scale, 1)));
      } else {
        bytes.push_back(std::as_bytes(std::span(tables.at(input.name))));
      }
    }
    std::unique_ptr<pjrt::Executable>& kept = kept_[program.text];
    if (!kept) kept = std::make_unique<pjrt::Executable>(client().Compile(program.text, options).value());
    const pjrt::Executable& executable = *kept;
    std::vector<pjrt::Buffer> buffers;
    for (size_t i = 0; i < bytes.size(); ++i) buffers.push_back(client().Upload(options.inputs[i], bytes[i]).value());
    std::vector<const pjrt::Buffer*> args;
    for (const pjrt::Buffer& buffer : buffers) args.push_back(&buffer);
    const std::vector<pjrt::Buffer> results = executable.Execute(args).value();
    Outputs out;
    out.o.resize(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len * s.dim_v));
    out.lse.resize(static_cast<size_t>(s.batch * s.num_q_heads * s.q_len));
    EXPECT_TRUE(results[0].Download(std::as_writable_bytes(std::span(out.o))));
    EXPECT_TRUE(results[1].Download(std::as_writable_bytes(std::span(out.lse))));
    return {Reordered(plan, out.o, s.num_q_heads, true), Reordered(plan, out.lse, s.num_q_heads, true)};
  }

  static Outputs Run(const ContextRunner& runner, const ContextPlan& plan, const Inputs& in) {
    const WholeTensors whole = {std::as_bytes(std::span(in.q)), std::as_bytes(std::span(in.k)),
                                std::as_bytes(std::span(in.v))};
    const std::vector<ShardTensors> shards = CutTensors(plan, whole).value();
    const Result<ContextOutputs> done = runner.Forward(plan, shards);
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
  pjrt::Client* client_ = nullptr;
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
  const ContextPlan many = Planned(contract, {}, OptionsOf(16, CutForm::kContiguous, Exchange::kAllGather));
  expect(ContextRunner::Make(client(), many), "TSR-S002", "16 shards need as many devices, and there are 8");
  const ContextPlan ring = Planned(contract, {}, OptionsOf(2, CutForm::kContiguous, Exchange::kRing));
  expect(ContextRunner::Make(client(), ring), "TSR-S020", "ring");
  const ContextPlan ragged =
      Planned(ContractOf("causal", 60), {}, OptionsOf(2, CutForm::kContiguous, Exchange::kAllGather));
  expect(ContextRunner::Make(client(), ragged), "TSR-S020", "60 tokens are no multiple of 16");
  expect(CutTensors(plan, {whole.q, whole.k, {}}), "TSR-R001", "found 0");
}

}  // namespace
}  // namespace tessera::shard
