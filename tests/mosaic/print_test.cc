// The builder and the printer: a kernel's text, whole and in its parts.
#include "lanes/xla/mosaic/print.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lanes/xla/mosaic/kernel.h"

namespace tessera::mosaic {
namespace {

TEST(Print_SmallKernel, IsTheTextThatLibtpuTakes) {
  Builder builder({MemrefOf(Space::kVmem, Element::kF32, {8, 128}), MemrefOf(Space::kVmem, Element::kF32, {8, 128})},
                  13);
  const Value x = builder.LoadAll(builder.Argument(0));
  builder.StoreAll(builder.Add(x, builder.F32(1.5)), builder.Argument(1));
  Module module;
  module.functions.push_back(builder.Finish("main", {}, {}));
  EXPECT_EQ(builder.mistake(), "");
  EXPECT_EQ(Print(module), R"("builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%arg0: memref<8x128xf32, #tpu.memory_space<vmem>>, %arg1: memref<8x128xf32, #tpu.memory_space<vmem>>):
    %0 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %1 = "stable_mosaic.vector.load"(%arg0, %0, %0) : (memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<8x128xf32>
    %2 = "stable_mosaic.arith.constant"() {value = 1.500000e+00 : f32} : () -> f32
    %3 = "stable_mosaic.vector.broadcast"(%2) : (f32) -> vector<8x128xf32>
    %4 = "stable_mosaic.arith.addf"(%1, %3) {fastmath = #arith.fastmath<none>} : (vector<8x128xf32>, vector<8x128xf32>) -> vector<8x128xf32>
    "stable_mosaic.tpu.vector_store"(%4, %arg1, %0, %0) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<8x128xf32>, memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
    "stable_mosaic.func.return"() : () -> ()
  }) {function_type = (memref<8x128xf32, #tpu.memory_space<vmem>>, memref<8x128xf32, #tpu.memory_space<vmem>>) -> (), sym_name = "main"} : () -> ()
}) {stable_mosaic.version = 13 : i64} : () -> ()
)");
}

TEST(Print_GridKernel, HasWindowsIndexMapsAndRegions) {
  const auto row = [](Builder& b, const Values& grid, const Values&) { return Values{grid[0], b.I32(0)}; };
  const KernelSpec spec{.name = "sum",
                        .grid = {4, 2},
                        .semantics = {Semantics::kParallel, Semantics::kArbitrary},
                        .scalars = {{"count", MemrefOf(Space::kSmem, Element::kI32, {4})}},
                        .inputs = {{.name = "x", .bounds = {8, 128}, .index_map = row}},
                        .outputs = {{.name = "o", .bounds = {8, 128}, .index_map = row, .is_synchronous = true}},
                        .scratch = {{"total", MemrefOf(Space::kVmem, Element::kF32, {8, 128})}}};
  const Result<Module> module = BuildKernel(spec, [](Builder& b, const KernelArguments& args) {
    b.When(b.Is(Compare::kEq, args.grid[1], b.I32(0)), [&] {
      b.StoreAll(b.Constant(VectorOf(Element::kF32, {8, 128}), 0), args["total"]);
    });
    const Value n = b.LoadScalar(args["count"], Values{args.grid[0]});
    const Values sums =
        b.For(b.I32(0), n, b.I32(1), {b.LoadAll(args["total"]), b.I32(0)}, [&](const Value& at, const Values& carried) {
          return Values{b.Add(carried[0], b.LoadAll(args["x"])), b.Add(carried[1], at)};
        });
    b.StoreAll(sums[0], args["o"]);
  });
  ASSERT_TRUE(module) << ToText(module.error());
  const std::string text = Print(*module);
  EXPECT_NE(text.find(":2 = \"stable_mosaic.scf.for\"("), std::string::npos) << text;
  EXPECT_NE(text.find("iteration_bounds = array<i64: 4, 2>, scalar_prefetch = 1 : i64, scratch_operands = 1 : i64"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("window_params = [{transform_indices = @transform_0, window_bounds = array<i64: 8, 128>}, "
                      "{pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @transform_1"),
            std::string::npos)
      << text;
}

TEST(Builder_Mistake, IsReportedInPlaceOfAModule) {
  const KernelSpec spec{.name = "bad", .scratch = {{"x", MemrefOf(Space::kVmem, Element::kF32, {8, 128})}}};
  const Result<Module> types =
      BuildKernel(spec, [](Builder& b, const KernelArguments& args) { b.Add(b.LoadAll(args["x"]), b.I32(1)); });
  ASSERT_FALSE(types);
  EXPECT_EQ(types.error().code, ErrorCode::kKernelInvalid);
  EXPECT_EQ(types.error().message, "vector<8x128xf32> and i32 do not fit together");
  EXPECT_FALSE(BuildKernel(spec, [](Builder& b, const KernelArguments& args) { b.LoadAll(args["y"]); }));
}

TEST(Print_Version, DecidesWhetherMatmulHasItsHint) {
  Builder builder({}, 13);
  const Value x = builder.Constant(VectorOf(Element::kBf16, {128, 128}), 1);
  builder.Matmul(x, x, 1, 1);
  Module module;
  module.functions.push_back(builder.Finish("main", {}, {}));
  EXPECT_NE(Print(module).find("transpose_lhs_hint = false"), std::string::npos);
  SetVersion(module, 11);
  EXPECT_EQ(Print(module).find("transpose_lhs_hint"), std::string::npos);
  EXPECT_NE(Print(module).find("stable_mosaic.version = 11"), std::string::npos);
  EXPECT_NE(Print(module).find("#tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>"),
            std::string::npos);
}

// What MLIR printed of these, in JAX's own kernels.
TEST(FloatText_Values, AreWrittenAsMlirDoes) {
  EXPECT_EQ(FloatText(0.0, Element::kF32), "0.000000e+00");
  EXPECT_EQ(FloatText(-2.38197633e38F, Element::kF32), "-2.38197633E+38");
  EXPECT_EQ(FloatText(43.2808495F, Element::kF32), "43.2808495");
  EXPECT_EQ(FloatText(1.4453125, Element::kBf16), "1.445310e+00");
  EXPECT_EQ(FloatText(1.015625, Element::kBf16), "1.015630e+00");
  EXPECT_EQ(FloatText(-std::numeric_limits<double>::infinity(), Element::kF32), "0xFF800000");
  EXPECT_EQ(FloatText(std::numeric_limits<double>::infinity(), Element::kBf16), "0x7F80");
  EXPECT_EQ(FloatText(16777215.0, Element::kF32), "0x4B7FFFFF");
  EXPECT_EQ(FloatText(0.1F, Element::kF32), "1.000000e-01");
  EXPECT_EQ(FloatText(0.0123456789F, Element::kF32), "0.0123456791");
  EXPECT_EQ(FloatText(1.23456789e-5F, Element::kF32), "1.23456794E-5");
}

}  // namespace
}  // namespace tessera::mosaic
