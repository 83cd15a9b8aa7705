// The engine with the CUDA lane on a driver that only writes down: one-shot runs that copy, bound calls that do not,
// and what receipts say of both.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/fake_lanes.h"
#include "engine/state.h"
#include "lanes/cuda/image.h"
#include "lanes/cuda/kernels.h"
#include "tessera/tessera.h"

namespace tessera::lanes::cuda {
namespace {

using testing::HasSubstr;

class CudaEngine : public testing::Test {
 protected:
  void SetUp() override {
    if (EmbeddedCubins().empty()) GTEST_SKIP() << "this build has no CUDA kernels: it was made without nvcc";
    rows_ = LanesOn(fake_);
    engine_ = std::make_unique<Engine>(EngineAccess::Make({}, rows_));
    contract_.shape = {.batch = 1,
                       .q_len = 200,
                       .kv_len = 200,
                       .num_q_heads = 2,
                       .num_kv_heads = 2,
                       .dim_qk = 128,
                       .dim_v = 128,
                       .dtype = DType::kBf16};
    contract_.mask.heads = {ParseMaskExpr("causal").value()};
    contract_.score.scale = 0.1;
  }
  void TearDown() override {
    engine_.reset();
    rows_.clear();
  }

  // Of documents that are each so long.
  static Plan PlanOf(const Attention& attention, int32_t document) {
    Batch batch;
    IdRows ids{1, 200, {}};
    for (int32_t t = 0; t < 200; ++t) ids.values.push_back(t / document);
    batch.doc_ids = std::move(ids);
    return std::move(attention.Plan(batch)->plan);
  }

