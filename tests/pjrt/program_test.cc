// What can be learnt of a compiled program, and keeping one: bytes that another process runs.
#include "base/test_files.h"
#include "lanes/xla/pjrt/topology.h"
#include "pjrt/plugin_test.h"

namespace tessera::pjrt {
namespace {

using Programs = ClientTest;

// A loop around a product: enough to have temporary memory, a while and a dot.
const std::string kLoop = R"(module @loop {
  func.func @main(%a: tensor<64x64xf32>, %n: tensor<i32>) -> tensor<64x64xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<64x64xf32>
      cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %y = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
            : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
        %j = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %j, %y : tensor<i32>, tensor<64x64xf32>
      }
    return %r#1 : tensor<64x64xf32>
  }
})";
const CompileOptions kLoopOptions = {.inputs = {F32({64, 64}), {ElementType::kS32, {}}}};

TEST_F(Programs, Figures_AreThoseOfTheProgram) {
  const Executable program = Compiled(kLoop, kLoopOptions);
  const Result<ProgramFigures> figures = program.Figures();
  ASSERT_TRUE(figures) << ToText(figures.error());
  EXPECT_EQ(figures->argument_bytes, 64 * 64 * 4 + 4);
  EXPECT_EQ(figures->output_bytes, 64 * 64 * 4);
  EXPECT_EQ(figures->alias_bytes, 0);
  EXPECT_GT(figures->temp_bytes, 0);
  EXPECT_GT(figures->peak_bytes, 0);
  EXPECT_GE(figures->flops, 2.0 * 64 * 64 * 64) << "the product, once";
  EXPECT_LT(figures->flops, 2.1 * 64 * 64 * 64);
  EXPECT_GT(figures->bytes_accessed, 2.0 * 64 * 64 * 4);
  // A plugin that does not count its code says so, by -1 and never by 0.
  EXPECT_NE(figures->generated_code_bytes, 0);
}

TEST_F(Programs, OptimizedProgram_IsRead) {
  const Executable program = Compiled(kLoop, kLoopOptions);
  const Result<OptimizedProgram> inside = program.Optimized();
  ASSERT_TRUE(inside) << ToText(inside.error());
  EXPECT_EQ(inside->module_name.substr(0, 4), "loop");
  EXPECT_EQ(inside->opcodes.at("while"), 1);
  EXPECT_TRUE(inside->collectives.empty());
  EXPECT_TRUE(inside->shardings.empty());
  int64_t count = 0;
  for (const auto& [opcode, times] : inside->opcodes) count += times;
  EXPECT_EQ(count, inside->instructions);
  const bool has_product = inside->opcodes.contains("dot") || !inside->custom_calls.empty();
  EXPECT_TRUE(has_product);
}

// Every cut of a real program, and thousands of copies with wrong bytes in them.
TEST_F(Programs, DamagedOptimizedProgram_NeverCrashes) {
  const Result<std::vector<std::byte>> bytes = Compiled(kLoop, kLoopOptions).program().OptimizedBytes();
  ASSERT_TRUE(bytes) << ToText(bytes.error());
  Torture({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, 5'000, true, [](std::string_view text) {
    return ReadProgram(std::as_bytes(std::span(text.data(), text.size()))).has_value();
  });
}

TEST_F(Programs, CustomCalls_AreCountedByTarget) {
  // A sort of pairs of top values: XLA on the CPU makes a call to its own library of it.
  const std::string mlir = R"(module @top {
    func.func @main(%a: tensor<4x100xf32>) -> (tensor<4x5xf32>, tensor<4x5xi32>) {
      %v, %i = chlo.top_k(%a, k = 5) : tensor<4x100xf32> -> (tensor<4x5xf32>, tensor<4x5xi32>)
      return %v, %i : tensor<4x5xf32>, tensor<4x5xi32>
    }
  })";
  const Executable program = Compiled(mlir, {.inputs = {F32({4, 100})}});
  const Result<OptimizedProgram> inside = program.Optimized();
  ASSERT_TRUE(inside) << ToText(inside.error());
  int64_t calls = 0;
  for (const auto& [target, times] : inside->custom_calls) {
    EXPECT_FALSE(target.empty());
    calls += times;
  }
  EXPECT_EQ(inside->custom_calls.count("TopK"), 1u);
  EXPECT_EQ(inside->opcodes.at("custom-call"), calls);
}

