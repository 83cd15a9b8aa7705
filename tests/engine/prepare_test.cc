// Prepared attentions in the caller's hands: what they hold a call to, and what is another one.
#include "tessera/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/fixtures.h"
#include "support/proves.h"

namespace tessera {
namespace {

TEST(Attention, WindowThatChanges_IsRefusedOrBecomesANewContract) {
  Proves("R45");
  const Target target = TargetNamed("cpu");
  const Contract contract = SmallContract({.mask = "causal and window(7, 0)"});
  const Contract narrow = SmallContract({.mask = "causal and window(3, 0)"});
  const Engine engine;
  const Result<Attention> attention = engine.Prepare(contract, target);
  ASSERT_TRUE(attention.has_value()) << ToText(attention.error());
  Result<PlanResult> own = attention->Plan({});
  ASSERT_TRUE(own.has_value());
  EXPECT_TRUE(attention->Bind(std::move(own->plan)).has_value());

  // A plan of another window is no plan of this attention, and the error names both.
  Result<PlanResult> other = MakePlan(narrow, {}, target);
  ASSERT_TRUE(other.has_value());
  const Result<Bound> refused = attention->Bind(std::move(other->plan));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kPlanMismatch);
  for (const std::string& part : {ContractKey(contract).value(), ContractKey(narrow).value()}) {
    EXPECT_NE(ToText(refused.error()).find(part), std::string::npos) << part;
  }

  // Another spelling is no change; another window, tile or target is a new attention.
  const auto key = [&](const Contract& of, const Target& on, const AttentionOptions& options = {}) {
    const Result<Attention> made = engine.Prepare(of, on, options);
    EXPECT_TRUE(made.has_value());
    return Digest(made->key());
  };
  const std::string first = Digest(attention->key());
  EXPECT_EQ(key(SmallContract({.mask = "window(7, 0)"}), target), first);
  EXPECT_NE(key(narrow, target), first);
  EXPECT_NE(key(contract, TargetNamed("h200")), first);
  AttentionOptions tiled;
  tiled.plan.tile = TileSize{32, 32};
  EXPECT_NE(key(contract, target, tiled), first);
  EXPECT_EQ(engine.cache_stats().builds, 4);
}

TEST(Attention, EmptyPlan_IsRefused) {
  const Result<Attention> attention = Engine().Prepare(SmallContract(), TargetNamed("cpu"));
  ASSERT_TRUE(attention.has_value());
  EXPECT_EQ(attention->Bind(Plan()).error().code, ErrorCode::kPlanMismatch);
}

TEST(Attention, PassThatWasNotPrepared_IsAnError) {
  const Result<Attention> attention = Engine().Prepare(SmallContract(), TargetNamed("cpu"));
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan({})->plan));
  ASSERT_TRUE(bound.has_value());
  const Status backward = bound->Backward({});
  ASSERT_FALSE(backward.has_value());
  EXPECT_EQ(backward.error().code, ErrorCode::kBadArgument);
}

TEST(Attention, WrongNames_AreErrorsOfTheRequest) {
  AttentionOptions options;
  options.lane = "flash";
  const Engine engine;
  EXPECT_EQ(engine.Prepare(SmallContract(), TargetNamed("cpu"), options).error().code, ErrorCode::kLaneUnknown);
  options.lane = "auto";
  options.isa = "mmx";
  EXPECT_EQ(engine.Prepare(SmallContract(), TargetNamed("cpu"), options).error().code, ErrorCode::kIsaUnavailable);
}

TEST(Attention, MemoryThatNoLaneTakes_IsACataloguedRefusal) {
  AttentionOptions options;
  options.memory = {MemoryKind::kGpu, 0};
  const Result<Attention> attention = Engine().Prepare(SmallContract(), TargetNamed("cpu"), options);
  ASSERT_TRUE(attention.has_value());
  const Status accepted = attention->CheckAccepted();
  ASSERT_FALSE(accepted.has_value());
  EXPECT_NE(ToText(accepted.error()).find("dispatch.memory_space"), std::string::npos) << ToText(accepted.error());
}