  FakeDriver fake_;
  std::vector<LaneRow> rows_;
  std::unique_ptr<Engine> engine_;
  Contract contract_;
  Target target_ = FindTarget("h200").value();
};

TEST_F(CudaEngine, OneShot_CopiesAndSaysHowMuch) {
  RunOptions options;
  options.backward = true;
  options.strict = true;
  const RunOutcome outcome = tessera::Run(*engine_, contract_, {}, MakeInputs(contract_, 1, true), target_, options);
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  const Receipt& receipt = outcome.receipt;
  EXPECT_EQ(receipt.executed, "cuda");
  EXPECT_EQ(receipt.ran_on, "NVIDIA H200");
  EXPECT_EQ(receipt.device.kind, "gpu");
  EXPECT_EQ(receipt.fallback_reason, "");
  const int64_t tensor = 2 * 200 * 128 * 2;
  const int64_t stat = 2 * 200 * 4;
  EXPECT_EQ(receipt.device.memory, fmt::format("host, {} bytes copied to gpu:0 and back", 12 * tensor + 2 * stat));
  EXPECT_THAT(receipt.kernel, HasSubstr("forward_bf16_128_128_none prepare_bf16_0_0_none dq_bf16"));
  EXPECT_TRUE(CheckReceipt(receipt).empty()) << CheckReceipt(receipt)[0].field;
  const Result<RunOptions> again = OptionsOf(receipt);
  ASSERT_TRUE(again.has_value()) << ToText(again.error());
}

TEST_F(CudaEngine, BoundCalls_NeverCopy) {
  AttentionOptions host;
  host.lane = "cuda";
  const Result<Attention> on_host = engine_->Prepare(contract_, target_, host);
  ASSERT_TRUE(on_host.has_value());
  EXPECT_FALSE(on_host->CheckAccepted().has_value());
  EXPECT_THAT(ToText(on_host->CheckAccepted().error()), HasSubstr("dispatch.memory_space"));
  AttentionOptions options = host;
  options.memory = {MemoryKind::kGpu, 0};
  const Result<Attention> attention = engine_->Prepare(contract_, target_, options);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan({})->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  EXPECT_EQ(bound->workspace_bytes(), 64);
  const tessera::TensorMap inputs = MakeInputs(contract_, 1, false);
  RunTensors tensors;
  tensors.q = DenseView(inputs.at("q"));
  tensors.k = DenseView(inputs.at("k"));
  tensors.v = DenseView(inputs.at("v"));
  tensors.o = tensors.q;
  const Status refused = bound->Forward(tensors);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(ToText(refused.error()), HasSubstr("memory of gpu:0 expected, got host"));
  EXPECT_TRUE(fake_.launches.empty());
}

TEST_F(CudaEngine, CallersWorkspace_IsDeviceMemoryAndSavesTheEnginesOwn) {
  AttentionOptions options;
  options.memory = {MemoryKind::kGpu, 0};
  const Result<Attention> attention = engine_->Prepare(contract_, target_, options);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan({})->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  RunTensors tensors;
  for (TensorRef* ref : {&tensors.q, &tensors.k, &tensors.v, &tensors.o}) {
    *ref = DenseView(fake_.Allocate(2 * 200 * 128 * 2, 0), ElementType::kBf16, {1, 2, 200, 128});
    ref->space = options.memory;
  }
  const auto bytes = static_cast<size_t>(bound->workspace_bytes());
  const int before = fake_.calls["memory_alloc"];
  std::byte* given = fake_.Allocate(bytes + 64, 0);
  given += 64 - reinterpret_cast<uintptr_t>(given) % 64;
  const Status ran = bound->Forward(tensors, {.workspace = {given, bytes}});
  ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
  EXPECT_EQ(fake_.calls["memory_alloc"], before);
  ASSERT_EQ(fake_.launches.size(), 1U);
  alignas(64) std::byte host[64];
  const Status refused = bound->Forward(tensors, {.workspace = host});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(ToText(refused.error()), HasSubstr("workspace: "));
  EXPECT_EQ(fake_.launches.size(), 1U) << "nothing was launched for it";
}

// What a captured graph holds is an address: the next batch's plan must come to lie there.
TEST_F(CudaEngine, Rebound_PlanLiesWhereTheEarlierOneLay) {
  contract_.mask.heads = {ParseMaskExpr("causal and documents").value()};
  AttentionOptions options;
  options.memory = {MemoryKind::kGpu, 0};
  const Result<Attention> attention = engine_->Prepare(contract_, target_, options);
  ASSERT_TRUE(attention.has_value());
  const auto plan_of = [&](int32_t document) { return PlanOf(*attention, document); };
  RunTensors tensors;
  for (TensorRef* ref : {&tensors.q, &tensors.k, &tensors.v, &tensors.o}) {
    *ref = DenseView(fake_.Allocate(2 * 200 * 128 * 2, 0), ElementType::kBf16, {1, 2, 200, 128});
    ref->space = options.memory;
  }
  static const PlanHeader* launched = nullptr;
  fake_.on_launch = [](const Launched& launch) { launched = static_cast<const ForwardParams*>(launch.params)->plan; };
  const auto lies = [&](const Plan& plan) {
    const Result<PlanImage> image = MakeImage(contract_, plan.view(), {.forward = true, .backward = false});
    return image.has_value() && std::memcmp(launched, image->bytes.data(), image->bytes.size()) == 0;
  };
  const Stream stream = fake_.MakeStream(0);
  const Result<Bound> first = attention->Bind(plan_of(60));
  ASSERT_TRUE(first.has_value()) << ToText(first.error());
  fake_.is_capturing = true;
  ASSERT_TRUE(first->Forward(tensors, {.stream = stream}).has_value());
  const PlanHeader* const captured = launched;
  EXPECT_TRUE(lies(plan_of(60)));
  const Result<Bound> too_early = attention->Rebind(*first, plan_of(90), stream);
  ASSERT_FALSE(too_early.has_value());
  EXPECT_THAT(ToText(too_early.error()), HasSubstr("is being captured"));
  fake_.is_capturing = false;
  const int waits = fake_.calls["stream_finish"] + fake_.calls["event_finish"];
  const Result<Bound> second = attention->Rebind(*first, plan_of(90), stream);
  ASSERT_TRUE(second.has_value()) << ToText(second.error());
  EXPECT_TRUE(lies(plan_of(90)));
  EXPECT_EQ(fake_.calls["stream_finish"] + fake_.calls["event_finish"], waits);
  ASSERT_TRUE(second->Forward(tensors, {.stream = stream}).has_value());
  EXPECT_EQ(launched, captured);
  // The first plan's fingerprint finds no more what is the second's now.
  const Result<Bound> again = attention->Bind(plan_of(60));
  ASSERT_TRUE(again.has_value());
  ASSERT_TRUE(again->Forward(tensors, {.stream = stream}).has_value());
  EXPECT_NE(launched, captured);
  EXPECT_TRUE(lies(plan_of(60)));
  // Two who share an upload: neither may change it under the other.
  const Result<Bound> shares = attention->Bind(plan_of(60));
  ASSERT_TRUE(shares.has_value());
  const Result<Bound> refused = attention->Rebind(*again, plan_of(90), stream);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(ToText(refused.error()), HasSubstr("something else is bound"));
  fake_.on_launch = nullptr;
}

// Who keeps plans on the device: one is bound, the others come with the call. Nothing is copied or waited for, and what
// the kernels read is the image that was brought.
TEST_F(CudaEngine, Image_RunsInPlaceOfTheBoundPlan) {
  contract_.mask.heads = {ParseMaskExpr("causal and documents").value()};
  AttentionOptions options;
  options.memory = {MemoryKind::kGpu, 0};
  options.backward = true;
  const Result<Attention> attention = engine_->Prepare(contract_, target_, options);
  ASSERT_TRUE(attention.has_value());
  const auto plan_of = [&](int32_t document) { return PlanOf(*attention, document); };
  const Result<Bound> bound = attention->Bind(plan_of(60));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  RunTensors tensors;
  for (TensorRef* ref :
       {&tensors.q, &tensors.k, &tensors.v, &tensors.o, &tensors.dout, &tensors.dq, &tensors.dk, &tensors.dv}) {
    *ref = DenseView(fake_.Allocate(2 * 200 * 128 * 2, 0), ElementType::kBf16, {1, 2, 200, 128});
    ref->space = options.memory;
  }
  tensors.lse = {reinterpret_cast<float*>(fake_.Allocate(2 * 200 * 4, 0)), 2 * 200};
  static std::vector<const PlanHeader*> read;
  read.clear();
  fake_.on_launch = [](const Launched& launch) {
    if (launch.kernel.find("_forward_") != std::string::npos) {
      read.push_back(static_cast<const ForwardParams*>(launch.params)->plan);
    } else if (launch.kernel.find("_dq_") != std::string::npos || launch.kernel.find("_dkv_") != std::string::npos) {
      read.push_back(static_cast<const BackwardParams*>(launch.params)->plan);
    }
  };
  const Stream stream = fake_.MakeStream(0);
  ASSERT_TRUE(bound->Forward(tensors, {.stream = stream}).has_value());  // takes its workspace
  const auto waits = [&] {
    return fake_.calls["stream_finish"] + fake_.calls["event_finish"] + fake_.calls["copy_to_device"] +
           fake_.calls["copy_to_host"];
  };
  ASSERT_TRUE(bound->Backward(tensors, {.stream = stream}).has_value());
  read.clear();
  const int before = waits();
  for (const int32_t document : {40, 90}) {
    const Plan plan = plan_of(document);
    const Result<std::vector<std::byte>> image = attention->Image(plan);
    ASSERT_TRUE(image.has_value()) << ToText(image.error());
    EXPECT_EQ(*image, MakeImage(contract_, plan.view(), {.forward = true, .backward = true})->bytes);
    std::byte* there = fake_.Allocate(image->size() + 256, 0);  // an operand is longer than its plan
    std::memcpy(there, image->data(), image->size());
    const std::span<const std::byte> given(there, image->size() + 256);
    read.clear();
    const Status forward = bound->Forward(tensors, {.stream = stream, .image = given});
    ASSERT_TRUE(forward.has_value()) << ToText(forward.error());
    const Status backward = bound->Backward(tensors, {.stream = stream, .image = given});
    ASSERT_TRUE(backward.has_value()) << ToText(backward.error());
    EXPECT_EQ(read, std::vector<const PlanHeader*>(3, reinterpret_cast<const PlanHeader*>(there)));
  }
  EXPECT_EQ(waits(), before);

  const size_t launches = fake_.launches.size();
  const auto refusal = [&](std::span<const std::byte> image) {
    const Status refused = bound->Forward(tensors, {.stream = stream, .image = image});
    return refused.has_value() ? std::string() : ToText(refused.error());
  };
  std::byte* there = fake_.Allocate(4096, 0);
  alignas(64) static std::byte host[256];
  EXPECT_THAT(refusal({there + 8, 1024}), HasSubstr("image: an address that is a multiple of 16"));
  EXPECT_THAT(refusal({there, 64}), HasSubstr("image: 160 bytes or more"));
  EXPECT_THAT(refusal({there, 8192}), HasSubstr("image: 8192 bytes expected"));
  EXPECT_THAT(refusal(host), HasSubstr("image: memory of gpu:0 expected"));
  Receipt receipt;
  const Status told = bound->Forward(tensors, {.stream = stream, .image = {there, 4096}, .receipt = &receipt});
  ASSERT_FALSE(told.has_value());
  EXPECT_THAT(ToText(told.error()), HasSubstr("a receipt tells of the bound plan"));
  EXPECT_EQ(fake_.launches.size(), launches) << "nothing was launched for them";
  Contract other = contract_;
  other.shape.kv_len = other.shape.q_len = 300;
  const Result<Attention> another = engine_->Prepare(other, target_, options);
  EXPECT_THAT(ToText(another->Image(plan_of(60)).error()), HasSubstr("TSR-P007"));
  contract_.shape.dtype = DType::kF32;
  const Result<Attention> f32 = engine_->Prepare(contract_, target_, options);
  Batch documents;
  documents.doc_ids = IdRows{1, 200, std::vector<int32_t>(200, 0)};
  const Result<PlanResult> f32_plan = f32->Plan(documents);
  ASSERT_TRUE(f32_plan.has_value()) << ToText(f32_plan.error());
  EXPECT_THAT(ToText(f32->Image(f32_plan->plan).error()), HasSubstr("cuda.dtype"));
  fake_.on_launch = nullptr;
}

// A plan for another number of workers may be cut into more parts than what is bound has workspace for.
TEST_F(CudaEngine, ImageOfAnotherClass_IsRefused) {
  contract_.shape.q_len = 20;
  contract_.shape.kv_len = 6000;
  contract_.mask.heads = {ParseMaskExpr("full").value()};
  AttentionOptions options;
  options.memory = {MemoryKind::kGpu, 0};
  Target few = target_;
  few.workers = 2;
  const Result<Attention> attention = engine_->Prepare(contract_, few, options);
  const Result<Attention> many = engine_->Prepare(contract_, target_, options);
  ASSERT_TRUE(attention.has_value() && many.has_value());
  const auto plan_of = [](const Attention& of) { return std::move(of.Plan({})->plan); };
  ASSERT_NE(plan_of(*attention).view().Of(Direction::kForward).part_slots,
            plan_of(*many).view().Of(Direction::kForward).part_slots);
  EXPECT_TRUE(attention->Image(plan_of(*attention)).has_value());
  const Result<std::vector<std::byte>> refused = attention->Image(plan_of(*many));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(ToText(refused.error()), testing::AllOf(HasSubstr("TSR-P007"), HasSubstr("of another class")));

  // Bound, it has workspace for its own parts, but not for those of an image.
  const Result<Bound> own = attention->Bind(plan_of(*attention));
  const Result<Bound> other = attention->Bind(plan_of(*many));
  ASSERT_TRUE(own.has_value() && other.has_value());
  EXPECT_LT(own->workspace_bytes(), other->workspace_bytes());
  RunTensors tensors;
  tensors.q = DenseView(fake_.Allocate(2 * 20 * 128 * 2, 0), ElementType::kBf16, {1, 2, 20, 128});
  tensors.o = DenseView(fake_.Allocate(2 * 20 * 128 * 2, 0), ElementType::kBf16, {1, 2, 20, 128});
  tensors.k = DenseView(fake_.Allocate(2 * 6000 * 128 * 2, 0), ElementType::kBf16, {1, 2, 6000, 128});
  tensors.v = tensors.k;
  for (TensorRef* ref : {&tensors.q, &tensors.k, &tensors.v, &tensors.o}) ref->space = options.memory;
  const std::vector<std::byte> image = attention->Image(plan_of(*attention)).value();
  std::byte* there = fake_.Allocate(image.size(), 0);
  std::memcpy(there, image.data(), image.size());
  const CallOptions with_image{.image = {there, image.size()}};
  EXPECT_TRUE(own->Forward(tensors, with_image).has_value());
  EXPECT_TRUE(other->Forward(tensors).has_value());
  const Status no_room = other->Forward(tensors, with_image);
  ASSERT_FALSE(no_room.has_value());
  EXPECT_THAT(ToText(no_room.error()), HasSubstr("the bound plan is of another class"));
  const Result<Bound> rebound = attention->Rebind(*own, plan_of(*many));
  ASSERT_FALSE(rebound.has_value());
  EXPECT_THAT(ToText(rebound.error()), HasSubstr("TSR-R007"));
}

TEST_F(CudaEngine, OtherGpu_FallsBackByReason) {
  fake_.major = 12;
  fake_.name = "NVIDIA RTX";
  const RunOutcome outcome = tessera::Run(*engine_, contract_, {}, MakeInputs(contract_, 1, false), target_, {});
  ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
  EXPECT_EQ(outcome.receipt.executed, "cpu");
  EXPECT_EQ(outcome.receipt.fallback_reason, "cuda.other_gpu");
  RunOptions strict;
  strict.strict = true;
  EXPECT_TRUE(tessera::Run(*engine_, contract_, {}, MakeInputs(contract_, 1, false), target_, strict).error);
}

TEST_F(CudaEngine, RoutedInDeviceMemory_IsRefusedByReason) {
  contract_.shape.q_len = contract_.shape.kv_len = 4096;
  contract_.mask.heads = {ParseMaskExpr("causal and blocks").value()};
  contract_.routing = Routing{};
  AttentionOptions options;
  options.memory = {MemoryKind::kGpu, 0};
  const Result<Attention> attention = engine_->Prepare(contract_, target_, options);
  ASSERT_TRUE(attention.has_value()) << ToText(attention.error());
  for (const LaneDecision& decision : attention->selection().decisions) {
    if (decision.lane != "cuda") continue;
    EXPECT_EQ(ReasonText(decision.decision.reason), "cuda.routing");
  }
  // And routing itself does not read what is not the host's.
  std::vector<std::byte> q(2 * 4096 * 128 * 2);
  TensorRef ref = DenseView(q.data(), ElementType::kBf16, {1, 2, 4096, 128});
  ref.space = {MemoryKind::kGpu, 0};
  const Result<PlanResult> plan = attention->Plan({}, ref, ref);
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(ToText(plan.error()), HasSubstr("memory of host expected, which routing reads, got gpu:0"));
}

}  // namespace
}  // namespace tessera::lanes::cuda
