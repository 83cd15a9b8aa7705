// Calls of attention from a program on a GPU, as XLA makes them: device addresses and a stream in a frame. The driver
// is one that only writes down, so that what is launched, on which memory and in whose order is what is seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "cuda/fake_lanes.h"
#include "engine/state.h"
#include "model/choose.h"
#include "model/definition.h"
#include "model/model_fixture.h"

namespace tessera {
namespace {

namespace cuda = lanes::cuda;
namespace ffi = pjrt::ffi;
using testing::HasSubstr;

// What a plugin hands to a function.
class Frame {
 public:
  explicit Frame(void* stream) {
    given_stream = stream;
    last_said.clear();
    api_.struct_size = sizeof(api_);
    api_.error_create = [](ffi::ErrorCreateArgs* args) {
      last_said = args->message;
      return reinterpret_cast<ffi::Error*>(&last_said);
    };
    api_.stream_get = [](ffi::StreamArgs* args) -> ffi::Error* {
      if (given_stream == nullptr) return reinterpret_cast<ffi::Error*>(&last_said);
      args->stream = given_stream;
      return nullptr;
    };
    api_.error_text = [](ffi::ErrorTextArgs* args) { args->message = "no stream here"; };
    api_.error_destroy = [](ffi::ErrorDestroyArgs*) {};
  }
  Frame& Operand(std::byte* data, std::vector<int64_t> dims) { return Add(operands_, data, std::move(dims)); }
  Frame& Result(std::byte* data, std::vector<int64_t> dims) { return Add(results_, data, std::move(dims)); }
  Frame& Number(const char* name, int64_t value) {
    numbers_.push_back(value);
    names_.push_back({name, std::strlen(name)});
    scalars_.push_back({5, &numbers_.back()});
    return *this;
  }
  // The text of the error, or nothing.
  std::string Call(pjrt::Handler handler) {
    std::vector<void*> operands, results, items;
    std::vector<ffi::Name*> names;
    for (ffi::Buffer& one : operands_) operands.push_back(&one);
    for (ffi::Buffer& one : results_) results.push_back(&one);
    for (ffi::Scalar& one : scalars_) items.push_back(&one);
    for (ffi::Name& one : names_) names.push_back(&one);
    std::vector<uint32_t> buffers(16, 1), numbers(16, 3);
    ffi::Frame frame{};
    frame.struct_size = sizeof(frame);
    frame.api = &api_;
    frame.stage = 3;
    frame.operands = {sizeof(ffi::List), nullptr, static_cast<int64_t>(operands.size()), buffers.data(),
                      operands.data()};
    frame.results = {sizeof(ffi::List), nullptr, static_cast<int64_t>(results.size()), buffers.data(), results.data()};
    frame.attributes = {sizeof(ffi::Attributes), nullptr,      static_cast<int64_t>(items.size()),
                        numbers.data(),          names.data(), items.data()};
    return handler(&frame) == nullptr ? "" : last_said;
  }

 private:
  Frame& Add(std::deque<ffi::Buffer>& to, std::byte* data, std::vector<int64_t> dims) {
    dims_.push_back(std::move(dims));
    to.push_back(
        {sizeof(ffi::Buffer), nullptr, 16, data, static_cast<int64_t>(dims_.back().size()), dims_.back().data()});
    return *this;
  }
  static inline void* given_stream = nullptr;
  static inline std::string last_said;
  ffi::Api api_{};
  std::deque<std::vector<int64_t>> dims_;
  std::deque<ffi::Buffer> operands_, results_;
  std::deque<int64_t> numbers_;
  std::deque<ffi::Name> names_;
  std::deque<ffi::Scalar> scalars_;
};

class GpuCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaKernels()) GTEST_SKIP() << "this build has no CUDA kernels: it was made without nvcc";
    rows_ = cuda::LanesOn(fake_);
    engine_ = std::make_unique<Engine>(EngineAccess::Make({}, rows_));
    spec_ = TinySpec();
    spec_.head_dim = 64;
    spec_.row_tokens = 150;
    spec_.sink_logits = true;
    spec_.dtype = DType::kBf16;
  }
  void TearDown() override {
    engine_.reset();
    rows_.clear();
  }
  Result<model::Chosen> Choose() const {
    const TrainerOptions options;
    return model::ChooseAttention(*engine_, layout(), FindTarget("h200").value(), {options.attention, options},
                                  nullptr);
  }
  model::Layout layout() const { return model::MakeLayout(spec_, {}).value(); }
  std::byte* Bytes(int64_t elements, int64_t size) { return fake_.Allocate(static_cast<size_t>(elements * size), 0); }

  cuda::FakeDriver fake_;
  std::vector<LaneRow> rows_;
  std::unique_ptr<Engine> engine_;
  ModelSpec spec_;
};

