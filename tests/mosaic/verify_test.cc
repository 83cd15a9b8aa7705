// The verifier: every rule refuses what breaks it, in a text that a parser accepts.
#include "lanes/xla/mosaic/verify.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "lanes/xla/mosaic/parse.h"
#include "lanes/xla/mosaic/print.h"
#include "sample.h"

namespace tessera::mosaic {
namespace {

std::string SampleText() {
  const Result<Module> module = SampleKernel();
  EXPECT_TRUE(module) << ToText(module.error());
  return module ? Print(*module) : "";
}

const std::vector<ArrayType>& SampleOperands() {
  static const std::vector<ArrayType> operands = {{Element::kI32, {2}},
                                                  {Element::kI8, {2}},
                                                  {Element::kF32, {16, 128}},
                                                  {Element::kBf16, {48, 128}},
                                                  {Element::kF32, {16, 128}}};
  return operands;
}
const std::vector<ArrayType>& SampleResults() {
  static const std::vector<ArrayType> results = {{Element::kF32, {16, 128}}};
  return results;
}

TEST(Verify_Sample, HasEveryOperationAndNoFault) {
  const std::string text = SampleText();
  for (int code = 0; code <= static_cast<int>(OpCode::kReturn); ++code) {
    const auto op = static_cast<OpCode>(code);
    if (op == OpCode::kStridedLoad || op == OpCode::kArithBitcast) continue;  // no builder makes them
    EXPECT_NE(text.find("\"stable_mosaic." + std::string(ToText(op)) + "\""), std::string::npos) << ToText(op);
  }
  const Result<Module> module = Parse(text);
  ASSERT_TRUE(module) << ToText(module.error());
  EXPECT_EQ(Print(*module), text);
  EXPECT_TRUE(VerifyModule(*module));
  const Status operands = VerifyOperands(*module, SampleOperands(), SampleResults());
  EXPECT_TRUE(operands) << ToText(operands.error());
  if (const char* path = std::getenv("TESSERA_WRITE_SAMPLE")) std::ofstream(path) << text;
}

TEST(Verify_OlderVersion_HasNoHint, AndBothAreRight) {
  Result<Module> module = SampleKernel();
  ASSERT_TRUE(module);
  SetVersion(*module, 11);
  EXPECT_TRUE(VerifyModule(*module));
  module->version = 13;
  EXPECT_FALSE(VerifyModule(*module));
  module->version = 19;
  EXPECT_FALSE(VerifyModule(*module));
}

// Replaces the first `from` by `to` in a kernel around these lines, which are the body.
std::string Around(const std::string& body) {
  return R"("builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%i: i32, %s: memref<4xi32, #tpu.memory_space<smem>>, %x: memref<8x128xf32, #tpu.memory_space<vmem>>, %o: memref<8x128xf32, #tpu.memory_space<vmem>>, %t: memref<8x256xf32, #tpu.memory_space<vmem>>):
    %c0 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %c1 = "stable_mosaic.arith.constant"() {value = 1 : index} : () -> index
    %n0 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %b = "stable_mosaic.arith.constant"() {value = true} : () -> i1
    %v = "stable_mosaic.vector.load"(%x, %c0, %c0) : (memref<8x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<8x128xf32>
    %h = "stable_mosaic.arith.truncf"(%v) : (vector<8x128xf32>) -> vector<8x128xbf16>
)" + body +
         R"(
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<arbitrary>], function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<8x128xf32, #tpu.memory_space<vmem>>, memref<8x256xf32, #tpu.memory_space<vmem>>) -> (), iteration_bounds = array<i64: 4>, scalar_prefetch = 1 : i64, scratch_operands = 1 : i64, sym_name = "main", window_params = [{transform_indices = @map, window_bounds = array<i64: 8, 128>}, {transform_indices = @map, window_bounds = array<i64: 8, 128>}]} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%i: i32, %s: memref<4xi32, #tpu.memory_space<smem>>):
    %z = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%i, %z) : (i32, i32) -> ()
  }) {function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "map"} : () -> ()
}) {stable_mosaic.version = 13 : i64} : () -> ()
)";
}

