// The audit of compiled programs, on eight devices of XLA's CPU plugin: what XLA made of a program is what the specs
// say, or a refusal that tells the difference. The errors are planted: each compiles without a word.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <random>

#include "pjrt/plugin_test.h"
#include "shard/audit_program.h"
#include "support/proves.h"
#include "support/quick_xla.h"
#include "support/seed.h"
#include "tables.h"

namespace tessera {
namespace {

using pjrt::Client;
using pjrt::CompileOptions;
using pjrt::Executable;
using pjrt::OptimizedProgram;
using pjrt::TensorType;
using shard::AuditProgram;
using shard::LocalType;
using shard::ProgramReport;
using shard::ProgramTensors;
using shard::ShardyText;

class ShardProgram : public pjrt::PluginTest {
 protected:
  Client& client() const { return ClientOf(8); }

  // Optimisation changes neither shardings nor collectives, and takes the time.
  static CompileOptions OptionsFor(const Mesh& mesh, std::vector<TensorType> inputs) {
    CompileOptions options = {.num_partitions = mesh.NumDevices(), .use_spmd = true, .use_shardy = true};
    for (int64_t device = 0; device < mesh.NumDevices(); ++device) options.device_ids.push_back(device);
    options.overrides = kQuickly;
    options.inputs = std::move(inputs);
    return options;
  }

