// The client against the CPU plugin: arrays go in and out unchanged, programs compute, and what does not fit is our
// error before it is the plugin's crash.
#include <numeric>
#include <random>

#include "pjrt/plugin_test.h"
#include "support/seed.h"

namespace tessera::pjrt {
namespace {

using Programs = ClientTest;
using Buffers = ClientTest;
using Runs = ClientTest;

TEST_F(Buffers, EveryElementType_ComesBackUnchanged) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  for (int32_t number = 1; number <= 13; ++number) {
    const TensorType type{*ElementTypeOf(number), {3, 1, 5}};
    SCOPED_TRACE(ToText(type));
    std::vector<uint8_t> bytes(type.bytes());
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(type.type == ElementType::kPred ? random() % 2 : random());
    const Buffer buffer = Uploaded(type, bytes, number % 2);
    EXPECT_EQ(buffer.type(), type);
    EXPECT_EQ(buffer.device(), number % 2);
    EXPECT_EQ(Downloaded<uint8_t>(buffer), bytes);
  }
}

TEST_F(Buffers, ScalarsAndEmptyArrays_ComeBack) {
  EXPECT_EQ(Downloaded<float>(Uploaded<float>(F32({}), {2.5f})), std::vector<float>{2.5f});
  const Buffer empty = Uploaded<float>(F32({3, 0, 2}), {});
  EXPECT_EQ(empty.type(), F32({3, 0, 2}));
  EXPECT_TRUE(Downloaded<float>(empty).empty());
}

TEST_F(Buffers, StridedData_IsTakenAsItLies) {
  // The columns of a 3 x 4 array, every second one: a transposed view with a gap.
  std::vector<float> data(12);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const std::vector<int64_t> strides = {2 * sizeof(float), 4 * sizeof(float)};
  const Result<Buffer> buffer = client().Upload(F32({2, 3}), std::as_bytes(std::span(data)), strides);
  ASSERT_TRUE(buffer) << ToText(buffer.error());
  EXPECT_EQ(Downloaded<float>(*buffer), (std::vector<float>{0, 4, 8, 2, 6, 10}));
  const auto refused = [&](const std::vector<int64_t>& wrong, const std::string& text) {
    ExpectError(client().Upload(F32({2, 3}), std::as_bytes(std::span(data)), wrong), ErrorCode::kProgramMismatch, text);
  };
  refused({2 * sizeof(float)}, "needs 2 strides; 1 were given");
  refused({4 * sizeof(float), 5 * sizeof(float)}, "reach beyond the 48 bytes");
  refused({-4, 4}, "negative");
  refused({int64_t{1} << 62, int64_t{1} << 62}, "reach beyond");
}

TEST_F(Buffers, WrongSizesAndDevices_AreRefused) {
  const std::vector<float> six(6);
  const auto bytes = std::as_bytes(std::span(six));
  ExpectError(client().Upload(F32({2, 2}), bytes), ErrorCode::kProgramMismatch, "f32[2,2] has 16 bytes; 24 were given");
  ExpectError(client().Upload(F32({2, -3}), bytes), ErrorCode::kProgramMismatch, "negative");
  ExpectError(client().Upload(F32({int64_t{1} << 40, int64_t{1} << 40}), bytes), ErrorCode::kProgramMismatch,
              "counted");
  ExpectError(client().Upload(F32({2, 3}), bytes, 2), ErrorCode::kProgramMismatch, "device 2 of 2");
  ExpectError(client().Upload(F32({2, 3}), bytes, -1), ErrorCode::kProgramMismatch, "device -1 of 2");
  ExpectError(client().Upload({static_cast<ElementType>(99), {6}}, bytes), ErrorCode::kProgramMismatch, "type 99");
  const Buffer buffer = Uploaded(F32({2, 3}), six);
  std::vector<std::byte> small(20);
  ExpectError(buffer.Download(small), ErrorCode::kProgramMismatch, "has 24 bytes; 20 were given");
  ExpectError(Buffer().Download(small), ErrorCode::kProgramMismatch, "empty");
}

TEST_F(Buffers, UploadedData_MayGoAtOnce) {
  std::vector<float> data(1 << 20, 1.0f);
  const Buffer buffer = Uploaded(F32({1 << 20}), data);
  std::fill(data.begin(), data.end(), 2.0f);
  EXPECT_EQ(Downloaded<float>(buffer), std::vector<float>(1 << 20, 1.0f));
}

TEST_F(Buffers, LentMemory_IsUsedWhereItLiesAndFreeAfterwards) {
  constexpr int64_t kSize = 1 << 16;
  struct alignas(64) Line {
    float values[16];
  };
  std::vector<Line> memory(kSize / 16);
  const std::span<float> data(memory[0].values, kSize);
  std::iota(data.begin(), data.end(), 1.0f);
  const std::vector<float> before(data.begin(), data.end());
  {
    const Result<LentBuffer> first = client().Lend(F32({kSize}), std::as_bytes(data));
    ASSERT_TRUE(first) << ToText(first.error());
    ASSERT_TRUE(first->buffer.Await());
    EXPECT_EQ(first->buffer.Address().value(), std::as_bytes(data).data()) << "no copy was made";
    EXPECT_EQ(Downloaded<float>(first->buffer), before);
    // What one device has can be lent to another.
    const Result<LentBuffer> second = client().Lend(F32({kSize}), std::as_bytes(data), 1);
    ASSERT_TRUE(second) << ToText(second.error());
    EXPECT_EQ(second->buffer.device(), 1);
    EXPECT_EQ(Downloaded<float>(second->buffer), before);
  }
  std::fill(data.begin(), data.end(), 0.0f);  // nobody reads it any more
}

TEST_F(Buffers, LentStridesAndOddAddresses_AreCopied) {
  const std::vector<float> data = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data));
  const int64_t strides[] = {4, 16};
  const Result<LentBuffer> transposed = client().Lend(F32({4, 2}), bytes, strides);
  ASSERT_TRUE(transposed) << ToText(transposed.error());
  EXPECT_EQ(Downloaded<float>(transposed->buffer), (std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7}));
  const Result<LentBuffer> tail = client().Lend(F32({7}), bytes.subspan(4));
  ASSERT_TRUE(tail) << ToText(tail.error());
  EXPECT_EQ(Downloaded<float>(tail->buffer), (std::vector<float>{1, 2, 3, 4, 5, 6, 7}));
  ExpectError(client().Lend(F32({7}), bytes), ErrorCode::kProgramMismatch, "has 28 bytes; 32 were given");
  ExpectError(client().Lend(F32({4, 3}), bytes, strides), ErrorCode::kProgramMismatch, "reach beyond");
  ExpectError(client().Lend(F32({8}), bytes, 2), ErrorCode::kProgramMismatch, "device 2 of 2");
  ExpectError(Buffer().Address(), ErrorCode::kProgramMismatch, "empty");
}

