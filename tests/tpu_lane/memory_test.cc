// What a kernel takes is known before any compiler is asked: vector memory is the target's own, and what does not fit
// its operands or its memory is no text at all.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lanes/xla/kernel_call.h"
#include "mosaic/sample.h"
#include "support/engine.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

Result<std::vector<ProgramText>> Lower(int64_t len, int64_t dim, DType dtype, const Target& target,
                                       TileSize tile = {}) {
  Contract contract;
  contract.shape = {1, len, len, 2, 1, dim, dim, dtype};
  contract.mask.heads = {ParseMaskExpr("causal").value()};
  contract.score.scale = 0.125;
  RunOptions options;
  options.lane = "xla_pallas";
  options.backward = true;
  if (tile.q > 0) options.plan.tile = tile;
  return LowerPrograms(TestEngine(), contract, {}, target, options);
}

int64_t MostVectorBytes(const std::vector<ProgramText>& programs) {
  int64_t most = 0;
  for (const ProgramText& program : programs) {
    for (const KernelText& kernel : program.kernels) most = std::max(most, kernel.vector_bytes);
  }
  return most;
}

// Long sequences fill what there is, in chunks of keys: a v5e's kernel is given half of a v6e's.
TEST(KernelMemory, ChunksOfKeys_FitWhatTheTargetGives) {
  struct Case {
    const char* target;
    int64_t len;
    int64_t limit;
  };
  for (const Case& wish : {Case{"v6e", 16384, 32 * kMib}, {"v5p", 16384, 16 * kMib}, {"v5e", 65536, 16 * kMib}}) {
    SCOPED_TRACE(wish.target);
    const Target target = FindTarget(wish.target).value();
    EXPECT_EQ(target.vector_bytes, wish.limit);
    for (const TileSize tile : {TileSize{}, TileSize{512, 512}}) {
      const Result<std::vector<ProgramText>> programs = Lower(wish.len, 128, DType::kBf16, target, tile);
      ASSERT_TRUE(programs.has_value()) << ToText(programs.error());
      EXPECT_LE(MostVectorBytes(*programs), wish.limit) << "tile " << tile.q;
      EXPECT_GT(MostVectorBytes(*programs), wish.limit / 2) << "and most of it is used";
      for (const ProgramText& program : *programs) {
        for (const KernelText& kernel : program.kernels) {
          EXPECT_GT(kernel.scalar_bytes, 0) << kernel.name;
          EXPECT_LE(kernel.scalar_bytes, target.scalar_bytes) << kernel.name;
        }
      }
    }
  }
}

// The same tiles fit one and not the other, and the reason says whose limit it is.
TEST(KernelMemory, TilesThatOneTargetHasNoRoomFor_AreRefusedByName) {
  const TileSize large{1024, 1024};
  const Result<std::vector<ProgramText>> v6e = Lower(4096, 256, DType::kF32, FindTarget("v6e").value(), large);
  EXPECT_TRUE(v6e.has_value()) << ToText(v6e.error());
  const Result<std::vector<ProgramText>> v5e = Lower(4096, 256, DType::kF32, FindTarget("v5e").value(), large);
  ASSERT_FALSE(v5e.has_value());
  EXPECT_EQ(v5e.error().code, ErrorCode::kLaneRefused);
  EXPECT_NE(ToText(v5e.error()).find("tpu.vector_memory"), std::string::npos) << ToText(v5e.error());
  EXPECT_NE(ToText(v5e.error()).find("v5e gives it 16777216"), std::string::npos) << ToText(v5e.error());
}

// ---- a call of a kernel, with something wrong

using stablehlo::Element;
using stablehlo::Type;

struct SampleCall {
  std::vector<Type> operands = {{Element::kI32, {2}},
                                {Element::kI8, {2}},
                                {Element::kF32, {16, 128}},
                                {Element::kBf16, {48, 128}},
                                {Element::kF32, {16, 128}}};
  std::vector<Type> results = {{Element::kF32, {16, 128}}};
  mosaic::KernelMemory limits = {};  // none
};

Result<stablehlo::Values> Make(const SampleCall& call) {
  std::vector<stablehlo::NamedType> inputs;
  for (const Type& type : call.operands) inputs.push_back({"x" + std::to_string(inputs.size()), type});
  stablehlo::Builder builder("sample", {}, inputs);
  stablehlo::Values operands;
  for (const stablehlo::NamedType& input : inputs) operands.push_back(builder.Input(input.name));
  const Result<mosaic::Module> kernel = mosaic::SampleKernel();
  EXPECT_TRUE(kernel.has_value());
  return lanes::xla::CallKernel(builder, *kernel, operands, call.results, call.limits);
}

TEST(KernelCall, OperandsThatDoNotFitTheKernel_AreNoText) {
  EXPECT_TRUE(Make({}).has_value());
  const auto refused = [](const SampleCall& call, const std::string& says) {
    const Result<stablehlo::Values> made = Make(call);
    ASSERT_FALSE(made.has_value()) << says;
    EXPECT_EQ(made.error().code, ErrorCode::kKernelOperands);
    EXPECT_NE(ToText(made.error()).find(says), std::string::npos) << ToText(made.error());
  };
  SampleCall wide;
  wide.operands[1].element = Element::kI32;  // a worklist that was not narrowed
  refused(wide, "scalars 1");
  SampleCall few;
  few.operands[2].dims = {8, 128};  // tokens that the grid goes beyond
  refused(few, "input (window 0)");
  SampleCall swapped;
  std::swap(swapped.operands[2], swapped.operands[3]);
  refused(swapped, "elements of f32");
  SampleCall result;
  result.results[0].dims = {24, 128};  // of which the last rows would never be written
  refused(result, "result (window 3)");
  SampleCall missing;
  missing.operands.pop_back();
  refused(missing, "4 operands and 1 results");
  SampleCall half;
  half.operands[3].element = Element::kF16;
  refused(half, "a type that no kernel takes");
}

TEST(KernelCall, MoreMemoryThanThereIs_IsNoText) {
  const mosaic::KernelMemory taken = mosaic::MeasureMemory(mosaic::SampleKernel().value()).value();
  SampleCall call;
  call.limits = taken;
  EXPECT_TRUE(Make(call).has_value());
  for (const bool is_vector : {true, false}) {
    call.limits = taken;
    --(is_vector ? call.limits.vmem_bytes : call.limits.smem_bytes);
    const Result<stablehlo::Values> made = Make(call);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::kKernelMemory);
    EXPECT_NE(made.error().message.find(is_vector ? "vector memory" : "scalar memory"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
