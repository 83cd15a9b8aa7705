// The lane against a driver that only writes down: what it decides, launches, uploads and refuses.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/fake_driver.h"
#include "lanes/cuda/abi.h"
#include "lanes/cuda/cuda.h"
#include "lanes/cuda/kernels.h"
#include "lanes/cuda/state.h"
#include "tessera/tessera.h"

namespace tessera::lanes::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr MemorySpace kGpu{MemoryKind::kGpu, 0};
const Pass kBoth[] = {Pass::kForward, Pass::kBackward};

Contract MakeContract() {
  Contract contract;
  contract.shape = {.batch = 1,
                    .q_len = 300,
                    .kv_len = 300,
                    .num_q_heads = 4,
                    .num_kv_heads = 2,
                    .dim_qk = 128,
                    .dim_v = 128,
                    .dtype = DType::kBf16};
  contract.mask.heads = {ParseMaskExpr("causal").value()};
  contract.score.scale = 0.125;
  return contract;
}

// The parameters of the launches, as the kernels would get them.
std::optional<ForwardParams> forward_params;
std::vector<BackwardParams> backward_params;
void Keep(const Launched& launch) {
  if (launch.kernel.find("forward") != std::string::npos) {
    std::memcpy(&forward_params.emplace(), launch.params, sizeof(ForwardParams));
  } else if (launch.kernel.find("_dq_") != std::string::npos || launch.kernel.find("_dkv_") != std::string::npos) {
    std::memcpy(&backward_params.emplace_back(), launch.params, sizeof(BackwardParams));
  }
}

class CudaLane : public testing::Test {
 protected:
  void SetUp() override {
    if (EmbeddedCubins().empty()) GTEST_SKIP() << "this build has no CUDA kernels: it was made without nvcc";
    fake_.on_launch = Keep;
    forward_params.reset();
    backward_params.clear();
    state_ = MakeCudaState(&fake_.driver());
    lane_ = MakeCudaLane(state_, {.memory = kGpu});
  }
  void TearDown() override {
    bound_.reset();
    lane_.reset();
    state_.reset();
  }

  Status Bind(const Contract& contract) {
    contract_ = contract;
    Result<PlanResult> made = MakePlan(contract_, batch_, target_, {});
    EXPECT_TRUE(made.has_value());
    plan_ = std::move(made->plan);
    Result<std::unique_ptr<BoundLane>> bound = lane_->Bind({contract_, plan_.view(), target_, kBoth});
    if (!bound) return tl::unexpected(bound.error());
    bound_ = std::move(*bound);
    return {};
  }

  TensorRef Make(int64_t heads, int64_t tokens, int64_t dim, int device = 0) {
    const Sizes4 sizes{contract_.shape.batch, heads, tokens, dim};
    const auto bytes = static_cast<size_t>(sizes.batch * heads * tokens * dim * 2);
    TensorRef ref = DenseView(fake_.Allocate(bytes, device), ElementType::kBf16, sizes);
    ref.space = kGpu;
    return ref;
  }
  std::span<float> MakeStat(int64_t count) {
    return {reinterpret_cast<float*>(fake_.Allocate(static_cast<size_t>(count) * 4, 0)), static_cast<size_t>(count)};
  }
  ForwardArgs ForwardTensors() {
    const Shape& s = contract_.shape;
    ForwardArgs args;
    args.q = Make(s.num_q_heads, s.q_len, s.dim_qk);
    args.k = Make(s.num_kv_heads, s.kv_len, s.dim_qk);
    args.v = Make(s.num_kv_heads, s.kv_len, s.dim_v);
    args.o = Make(s.num_q_heads, s.q_len, s.dim_v);
    args.lse = MakeStat(s.batch * s.num_q_heads * s.q_len);
    return args;
  }
  BackwardArgs BackwardTensors() {
    const Shape& s = contract_.shape;
    const ForwardArgs f = ForwardTensors();
    BackwardArgs args;
    args.q = f.q, args.k = f.k, args.v = f.v, args.o = f.o, args.lse = f.lse;
    args.dout = Make(s.num_q_heads, s.q_len, s.dim_v);
    args.dq = Make(s.num_q_heads, s.q_len, s.dim_qk);
    args.dk = Make(s.num_kv_heads, s.kv_len, s.dim_qk);
    args.dv = Make(s.num_kv_heads, s.kv_len, s.dim_v);
    return args;
  }

