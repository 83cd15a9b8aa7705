// The protobuf bytes in and out, without any plugin: options as XLA reads them, programs skimmed from any bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lanes/xla/pjrt/compile_options.h"
#include "lanes/xla/pjrt/read_program.h"
#include "lanes/xla/pjrt/wire.h"
#include "pjrt/plugin_test.h"
#include "support/seed.h"

namespace tessera::pjrt {
namespace {

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes += static_cast<char>(value);
  return bytes;
}

Result<OptimizedProgram> Read(std::string_view bytes) {
  return ReadProgram(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// The device ordinal -1, in ten bytes.
const std::string kNoOrdinal = Bytes({8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1});

TEST(CompileOptions, Plain_SaysBothCountsAndPortable) {
  EXPECT_EQ(Encode({}), Bytes({0x1a, 15}) + kNoOrdinal + Bytes({0x20, 1, 0x28, 1, 0x20, 1}));
  EXPECT_EQ(Encode({.portable = false}), Bytes({0x1a, 15}) + kNoOrdinal + Bytes({0x20, 1, 0x28, 1}));
  EXPECT_TRUE(IsPortable({}));
  EXPECT_FALSE(IsPortable({.num_partitions = 2}));
}

TEST(CompileOptions, FourDevicesAndShardy_AreAssignedInOrder) {
  const std::string expected = Bytes({0x1a, 46}) + kNoOrdinal +
                               Bytes({0x20, 1,  0x28, 4, 0x30, 1, 0x4a, 24, 8, 1,    16, 4,  0x1a, 3, 10,   1, 0, 0x1a,
                                      3,    10, 1,    1, 0x1a, 3, 10,   1,  2, 0x1a, 3,  10, 1,    3, 0x98, 1, 1});
  EXPECT_EQ(Encode({.num_partitions = 4, .use_spmd = true, .use_shardy = true, .device_ids = {0, 1, 2, 3}}), expected);
}

TEST(CompileOptions, ReplicasOfPartitions_AreListedByPartition) {
  // Two replicas of two partitions on devices 4 5 | 6 7: partition 0 has 4 and 6.
  const std::string expected =
      Bytes({0x1a, 33}) + kNoOrdinal +
      Bytes({0x20, 2, 0x28, 2, 0x4a, 16, 8, 2, 16, 2, 0x1a, 4, 10, 2, 4, 6, 0x1a, 4, 10, 2, 5, 7});
  EXPECT_EQ(Encode({.num_replicas = 2, .num_partitions = 2, .device_ids = {4, 5, 6, 7}}), expected);
}

TEST(CompileOptions, OneDevice_IsBound) {
  const std::string expected =
      Bytes({0x1a, 26}) + kNoOrdinal + Bytes({0x20, 1, 0x28, 1, 0x4a, 9, 8, 1, 16, 1, 0x1a, 3, 10, 1, 3});
  EXPECT_EQ(Encode({.device = 3}), expected);
}

TEST(CompileOptions, Overrides_OfEachType) {
  const std::string plain = Encode({});
  const auto rest = [&](const OptionValue& value) {
    return Encode({.overrides = {{"k", value}}}).substr(plain.size());
  };
  EXPECT_EQ(rest(std::string("v")), Bytes({0x3a, 8, 10, 1, 'k', 18, 3, 10, 1, 'v'}));
  EXPECT_EQ(rest(true), Bytes({0x3a, 7, 10, 1, 'k', 18, 2, 16, 1}));
  EXPECT_EQ(rest(int64_t{300}), Bytes({0x3a, 8, 10, 1, 'k', 18, 3, 24, 0xac, 2}));
  EXPECT_EQ(rest(1.0), Bytes({0x3a, 14, 10, 1, 'k', 18, 9, 33, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f}));
  // The same options give the same bytes, whatever order they were said in.
  CompileOptions a, b;
  a.overrides["x"] = true;
  a.overrides["y"] = int64_t{1};
  b.overrides["y"] = int64_t{1};
  b.overrides["x"] = true;
  EXPECT_EQ(Encode(a), Encode(b));
  // Declared inputs are ours and not XLA's.
  EXPECT_EQ(Encode({.inputs = {F32({2})}}), plain);
}

// A program as XLA would write it, with one of everything that is read.
std::string SmallProgram() {
  WireWriter tiles;
  for (const int64_t value : {2, 1}) tiles.Packed(value);
  WireWriter sharding;
  sharding.Int(1, 3);
  sharding.Bytes(3, tiles.bytes());
  sharding.Int(4, 1);  // devices, one by one
  sharding.Int(4, 0);
  WireWriter replicated;
  WireWriter pair;
  pair.Int(1, 2);
  pair.Bytes(5, sharding.bytes());
  pair.Bytes(5, replicated.bytes());
  WireWriter call;
  call.Bytes(1, "call.1");
  call.Bytes(2, "custom-call");
  call.Bytes(28, "my_target");
  call.Bytes(40, sharding.bytes());
  WireWriter start;
  start.Bytes(2, "all-gather-start");
  start.Real(99, 1.5);  // a field nobody knows
  WireWriter done;
  done.Bytes(2, "all-gather-done");
  WireWriter computation;
  computation.Bytes(1, "main");
  computation.Bytes(2, call.bytes());
  computation.Bytes(2, start.bytes());
  computation.Bytes(2, done.bytes());
  WireWriter module;
  module.Bytes(1, "small");
  module.Bytes(3, computation.bytes());
  WireWriter shape, program_shape;
  shape.Int(2, 16);
  shape.Bytes(3, tiles.bytes());
  program_shape.Bytes(1, shape.bytes());
  module.Bytes(4, program_shape.bytes());
  module.Bytes(12, pair.bytes());
  module.Bytes(14, replicated.bytes());
  WireWriter whole;
  whole.Bytes(1, module.bytes());
  whole.Bytes(2, "config");
  return whole.bytes();
}

TEST(ReadProgram, SmallProgram_IsCounted) {
  const Result<OptimizedProgram> program = Read(SmallProgram());
  ASSERT_TRUE(program) << ToText(program.error());
  EXPECT_EQ(program->module_name, "small");
  EXPECT_EQ(program->instructions, 3);
  EXPECT_EQ(program->parameters, (std::vector<TensorType>{{ElementType::kBf16, {2, 1}}}));
  EXPECT_EQ(program->opcodes.size(), 3u);
  EXPECT_EQ(program->custom_calls, (std::map<std::string, int64_t>{{"my_target", 1}}));
  EXPECT_EQ(program->collectives, (std::map<std::string, int64_t>{{"all-gather", 1}}));
  const std::vector<std::string> shardings = {"{replicated}", "{{devices=[2,1]1,0}, {replicated}}",
                                              "{devices=[2,1]1,0}"};
  EXPECT_EQ(program->shardings, shardings);
}

TEST(ReadProgram, NoProgram_IsRefusedWithTheReason) {
  const auto refused = [](std::string_view bytes, const std::string& text) {
    ExpectError(Read(bytes), ErrorCode::kPluginFailed, text);
  };
  refused("", "it has no module");
  WireWriter empty;
  empty.Bytes(1, "");
  refused(empty.bytes(), "it has no instruction");
  WireWriter instruction, computation, module, whole;
  instruction.Bytes(1, "nameless");
  computation.Bytes(2, instruction.bytes());
  module.Bytes(3, computation.bytes());
  whole.Bytes(1, module.bytes());
  refused(whole.bytes(), "it has no opcode");
  refused(Bytes({0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}), "longer than what is left");
  refused(Bytes({0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), "more than 64 bits");
  refused(Bytes({0x0b, 0}), "no longer in use");
  refused(Bytes({0x02, 0}), "out of range");
  refused(Bytes({0x0d, 0}), "cut off");
}

TEST(ReadProgram, DeepNesting_IsRefusedAndNoStackOverflow) {
  std::string sharding;
  for (int i = 0; i < 100'000 && sharding.size() < 1 << 20; ++i) {
    WireWriter outer;
    outer.Int(1, 2);
    outer.Bytes(5, sharding);
    sharding = outer.bytes();
    if (i > 2000) break;  // quadratic to build
  }
  WireWriter module, whole;
  module.Bytes(14, sharding);
  whole.Bytes(1, module.bytes());
  ExpectError(Read(whole.bytes()), ErrorCode::kPluginFailed, "tuples nest deeper than 8");
}

TEST(ReadProgram, DamagedBytes_NeverCrash) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 random(seed);
  const std::string good = SmallProgram();
  for (size_t size = 0; size < good.size(); ++size) {
    // A copy that ends where the bytes end, so that a sanitizer sees a read past it.
    const std::vector<char> part(good.begin(), good.begin() + static_cast<int64_t>(size));
    const Result<OptimizedProgram> program = Read({part.data(), part.size()});
    // Cut after the module, before the configuration, it is a program still.
    EXPECT_EQ(program.has_value(), size == good.size() - 8) << size;
  }
  for (int i = 0; i < 20'000; ++i) {
    std::vector<char> bytes(good.begin(), good.end());
    if (i % 2 == 0) {
      bytes.resize(random() % 200);
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else {
      for (uint64_t edit = 0; edit <= random() % 4; ++edit)
        bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const Result<OptimizedProgram> program = Read({bytes.data(), bytes.size()});
    if (!program) {
      EXPECT_EQ(program.error().code, ErrorCode::kPluginFailed);
    } else {
      EXPECT_GT(program->instructions, 0);
    }
  }
}

TEST(Wire, NumbersOfEverySize_ComeBack) {
  for (const int64_t value : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, INT64_MAX, int64_t{-1}, INT64_MIN}) {
    WireWriter writer;
    writer.Int(5, value);
    writer.Real(6, static_cast<double>(value));
    WireReader reader(writer.bytes());
    WireField field;
    ASSERT_TRUE(reader.Next(field));
    EXPECT_EQ(field.number, 5u);
    EXPECT_EQ(static_cast<int64_t>(field.value), value);
    ASSERT_TRUE(reader.Next(field));
    EXPECT_EQ(std::bit_cast<double>(field.value), static_cast<double>(value));
    EXPECT_FALSE(reader.Next(field));
    EXPECT_TRUE(reader.ok());
  }
}

TEST(TensorType, TextAndBytes) {
  EXPECT_EQ(ToText(TensorType{ElementType::kBf16, {2, 3}}), "bf16[2,3]");
  EXPECT_EQ(ToText(TensorType{ElementType::kPred, {}}), "pred[]");
  EXPECT_EQ((TensorType{ElementType::kF64, {2, 3}}).bytes(), 48);
  EXPECT_EQ((TensorType{ElementType::kS8, {}}).bytes(), 1);
  EXPECT_FALSE(ElementTypeOf(0));
  EXPECT_FALSE(ElementTypeOf(14));
}

}  // namespace
}  // namespace tessera::pjrt