void ExpectLoopRuns(const Client& client, const Executable& program, int64_t device) {
  // A shift by one row, applied once and then twice more.
  std::vector<float> a(64 * 64);
  for (size_t i = 0; i < 64; ++i) a[i * 64 + (i + 1) % 64] = 1;
  const std::vector<int32_t> n = {2};
  Client& writable = const_cast<Client&>(client);
  const Result<Buffer> left = writable.Upload(F32({64, 64}), std::as_bytes(std::span(a)), device);
  const Result<Buffer> right = writable.Upload({ElementType::kS32, {}}, std::as_bytes(std::span(n)), device);
  ASSERT_TRUE(left && right);
  const std::vector<const Buffer*> args = {&*left, &*right};
  const Result<std::vector<Buffer>> outputs = program.Execute(args, {.device = device});
  ASSERT_TRUE(outputs) << ToText(outputs.error());
  const std::vector<float> got = Downloaded<float>((*outputs)[0]);
  for (size_t i = 0; i < 64 * 64; ++i) ASSERT_EQ(got[i], (i % 64 == (i / 64 + 3) % 64) ? 1 : 0) << i;
}

TEST_F(Programs, SerializedProgram_RunsAgainOnAnyDevice) {
  const Executable program = Compiled(kLoop, kLoopOptions);
  const Result<std::vector<std::byte>> bytes = program.Serialize();
  ASSERT_TRUE(bytes) << ToText(bytes.error());
  const Result<Executable> again = client().Deserialize(*bytes, kLoopOptions);
  ASSERT_TRUE(again) << ToText(again.error());
  EXPECT_EQ(again->outputs()[0], F32({64, 64}));
  for (const int64_t device : {0, 1}) {
    ExpectLoopRuns(client(), program, device);
    ExpectLoopRuns(client(), *again, device);
  }
  const Result<std::string> fingerprint = program.Fingerprint();
  ASSERT_TRUE(fingerprint) << ToText(fingerprint.error());
  EXPECT_FALSE(fingerprint->empty());
}

TEST_F(Programs, SerializedProgram_RunsInAnotherProcess) {
  if (IsAlone()) {
    const std::string text = Slurp(std::getenv("TESSERA_TEST_FILE"));
    const Result<Executable> program = client().Deserialize(std::as_bytes(std::span(text)), kLoopOptions);
    ASSERT_TRUE(program) << ToText(program.error());
    return ExpectLoopRuns(client(), *program, 1);
  }
  const TestFolder folder;
  const Result<std::vector<std::byte>> bytes = Compiled(kLoop, kLoopOptions).Serialize();
  ASSERT_TRUE(bytes) << ToText(bytes.error());
  Put(folder / "program", {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  RunAlone("", {{"TESSERA_TEST_FILE", folder / "program"}});
}

TEST_F(Programs, DamagedSerializedProgram_IsAnError) {
  const Result<std::vector<std::byte>> bytes = Compiled(kMulAdd, MulAddOptions()).Serialize();
  ASSERT_TRUE(bytes) << ToText(bytes.error());
  ExpectError(client().Deserialize({}, MulAddOptions()), ErrorCode::kPluginFailed, "no bytes");
  const std::vector<std::byte> half(bytes->begin(), bytes->begin() + static_cast<int64_t>(bytes->size() / 2));
  ExpectError(client().Deserialize(half, MulAddOptions()), ErrorCode::kPluginFailed,
              "PJRT_Executable_DeserializeAndLoad");
  const std::string text = "not a program";
  ExpectError(client().Deserialize(std::as_bytes(std::span(text)), MulAddOptions()), ErrorCode::kPluginFailed, "");
}

TEST_F(Programs, EmptyProgram_SaysSo) {
  ExpectError(CompiledProgram().Figures(), ErrorCode::kProgramMismatch, "empty");
  ExpectError(CompiledProgram().Optimized(), ErrorCode::kProgramMismatch, "empty");
  ExpectError(CompiledProgram().Serialize(), ErrorCode::kProgramMismatch, "empty");
  ExpectError(CompiledProgram().Fingerprint(), ErrorCode::kProgramMismatch, "empty");
}

TEST_F(Programs, Topology_NeedsANameAndAPluginThatHasThem) {
  ExpectError(Topology::Create(plugin(), ""), ErrorCode::kBadArgument, "needs a name");
  ExpectError(Topology::Create(plugin(), "v6e:1x1"), ErrorCode::kPluginFailed, "UNIMPLEMENTED");
}

}  // namespace
}  // namespace tessera::pjrt