  FakeDriver fake_;
  std::shared_ptr<State> state_;
  std::unique_ptr<Lane> lane_;
  Target target_ = FindTarget("h200").value();
  Batch batch_;
  Contract contract_ = MakeContract();
  Plan plan_;
  std::unique_ptr<BoundLane> bound_;
};

TEST_F(CudaLane, Decide_NamesWhatItCannotDo) {
  const auto reason = [&](const Contract& contract) { return ReasonText(lane_->Decide(contract, target_).reason); };
  EXPECT_EQ(reason(MakeContract()), "");
  Contract contract = MakeContract();
  contract.shape.dtype = DType::kF32;
  EXPECT_EQ(reason(contract), "cuda.dtype");
  contract = MakeContract();
  contract.shape.dim_qk = 96;
  EXPECT_EQ(reason(contract), "cuda.head_dim");
  for (const double cap : {1e-12, 1e7, 1e15}) {
    contract = MakeContract();
    contract.score.softcap = cap;
    EXPECT_EQ(reason(contract), "cuda.softcap") << cap;
  }
  contract = MakeContract();
  contract.shape.q_len = kMaxTokens + 1;
  EXPECT_EQ(reason(contract), "cuda.too_long");
  contract = MakeContract();
  contract.routing = Routing{};
  EXPECT_EQ(reason(contract), "cuda.routing");
  // The host's q and k are scored on the host.
  EXPECT_TRUE(MakeCudaLane(state_, {})->Decide(contract, target_).accepted);
}

TEST_F(CudaLane, DecidePlan_LooksAtTilesAndTheGpu) {
  ASSERT_TRUE(Bind(MakeContract()).has_value());
  const auto reason = [&](Lane& lane, const PlanView& plan) {
    return ReasonText(lane.DecidePlan(contract_, plan, target_).reason);
  };
  EXPECT_EQ(reason(*lane_, plan_.view()), "");
  const Result<PlanResult> other = MakePlan(contract_, batch_, FindTarget("v5e").value(), {});
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(reason(*lane_, other->plan.view()), "cuda.tile");
  EXPECT_FALSE(lane_->Bind({contract_, other->plan.view(), target_, kBoth}).has_value());
  const auto third = MakeCudaLane(state_, {.memory = {MemoryKind::kGpu, 2}});
  EXPECT_EQ(reason(*third, plan_.view()), "cuda.no_device");
  fake_.major = 8;
  const auto older = MakeCudaLane(MakeCudaState(&fake_.driver()), {.memory = kGpu});
  EXPECT_EQ(reason(*older, plan_.view()), "cuda.other_gpu");
}

TEST_F(CudaLane, Forward_LaunchesOneKernelOnTheCallersStream) {
  ASSERT_TRUE(Bind(MakeContract()).has_value());
  const ForwardArgs args = ForwardTensors();
  const Stream stream = fake_.MakeStream(0);
  const Result<int64_t> ran = bound_->Forward(args, {.stream = stream});
  ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
  EXPECT_EQ(*ran, 4 * 6);  // three rows of 1, 2 and 3 tiles, four heads
  ASSERT_EQ(fake_.launches.size(), 1U);
  const Launched& launch = fake_.launches[0];
  EXPECT_EQ(launch.kernel, "tessera_forward_bf16_128_128_none");
  EXPECT_EQ(launch.stream, stream);
  EXPECT_EQ(launch.grid_x, 12U);
  EXPECT_EQ(launch.threads, 384U);
  EXPECT_EQ(launch.shared_bytes, static_cast<unsigned>(SharedBytes(KernelKind::kForward, 128, 128)));
  const ForwardParams& p = forward_params.value();
  EXPECT_EQ(p.lse, args.lse.data());
  EXPECT_EQ(p.row_max, nullptr);
  EXPECT_EQ(p.sinks, nullptr);
  EXPECT_TRUE(fake_.IsDevice(p.plan));
  EXPECT_EQ(p.plan->lists[0].work_count, 12);
  EXPECT_EQ(p.shape.q_len, 300);
  EXPECT_FLOAT_EQ(p.shape.scale, 0.125F);
  // q's map: address, tokens, panels, heads, batch, strides in bytes, box.
  const uint64_t* q = p.q.words;
  EXPECT_EQ(q[0], reinterpret_cast<uint64_t>(args.q.data));
  EXPECT_THAT((std::vector<uint64_t>(q + 1, q + 12)),
              testing::ElementsAre(300, 2, 4, 1, 256, 128, 300 * 256, 128, 128, 2, 9));
  EXPECT_EQ(fake_.calls["stream_finish"], 0);
  EXPECT_EQ(fake_.calls["event_finish"], 0);
}

