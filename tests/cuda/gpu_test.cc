// The lane on a GPU's own memory, by the engine: what calls on device pointers, streams and captured graphs give, and
// what a call costs the host, which is printed. Needs a Hopper GPU; the conformance suite has the numbers' correctness.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lanes/cuda/driver.h"
#include "support/seed.h"
#include "tessera/tessera.h"

namespace tessera::lanes::cuda {
namespace {

constexpr MemorySpace kGpu{MemoryKind::kGpu, 0};

Contract MakeContract(int64_t tokens, int64_t heads = 4) {
  Contract contract;
  contract.shape = {.batch = 2,
                    .q_len = tokens,
                    .kv_len = tokens,
                    .num_q_heads = heads,
                    .num_kv_heads = heads / 2,
                    .dim_qk = 128,
                    .dim_v = 128,
                    .dtype = DType::kBf16};
  contract.mask.heads = {ParseMaskExpr("causal and documents").value()};
  contract.score.scale = 0.0883883;
  return contract;
}

Batch MakeBatch(const Contract& contract, int32_t document) {
  Batch batch;
  IdRows ids{contract.shape.batch, contract.shape.q_len, {}};
  for (int64_t i = 0; i < ids.rows * ids.len; ++i) {
    ids.values.push_back(static_cast<int32_t>(i % ids.len) / document);
  }
  batch.doc_ids = std::move(ids);
  return batch;
}

// Device memory of the test's own, in the GPU's primary context.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const LoadedDriver& loaded = LoadDriver();
    if (loaded.driver == nullptr) GTEST_SKIP() << "no GPU: " << loaded.problem;
    driver_ = loaded.driver;
    int count = 0;
    if (driver_->init(0) != kDriverSuccess || driver_->device_count(&count) != kDriverSuccess || count == 0) {
      GTEST_SKIP() << "no GPU: the driver has none";
    }
    int major = 0;
    driver_->device_attribute(&major, kAttributeMajor, 0);
    if (major != 9) GTEST_SKIP() << "no Hopper GPU: compute capability " << major;
    Context context = nullptr;
    ASSERT_EQ(driver_->primary_retain(&context, 0), kDriverSuccess);
    ASSERT_EQ(driver_->context_push(context), kDriverSuccess);
    ASSERT_EQ(driver_->stream_create(&stream_, kStreamNonBlocking), kDriverSuccess);
    options_.backward = true;
    options_.lane = "cuda";
    options_.memory = kGpu;
  }
  void TearDown() override {
    if (driver_ == nullptr || stream_ == nullptr) return;
    driver_->stream_finish(stream_);
    for (const DevicePointer at : memory_) driver_->memory_free(at);
  }

  DevicePointer Allocate(size_t bytes) {
    DevicePointer at = 0;
    EXPECT_EQ(driver_->memory_alloc(&at, bytes), kDriverSuccess);
    memory_.push_back(at);
    return at;
  }
  TensorRef Upload(const Tensor& tensor) {
    const DevicePointer at = Allocate(tensor.bytes.size());
    EXPECT_EQ(driver_->copy_to_device(at, tensor.bytes.data(), tensor.bytes.size(), stream_), kDriverSuccess);
    TensorRef ref = DenseView(tensor);
    ref.data = reinterpret_cast<std::byte*>(at);
    ref.space = kGpu;
    return ref;
  }
  TensorRef Empty(const Tensor& like) {
    Tensor poisoned = like;
    std::fill(poisoned.bytes.begin(), poisoned.bytes.end(), std::byte{0xff});  // NaN
    return Upload(poisoned);
  }
  RunTensors MakeTensors(const Contract& contract, const tessera::TensorMap& inputs) {
    const Shape& s = contract.shape;
    RunTensors t;
    t.q = Upload(inputs.at("q"));
    t.k = Upload(inputs.at("k"));
    t.v = Upload(inputs.at("v"));
    t.dout = Upload(inputs.at("do"));
    t.o = Empty(inputs.at("do"));
    t.dq = Empty(inputs.at("q"));
    t.dk = Empty(inputs.at("k"));
    t.dv = Empty(inputs.at("v"));
    const auto count = static_cast<size_t>(s.batch * s.num_q_heads * s.q_len);
    t.lse = {reinterpret_cast<float*>(Allocate(count * 4)), count};
    return t;
  }
  std::vector<std::byte> Download(const TensorRef& ref, size_t bytes) {
    std::vector<std::byte> host(bytes);
    EXPECT_EQ(driver_->copy_to_host(host.data(), reinterpret_cast<DevicePointer>(ref.data), bytes, stream_),
              kDriverSuccess);
    EXPECT_EQ(driver_->stream_finish(stream_), kDriverSuccess);
    return host;
  }

  const Driver* driver_ = nullptr;
  Stream stream_ = nullptr;
  std::vector<DevicePointer> memory_;
  Engine engine_;
  Target target_ = FindTarget("h200").value();
  AttentionOptions options_;
};