// One bound plan, many calls and threads: the same bits as one-shot runs, receipts on request.
TEST(Bound, ManyCallsFromManyThreads_GiveTheBitsOfARun) {
  const Contract contract = SmallContract({.mask = "causal and documents", .len = 96, .sink_logits = true});
  const Target target = TargetNamed("cpu");
  const Batch batch = DocumentBatch(contract, {40, 56});
  const TensorMap inputs = MakeInputs(contract, 3, true);
  RunOptions options = Ask{.backward = true};
  const RunOutcome once = tessera::Run(contract, batch, inputs, target, options);
  ASSERT_FALSE(once.error.has_value()) << ErrorText(once);
  const Result<Attention> attention = TestEngine().Prepare(contract, target, options);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan(batch)->plan));
  ASSERT_TRUE(bound.has_value());
  EXPECT_EQ(bound->lane(), once.receipt.executed);
  EXPECT_EQ(bound->kernel(), once.receipt.kernel);
  EXPECT_EQ(bound->isa(), once.receipt.isa);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      TensorMap outputs = once.outputs;
      for (auto& [name, tensor] : outputs) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xff});
      const auto floats = [](Tensor& tensor) {
        return std::span<float>(reinterpret_cast<float*>(tensor.bytes.data()),
                                static_cast<size_t>(tensor.NumElements()));
      };
      TensorMap sinks = {{"sink_logits", inputs.at("sink_logits")}};
      RunTensors tensors;
      tensors.q = DenseView(inputs.at("q"));
      tensors.k = DenseView(inputs.at("k"));
      tensors.v = DenseView(inputs.at("v"));
      tensors.dout = DenseView(inputs.at("do"));
      tensors.sink_logits = floats(sinks.at("sink_logits"));
      tensors.o = DenseView(outputs.at("o"));
      tensors.lse = floats(outputs.at("lse"));
      tensors.dq = DenseView(outputs.at("dq"));
      tensors.dk = DenseView(outputs.at("dk"));
      tensors.dv = DenseView(outputs.at("dv"));
      tensors.dsink_logits = floats(outputs.at("dsink_logits"));
      for (int call = 0; call < 3; ++call) {
        Receipt forward;
        Receipt backward;
        const bool asks = t % 2 == 0;
        ASSERT_TRUE(bound->Forward(tensors, {.receipt = asks ? &forward : nullptr, .digests = call == 1}).has_value());
        ASSERT_TRUE(bound->Backward(tensors, {.receipt = asks ? &backward : nullptr}).has_value());
        EXPECT_TRUE(outputs == once.outputs);
        if (!asks) continue;
        EXPECT_EQ(Words(CheckReceipt(forward)), "") << ToJson(forward);
        EXPECT_EQ(Words(CheckReceipt(backward)), "") << ToJson(backward);
        EXPECT_EQ(forward.output_digest == kNotTaken, call != 1);
        EXPECT_EQ(forward.tiles_executed, once.receipt.tiles_executed);
        EXPECT_EQ(backward.tiles_executed_backward, once.receipt.tiles_executed_backward);
        EXPECT_EQ(ToLine(backward).find("0 of 0 tiles"), std::string::npos) << ToLine(backward);
      }
    });
  }
}

// A workspace of the caller's: the same bits, whatever it held, and none of another size, place or use.
TEST(Bound, CallersWorkspace_IsUsedOrRefused) {
  const Contract contract = SmallContract({.mask = "causal", .len = 96});
  const Target target = TargetNamed("cpu");
  const TensorMap inputs = MakeInputs(contract, 3, false);
  const RunOutcome once = tessera::Run(contract, {}, inputs, target, {});
  ASSERT_FALSE(once.error.has_value()) << ErrorText(once);
  const Result<Attention> attention = TestEngine().Prepare(contract, target);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan({})->plan));
  ASSERT_TRUE(bound.has_value());
  const auto bytes = static_cast<size_t>(bound->workspace_bytes());
  ASSERT_GT(bytes, 0U);
  std::vector<std::byte> memory(bytes + 128, std::byte{0xff});
  const size_t aside = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  const std::span<std::byte> room = std::span(memory).subspan(aside, bytes);
  Tensor o = once.outputs.at("o");
  std::fill(o.bytes.begin(), o.bytes.end(), std::byte{0xff});
  RunTensors tensors;
  tensors.q = DenseView(inputs.at("q"));
  tensors.k = DenseView(inputs.at("k"));
  tensors.v = DenseView(inputs.at("v"));
  tensors.o = DenseView(o);
  const Status ran = bound->Forward(tensors, {.workspace = room});
  ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
  EXPECT_TRUE(o == once.outputs.at("o"));
  EXPECT_TRUE(std::all_of(memory.begin() + static_cast<int64_t>(aside + bytes), memory.end(),
                          [](std::byte b) { return b == std::byte{0xff}; }));
  const auto expect = [&](std::span<std::byte> given, const char* text) {
    const Status refused = bound->Forward(tensors, {.workspace = given});
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kTensorMismatch);
    EXPECT_NE(ToText(refused.error()).find(text), std::string::npos) << ToText(refused.error());
  };
  expect(room.first(bytes - 1), "bytes expected");
  expect(std::span(memory).subspan(aside + 1, bytes), "a multiple of 64");
}