TEST_F(CudaLane, Backward_LaunchesInOrder) {
  Contract contract = MakeContract();
  contract.score.sink_logits = true;
  contract.score.softcap = 30;
  ASSERT_TRUE(Bind(contract).has_value());
  BackwardArgs args = BackwardTensors();
  args.sink_logits = MakeStat(4);
  args.dsink_logits = MakeStat(4);
  const Result<int64_t> ran = bound_->Backward(args, {});
  ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
  std::vector<std::string> kernels;
  for (const Launched& launch : fake_.launches) kernels.push_back(launch.kernel);
  EXPECT_THAT(kernels, testing::ElementsAre("tessera_prepare_bf16_0_0_none", "tessera_dkv_bf16_128_128_capped",
                                            "tessera_dq_bf16_128_128_capped", "tessera_sinks_f32_0_0_none"));
  EXPECT_EQ(fake_.launches[0].grid_x, 4 * 384U / 64);
  EXPECT_EQ(fake_.launches[3].grid_x, 4U);
  for (const Launched& launch : fake_.launches) {  // dq alone: dkv needs what prepare wrote
    EXPECT_EQ(launch.is_beside, launch.kernel.find("_dq_") != std::string::npos) << launch.kernel;
  }
  ASSERT_EQ(backward_params.size(), 2U);
  EXPECT_EQ(backward_params[0].rows[0].words[0], reinterpret_cast<uint64_t>(args.k.data));
  EXPECT_EQ(backward_params[0].cols[1].words[0], reinterpret_cast<uint64_t>(args.dout.data));
  EXPECT_EQ(backward_params[0].out[1].words[0], reinterpret_cast<uint64_t>(args.dv.data));
  EXPECT_EQ(backward_params[1].rows[1].words[0], reinterpret_cast<uint64_t>(args.dout.data));
  EXPECT_EQ(backward_params[1].out[0].words[0], reinterpret_cast<uint64_t>(args.dq.data));
  EXPECT_NE(backward_params[0].ticket, backward_params[1].ticket);
  EXPECT_THAT(bound_->Describe().kernel, HasSubstr("dkv_bf16_128_128_capped"));
  EXPECT_EQ(bound_->Describe().device.name, "NVIDIA H200");
}

// The second and third axis of a grid end at 65535.
TEST_F(CudaLane, MoreHeadsThanAnAxisOfAGridHas_AreLaunched) {
  Contract contract = MakeContract();
  contract.shape.batch = 35000;
  contract.shape.q_len = contract.shape.kv_len = 1;
  contract.shape.num_q_heads = contract.shape.num_kv_heads = 2;
  contract.shape.dim_qk = contract.shape.dim_v = 64;
  contract.score.sink_logits = true;
  ASSERT_TRUE(Bind(contract).has_value());
  ForwardArgs forward = ForwardTensors();
  forward.sink_logits = MakeStat(2);
  Result<int64_t> ran = bound_->Forward(forward, {});
  ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
  BackwardArgs backward = BackwardTensors();
  backward.sink_logits = MakeStat(2);
  backward.dsink_logits = MakeStat(2);
  ran = bound_->Backward(backward, {});
  ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
  EXPECT_EQ(fake_.launches.size(), 5U);
}