void ExpectRefused(const std::string& text, const std::string& says) {
  const Result<Module> module = Parse(text);
  ASSERT_TRUE(module) << says << ": " << ToText(module.error());
  const Status verified = VerifyModule(*module);
  ASSERT_FALSE(verified) << says;
  EXPECT_EQ(verified.error().code, ErrorCode::kKernelInvalid);
  EXPECT_NE(ToText(verified.error()).find(says), std::string::npos)
      << ToText(verified.error()) << "\nbut not: " << says;
}

TEST(Verify_Body_ThatBreaksARule, IsRefused) {
  const Result<Module> whole = Parse(Around(""));
  ASSERT_TRUE(whole) << ToText(whole.error());
  ASSERT_TRUE(VerifyModule(*whole)) << ToText(VerifyModule(*whole).error());
  const std::string mem = "memref<8x128xf32, #tpu.memory_space<vmem>>";
  const std::string vec = "vector<8x128xf32>";
  const struct {
    std::string body;
    std::string says;
  } cases[] = {
      {R"(%w = "stable_mosaic.vector.load"(%x, %c1, %c0) : ()" + mem + ", index, index) -> " + vec,
       "8 elements from 1 on, of an axis of 8"},
      {R"(%w = "stable_mosaic.vector.load"(%x, %c0, %c0) : ()" + mem + ", index, index) -> vector<8x256xf32>",
       "256 elements of an axis of 128"},
      {R"(%w = "stable_mosaic.vector.load"(%x, %c0, %c0) : ()" + mem + ", index, index) -> vector<8x128xbf16>",
       "not of the memref's elements"},
      {R"(%w = "stable_mosaic.vector.load"(%x, %c0) : ()" + mem + ", index) -> " + vec,
       "indices that are not one per axis"},
      {R"(%w = "stable_mosaic.vector.load"(%x, %n0, %n0) : ()" + mem + ", i32, i32) -> " + vec,
       "an index that is not index"},
      {R"(%w = "stable_mosaic.vector.load"(%s, %c0) : (memref<4xi32, #tpu.memory_space<smem>>, index) -> vector<4xi32>)",
       "a vector from other than vector memory"},
      {R"(%j = "stable_mosaic.arith.index_cast"(%i) : (i32) -> index
      %w = "stable_mosaic.vector.load"(%t, %c0, %j) : (memref<8x256xf32, #tpu.memory_space<vmem>>, index, index) -> )" +
           vec,
       "not known to be a multiple of 128"},
      {R"(%w = "stable_mosaic.memref.load"(%x, %c0, %c0) : ()" + mem + ", index, index) -> f32",
       "a scalar in other than scalar memory"},
      {R"("stable_mosaic.tpu.vector_store"(%v, %o, %c0, %c0) {add = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, strides = array<i32>} : ()" +
           vec + ", " + mem + ", index, index) -> ()",
       "segment sizes"},
      {R"("stable_mosaic.tpu.vector_store"(%v, %o, %c0, %c0) {operandSegmentSizes = array<i32: 1, 1, 2, 0>} : ()" +
           vec + ", " + mem + ", index, index) -> ()",
       "strides = array<i32>"},
      {R"("stable_mosaic.tpu.vector_store"(%v, %o, %c1, %c0) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : ()" +
           vec + ", " + mem + ", index, index) -> ()",
       "8 elements from 1 on"},
      {R"("stable_mosaic.tpu.vector_store"(%h, %o, %c0, %c0) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<8x128xbf16>, )" +
           mem + ", index, index) -> ()",
       "not of the memref's elements"},
      {R"(%w = "stable_mosaic.arith.addf"(%v, %h) : ()" + vec + ", vector<8x128xbf16>) -> " + vec,
       "of different types"},
      {R"(%w = "stable_mosaic.arith.addi"(%v, %v) : ()" + vec + ", " + vec + ") -> " + vec, "operands of another kind"},
      {R"(%w = "stable_mosaic.arith.extf"(%v) : ()" + vec + ") -> vector<8x128xbf16>",
       "a conversion between these types"},
      {R"(%w = "stable_mosaic.arith.cmpi"(%n0, %n0) {predicate = 10 : i64} : (i32, i32) -> i1)", "a predicate"},
      {R"(%w = "stable_mosaic.arith.constant"() {value = 1 : i64} : () -> i32)", "not of the result's type"},
      {R"(%w = "stable_mosaic.arith.constant"() {value = 1 : i64} : () -> i64)", "integers of 64 bits"},
      {R"(%w = "stable_mosaic.arith.constant"() {value = dense<0> : vector<0x128xi32>} : () -> vector<0x128xi32>)",
       "an axis of nothing"},
      {R"(%w = "stable_mosaic.vector.shape_cast"(%v) : ()" + vec + ") -> vector<8x127xf32>",
       "another number of elements"},
      {R"(%w = "stable_mosaic.vector.broadcast"(%v) : ()" + vec + ") -> vector<16x128xf32>", "an axis that is not 1"},
      {R"(%w = "stable_mosaic.vector.multi_reduction"(%v, %v) {kind = #vector.kind<maxnumf>, reduction_dims = array<i64: 1>} : ()" +
           vec + ", " + vec + ") -> " + vec,
       "a kind of reduction"},
      {R"(%w = "stable_mosaic.vector.multi_reduction"(%v, %v) {kind = #vector.kind<add>, reduction_dims = array<i64: 1>} : ()" +
           vec + ", " + vec + ") -> " + vec,
       "the axes that are kept"},
      {R"(%w = "stable_mosaic.tpu.iota"() {dimensions = array<i32: 2>} : () -> vector<8x128xi32>)",
       "an axis that is not there"},
      {R"(%w = "stable_mosaic.tpu.iota"() {dimensions = array<i32: 0>} : () -> vector<128xi32>)",
       "fewer than two axes"},
      {R"(%w = "stable_mosaic.tpu.transpose"(%v) {permutation = array<i64: 1, 1>} : ()" + vec +
           ") -> vector<128x128xf32>",
       "names an axis twice"},
      {R"(%w = "stable_mosaic.tpu.matmul"(%v, %v, %v) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : ()" +
           vec + ", " + vec + ", " + vec + ") -> " + vec,
       "sides that do not meet"},
      {R"(%k = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<8x8xf32>} : () -> vector<8x8xf32>
      %w = "stable_mosaic.tpu.matmul"(%h, %h, %k) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, precision = #tpu.contract_precision<fp32>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false} : (vector<8x128xbf16>, vector<8x128xbf16>, vector<8x8xf32>) -> vector<8x8xf32>)",
       "a precision for operands of bf16"},
      {R"(%k = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<8x8xf32>} : () -> vector<8x8xf32>
      %w = "stable_mosaic.tpu.matmul"(%h, %h, %k) {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>, transpose_lhs = false, transpose_rhs = false} : (vector<8x128xbf16>, vector<8x128xbf16>, vector<8x8xf32>) -> vector<8x8xf32>)",
       "transpose_lhs_hint"},
      {R"("stable_mosaic.scf.if"(%b) ({
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i1) -> ())",
       "other than two regions"},
      {R"("stable_mosaic.scf.if"(%b) ({
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
      "stable_mosaic.scf.yield"(%n0) : (i32) -> ()
    }) : (i1) -> ())",
       "other types than the results"},
      {R"("stable_mosaic.scf.for"(%n0, %n0, %n0) ({
    ^bb0(%k: i32, %l: i32):
      "stable_mosaic.scf.yield"() : () -> ()
    }) : (i32, i32, i32) -> ())",
       "other arguments than are carried"},
      {R"("stable_mosaic.scf.yield"() : () -> ())", "a terminator"},
      {R"("stable_mosaic.func.return"() : () -> ())", "a terminator that is not the last"},
      {R"(%w = "stable_mosaic.vector.extract"(%v) {static_position = array<i64: 8, 0>} : ()" + vec + ") -> f32",
       "a position outside"},
      {R"(%w = "stable_mosaic.vector.extract_strided_slice"(%v) {offsets = [1, 0], sizes = [8, 128], strides = [1, 1]} : ()" +
           vec + ") -> " + vec,
       "a slice outside"},
      {R"(%w = "stable_mosaic.arith.addf"(%v) : ()" + vec + ") -> " + vec, "1 operands and 1 results"},
  };
  for (const auto& [body, says] : cases) ExpectRefused(Around(body), says);
}

