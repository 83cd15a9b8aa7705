// The parser: the printer's inverse, and the place of what is wrong.
#include "lanes/xla/mosaic/parse.h"

#include <gtest/gtest.h>

#include "lanes/xla/mosaic/print.h"

namespace tessera::mosaic {
namespace {

constexpr const char* kText = R"("builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%arg0: i32, %arg1: memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>):
    %7 = "stable_mosaic.arith.constant"() {value = dense<0xFF800000> : vector<8x128xf32>} : () -> vector<8x128xf32>
    %8 = "stable_mosaic.arith.constant"() {value = -2.38197633E+38 : f32} : () -> f32
    %9 = "stable_mosaic.arith.constant"() {value = true} : () -> i1
    %10 = "stable_mosaic.arith.constant"() {value = dense<false> : vector<8x128xi1>} : () -> vector<8x128xi1>
    %11:2 = "stable_mosaic.scf.if"(%9) ({
      "stable_mosaic.scf.yield"(%7, %arg0) : (vector<8x128xf32>, i32) -> ()
    }, {
      %12 = "stable_mosaic.tpu.dynamic_rotate"(%7, %arg0) {dimension = 1 : si32} : (vector<8x128xf32>, i32) -> vector<8x128xf32>
      "stable_mosaic.scf.yield"(%12, %arg0) : (vector<8x128xf32>, i32) -> ()
    }) : (i1) -> (vector<8x128xf32>, i32)
    %13 = "stable_mosaic.vector.extract_strided_slice"(%11#0) {offsets = [0, 0], sizes = [1, 128], strides = [1, 1]} : (vector<8x128xf32>) -> vector<1x128xf32>
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<parallel>], function_type = (i32, memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) -> (), iteration_bounds = array<i64: 4>, sym_name = "main", window_params = [{}, {transform_indices = @transform_0, window_bounds = array<i64: 8, 128>}]} : () -> ()
}) {stable_mosaic.version = 11 : i64} : () -> ()
)";

TEST(Parse_Text, PrintsAsItWas) {
  const Result<Module> module = Parse(kText);
  ASSERT_TRUE(module) << ToText(module.error());
  EXPECT_EQ(Print(*module), kText);
}

std::string With(std::string from, const std::string& to) {
  std::string text = kText;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Parse_DamagedText_NamesThePlace, AndWhatWasExpected) {
  const struct {
    std::string text;
    std::string says;
  } cases[] = {
      {"", "expected \"builtin.module\"()"},
      {With("(%7, %arg0)", "(%6, %arg0)"), "line 9, column 35: %6 is not defined here"},
      {With("tpu.dynamic_rotate", "tpu.turn"), "tpu.turn is no operation we know"},
      {With("stable_mosaic.tpu.dynamic_rotate", "tpu.dynamic_rotate"), "tpu.dynamic_rotate has no prefix"},
      {With("vector<8x128xf32>, i32) -> ()", "vector<8x128xf32>, i1) -> ()"), "operand 1 is i32 where it is defined"},
      {With("(%7, %arg0)", "(%12, %arg0)"), "%12 is not defined here"},
      {With("%12 = ", "%7 = "), "%7 is defined twice"},
      {With("array<i64: 8, 128>", "array<i64: 8, 99999999999999999999>"), "expected an integer of 64 bits"},
      {With("-2.38197633E+38", "-2.38.1"), "expected a float"},
      {With("0xFF800000", "[1, 2]"), "expected one value for every element"},
      {With("sym_name = \"main\"", "sym_name = \"ma\\in\""), "expected plain text without escapes"},
      {With("<semaphore_mem>", "<nowhere>"), "nowhere is no memory space we know"},
      {With("memref<2x!", "memref<2x2x2x2x2x2x2x2x2x!"), "a shape too large"},
      {With("}) {stable_mosaic.version = 11 : i64} : () -> ()", "}) {stable_mosaic.version = 11 : i64} : () -> () x"),
       "expected the end of the text"},
      {With("stable_mosaic.version", "version"), "expected the module's version"},
      {With("[0, 0]", std::string(100, '[')), "attributes nest too deep"},
  };
  for (const auto& [text, says] : cases) {
    const Result<Module> module = Parse(text);
    ASSERT_FALSE(module) << says;
    EXPECT_EQ(module.error().code, ErrorCode::kKernelText);
    EXPECT_NE(ToText(module.error()).find(says), std::string::npos) << ToText(module.error()) << "\nbut not: " << says;
  }
}

TEST(Parse_CutText, IsRefusedAtEveryByte) {
  const std::string text = kText;
  for (size_t size = 0; size + 1 < text.size(); ++size) EXPECT_FALSE(Parse(text.substr(0, size))) << size;
}

TEST(Parse_DeepRegions, AreRefused) {
  std::string text = "\"builtin.module\"() ({ \"stable_mosaic.func.func\"() ({";
  for (int at = 0; at < 100000; ++at) text += "\"stable_mosaic.scf.while\"() ({";
  const Result<Module> module = Parse(text);
  ASSERT_FALSE(module);
  EXPECT_NE(module.error().message.find("nest too deep"), std::string::npos);
}

}  // namespace
}  // namespace tessera::mosaic