// The sums of parts have their place in the workspace, and one more launch each puts the rows together.
TEST_F(CudaLane, FewRows_AreJoined) {
  Contract contract = MakeContract();
  contract.shape.q_len = 20;
  contract.shape.kv_len = 6000;
  contract.mask.heads = {ParseMaskExpr("full").value()};
  ASSERT_TRUE(Bind(contract).has_value());
  const ClassWork forward = ClassWorkOf(contract_, plan_.view(), Direction::kForward).value();
  ASSERT_GT(forward.parts, 0);
  EXPECT_EQ(bound_->WorkspaceBytes(Pass::kForward), 256 + 4 * forward.parts * 32 * (128 + 4)) << "of 32 rows each";
  const ForwardArgs args = ForwardTensors();
  ASSERT_TRUE(bound_->Forward(args, {}).has_value());
  ASSERT_EQ(fake_.launches.size(), 2U);
  EXPECT_EQ(fake_.launches[0].grid_x, static_cast<unsigned>(forward.work()));
  EXPECT_THAT(fake_.launches[1].kernel, HasSubstr("join_bf16"));
  EXPECT_EQ(fake_.launches[1].grid_x, 4U);  // a row of tiles for each head
  EXPECT_EQ(reinterpret_cast<uintptr_t>(forward_params->parts) % 256, 0U);
  fake_.launches.clear();
  ASSERT_TRUE(bound_->Backward(BackwardTensors(), {}).has_value());
  ASSERT_EQ(fake_.launches.size(), 4U);  // prepare, dkv with its many rows, dq, join
  EXPECT_THAT(fake_.launches[3].kernel, HasSubstr("join_bf16"));
  EXPECT_THAT(bound_->Describe().kernel, HasSubstr("join_bf16_0_0_none"));
}

// The most parts that a batch of the class can have find room in the workspace, of dq and of dkv apart; a row that only
// some batch makes long enough is joined where it is.
TEST_F(CudaLane, PartsOfAnyBatch_LieInTheWorkspace) {
  Contract contract = MakeContract();
  contract.shape.q_len = contract.shape.kv_len = 5000;
  contract.shape.num_q_heads = 2;
  contract.shape.num_kv_heads = 1;
  contract.mask.heads = {ParseMaskExpr("causal and documents").value()};
  int64_t bytes = 0;
  for (const int32_t document : {5000, 700, 40}) {
    IdRows ids{1, 5000, {}};
    for (int32_t t = 0; t < 5000; ++t) ids.values.push_back(t / document);
    batch_.doc_ids = ids;
    ASSERT_TRUE(Bind(contract).has_value());
    const std::array<ClassWork, 2> most = {ClassWorkOf(contract_, plan_.view(), Direction::kDq).value(),
                                           ClassWorkOf(contract_, plan_.view(), Direction::kDkv).value()};
    ASSERT_GT(most[0].parts, 0);
    ASSERT_GT(most[1].parts, 0);
    if (bytes == 0) bytes = bound_->WorkspaceBytes(Pass::kBackward);
    EXPECT_EQ(bound_->WorkspaceBytes(Pass::kBackward), bytes) << "it is the class's";
    std::byte* workspace = fake_.Allocate(static_cast<size_t>(bytes), 0);
    fake_.launches.clear();
    backward_params.clear();
    const BackwardArgs args = BackwardTensors();
    const Result<int64_t> ran = bound_->Backward(args, {.workspace = {workspace, static_cast<size_t>(bytes)}});
    ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
    ASSERT_EQ(backward_params.size(), 2U);
    const auto place = [&](const BackwardParams& p) { return reinterpret_cast<std::byte*>(p.parts) - workspace; };
    const int64_t dkv_at = place(backward_params[0]);
    const int64_t dq_at = place(backward_params[1]);
    EXPECT_GE(dq_at, 64 + 2 * 4 * 2 * 5120) << "behind tickets and row statistics";
    EXPECT_GE(dkv_at, dq_at + 4 * most[0].parts * PartFloats(KernelKind::kDq, 128, 128));
    EXPECT_EQ(bytes, dkv_at + 4 * most[1].parts * PartFloats(KernelKind::kDkv, 128, 256));
    EXPECT_LE(backward_params[0].plan->lists[2].work_count, most[1].work());
    EXPECT_LE(backward_params[1].plan->lists[1].work_count, most[0].work());
    ASSERT_EQ(fake_.launches.size(), 5U);
    EXPECT_EQ(fake_.launches[3].grid_x, static_cast<unsigned>(most[1].splits * 128 / kJoinRows));
    EXPECT_EQ(fake_.launches[4].grid_x, static_cast<unsigned>(most[0].splits * 128 / kJoinRows));
  }
}

