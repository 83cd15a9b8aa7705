// One compilation on several devices, from several threads; programs that span devices; buffers that a run takes over.
#include <atomic>
#include <random>
#include <thread>

#include "pjrt/plugin_test.h"
#include "support/seed.h"

namespace tessera::pjrt {
namespace {

using Devices = ClientTest;
using Donation = ClientTest;

TEST_F(Devices, OneCompilation_RunsOnEach) {
  const Executable program = Compiled(kMulAdd, MulAddOptions());
  for (const int64_t device : {1, 0, 1}) {
    const float value = static_cast<float>(device + 2);
    const Buffer a = Uploaded<float>(F32({2, 3}), std::vector<float>(6, value), device);
    const std::vector<const Buffer*> args = {&a, &a};
    const Result<std::vector<Buffer>> outputs = program.Execute(args, {.device = device});
    ASSERT_TRUE(outputs) << ToText(outputs.error());
    EXPECT_EQ((*outputs)[0].device(), device);
    EXPECT_EQ(Downloaded<float>((*outputs)[0]), std::vector<float>(6, value * value + value));
    // What it gave is on that device, and so can go in again.
    const std::vector<const Buffer*> again = {&(*outputs)[0], &a};
    EXPECT_TRUE(program.Execute(again, {.device = device}));
    ExpectError(program.Execute(again, {.device = 1 - device}), ErrorCode::kProgramMismatch, "the buffer is on device");
  }
}

TEST_F(Devices, BoundProgram_RunsThereOnly) {
  CompileOptions options = MulAddOptions();
  options.device = 1;
  const Executable program = Compiled(kMulAdd, options);
  const Buffer a = Uploaded<float>(F32({2, 3}), std::vector<float>(6, 2), 1);
  const std::vector<const Buffer*> args = {&a, &a};
  const Result<std::vector<Buffer>> outputs = program.Execute(args, {.device = 1});
  ASSERT_TRUE(outputs) << ToText(outputs.error());
  EXPECT_EQ(Downloaded<float>((*outputs)[0]), std::vector<float>(6, 6));
  ExpectError(program.Execute(args), ErrorCode::kProgramMismatch,
              "compiled for device 1 alone; device 0 was asked for");
  options.device = 2;
  ExpectError(client().Compile(kMulAdd, options), ErrorCode::kBadArgument, "no device of this client has id 2");
}

// Each thread has its own numbers, and each pair of threads shares a program and not a device.
TEST_F(Devices, TwoThreadsOnTwoDevices_DoNotMix) {
  const uint64_t seed = PrintedSeed();
  const Executable program = Compiled(kMulAdd, MulAddOptions());
  std::atomic<int> wrong = 0;
  const auto work = [&](int64_t device) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(device));
    for (int i = 0; i < 200; ++i) {
      std::vector<float> a(6), b(6), expected(6), got(6);
      for (size_t j = 0; j < 6; ++j) {
        a[j] = static_cast<float>(random() % 1000);
        b[j] = static_cast<float>(random() % 1000);
        expected[j] = a[j] * b[j] + a[j];
      }
      const Result<Buffer> left = client().Upload(F32({2, 3}), std::as_bytes(std::span(a)), device);
      const Result<Buffer> right = client().Upload(F32({2, 3}), std::as_bytes(std::span(b)), device);
      if (!left || !right) {
        ++wrong;
        continue;
      }
      const std::vector<const Buffer*> args = {&*left, &*right};
      const Result<std::vector<Buffer>> outputs = program.Execute(args, {.device = device});
      if (!outputs || !(*outputs)[0].Download(std::as_writable_bytes(std::span(got))) || got != expected) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (const int64_t device : {0, 1, 0, 1}) threads.emplace_back(work, device);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Devices, ThreadsThatAskAtOnce_GetOnePluginAndCompileBothAtOnce) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const Result<const Plugin*> own = Plugin::Load(path());
      if (!own || *own != &plugin()) ++wrong;
      if (!client().Compile(kMulAdd, MulAddOptions())) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// a . b with the contracted dimension cut in two: each device has half of it, and the sum goes over both.
const std::string kSplitDot =
    R"(module @split_dot attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  func.func @main(%a: tensor<2x4xf32> {mhlo.sharding = "{devices=[1,2]<=[2]}"},
                  %b: tensor<4x2xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"})
      -> (tensor<2x2xf32> {mhlo.sharding = "{replicated}"}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<2x4xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }
})";