std::string With(const std::string& from, const std::string& to) {
  std::string text = Around("");
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Verify_Attributes_ThatDoNotAgree, AreRefused) {
  ExpectRefused(With("window_bounds = array<i64: 8, 128>", "window_bounds = array<i64: 16, 128>"), "its memref is");
  ExpectRefused(With("transform_indices = @map", "transform_indices = @other"), "there is no function @other");
  ExpectRefused(With("scalar_prefetch = 1", "scalar_prefetch = 2"), "arguments for a grid");
  ExpectRefused(With("scalar_prefetch = 1", "scalar_prefetch = 9"), "there are 5 arguments");
  ExpectRefused(With("array<i64: 4>", "array<i64: 0>"), "each axis is at least 1");
  ExpectRefused(With("array<i64: 4>", "array<i64: 4, 4>"), "arguments for a grid");
  ExpectRefused(With("[#tpu.dimension_semantics<arbitrary>]", "[]"), "dimension_semantics");
  ExpectRefused(With("function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>, ", "function_type = (i32, i32, "),
                "a function_type with other arguments");
  ExpectRefused(With("\"stable_mosaic.func.return\"(%i, %z) : (i32, i32)", "\"stable_mosaic.func.return\"(%i) : (i32)"),
                "a function_type with other results");
  ExpectRefused(With("sym_name = \"map\"", "sym_name = \"main\""), "two functions are called 'main'");
}