TEST_F(CudaLane, ManyCalls_AllocateOnce) {
  ASSERT_TRUE(Bind(MakeContract()).has_value());
  const BackwardArgs args = BackwardTensors();
  const Stream stream = fake_.MakeStream(0);
  ASSERT_TRUE(bound_->Backward(args, {.stream = stream}).has_value());
  const int before = fake_.calls["memory_alloc"];
  fake_.is_event_done = false;  // everything is still under way
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(bound_->Backward(args, {.stream = stream}).has_value());
  EXPECT_EQ(fake_.calls["memory_alloc"], before);
  EXPECT_EQ(fake_.calls["memory_free"], 0);
}

// Kernels leave tickets at zero, so that memory which was a workspace before needs no launch to clear them.
TEST_F(CudaLane, Tickets_AreClearedOnce) {
  Contract contract = MakeContract();
  contract.shape.num_q_heads = contract.shape.num_kv_heads = 64;  // more rows than multiprocessors
  ASSERT_TRUE(Bind(contract).has_value());
  const ForwardArgs args = ForwardTensors();
  const Stream stream = fake_.MakeStream(0);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(bound_->Forward(args, {.stream = stream}).has_value());
  EXPECT_EQ(fake_.calls["fill_words"], 1);
  fake_.is_capturing = true;  // a replay may come after anything
  ASSERT_TRUE(bound_->Forward(args, {.stream = stream}).has_value());
  EXPECT_EQ(fake_.calls["fill_words"], 2);
}

TEST_F(CudaLane, ManyBatches_AllocateAtTheFirstAndUploadEachOnce) {
  Contract contract = MakeContract();
  contract.mask.heads = {ParseMaskExpr("causal and documents").value()};
  int allocations = 0;
  for (int round = 0; round < 60; ++round) {
    IdRows ids{1, 300, {}};
    for (int32_t t = 0; t < 300; ++t) ids.values.push_back(t / (round + 10));
    batch_.doc_ids = ids;
    ASSERT_TRUE(Bind(contract).has_value());
    ASSERT_TRUE(Bind(contract).has_value());  // the same plan: nothing is copied again
    const ForwardArgs args = ForwardTensors();
    ASSERT_TRUE(bound_->Forward(args, {}).has_value());
    if (round == 0) allocations = fake_.calls["memory_alloc"] + fake_.calls["host_alloc"];
  }
  EXPECT_EQ(state_->num_uploads(), 60);
  EXPECT_EQ(fake_.calls["memory_alloc"] + fake_.calls["host_alloc"], allocations);
}