TEST_F(Devices, PartitionedProgram_RunsOnBothAndShowsItsCollective) {
  const CompileOptions options = {
      .num_partitions = 2, .use_spmd = true, .device_ids = {0, 1}, .inputs = {F32({2, 2}), F32({2, 2})}};
  const Executable program = Compiled(kSplitDot, options);
  const Result<OptimizedProgram> inside = program.Optimized();
  ASSERT_TRUE(inside) << ToText(inside.error());
  EXPECT_EQ(inside->module_name.substr(0, 9), "split_dot");
  EXPECT_EQ(inside->collectives, (std::map<std::string, int64_t>{{"all-reduce", 1}}));
  const std::vector<std::string> shardings = {"{devices=[1,2]<=[2]}", "{devices=[2,1]<=[2]}", "{replicated}"};
  // Some instructions carry theirs too; which, is the plugin's affair.
  ASSERT_GE(inside->shardings.size(), 3u);
  EXPECT_EQ(std::vector<std::string>(inside->shardings.begin(), inside->shardings.begin() + 3), shardings);

  const Buffer a0 = Uploaded<float>(F32({2, 2}), {1, 2, 5, 6}, 0);
  const Buffer a1 = Uploaded<float>(F32({2, 2}), {3, 4, 7, 8}, 1);
  const Buffer b0 = Uploaded<float>(F32({2, 2}), {1, 0, 0, 1}, 0);
  const Buffer b1 = Uploaded<float>(F32({2, 2}), {2, 0, 0, 2}, 1);
  const std::vector<std::vector<const Buffer*>> args = {{&a0, &b0}, {&a1, &b1}};
  const Result<std::vector<Launched>> all = program.ExecuteOnAll(args);
  ASSERT_TRUE(all) << ToText(all.error());
  ASSERT_EQ(all->size(), 2u);
  for (const Launched& one : *all) {
    ASSERT_TRUE(one.done.Await());
    EXPECT_EQ(Downloaded<float>(one.outputs[0]), (std::vector<float>{7, 10, 19, 22}));
  }
  EXPECT_EQ((*all)[1].outputs[0].device(), 1);

  ExpectError(program.Execute(args[0]), ErrorCode::kProgramMismatch, "runs on 2 devices at once");
  ExpectError(program.ExecuteOnAll(std::span(args).first(1)), ErrorCode::kProgramMismatch,
              "arguments for 1 were given");
  const std::vector<std::vector<const Buffer*>> swapped = {{&a1, &b1}, {&a0, &b0}};
  ExpectError(program.ExecuteOnAll(swapped), ErrorCode::kProgramMismatch,
              "runs on device 0; the buffer is on device 1");
}

TEST_F(Devices, ShardyProgram_IsPartitionedToo) {
  const std::string mlir = R"(module @shardy {
    sdy.mesh @mesh = <["x"=2]>
    func.func @main(%a: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<2xf32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
          : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }
  })";
  const Executable program = Compiled(
      mlir, {.num_partitions = 2, .use_spmd = true, .use_shardy = true, .device_ids = {0, 1}, .inputs = {F32({2, 2})}});
  const Result<OptimizedProgram> inside = program.Optimized();
  ASSERT_TRUE(inside) << ToText(inside.error());
  EXPECT_EQ(inside->collectives.count("all-reduce"), 1u);
  const Buffer a0 = Uploaded<float>(F32({2, 2}), {1, 2, 3, 4}, 0);
  const Buffer a1 = Uploaded<float>(F32({2, 2}), {5, 6, 7, 8}, 1);
  const std::vector<std::vector<const Buffer*>> args = {{&a0}, {&a1}};
  const Result<std::vector<Launched>> all = program.ExecuteOnAll(args);
  ASSERT_TRUE(all) << ToText(all.error());
  EXPECT_EQ(Downloaded<float>((*all)[0].outputs[0]), (std::vector<float>{16, 20}));
}

// The first input's memory becomes the output's.
const std::string kInPlace = R"(module @in_place {
  func.func @main(%a: tensor<1024xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<1024xf32>) -> tensor<1024xf32> {
    %0 = stablehlo.add %a, %b : tensor<1024xf32>
    return %0 : tensor<1024xf32>
  }
})";

TEST_F(Donation, DonatedBuffer_IsGone) {
  const Executable program = Compiled(kInPlace, {.inputs = {F32({1024}), F32({1024})}});
  EXPECT_EQ(program.Figures().value().alias_bytes, 4096);
  const Buffer a = Uploaded<float>(F32({1024}), std::vector<float>(1024, 1));
  const Buffer b = Uploaded<float>(F32({1024}), std::vector<float>(1024, 2));
  const std::vector<const Buffer*> args = {&a, &b};
  EXPECT_FALSE(a.IsDonated().value());
  const Result<std::vector<Buffer>> outputs = program.Execute(args);
  ASSERT_TRUE(outputs) << ToText(outputs.error());
  EXPECT_TRUE(a.IsDonated().value());
  EXPECT_FALSE(b.IsDonated().value());
  EXPECT_EQ(Downloaded<float>((*outputs)[0]), std::vector<float>(1024, 3));
  ExpectError(program.Execute(args), ErrorCode::kProgramMismatch, "at input 0: the buffer was donated");
  std::vector<std::byte> bytes(4096);
  ExpectError(a.Download(bytes), ErrorCode::kProgramMismatch, "donated");
  EXPECT_EQ(Downloaded<float>(b), std::vector<float>(1024, 2));
}

TEST_F(Donation, DoNotDonate_KeepsIt) {
  const Executable program = Compiled(kInPlace, {.inputs = {F32({1024}), F32({1024})}});
  const Buffer a = Uploaded<float>(F32({1024}), std::vector<float>(1024, 1));
  const std::vector<const Buffer*> args = {&a, &a};
  for (int i = 0; i < 3; ++i) {
    const Result<std::vector<Buffer>> outputs = program.Execute(args, {.do_not_donate = {0}});
    ASSERT_TRUE(outputs) << ToText(outputs.error());
    EXPECT_EQ(Downloaded<float>((*outputs)[0]), std::vector<float>(1024, 2));
  }
  EXPECT_EQ(Downloaded<float>(a), std::vector<float>(1024, 1));
}

// A buffer cannot be taken over and read in the same run.
TEST_F(Donation, SameBufferTwice_IsAnError) {
  const Executable program = Compiled(kInPlace, {.inputs = {F32({1024}), F32({1024})}});
  const Buffer a = Uploaded<float>(F32({1024}), std::vector<float>(1024, 1));
  const std::vector<const Buffer*> args = {&a, &a};
  const Result<std::vector<Buffer>> outputs = program.Execute(args);
  ASSERT_FALSE(outputs);
  EXPECT_EQ(outputs.error().code, ErrorCode::kPluginFailed) << ToText(outputs.error());
}

}  // namespace
}  // namespace tessera::pjrt