TEST(Verify_Operands_ThatDoNotFit, AreAllNamed) {
  const Result<Module> module = SampleKernel();
  ASSERT_TRUE(module);
  const auto refused = [&](size_t operand, const ArrayType& type, const std::string& says) {
    std::vector<ArrayType> operands = SampleOperands();
    std::vector<ArrayType> results = SampleResults();
    (operand < operands.size() ? operands[operand] : results[0]) = type;
    const Status verified = VerifyOperands(*module, operands, results);
    ASSERT_FALSE(verified) << says;
    EXPECT_EQ(verified.error().code, ErrorCode::kKernelOperands);
    EXPECT_NE(ToText(verified.error()).find(says), std::string::npos)
        << ToText(verified.error()) << "\nbut not: " << says;
  };
  refused(0, {Element::kI32, {3}}, "scalars 0: the shape of memref<2xi32");
  refused(1, {Element::kI32, {2}}, "scalars 1: the shape of memref<2xi8");
  refused(2, {Element::kBf16, {16, 128}}, "input (window 0): elements of f32; it is bf16[16, 128]");
  refused(2, {Element::kF32, {8, 128}}, "the grid goes to block 1 of 8");
  refused(2, {Element::kF32, {128}}, "2 axes");
  refused(4, {Element::kF32, {8, 128}}, "input (window 2): the shape of memref<16x128xf32");
  refused(5, {Element::kF32, {24, 128}}, "the rest would never be written");
  refused(5, {Element::kF32, {8, 128}}, "result (window 3)");
}

TEST(Verify_Memory, IsMeasuredAsItLies) {
  const Result<Module> module = SampleKernel();
  ASSERT_TRUE(module);
  const Result<KernelMemory> memory = MeasureMemory(*module);
  ASSERT_TRUE(memory);
  // x and o twice, y of bf16 twice, total, and near of two.
  EXPECT_EQ(memory->vmem_bytes, 2 * 4096 + 2 * 4096 + 2 * 4096 + 4096 + 2 * 4096);
  EXPECT_EQ(memory->smem_bytes, 8 + 4 + 8);
  EXPECT_TRUE(VerifyMemory(*module, *memory));
  const Status small = VerifyMemory(*module, {memory->vmem_bytes - 1, memory->smem_bytes});
  ASSERT_FALSE(small);
  EXPECT_EQ(ToText(small.error()), "TSR-M004: 36864 bytes of vector memory, and the limit is 36863");
  EXPECT_FALSE(VerifyMemory(*module, {memory->vmem_bytes, memory->smem_bytes - 1}));
}

}  // namespace
}  // namespace tessera::mosaic