// Plans of megabytes find rooms that were taken with the first too, and fewer of them are kept.
TEST_F(CudaLane, ManyLargeBatches_AllocateAtTheFirst) {
  Contract contract = MakeContract();
  contract.shape.q_len = contract.shape.kv_len = 32768;
  contract.shape.num_q_heads = contract.shape.num_kv_heads = 16;
  contract.mask.heads = {ParseMaskExpr("causal and documents").value()};
  std::mt19937_64 rng(1);
  int allocations = 0;
  int64_t live_bytes = 0;
  for (int round = 0; round < 20; ++round) {
    IdRows ids{1, 32768, {}};
    for (int32_t document = 0; ids.values.size() < 32768; ++document) {
      ids.values.resize(std::min<size_t>(ids.values.size() + 1 + rng() % 4096, 32768), document);
    }
    batch_.doc_ids = ids;
    ASSERT_TRUE(Bind(contract).has_value());
    if (round == 0) allocations = fake_.calls["memory_alloc"] + fake_.calls["host_alloc"];
    if (round == 0) live_bytes = fake_.live_bytes;
  }
  EXPECT_EQ(state_->num_uploads(), 20);
  EXPECT_EQ(fake_.calls["memory_alloc"] + fake_.calls["host_alloc"], allocations);
  EXPECT_LE(live_bytes, int64_t{64} << 20);
  EXPECT_GE(live_bytes, int64_t{4} << 20) << "the images are small: this test should have larger ones";
}

TEST_F(CudaLane, Captured_CallsKeepTheirMemory) {
  ASSERT_TRUE(Bind(MakeContract()).has_value());
  const ForwardArgs args = ForwardTensors();
  fake_.is_capturing = true;
  fake_.is_event_done = false;
  const int records = fake_.calls["event_record"];
  const int queries = fake_.calls["event_query"];
  ASSERT_TRUE(bound_->Forward(args, {.stream = fake_.MakeStream(0)}).has_value());
  const uint32_t* first = forward_params->ticket;
  ASSERT_TRUE(bound_->Forward(args, {.stream = fake_.MakeStream(0)}).has_value());
  EXPECT_NE(forward_params->ticket, first);
  EXPECT_EQ(fake_.calls["event_record"], records);
  EXPECT_EQ(fake_.calls["event_query"], queries);
  fake_.is_capturing = false;
  fake_.is_event_done = true;
  ASSERT_TRUE(bound_->Forward(args, {}).has_value());
  EXPECT_NE(forward_params->ticket, first) << "a graph may be replayed at any time";
}

TEST_F(CudaLane, BadMemory_IsRefusedBeforeAnythingIsLaunched) {
  ASSERT_TRUE(Bind(MakeContract()).has_value());
  const auto expect = [&](const ForwardArgs& args, const LaneCall& call, ErrorCode code, const char* text) {
    const Result<int64_t> ran = bound_->Forward(args, call);
    ASSERT_FALSE(ran.has_value());
    EXPECT_EQ(ran.error().code, code) << ToText(ran.error());
    EXPECT_THAT(ToText(ran.error()), HasSubstr(text));
  };
  const ForwardArgs good = ForwardTensors();
  ForwardArgs args = good;
  std::vector<std::byte> host(4 * 300 * 128 * 2 + 16);
  args.q.data = host.data() + (16 - reinterpret_cast<uintptr_t>(host.data()) % 16);
  expect(args, {}, ErrorCode::kTensorMismatch, "not a GPU's");
  args.q.space = {};
  expect(args, {}, ErrorCode::kTensorMismatch, "memory of gpu:0 expected, got host");
  args = good;
  args.k = Make(2, 300, 128, 1);
  expect(args, {}, ErrorCode::kTensorMismatch, "memory of GPU 1");
  args = good;
  args.v = Make(2, 200, 128);
  args.v.head_stride = 300 * 128;
  expect(args, {}, ErrorCode::kTensorMismatch, "were allocated");
  args = good;
  args.q.data += 2;
  expect(args, {}, ErrorCode::kTensorMismatch, "multiples of 16 bytes");
  args = good;
  args.o = args.q;
  expect(args, {}, ErrorCode::kTensorMismatch, "shares some with");
  args = good;
  args.o.type = ElementType::kF32;
  expect(args, {}, ErrorCode::kTensorMismatch, "o");
  expect(good, {.stream = fake_.MakeStream(1)}, ErrorCode::kBadArgument, "another context");
  EXPECT_TRUE(fake_.launches.empty());
  EXPECT_TRUE(bound_->Forward(good, {}).has_value());
}