  OptimizedProgram Compiled(const std::string& mlir, const CompileOptions& options) const {
    const Result<Executable> program = client().Compile(mlir, options);
    EXPECT_TRUE(program) << ToText(program.error());
    if (!program) return {};
    Result<OptimizedProgram> inside = program->Optimized();
    EXPECT_TRUE(inside) << ToText(inside.error());
    return inside.value_or(OptimizedProgram{});
  }
};

std::string TypeOf(const ShardRow& row) { return fmt::format("tensor<{}x{}>", fmt::join(row.tensor.dims, "x"), "f32"); }

// `%x: tensor<8x16xf32> {sdy.sharding = ..}`; a bare one has no sharding.
std::string Argument(const ShardTable& table, const std::string& name, bool is_bare = false) {
  const ShardRow& row = *table.Find(name);
  const std::string type = fmt::format("%{}: {}", name, TypeOf(row));
  return is_bare ? type : fmt::format("{} {{sdy.sharding = {}}}", type, ShardyText(row));
}
std::string ResultOf(const ShardTable& table, const std::string& name) {
  const ShardRow& row = *table.Find(name);
  return fmt::format("({} {{sdy.sharding = {}}})", TypeOf(row), ShardyText(row));
}
std::string Module(const ShardTable& table, const std::string& arguments, const std::string& result,
                   const std::string& body) {
  return fmt::format("module @audited {{\n  {}\n  func.func public @main({}) -> {} {{\n{}\n  }}\n}}\n",
                     ShardyText(table.mesh), arguments, result, body);
}

std::vector<TensorType> LocalTypes(const ShardTable& table, const std::vector<std::string>& names) {
  std::vector<TensorType> types;
  for (const std::string& name : names) {
    const Result<TensorType> type = LocalType(*table.Find(name), table.mesh);
    EXPECT_TRUE(type) << name;
    types.push_back(type.value_or(TensorType{}));
  }
  return types;
}

SpecRule RuleOf(const std::string& name, SpecAxes axes) { return {name, false, std::move(axes)}; }

// x (8, 16) by w (16, 8) is y (8, 8).
const std::string kProduct = "[parameters]\nw = \"f32[16, 8]\"\n[activations]\nx = \"f32[8, 16]\"\ny = \"f32[8, 8]\"\n";
const std::string kProductBody =
    "    %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> "
    "tensor<8x8xf32>\n    return %r : tensor<8x8xf32>";
const ProgramTensors kProductTensors = {{"x", "w"}, {"y"}};

ShardTable ProductTable(const std::string& mesh, SpecAxes w, SpecAxes y, SpecAxes x = {{"data"}, {}}) {
  const std::vector<SpecRule> rules = {RuleOf("w", std::move(w)), RuleOf("x", std::move(x)), RuleOf("y", std::move(y))};
  return MakeTable(kProduct, mesh, {.rules = rules});
}
std::string ProductModule(const ShardTable& table, bool is_bare = false) {
  return Module(table, Argument(table, "x") + ", " + Argument(table, "w", is_bare), ResultOf(table, "y"), kProductBody);
}

TEST_F(ShardProgram, ProgramLaidOutAsWritten_Passes) {
  Proves("R79 R80");
  for (const char* mesh : {"data=2,model=2", "data=2,model=4", "data=4,model=2", "model=2,data=2", "data=2"}) {
    const bool has_model = MakeMesh(mesh).Has("model");
    const std::vector<std::string> model = has_model ? std::vector<std::string>{"model"} : std::vector<std::string>{};
    const ShardTable table = ProductTable(mesh, {{}, model}, {{"data"}, model});
    ASSERT_TRUE(AuditShards(table));
    const OptimizedProgram program =
        Compiled(ProductModule(table), OptionsFor(table.mesh, LocalTypes(table, {"x", "w"})));
    const Result<ProgramReport> report = AuditProgram(table, kProductTensors, program);
    ASSERT_TRUE(report) << mesh << ": " << ToText(report.error());
    EXPECT_TRUE(report->collectives.empty()) << report->collectives.front();
    EXPECT_EQ(report->total_bytes, (8 * 16 + 16 * 8 + 8 * 8) * 4);
    const int64_t data = table.mesh.SizeOf("data");
    const int64_t parts = table.mesh.SizeOf("model");
    EXPECT_EQ(report->device_bytes, (128 / data + 128 / parts + 64 / data / parts) * 4);
    EXPECT_EQ(report->replicated_bytes, has_model ? 0 : 128 * 4);
    EXPECT_TRUE(AuditProgram(table, kProductTensors, program, {.device_bytes = report->device_bytes}));
    const std::string refusal =
        TextOfError(AuditProgram(table, kProductTensors, program, {.device_bytes = report->device_bytes - 1}),
                    ErrorCode::kShardProgram);
    EXPECT_TRUE(Has(refusal, "bytes of a device")) << refusal;
  }
}

// The same local shapes on the wrong devices: only the shardings tell.
TEST_F(ShardProgram, PartsOnOtherDevices_AreSeen) {
  Proves("R80");
  const ShardTable written = ProductTable("data=2,model=2", {{}, {"model"}}, {{"data"}, {"model"}});
  const OptimizedProgram program =
      Compiled(ProductModule(written), OptionsFor(written.mesh, LocalTypes(written, {"x", "w"})));
  ShardTable turned = written;
  std::swap(turned.mesh.axes[0].name, turned.mesh.axes[1].name);
  const std::string refusal = TextOfError(AuditProgram(turned, kProductTensors, program), ErrorCode::kShardProgram);
  EXPECT_TRUE(Has(refusal, "argument 0 (x): the sharding of (data, none); the program has {devices=")) << refusal;
  EXPECT_FALSE(Has(refusal, "on each device")) << "the local shapes are equal: " << refusal;
}

// Without a sharding, propagation cuts the weight: the table said whole.
TEST_F(ShardProgram, ArgumentWithoutSharding_IsCutInSilenceAndRefused) {
  Proves("R79 R80 B13");
  const ShardTable table = ProductTable("data=2,model=2", {{}, {}}, {{"data"}, {"model"}});
  const std::string bare = ProductModule(table, true);
  // A declared local shape catches it while compiling.
  const std::vector<TensorType> declared = LocalTypes(table, {"x", "w"});
  EXPECT_FALSE(client().Compile(bare, OptionsFor(table.mesh, declared)));
  const OptimizedProgram program =
      Compiled(bare, OptionsFor(table.mesh, {declared[0], {pjrt::ElementType::kF32, {16, 4}}}));
  const std::string refusal = TextOfError(AuditProgram(table, kProductTensors, program), ErrorCode::kShardProgram);
  EXPECT_TRUE(Has(refusal, "argument 1 (w): f32[16,8] on each device, for replicated; the program has f32[16,4]"))
      << refusal;
  EXPECT_TRUE(Has(refusal, "the sharding of replicated; the program has {devices=")) << refusal;
  // Written out, it stays whole.
  const OptimizedProgram good = Compiled(ProductModule(table), OptionsFor(table.mesh, declared));
  EXPECT_TRUE(AuditProgram(table, kProductTensors, good));
}

TEST_F(ShardProgram, DimensionThatDoesNotDivide_IsRefusedBeforeAndAfter) {
  Proves("R80 B14");
  const std::string text = "[parameters]\nw = \"f32[60, 8]\"\n[activations]\ny = \"f32[60, 8]\"\n";
  const std::vector<SpecRule> rules = {RuleOf("w", {{"data"}, {}}), RuleOf("y", {{"data"}, {}})};
  const ShardTable table = MakeTable(text, "data=8", {.rules = rules});
  EXPECT_TRUE(Has(TextOfError(AuditShards(table), ErrorCode::kShardAudit), "a dimension 0 that divides by 8"));
  EXPECT_FALSE(LocalType(table.rows[0], table.mesh));
  const std::string mlir = Module(table, Argument(table, "w"), ResultOf(table, "y"),
                                  "    %r = stablehlo.add %w, %w : tensor<60x8xf32>\n    return %r : tensor<60x8xf32>");
  // XLA takes it, and lays it out in another way.
  const OptimizedProgram program = Compiled(mlir, OptionsFor(table.mesh, {{pjrt::ElementType::kF32, {15, 8}}}));
  const std::string refusal = TextOfError(AuditProgram(table, {{"w"}, {"y"}}, program), ErrorCode::kShardProgram);
  EXPECT_TRUE(Has(refusal, "argument 0 (w): a spec that fits the tensor and the mesh")) << refusal;
}

// y = x + w, each row of x; x is whole along its last dimension, so w must be too.
const std::string kSum = "[parameters]\nw = \"f32[16]\"\n[activations]\nx = \"f32[8, 16]\"\ny = \"f32[8, 16]\"\n";
const std::string kSumBody =
    "    %b = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>\n"
    "    %r = stablehlo.add %x, %b : tensor<8x16xf32>\n    return %r : tensor<8x16xf32>";

TEST_F(ShardProgram, UnexpectedGatherOfAParameter_IsRefused) {
  Proves("R80");
  // The rows of x are cut along model too: the sum wants all of w on every device.
  const std::vector<SpecRule> rules = {RuleOf("w", {{"model"}}), RuleOf("x", {{"model"}, {}}),
                                       RuleOf("y", {{"model"}, {}})};
  const ShardTable table = MakeTable(kSum, "data=2,model=4", {.rules = rules});
  ASSERT_TRUE(AuditShards(table));
  const std::string mlir =
      Module(table, Argument(table, "x") + ", " + Argument(table, "w"), ResultOf(table, "y"), kSumBody);
  const OptimizedProgram program = Compiled(mlir, OptionsFor(table.mesh, LocalTypes(table, {"x", "w"})));
  ASSERT_EQ(program.collective_calls.size(), 1u);
  EXPECT_EQ(program.collective_calls[0].kind, "all-gather");
  EXPECT_EQ(program.collective_calls[0].groups, (std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(program.collective_calls[0].of_parameters, std::vector<int64_t>{1});
  EXPECT_EQ(pjrt::CarriedBytes(program.collective_calls[0], 8), 4 * 4 * 3 * 8);
  const std::string refusal = TextOfError(AuditProgram(table, {{"x", "w"}, {"y"}}, program), ErrorCode::kShardProgram);
  EXPECT_TRUE(
      Has(refusal, "w: no gathering of what (model) keeps apart; the program has all-gather f32[4] in groups of 4"))
      << refusal;
}

// ZeRO-3 cuts along data to gather before use: implied along data, and not along another axis.
TEST_F(ShardProgram, GatherThatZero3Implies_IsListedAndPasses) {
  Proves("R80 R81");
  const std::vector<SpecRule> rules = {RuleOf("w", {{}}), RuleOf("x", {{"data"}, {}}), RuleOf("y", {{"data"}, {}})};
  const ShardTable table = MakeTable(kSum, "data=4,model=2", {.rules = rules, .zero3 = true});
  ASSERT_EQ(SpecOf(table, "w"), "(data)");
  const std::string mlir =
      Module(table, Argument(table, "x") + ", " + Argument(table, "w"), ResultOf(table, "y"), kSumBody);
  const OptimizedProgram program = Compiled(mlir, OptionsFor(table.mesh, LocalTypes(table, {"x", "w"})));
  const Result<ProgramReport> report = AuditProgram(table, {{"x", "w"}, {"y"}}, program);
  ASSERT_TRUE(report) << ToText(report.error());
  ASSERT_EQ(report->collectives.size(), 1u);
  EXPECT_EQ(report->collectives[0], "all-gather f32[4] in groups of 4 of w, 384 bytes");
  EXPECT_EQ(report->carried_bytes, 384);
  ShardTable by_hand = table;
  for (ShardRow& row : by_hand.rows) row.zero_dim.reset();
  EXPECT_FALSE(AuditProgram(by_hand, {{"x", "w"}, {"y"}}, program));
}

TEST_F(ShardProgram, OtherNumbersOfTensors_AreRefused) {
  const ShardTable table = ProductTable("data=2", {{}, {}}, {{"data"}, {}});
  const OptimizedProgram program =
      Compiled(ProductModule(table), OptionsFor(table.mesh, LocalTypes(table, {"x", "w"})));
  const auto refusal = [&](const ProgramTensors& tensors) {
    return TextOfError(AuditProgram(table, tensors, program), ErrorCode::kShardProgram);
  };
  EXPECT_TRUE(Has(refusal({{"x"}, {"y"}}), "arguments: 1, as were named; the program has 2"));
  EXPECT_TRUE(Has(refusal({{"x", "w"}, {}}), "results: 0, as were named; the program has 1"));
  EXPECT_TRUE(Has(refusal({{"x", "z"}, {"y"}}), "z: a tensor of the table"));
  EXPECT_TRUE(Has(refusal({{"w", "x"}, {"y"}}), "argument 0 (w)"));
  EXPECT_FALSE(AuditProgram(table, kProductTensors, OptimizedProgram{}));
}

// One device's part of a tensor whose elements are given in row-major order.
std::vector<float> PartOf(const std::vector<float>& whole, const ShardRow& row, const Mesh& mesh, int64_t device) {
  const std::vector<int64_t> local = *LocalDims(row, mesh);
  const std::vector<int64_t> at = mesh.Coordinates(device);
  std::vector<int64_t> begin(local.size(), 0);
  for (size_t dim = 0; dim < local.size(); ++dim) {
    for (const std::string& axis : (*row.spec)[dim]) {
      for (size_t i = 0; i < mesh.axes.size(); ++i) {
        if (mesh.axes[i].name == axis) begin[dim] = begin[dim] * mesh.axes[i].size + at[i];
      }
    }
    begin[dim] *= local[dim];
  }
  std::vector<float> part;
  for (int64_t i = 0; i < local[0]; ++i) {
    for (int64_t j = 0; j < local[1]; ++j) {
      part.push_back(whole[static_cast<size_t>((begin[0] + i) * row.tensor.dims[1] + begin[1] + j)]);
    }
  }
  return part;
}

// A square of 16: every dimension divides by model=4 and equals those that are cut. Engram stays whole, and the four
// devices give what one would: (x q) e, in whole numbers.
TEST_F(ShardProgram, EngramOfCoincidentalDimensions_GivesTheReferenceResult) {
  Proves("R82 B13");
  const std::string text = R"(
[model]
num_heads = 4
weights = "in_out"
[parameters]
"c_q" = "f32[16, 16]"
"engram" = "f32[16, 16]"
[activations]
"x" = "f32[16, 16]"
"y" = "f32[16, 16]"
)";
  const std::vector<SpecRule> rules = {RuleOf("x", {{}, {}}), RuleOf("y", {{}, {}})};
  const ShardTable table = MakeTable(text, "model=4", {.rules = rules});
  ASSERT_TRUE(AuditShards(table)) << ToText(AuditShards(table).error());
  EXPECT_EQ(SpecOf(table, "c_q"), "(none, model)");
  EXPECT_EQ(SpecOf(table, "engram"), "replicated");
  const std::vector<std::string> names = {"x", "c_q", "engram"};
  const std::string square = "(tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>";
  const std::string mlir =
      Module(table, Argument(table, "x") + ", " + Argument(table, "c_q") + ", " + Argument(table, "engram"),
             ResultOf(table, "y"),
             "    %q = stablehlo.dot_general %x, %c_q, contracting_dims = [1] x [0] : " + square +
                 "\n    %r = stablehlo.dot_general %q, %engram, contracting_dims = [1] x [0] : " + square +
                 "\n    return %r : tensor<16x16xf32>");
  const Result<Executable> program = client().Compile(mlir, OptionsFor(table.mesh, LocalTypes(table, names)));
  ASSERT_TRUE(program) << ToText(program.error());
  const Result<OptimizedProgram> inside = program->Optimized();
  ASSERT_TRUE(inside);
  const Result<ProgramReport> report = AuditProgram(table, {names, {"y"}}, *inside);
  ASSERT_TRUE(report) << ToText(report.error());

  std::vector<std::vector<float>> values(3, std::vector<float>(256));
  for (size_t tensor = 0; tensor < 3; ++tensor) {
    for (size_t i = 0; i < 256; ++i) values[tensor][i] = static_cast<float>((i * (tensor + 3) + i / 16) % 7) - 3;
  }
  const auto product = [](const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> c(256);
    for (size_t i = 0; i < 16; ++i) {
      for (size_t k = 0; k < 16; ++k) {
        for (size_t j = 0; j < 16; ++j) c[i * 16 + j] += a[i * 16 + k] * b[k * 16 + j];
      }
    }
    return c;
  };
  const std::vector<float> expected = product(product(values[0], values[1]), values[2]);
  std::vector<std::vector<pjrt::Buffer>> buffers(4);
  std::vector<std::vector<const pjrt::Buffer*>> args(4);
  for (int64_t device = 0; device < 4; ++device) {
    for (size_t tensor = 0; tensor < 3; ++tensor) {
      const std::vector<float> part = PartOf(values[tensor], *table.Find(names[tensor]), table.mesh, device);
      Result<pjrt::Buffer> buffer =
          client().Upload(*LocalType(*table.Find(names[tensor]), table.mesh), std::as_bytes(std::span(part)), device);
      ASSERT_TRUE(buffer) << ToText(buffer.error());
      buffers[static_cast<size_t>(device)].push_back(std::move(*buffer));
    }
    for (const pjrt::Buffer& buffer : buffers[static_cast<size_t>(device)]) {
      args[static_cast<size_t>(device)].push_back(&buffer);
    }
  }
  const Result<std::vector<pjrt::Launched>> all = program->ExecuteOnAll(args);
  ASSERT_TRUE(all) << ToText(all.error());
  for (const pjrt::Launched& one : *all) {
    ASSERT_TRUE(one.done.Await());
    EXPECT_EQ(pjrt::Downloaded<float>(one.outputs[0]), expected);
  }
}

// A counted loop around a permute: what one trip carries, and that it is in a loop.
TEST_F(ShardProgram, CollectivesInLoops_AreMarked) {
  const std::string mlir = R"(module @loop {
  sdy.mesh @mesh = <["context"=8]>
  func.func public @main(%x: tensor<64x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"context"}, {}]>},
      %n: tensor<i32> {sdy.sharding = #sdy.sharding<@mesh, []>})
      -> (tensor<64x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"context"}, {}]>}) {
    %r = sdy.manual_computation(%x, %n) in_shardings=[<@mesh, [{"context"}, {}]>, <@mesh, []>]
        out_shardings=[<@mesh, [{"context"}, {}]>] manual_axes={"context"} (%a: tensor<8x4xf32>, %m: tensor<i32>) {
      %c0 = stablehlo.constant dense<0> : tensor<i32>
      %c1 = stablehlo.constant dense<1> : tensor<i32>
      %w:2 = stablehlo.while(%i = %c0, %got = %a) : tensor<i32>, tensor<8x4xf32>
        cond {
          %go = stablehlo.compare LT, %i, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %go : tensor<i1>
        } do {
          %in = "stablehlo.collective_permute"(%got) {source_target_pairs = dense<[[0,1],[1,2],[2,3]]> : tensor<3x2xi64>,
              channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
          %j = stablehlo.add %i, %c1 : tensor<i32>
          stablehlo.return %j, %in : tensor<i32>, tensor<8x4xf32>
        }
      sdy.return %w#1 : tensor<8x4xf32>
    } : (tensor<64x4xf32>, tensor<i32>) -> tensor<64x4xf32>
    return %r : tensor<64x4xf32>
  }
})";
  const Result<Executable> compiled = client().Compile(
      mlir, OptionsFor(MakeMesh("context=8"), {{pjrt::ElementType::kF32, {8, 4}}, {pjrt::ElementType::kS32, {}}}));
  ASSERT_TRUE(compiled) << ToText(compiled.error());
  const Result<std::vector<std::byte>> bytes = compiled->program().OptimizedBytes();
  ASSERT_TRUE(bytes) << ToText(bytes.error());
  const Result<OptimizedProgram> program = pjrt::ReadProgram(*bytes);
  ASSERT_TRUE(program) << ToText(program.error());
  ASSERT_EQ(program->collective_calls.size(), 1u);
  const pjrt::Collective& permute = program->collective_calls[0];
  EXPECT_EQ(permute.kind, "collective-permute");
  EXPECT_EQ(permute.pairs, (std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_TRUE(permute.in_loop);
  EXPECT_EQ(permute.known_trips, -1) << "the trips are data";
  EXPECT_EQ(pjrt::CarriedBytes(permute, 8), 3 * 8 * 4 * 4);

  // Cuts of it, and copies with wrong bytes in them, are read to the end or refused.
  std::mt19937_64 random(PrintedSeed());
  const std::string good(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  for (int i = 0; i < 500; ++i) {
    std::string text = i % 4 == 0 ? good.substr(0, random() % good.size()) : good;
    if (i % 4 != 0) text[random() % text.size()] = static_cast<char>(random());
    const Result<OptimizedProgram> damaged = pjrt::ReadProgram(std::as_bytes(std::span(text.data(), text.size())));
    if (!damaged) continue;
    for (const pjrt::Collective& collective : damaged->collective_calls) {
      EXPECT_GE(pjrt::CarriedBytes(collective, 8), -1);
      EXPECT_FALSE(pjrt::ToText(collective).empty());
    }
  }
}

}  // namespace
}  // namespace tessera