// In place of an earlier plan: on the host a binding like any other, of the same attention and class only.
TEST(Bound, Rebound_RunsTheNewPlan) {
  const Contract contract = SmallContract({.mask = "causal and documents", .len = 96});
  const Target target = TargetNamed("cpu");
  const TensorMap inputs = MakeInputs(contract, 3, false);
  const Batch batch = DocumentBatch(contract, {10, 86});
  const RunOutcome once = tessera::Run(contract, batch, inputs, target, {});
  ASSERT_FALSE(once.error.has_value()) << ErrorText(once);
  const Result<Attention> attention = TestEngine().Prepare(contract, target);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> first = attention->Bind(std::move(attention->Plan(DocumentBatch(contract, {40, 56}))->plan));
  ASSERT_TRUE(first.has_value());
  const Result<Bound> second = attention->Rebind(*first, std::move(attention->Plan(batch)->plan));
  ASSERT_TRUE(second.has_value()) << ToText(second.error());
  Tensor o = once.outputs.at("o");
  std::fill(o.bytes.begin(), o.bytes.end(), std::byte{0xff});
  RunTensors tensors;
  tensors.q = DenseView(inputs.at("q"));
  tensors.k = DenseView(inputs.at("k"));
  tensors.v = DenseView(inputs.at("v"));
  tensors.o = DenseView(o);
  ASSERT_TRUE(second->Forward(tensors).has_value());
  EXPECT_TRUE(o == once.outputs.at("o"));

  AttentionOptions both;
  both.backward = true;
  const Result<Attention> other = TestEngine().Prepare(contract, target, both);
  ASSERT_TRUE(other.has_value());
  const Result<Bound> refused = other->Rebind(*first, std::move(other->Plan(batch)->plan));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kBadArgument);
  EXPECT_FALSE(attention->Rebind(*first, {}).has_value()) << "an empty plan";
}

// Engines share nothing: what one prepared, another has to prepare again.
TEST(Engines, Two_ShareNothing) {
  const Engine first;
  const Engine second;
  ASSERT_TRUE(first.Prepare(SmallContract(), TargetNamed("cpu")).has_value());
  EXPECT_EQ(first.cache_stats().misses, 1);
  EXPECT_EQ(second.cache_stats(), CacheStats{});
  ASSERT_TRUE(second.Prepare(SmallContract(), TargetNamed("cpu")).has_value());
  EXPECT_EQ(second.cache_stats().misses, 1);
  EXPECT_EQ(first.cache_stats().hits, 0);
}

// An attention and a bound plan keep what they need of an engine that is gone.
TEST(Engines, Gone_LeavesWhatItGaveAlive) {
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, 1, false);
  std::optional<Bound> bound;
  {
    const Engine engine;
    const Result<Attention> attention = engine.Prepare(contract, TargetNamed("cpu"));
    ASSERT_TRUE(attention.has_value());
    bound = attention->Bind(std::move(attention->Plan({})->plan)).value();
  }
  Tensor o = Tensor::Zeros(ElementType::kF32, {1, 2, 48, 4});
  RunTensors tensors;
  tensors.q = DenseView(inputs.at("q"));
  tensors.k = DenseView(inputs.at("k"));
  tensors.v = DenseView(inputs.at("v"));
  tensors.o = DenseView(o);
  ASSERT_TRUE(bound->Forward(tensors).has_value());
  EXPECT_EQ(o, tessera::Run(contract, {}, inputs, TargetNamed("cpu")).outputs.at("o"));
}

}  // namespace
}  // namespace tessera