TEST_F(GpuCalls, TheProgramNamesItsSlot_AndTheSmallestIsTakenAgain) {
  const Result<model::Chosen> first = Choose();
  ASSERT_TRUE(first) << ToText(first.error());
  ASSERT_EQ(first->name, "cuda") << first->reason;
  const auto text = [&](const model::Chosen& chosen) {
    return model::LowerGradients(layout(), *chosen.attention).value().text;
  };
  EXPECT_THAT(text(*first), HasSubstr("mask = 1 : i64, gpu = 0 : i64, slot = 0 : i64"));
  EXPECT_TRUE(first->attention->Inputs(true).empty()) << "nothing of it is the device's to read";
  {
    const Result<model::Chosen> second = Choose();
    ASSERT_TRUE(second);
    EXPECT_THAT(text(*second), HasSubstr("slot = 1 : i64"));
  }
  const Result<model::Chosen> third = Choose();
  ASSERT_TRUE(third);
  EXPECT_THAT(text(*third), HasSubstr("slot = 1 : i64"));
}

TEST_F(GpuCalls, LaunchOnTheProgramsStreamAndMemory) {
  Proves("R84");
  std::mt19937_64 rng(PrintedSeed());
  const Result<model::Chosen> chosen = Choose();
  ASSERT_TRUE(chosen) << ToText(chosen.error());
  Result<std::unique_ptr<model::BoundAttention>> bound = chosen->attention->Bind(DrawRows(rng, spec_), true);
  ASSERT_TRUE(bound) << ToText(bound.error());
  const int64_t tokens = spec_.rows * spec_.row_tokens;
  const int64_t packed = tokens * (spec_.num_q_heads + 2 * spec_.num_kv_heads) * spec_.head_dim;
  const int64_t rows = tokens * spec_.num_q_heads;
  std::byte* qkv = Bytes(packed, 2);
  std::byte* o = Bytes(rows * spec_.head_dim, 2);
  std::byte* lse = Bytes(rows, 4);
  std::byte* sinks = Bytes(spec_.num_q_heads, 4);
  cuda::Stream stream = fake_.MakeStream(0);
  const pjrt::Handler forward = model::AttentionFunctions()[0].handler;
  const pjrt::Handler backward = model::AttentionFunctions()[1].handler;
  const auto ask = [&](void* on) {
    Frame frame(on);
    frame.Operand(qkv, {packed}).Operand(sinks, {spec_.num_q_heads}).Number("mask", 1).Number("slot", 0);
    frame.Result(o, {rows, spec_.head_dim}).Result(lse, {rows});
    return frame.Call(forward);
  };
  EXPECT_EQ(ask(stream), "");
  ASSERT_FALSE(fake_.launches.empty());
  const size_t launched = fake_.launches.size();
  Frame back(stream);
  back.Operand(qkv, {packed}).Operand(o, {rows, spec_.head_dim}).Operand(lse, {rows});
  back.Operand(Bytes(rows * spec_.head_dim, 2), {rows, spec_.head_dim}).Operand(sinks, {spec_.num_q_heads});
  back.Number("mask", 0).Number("slot", 0);
  back.Result(Bytes(packed, 2), {packed}).Result(Bytes(spec_.num_q_heads, 4), {spec_.num_q_heads});
  EXPECT_EQ(back.Call(backward), "");
  EXPECT_GT(fake_.launches.size(), launched);
  for (const cuda::Launched& launch : fake_.launches) EXPECT_EQ(launch.stream, stream) << launch.kernel;

  // What is wrong is an error of the program's, and nothing is launched for it.
  const size_t before = fake_.launches.size();
  EXPECT_THAT(ask(nullptr), HasSubstr("a call has no stream: no stream here"));
  std::vector<std::byte> host(static_cast<size_t>(packed) * 2);
  qkv = host.data();
  EXPECT_THAT(ask(stream), HasSubstr("not a GPU's"));
  bound->reset();
  EXPECT_THAT(ask(stream), HasSubstr("a mask that there is not")) << "no batch is bound any more";
  EXPECT_EQ(fake_.launches.size(), before);
}

TEST_F(GpuCalls, AnotherGpu_FallsBackWithTheReason) {
  spec_.dtype = DType::kF32;
  const Result<model::Chosen> chosen = Choose();
  ASSERT_TRUE(chosen) << ToText(chosen.error());
  EXPECT_EQ(chosen->name, "xla_chunked");
  EXPECT_THAT(chosen->reason, HasSubstr("not cuda: "));
  EXPECT_THAT(chosen->reason, HasSubstr("cuda.dtype"));
}

}  // namespace
}  // namespace tessera