TEST_F(OnGpu, DevicePointers_GiveTheBitsOfCopiedTensors) {
  const Contract contract = MakeContract(700);
  const Batch batch = MakeBatch(contract, 190);
  const tessera::TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  RunOptions copied;
  copied.backward = true;
  copied.lane = "cuda";
  const RunOutcome want = tessera::Run(engine_, contract, batch, inputs, target_, copied);
  ASSERT_FALSE(want.error.has_value()) << ToText(*want.error);
  EXPECT_NE(want.receipt.device.memory.find("bytes copied to gpu:0"), std::string::npos) << want.receipt.device.memory;
  EXPECT_EQ(want.receipt.ran_on, want.receipt.device.name);

  const Result<Attention> attention = engine_.Prepare(contract, target_, options_);
  ASSERT_TRUE(attention.has_value());
  Result<PlanResult> plan = attention->Plan(batch);
  ASSERT_TRUE(plan.has_value());
  const Result<Bound> bound = attention->Bind(std::move(plan->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  const RunTensors tensors = MakeTensors(contract, inputs);
  Receipt receipt;
  const Status forward = bound->Forward(tensors, {.stream = stream_, .receipt = &receipt});
  ASSERT_TRUE(forward.has_value()) << ToText(forward.error());
  EXPECT_EQ(receipt.device.memory, "gpu:0");
  EXPECT_TRUE(CheckReceipt(receipt).empty());
  const Status backward = bound->Backward(tensors, {.stream = stream_});
  ASSERT_TRUE(backward.has_value()) << ToText(backward.error());
  for (const auto& [name, ref] : {std::pair<const char*, const TensorRef*>{"o", &tensors.o},
                                  {"dq", &tensors.dq},
                                  {"dk", &tensors.dk},
                                  {"dv", &tensors.dv}}) {
    const Tensor& wanted = want.outputs.at(name);
    EXPECT_EQ(Download(*ref, wanted.bytes.size()), wanted.bytes) << name;
  }
}

TEST_F(OnGpu, ManyBackwards_SameBits) {
  const Contract contract = MakeContract(900);
  const tessera::TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  const Result<Attention> attention = engine_.Prepare(contract, target_, options_);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan(MakeBatch(contract, 333))->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  const RunTensors tensors = MakeTensors(contract, inputs);
  ASSERT_TRUE(bound->Forward(tensors, {.stream = stream_}).has_value());
  const size_t bytes = inputs.at("k").bytes.size();
  std::vector<std::byte> first;
  for (int round = 0; round < 1000; ++round) {
    ASSERT_TRUE(bound->Backward(tensors, {.stream = stream_}).has_value());
    if (round % 50 != 0) continue;
    std::vector<std::byte> now = Download(tensors.dk, bytes);
    const std::vector<std::byte> dq = Download(tensors.dq, inputs.at("q").bytes.size());
    now.insert(now.end(), dq.begin(), dq.end());
    if (first.empty()) first = now;
    ASSERT_EQ(now, first) << round;
  }
}

TEST_F(OnGpu, CapturedCalls_ReplayIntoTheSameBits) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  using Graph = void*;
  const auto begin = reinterpret_cast<int (*)(Stream, int)>(dlsym(library, "cuStreamBeginCapture_v2"));
  const auto end = reinterpret_cast<int (*)(Stream, Graph*)>(dlsym(library, "cuStreamEndCapture"));
  const auto make =
      reinterpret_cast<int (*)(Graph*, Graph, unsigned long long)>(dlsym(library, "cuGraphInstantiateWithFlags"));
  const auto launch = reinterpret_cast<int (*)(Graph, Stream)>(dlsym(library, "cuGraphLaunch"));
  const Contract contract = MakeContract(500);
  const tessera::TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  const Result<Attention> attention = engine_.Prepare(contract, target_, options_);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan(MakeBatch(contract, 120))->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  const RunTensors tensors = MakeTensors(contract, inputs);
  const RunTensors again = MakeTensors(contract, inputs);
  ASSERT_TRUE(bound->Forward(tensors, {.stream = stream_}).has_value());
  ASSERT_TRUE(bound->Backward(tensors, {.stream = stream_}).has_value());
  Graph graph = nullptr;
  Graph ready = nullptr;
  ASSERT_EQ(begin(stream_, 0), 0);
  const Status forward = bound->Forward(again, {.stream = stream_});
  const Status backward = bound->Backward(again, {.stream = stream_});
  ASSERT_EQ(end(stream_, &graph), 0);
  ASSERT_TRUE(forward.has_value()) << ToText(forward.error());
  ASSERT_TRUE(backward.has_value()) << ToText(backward.error());
  ASSERT_EQ(make(&ready, graph, 0), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(launch(ready, stream_), 0);
  const size_t bytes = inputs.at("q").bytes.size();
  EXPECT_EQ(Download(tensors.o, bytes), Download(again.o, bytes));
  EXPECT_EQ(Download(tensors.dq, bytes), Download(again.dq, bytes));
  EXPECT_EQ(Download(tensors.dk, bytes / 2), Download(again.dk, bytes / 2));
}

TEST_F(OnGpu, HostTimeOfACall_IsPrinted) {
  const Contract contract = MakeContract(256);
  const tessera::TensorMap inputs = MakeInputs(contract, 1, true);
  const Result<Attention> attention = engine_.Prepare(contract, target_, options_);
  ASSERT_TRUE(attention.has_value());
  const Result<Bound> bound = attention->Bind(std::move(attention->Plan(MakeBatch(contract, 64))->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  const RunTensors tensors = MakeTensors(contract, inputs);
  using Clock = std::chrono::steady_clock;
  for (const bool is_forward : {true, false}) {
    std::vector<double> us;
    for (int round = 0; round < 60; ++round) {
      driver_->stream_finish(stream_);
      const auto start = Clock::now();
      for (int i = 0; i < 50; ++i) {
        const Status ok =
            is_forward ? bound->Forward(tensors, {.stream = stream_}) : bound->Backward(tensors, {.stream = stream_});
        ASSERT_TRUE(ok.has_value()) << ToText(ok.error());
      }
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / 50);
    }
    std::sort(us.begin(), us.end());
    fmt::print("host time of a bound {}: median {:.2f} us, least {:.2f} us\n", is_forward ? "forward" : "backward",
               us[us.size() / 2], us.front());
  }
  EXPECT_EQ(driver_->stream_finish(stream_), kDriverSuccess);
}

}  // namespace
}  // namespace tessera::lanes::cuda