TEST_F(Programs, Result_IsRight) {
  const Executable program = Compiled(kMulAdd, MulAddOptions());
  ASSERT_EQ(program.outputs().size(), 1u);
  EXPECT_EQ(program.outputs()[0], F32({2, 3}));
  const Buffer a = Uploaded<float>(F32({2, 3}), {1, 2, 3, 4, 5, 6});
  const Buffer b = Uploaded<float>(F32({2, 3}), {2, 2, 2, 3, 3, 3});
  const std::vector<const Buffer*> args = {&a, &b};
  const Result<std::vector<Buffer>> outputs = program.Execute(args);
  ASSERT_TRUE(outputs) << ToText(outputs.error());
  ASSERT_EQ(outputs->size(), 1u);
  EXPECT_EQ((*outputs)[0].type(), F32({2, 3}));
  EXPECT_EQ(Downloaded<float>((*outputs)[0]), (std::vector<float>{3, 6, 9, 16, 20, 24}));
}

TEST_F(Programs, SeveralOutputsOfSeveralTypes_AreToldAndGiven) {
  const std::string mlir = R"(func.func @main(%a: tensor<4xbf16>, %n: tensor<i32>)
      -> (tensor<4xf32>, tensor<i1>, tensor<2x2xbf16>) {
    %0 = stablehlo.convert %a : (tensor<4xbf16>) -> tensor<4xf32>
    %1 = stablehlo.compare EQ, %n, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %2 = stablehlo.reshape %a : (tensor<4xbf16>) -> tensor<2x2xbf16>
    return %0, %1, %2 : tensor<4xf32>, tensor<i1>, tensor<2x2xbf16>
  })";
  const TensorType bf16{ElementType::kBf16, {4}};
  const TensorType s32{ElementType::kS32, {}};
  const Executable program = Compiled(mlir, {.inputs = {bf16, s32}});
  const std::vector<TensorType> expected = {F32({4}), {ElementType::kPred, {}}, {ElementType::kBf16, {2, 2}}};
  EXPECT_EQ(std::vector<TensorType>(program.outputs().begin(), program.outputs().end()), expected);
  const Buffer a = Uploaded<uint16_t>(bf16, {0x3f80, 0x4000, 0x4040, 0xbf80});
  const Buffer n = Uploaded<int32_t>(s32, {7});
  const std::vector<const Buffer*> args = {&a, &n};
  const Result<std::vector<Buffer>> outputs = program.Execute(args);
  ASSERT_TRUE(outputs) << ToText(outputs.error());
  EXPECT_EQ(Downloaded<float>((*outputs)[0]), (std::vector<float>{1, 2, 3, -1}));
  EXPECT_EQ(Downloaded<uint8_t>((*outputs)[1]), std::vector<uint8_t>{1});
  EXPECT_EQ(Downloaded<uint16_t>((*outputs)[2]), (std::vector<uint16_t>{0x3f80, 0x4000, 0x4040, 0xbf80}));
}

