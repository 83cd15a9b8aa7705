// The lane on a GPU's own memory, by the engine: what calls on device pointers, streams and captured graphs give, and
// what a call costs the host, which is printed. Needs a Hopper GPU; the conformance suite has the numbers' correctness.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lanes/cuda/driver.h"
#include "support/random_mask.h"
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

// Any mask for each head, on lengths of one to a few tiles; a sparse one more often than not.
Contract RandomContract(std::mt19937_64& rng) {
  const DType dtypes[] = {DType::kBf16, DType::kF16};
  const std::pair<int64_t, int64_t> dims[] = {{64, 64}, {128, 128}, {128, 128}, {192, 128}, {256, 256}};
  const auto [dim_qk, dim_v] = dims[rng() % std::size(dims)];
  const int64_t kv_heads = RandomInt(rng, 1, 3);
  Contract contract;
  contract.shape = {.batch = RandomInt(rng, 1, 2),
                    .q_len = RandomInt(rng, 1, 700),
                    .kv_len = RandomInt(rng, 1, 700),
                    .num_q_heads = kv_heads * RandomInt(rng, 1, 3),
                    .num_kv_heads = kv_heads,
                    .dim_qk = dim_qk,
                    .dim_v = dim_v,
                    .dtype = dtypes[rng() % 2]};
  Shape& s = contract.shape;
  if (rng() % 2 == 0) s.kv_len = s.q_len;
  // Few rows and long ones, which are cut into parts.
  if (rng() % 4 == 0) (rng() % 2 == 0 ? s.q_len : s.kv_len) = RandomInt(rng, 1500, 4000);
  RandomMaskOptions options;
  options.q_len = s.q_len;
  options.kv_len = s.kv_len;
  options.documents = options.valid = options.sink_document = s.q_len == s.kv_len;
  options.bitmap = rng() % 4 == 0;
  const int64_t masks = rng() % 2 == 0 ? 1 : s.num_q_heads;
  for (int64_t i = 0; i < masks; ++i) contract.mask.heads.push_back(RandomMask(rng, options));
  contract.mask.offset = s.kv_len - s.q_len + RandomInt(rng, -200, 200);
  contract.score.scale = 0.1;
  contract.score.softcap = rng() % 3 == 0 ? 20.0 : 0.0;
  return contract;
}

Batch RandomBatch(std::mt19937_64& rng, const Contract& contract) {
  const MaskFacts facts = DescribeMask(contract).value();
  const Shape& s = contract.shape;
  Batch batch;
  if (facts.needs_documents) batch = MakeBatch(contract, static_cast<int32_t>(RandomInt(rng, 1, s.q_len)));
  if (facts.needs_valid) {
    batch.valid_tokens.emplace();
    for (int64_t b = 0; b < s.batch; ++b) batch.valid_tokens->push_back(RandomInt(rng, 0, s.q_len));
  }
  return batch;
}

bool HasNan(const std::vector<std::byte>& bytes, DType dtype) {
  const uint16_t infinity = dtype == DType::kBf16 ? 0x7f80 : 0x7c00;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, &bytes[i], 2);
    if ((bits & 0x7fff) > infinity) return true;
  }
  return false;
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
    FreeTensors();
  }

  DevicePointer Allocate(size_t bytes) {
    DevicePointer at = 0;
    EXPECT_EQ(driver_->memory_alloc(&at, bytes), kDriverSuccess);
    memory_.push_back(at);
    return at;
  }
  void FreeTensors() {
    for (const DevicePointer at : memory_) driver_->memory_free(at);
    memory_.clear();
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

  void ExpectSameBits(const Contract& contract, const Batch& batch, bool has_parts);

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

// Every run's gradients are compared, beside another stream's work, which changes which of the multiprocessors is free
// when.
void OnGpu::ExpectSameBits(const Contract& contract, const Batch& batch, bool has_parts) {
  const tessera::TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  const Result<Attention> attention = engine_.Prepare(contract, target_, options_);
  ASSERT_TRUE(attention.has_value());
  Result<PlanResult> plan = attention->Plan(batch);
  ASSERT_TRUE(plan.has_value()) << ToText(plan.error());
  const Result<Bound> bound = attention->Bind(std::move(plan->plan));
  ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
  const RunTensors tensors = MakeTensors(contract, inputs);
  Receipt receipt;
  ASSERT_TRUE(bound->Forward(tensors, {.stream = stream_, .receipt = &receipt}).has_value());
  ASSERT_EQ(receipt.kernel.find("join_") != std::string::npos, has_parts) << receipt.kernel;
  Stream other = nullptr;
  ASSERT_EQ(driver_->stream_create(&other, kStreamNonBlocking), kDriverSuccess);
  const RunTensors disturbance = MakeTensors(contract, inputs);
  const std::array<std::pair<const char*, const TensorRef*>, 3> gradients{
      {{"q", &tensors.dq}, {"k", &tensors.dk}, {"v", &tensors.dv}}};
  std::array<std::vector<std::byte>, 3> first;
  for (int round = 0; round < 1000; ++round) {
    if (round % 3 == 0) {
      ASSERT_TRUE(bound->Forward(disturbance, {.stream = other}).has_value());
    }
    ASSERT_TRUE(bound->Backward(tensors, {.stream = stream_}).has_value());
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto& [like, ref] = gradients[i];
      std::vector<std::byte> now = Download(*ref, inputs.at(like).bytes.size());
      if (round == 0) {
        ASSERT_FALSE(HasNan(now, contract.shape.dtype)) << "d" << like;
        first[i] = std::move(now);
      } else {
        ASSERT_TRUE(now == first[i]) << "d" << like << " of round " << round;
      }
    }
  }
  EXPECT_EQ(driver_->stream_finish(other), kDriverSuccess);
  driver_->stream_destroy(other);
}