TEST_F(CudaLane, FailuresOfTheDriver_AreTheEnginesErrors) {
  fake_.FailNext("memory_alloc", kDriverOutOfMemory);
  const Status no_memory = Bind(MakeContract());
  ASSERT_FALSE(no_memory.has_value());
  EXPECT_EQ(no_memory.error().code, ErrorCode::kTooLarge) << ToText(no_memory.error());
  ASSERT_TRUE(Bind(MakeContract()).has_value());
  const ForwardArgs args = ForwardTensors();
  fake_.FailNext("launch", 701);
  const Result<int64_t> once = bound_->Forward(args, {});
  ASSERT_FALSE(once.has_value());
  EXPECT_EQ(once.error().code, ErrorCode::kDeviceFailed);
  EXPECT_THAT(ToText(once.error()), AllOf(HasSubstr("CUDA_ERROR_FAKE"), HasSubstr("tessera_forward")));
  EXPECT_TRUE(bound_->Forward(args, {}).has_value()) << "usable afterwards";
  fake_.FailNext("pointer_attributes", 700, true);
  const Result<int64_t> lost = bound_->Forward(args, {});
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::kDeviceLost);
}

TEST_F(CudaLane, HostTensors_AreCopiedOnlyWhereTheCallAllowsIt) {
  ASSERT_TRUE(Bind(MakeContract()).has_value());
  const tessera::TensorMap inputs = MakeInputs(contract_, 1, false);
  Tensor o = Tensor::Zeros(ElementType::kBf16, {1, 4, 300, 128});
  std::vector<float> lse(4 * 300);
  ForwardArgs args;
  args.q = DenseView(inputs.at("q"));
  args.k = DenseView(inputs.at("k"));
  args.v = DenseView(inputs.at("v"));
  args.o = DenseView(o);
  args.lse = lse;
  EXPECT_FALSE(bound_->Forward(args, {}).has_value());
  int64_t copied = 0;
  const Result<int64_t> ran = bound_->Forward(args, {.may_copy = true, .copied_bytes = &copied});
  ASSERT_TRUE(ran.has_value()) << ToText(ran.error());
  EXPECT_EQ(copied, (4 + 2 + 2 + 4) * 300 * 128 * 2 + 4 * 300 * 4);
  // What the kernel would read is what the host has.
  const auto* q = reinterpret_cast<const std::byte*>(forward_params->q.words[0]);
  EXPECT_EQ(fake_.calls["stream_finish"], 1);
  EXPECT_NE(q, inputs.at("q").bytes.data());
}

TEST_F(CudaLane, Contexts_TheCallersCurrentOneIsUsed) {
  fake_.driver().context_push(fake_.context(1));
  const auto lane = MakeCudaLane(state_, {.memory = {MemoryKind::kGpu, 1}});
  Result<PlanResult> made = MakePlan(contract_, batch_, target_, {});
  ASSERT_TRUE(made.has_value());
  const auto bound = lane->Bind({contract_, made->plan.view(), target_, kBoth});
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  EXPECT_EQ((*bound)->Describe().device.memory, "gpu:1");
  Context current = nullptr;
  fake_.driver().context_current(&current);
  EXPECT_EQ(current, fake_.context(1));
}

TEST(CudaKernels, EveryRow_HasItsCubin) {
  if (EmbeddedCubins().empty()) GTEST_SKIP() << "this build has no CUDA kernels: it was made without nvcc";
  ASSERT_EQ(EmbeddedCubins().size(), KernelRows().size());
  for (size_t i = 0; i < KernelRows().size(); ++i) {
    const Cubin& cubin = EmbeddedCubins()[i];
    EXPECT_EQ(cubin.name, KernelRows()[i].name);
    ASSERT_GT(cubin.bytes.size(), 64U);
    EXPECT_EQ(std::memcmp(cubin.bytes.data(),
                          "\x7f"
                          "ELF",
                          4),
              0);
    const std::string_view text(reinterpret_cast<const char*>(cubin.bytes.data()), cubin.bytes.size());
    EXPECT_NE(text.find(cubin.name), std::string_view::npos) << "no function of that name";
  }
}

}  // namespace
}  // namespace tessera::lanes::cuda