TEST_F(Programs, BadText_GivesThePluginsOwnWords) {
  const auto refused = [&](const std::string& mlir, const std::string& text) {
    const Result<Executable> program = client().Compile(mlir, {});
    ExpectError(program, ErrorCode::kPluginFailed, text);
    if (!program) {
      EXPECT_EQ(program.error().where, "PJRT_Client_Compile");
    }
  };
  refused("func.func @main( {", "the plugin answered UNKNOWN: -:1:17: error: expected");
  refused("func.func @main() -> tensor<f32> { %0 = stablehlo.no_such_op : tensor<f32> return %0 : tensor<f32> }",
          "no_such_op");
  refused("", "");
}

TEST_F(Programs, Overrides_ReachTheCompiler) {
  CompileOptions options = MulAddOptions();
  options.overrides["xla_backend_optimization_level"] = int64_t{0};
  EXPECT_TRUE(client().Compile(kMulAdd, options));
  options.overrides["xla_no_such_flag_at_all"] = true;
  ExpectError(client().Compile(kMulAdd, options), ErrorCode::kPluginFailed, "xla_no_such_flag_at_all");
}

TEST_F(Programs, BadOptions_NeverReachThePlugin) {
  const auto refused = [&](CompileOptions options, const std::string& text) {
    ExpectError(client().Compile(kMulAdd, options), ErrorCode::kBadArgument, text);
  };
  refused({.num_replicas = 0}, "0 replicas");
  refused({.num_partitions = -1}, "-1 partitions");
  refused({.num_replicas = int64_t{1} << 40, .num_partitions = int64_t{1} << 40}, "at most");
  refused({.num_partitions = 2, .device_ids = {0}}, "1 device ids were given");
  refused({.num_partitions = 2, .device = 0}, "one device was given");
  refused({.device_ids = {0}, .device = 0}, "both");
  refused({.num_partitions = 2, .device_ids = {1, 1}}, "twice");
  refused({.num_partitions = 2, .device_ids = {0, 7}}, "no device of this client has id 7");
  refused({.num_replicas = 2, .num_partitions = 2}, "this client has 2 devices");
}

TEST_F(Runs, WrongBuffers_AreRefusedByUs) {
  const Executable program = Compiled(kMulAdd, MulAddOptions());
  const Buffer right = Uploaded<float>(F32({2, 3}), std::vector<float>(6));
  const auto refused = [&](const Buffer* second, const std::string& text) {
    const std::vector<const Buffer*> args = {&right, second};
    ExpectError(program.Execute(args), ErrorCode::kProgramMismatch, text);
  };
  // The plugin itself would take this one: the bytes are as many.
  const Buffer integers = Uploaded<int32_t>({ElementType::kS32, {2, 3}}, std::vector<int32_t>(6));
  refused(&integers, "at input 1: the program was declared to take f32[2,3]; the buffer is s32[2,3]");
  const Buffer turned = Uploaded<float>(F32({3, 2}), std::vector<float>(6));
  refused(&turned, "the buffer is f32[3,2]");
  const Buffer elsewhere = Uploaded<float>(F32({2, 3}), std::vector<float>(6), 1);
  refused(&elsewhere, "the buffer is on device 1");
  refused(nullptr, "no buffer");
  const Buffer empty;
  refused(&empty, "no buffer");
  const std::vector<const Buffer*> one = {&right};
  ExpectError(program.Execute(one), ErrorCode::kProgramMismatch, "takes 2 buffers; 1 were given");
  const std::vector<const Buffer*> both = {&right, &right};
  ExpectError(program.Execute(both, {.device = 2}), ErrorCode::kProgramMismatch, "device 2 of 2");
  ExpectError(program.Execute(both, {.do_not_donate = {2}}), ErrorCode::kProgramMismatch, "input 2 of 2");
  EXPECT_TRUE(program.Execute(both));
  ExpectError(Executable().Execute(both), ErrorCode::kProgramMismatch, "empty");
}