// 384 rows of queries and 192 of keys, so that CTAs, which are as many as multiprocessors, take further ones by ticket.
TEST_F(OnGpu, ManyBackwards_SameBits) {
  const Contract contract = MakeContract(300, 64);
  ExpectSameBits(contract, MakeBatch(contract, 111), false);
}

TEST_F(OnGpu, ManyBackwardsOfParts_SameBits) {
  Contract contract = MakeContract(8192, 2);
  contract.shape.batch = 1;
  ExpectSameBits(contract, MakeBatch(contract, 7000), true);
}

// A stage that one side skips and the other waits for is a kernel that never ends, which the test's time limit finds;
// a row that nobody takes is left as it was, which is NaN. TESSERA_CUDA_PLANS=10000 looks longer.
TEST_F(OnGpu, RandomPlans_EndAndWriteEveryRow) {
  std::mt19937_64 rng(PrintedSeed());
  const char* given = std::getenv("TESSERA_CUDA_PLANS");
  const int rounds = given != nullptr ? std::atoi(given) : 300;
  for (int round = 0; round < rounds; ++round) {
    const Contract contract = RandomContract(rng);
    SCOPED_TRACE(testing::Message() << "round " << round << "\n" << ToToml(contract));
    const Batch batch = RandomBatch(rng, contract);
    const Result<Attention> attention = engine_.Prepare(contract, target_, options_);
    ASSERT_TRUE(attention.has_value()) << ToText(attention.error());
    Result<PlanResult> plan = attention->Plan(batch);
    ASSERT_TRUE(plan.has_value()) << ToText(plan.error());
    const Result<Bound> bound = attention->Bind(std::move(plan->plan));
    ASSERT_TRUE(bound.has_value()) << ToText(bound.error());
    const tessera::TensorMap inputs = MakeInputs(contract, rng(), true);
    const RunTensors tensors = MakeTensors(contract, inputs);
    ASSERT_TRUE(bound->Forward(tensors, {.stream = stream_}).has_value());
    ASSERT_TRUE(bound->Backward(tensors, {.stream = stream_}).has_value());
    for (const auto& [name, ref] : {std::pair<const char*, const TensorRef*>{"do", &tensors.o},
                                    {"q", &tensors.dq},
                                    {"k", &tensors.dk},
                                    {"v", &tensors.dv}}) {
      ASSERT_FALSE(HasNan(Download(*ref, inputs.at(name).bytes.size()), contract.shape.dtype)) << "like " << name;
    }
    FreeTensors();
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

  // Another batch's plan in the same place: the graph runs it.
  const Result<Bound> fresh = attention->Bind(std::move(attention->Plan(MakeBatch(contract, 77))->plan));
  ASSERT_TRUE(fresh.has_value()) << ToText(fresh.error());
  ASSERT_TRUE(fresh->Forward(tensors, {.stream = stream_}).has_value());
  ASSERT_TRUE(fresh->Backward(tensors, {.stream = stream_}).has_value());
  const Result<Bound> other =
      attention->Rebind(*bound, std::move(attention->Plan(MakeBatch(contract, 77))->plan), stream_);
  ASSERT_TRUE(other.has_value()) << ToText(other.error());
  ASSERT_EQ(launch(ready, stream_), 0);
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