// Runs are checked against the declaration; the declaration is checked against the program.
TEST_F(Programs, WrongDeclaration_IsRefused) {
  const auto refused = [&](std::vector<TensorType> inputs, const std::string& text) {
    ExpectError(client().Compile(kMulAdd, {.inputs = std::move(inputs)}), ErrorCode::kProgramMismatch, text);
  };
  refused({}, "0 inputs were declared; the program takes 2");
  refused({F32({2, 3}), F32({2, 3}), F32({})}, "3 inputs were declared");
  refused({F32({2, 3}), F32({3, 2})}, "at input 1: f32[3,2] was declared; the program takes f32[2,3]");
  refused({{ElementType::kS32, {2, 3}}, F32({2, 3})}, "at input 0: s32[2,3] was declared");
  const Result<std::vector<std::byte>> bytes = Compiled(kMulAdd, MulAddOptions()).Serialize();
  ASSERT_TRUE(bytes) << ToText(bytes.error());
  ExpectError(client().Deserialize(*bytes, {.inputs = {F32({2, 3})}}), ErrorCode::kProgramMismatch, "1 inputs");
}

TEST_F(Runs, Events_TellWhenTheWorkIsDone) {
  const Executable program = Compiled(kMulAdd, MulAddOptions());
  const Buffer a = Uploaded<float>(F32({2, 3}), std::vector<float>(6, 3));
  const std::vector<const Buffer*> args = {&a, &a};
  Result<Launched> run = program.ExecuteWithEvent(args);
  ASSERT_TRUE(run) << ToText(run.error());
  ASSERT_TRUE(run->done.Await());
  EXPECT_TRUE(run->done.IsReady().value());
  ASSERT_TRUE(run->outputs[0].Await());
  std::vector<float> values(6);
  Result<Event> done = run->outputs[0].DownloadAsync(std::as_writable_bytes(std::span(values)));
  ASSERT_TRUE(done) << ToText(done.error());
  ASSERT_TRUE(done->Await());
  EXPECT_EQ(values, std::vector<float>(6, 12));
  EXPECT_TRUE(Event().Await());
  EXPECT_TRUE(Event().IsReady().value());
}

// Outputs stay good when the program and its inputs are gone before the work is done.
TEST_F(Runs, Outputs_OutliveProgramAndInputs) {
  const std::string mlir = R"(func.func @main(%a: tensor<300x300xf32>) -> tensor<300x300xf32> {
    %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
        : (tensor<300x300xf32>, tensor<300x300xf32>) -> tensor<300x300xf32>
    %1 = stablehlo.dot_general %0, %a, contracting_dims = [1] x [0]
        : (tensor<300x300xf32>, tensor<300x300xf32>) -> tensor<300x300xf32>
    return %1 : tensor<300x300xf32>
  })";
  std::vector<Buffer> outputs;
  {
    const Executable program = Compiled(mlir, {.inputs = {F32({300, 300})}});
    const Buffer a = Uploaded<float>(F32({300, 300}), std::vector<float>(90'000, 0.5f));
    const std::vector<const Buffer*> args = {&a};
    Result<std::vector<Buffer>> given = program.Execute(args);
    ASSERT_TRUE(given) << ToText(given.error());
    outputs = std::move(*given);
  }
  EXPECT_EQ(Downloaded<float>(outputs[0]), std::vector<float>(90'000, 0.125f * 90'000));
}

TEST_F(Programs, Client_IsOneOfSeveralThatShareNothing) {
  {
    const Result<std::unique_ptr<Client>> other = Client::Create(plugin(), {.cpu_devices = 3});
    ASSERT_TRUE(other) << ToText(other.error());
    EXPECT_EQ((*other)->devices().size(), 3u);
    const std::vector<float> values = {1.0F, 2.0F};
    const Result<Buffer> buffer = (*other)->Upload(F32({2}), std::as_bytes(std::span(values)), 2);
    ASSERT_TRUE(buffer) << ToText(buffer.error());
    EXPECT_EQ(Downloaded<float>(*buffer), values);
  }  // and goes without a word
  EXPECT_EQ(client().platform(), "cpu");
  EXPECT_FALSE(client().platform_version().empty());
  EXPECT_EQ(client().devices()[1].id, 1);
  EXPECT_FALSE(client().devices()[0].kind.empty());
}

}  // namespace
}  // namespace tessera::pjrt
