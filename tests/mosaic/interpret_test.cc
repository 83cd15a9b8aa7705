// The interpreter: what windows, memory, copies and loops do, step by step. Whole kernels are in kernels_test.cc.
#include "lanes/xla/mosaic/interpret.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "lanes/xla/mosaic/parse.h"
#include "lanes/xla/mosaic/print.h"
#include "sample.h"
#include "support/seed.h"
#include "tessera/dtype.h"

namespace tessera::mosaic {
namespace {

template <class T>
struct Array {
  Element element;
  std::vector<int64_t> dims;
  std::vector<T> values;
  ArrayView View() const { return {element, dims, std::as_bytes(std::span(values))}; }
};
using FloatArray = Array<float>;
using IntArray = Array<int32_t>;

FloatArray Counting(std::vector<int64_t> dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  FloatArray array{Element::kF32, std::move(dims), {}};
  for (int64_t at = 0; at < count; ++at) array.values.push_back(static_cast<float>(at % 1000));
  return array;
}

std::vector<float> FloatsOf(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

using Body = std::function<void(Builder&, const KernelArguments&)>;
Window::IndexMap Axis(size_t axis) {
  return [axis](Builder& b, const Values& grid, const Values&) { return Values{grid[axis], b.I32(0)}; };
}

// Built, printed, parsed, run: the text is what is interpreted.
Result<Interpreted> RunText(const KernelSpec& spec, const Body& body, const std::vector<ArrayView>& operands,
                            const std::vector<ArrayType>& results, const InterpretOptions& options = {}) {
  const Result<Module> built = BuildKernel(spec, body);
  if (!built) return tl::unexpected(built.error());
  const Result<Module> module = Parse(Print(*built));
  if (!module) return tl::unexpected(module.error());
  return Interpret(*module, operands, results, options);
}

KernelSpec CopySpec() {
  return {.name = "copy",
          .grid = {3, 2},
          .semantics = {Semantics::kParallel, Semantics::kArbitrary},
          .inputs = {{.name = "x", .bounds = {8, 128}, .index_map = Axis(0)}},
          .outputs = {{.name = "o", .bounds = {8, 128}, .index_map = Axis(0)}}};
}

TEST(Interpret_Windows, MoveOnlyWhenTheirBlockChanges) {
  const FloatArray x = Counting({24, 128});
  const Result<Interpreted> done =
      RunText(CopySpec(), [](Builder& b, const KernelArguments& args) { b.StoreAll(b.LoadAll(args["x"]), args["o"]); },
              {x.View()}, {{Element::kF32, {24, 128}}});
  ASSERT_TRUE(done) << ToText(done.error());
  EXPECT_EQ(FloatsOf(done->results[0]), x.values);
  EXPECT_EQ(done->num_steps, 6);
  EXPECT_EQ(done->num_moved, (std::vector<int64_t>{3, 3}));
}

TEST(Interpret_ResultBlock, KeepsWhatEarlierStepsWroteWhileItStays) {
  const FloatArray x = Counting({24, 128});
  const Body body = [](Builder& b, const KernelArguments& args) {
    b.When(b.Is(Compare::kEq, args.grid[1], b.I32(0)), [&] { b.StoreAll(b.LoadAll(args["x"]), args["o"]); });
    b.When(b.Is(Compare::kEq, args.grid[1], b.I32(1)),
           [&] { b.StoreAll(b.Mul(b.LoadAll(args["o"]), b.F32(2)), args["o"]); });
  };
  const Result<Interpreted> done = RunText(CopySpec(), body, {x.View()}, {{Element::kF32, {24, 128}}});
  ASSERT_TRUE(done) << ToText(done.error());
  const std::vector<float> o = FloatsOf(done->results[0]);
  for (size_t at = 0; at < o.size(); ++at) ASSERT_EQ(o[at], 2 * x.values[at]) << at;
}

TEST(Interpret_BlockThatIsVisitedAgain, BeginsWithGarbage) {
  KernelSpec spec = CopySpec();
  spec.grid = {2, 3};  // blocks 0, 1, 2, 0, 1, 2
  spec.inputs[0].index_map = spec.outputs[0].index_map = Axis(1);
  const FloatArray x = Counting({24, 128});
  const Body body = [](Builder& b, const KernelArguments& args) {
    b.When(b.Is(Compare::kEq, args.grid[0], b.I32(0)), [&] { b.StoreAll(b.LoadAll(args["x"]), args["o"]); });
    b.When(b.Is(Compare::kEq, args.grid[0], b.I32(1)),
           [&] { b.StoreAll(b.Add(b.LoadAll(args["o"]), b.LoadAll(args["x"])), args["o"]); });
  };
  const Result<Interpreted> done = RunText(spec, body, {x.View()}, {{Element::kF32, {24, 128}}});
  ASSERT_TRUE(done) << ToText(done.error());
  for (const float value : FloatsOf(done->results[0])) ASSERT_TRUE(std::isnan(value));
  EXPECT_EQ(done->num_moved, (std::vector<int64_t>{6, 6}));
}

TEST(Interpret_MemoryThatNobodyWrote, IsNaN) {
  KernelSpec spec = CopySpec();
  spec.scratch = {{"s", MemrefOf(Space::kVmem, Element::kF32, {8, 128})}};
  const FloatArray x = Counting({24, 128});
  const Result<Interpreted> done =
      RunText(spec, [](Builder& b, const KernelArguments& args) { b.StoreAll(b.LoadAll(args["s"]), args["o"]); },
              {x.View()}, {{Element::kF32, {24, 128}}});
  ASSERT_TRUE(done) << ToText(done.error());
  for (const float value : FloatsOf(done->results[0])) ASSERT_TRUE(std::isnan(value));
}

TEST(Interpret_WindowBeyondItsArray, ShowsNaNAndWritesNothingThere) {
  const FloatArray x = Counting({20, 128});  // the last block has four rows
  KernelSpec spec = CopySpec();
  spec.outputs.push_back({.name = "sum", .bounds = {8, 128}, .index_map = Axis(0)});
  const Body body = [](Builder& b, const KernelArguments& args) {
    const Value all = b.LoadAll(args["x"]);
    b.StoreAll(all, args["o"]);
    b.StoreAll(b.Broadcast(b.ShapeCast(b.Reduce(Reduction::kAdd, all, {0}), {1, 128}), {8, 128}), args["sum"]);
  };
  const Result<Interpreted> done =
      RunText(spec, body, {x.View()}, {{Element::kF32, {20, 128}}, {Element::kF32, {24, 128}}});
  ASSERT_TRUE(done) << ToText(done.error());
  EXPECT_EQ(FloatsOf(done->results[0]), x.values);
  const std::vector<float> sums = FloatsOf(done->results[1]);
  EXPECT_FALSE(std::isnan(sums[0]));
  EXPECT_TRUE(std::isnan(sums[16 * 128])) << "a sum over rows that are not there";
}

TEST(Interpret_Scalars, ChooseBlocks) {
  KernelSpec spec = CopySpec();
  spec.scalars = {{"pick", MemrefOf(Space::kSmem, Element::kI32, {3})}};
  spec.inputs[0].index_map = [](Builder& b, const Values& grid, const Values& scalars) {
    return Values{b.LoadScalar(scalars[0], Values{grid[0]}), b.I32(0)};
  };
  const Body body = [](Builder& b, const KernelArguments& args) { b.StoreAll(b.LoadAll(args["x"]), args["o"]); };
  const FloatArray x = Counting({24, 128});
  IntArray pick{Element::kI32, {3}, {2, 2, 0}};
  const Result<Interpreted> done = RunText(spec, body, {pick.View(), x.View()}, {{Element::kF32, {24, 128}}});
  ASSERT_TRUE(done) << ToText(done.error());
  const std::vector<float> o = FloatsOf(done->results[0]);
  EXPECT_EQ(o[0], x.values[16 * 128]);
  EXPECT_EQ(o[8 * 128], x.values[16 * 128]);
  EXPECT_EQ(o[16 * 128], x.values[0]);
  EXPECT_EQ(done->num_moved[0], 2) << "the second row's block is there already";

  pick.values[1] = 3;
  const Result<Interpreted> outside = RunText(spec, body, {pick.View(), x.View()}, {{Element::kF32, {24, 128}}});
  ASSERT_FALSE(outside);
  EXPECT_EQ(ToText(outside.error()), "TSR-M005 at step (1, 0): window 0 is at block (3, 0) of an array of 24x128");
}

TEST(Interpret_DynamicGrid, TakesItsBoundFromAnOperand) {
  KernelSpec spec = CopySpec();
  spec.grid = {kDynamicBound, 2};
  const FloatArray x = Counting({24, 128});
  const IntArray steps{Element::kI32, {}, {2}};
  const Result<Interpreted> done =
      RunText(spec, [](Builder& b, const KernelArguments& args) { b.StoreAll(b.LoadAll(args["x"]), args["o"]); },
              {steps.View(), x.View()}, {{Element::kF32, {24, 128}}});
  ASSERT_TRUE(done) << ToText(done.error());
  EXPECT_EQ(done->num_steps, 4);
  const std::vector<float> o = FloatsOf(done->results[0]);
  EXPECT_EQ(o[15 * 128], x.values[15 * 128]);
  EXPECT_TRUE(std::isnan(o[16 * 128]));
}

TEST(Interpret_Faults, NameOperationAndStep) {
  KernelSpec spec = CopySpec();
  spec.scalars = {{"n", MemrefOf(Space::kSmem, Element::kI32, {1})}};
  const FloatArray x = Counting({24, 128});
  const auto fault = [&](int32_t n, const Body& body, const std::string& says) {
    const IntArray scalar{Element::kI32, {1}, {n}};
    const Result<Interpreted> done =
        RunText(spec, body, {scalar.View(), x.View()}, {{Element::kF32, {24, 128}}}, {.most_rounds = 1000});
    ASSERT_FALSE(done) << says;
    EXPECT_EQ(done.error().code, ErrorCode::kKernelFault) << ToText(done.error());
    EXPECT_NE(ToText(done.error()).find(says), std::string::npos) << ToText(done.error());
  };
  const auto number = [](Builder& b, const KernelArguments& args) { return b.LoadScalar(args["n"], Values{b.I32(0)}); };
  fault(
      5,
      [&](Builder& b, const KernelArguments& args) {
        b.Load(args["x"], Values{number(b, args), b.I32(0)}, {4, 128});
      },
      "step (0, 0): 4 elements from 5 along axis 0 of 8, in");
  fault(
      -1,
      [&](Builder& b, const KernelArguments& args) {
        b.Load(args["x"], Values{number(b, args), b.I32(0)}, {4, 128});
      },
      "4 elements from -1");
  fault(
      1, [&](Builder& b, const KernelArguments& args) { b.LoadScalar(args["n"], Values{number(b, args)}); },
      "1 elements from 1 along axis 0 of 1");
  fault(
      12, [&](Builder& b, const KernelArguments& args) { b.AssumeMultiple(number(b, args), 8); },
      "12 is no multiple of 8");
  fault(
      0, [&](Builder& b, const KernelArguments& args) { b.Div(b.I32(1), number(b, args)); }, "a division by zero");
  fault(
      0,
      [&](Builder& b, const KernelArguments& args) {
        b.For(b.I32(0), b.I32(9), number(b, args), {}, [](const Value&, const Values&) { return Values(); });
      },
      "a loop by steps of 0");
  fault(
      1,
      [&](Builder& b, const KernelArguments&) {
        b.While(
            {}, [&](const Values&) { return b.Bool(true); }, [](const Values&) { return Values(); });
      },
      "a loop that does not end");
}

KernelSpec FarSpec() {
  return {.name = "far",
          .grid = {1},
          .semantics = {Semantics::kArbitrary},
          .inputs = {{.name = "far", .bounds = {64, 128}, .space = Space::kAny}},
          .outputs = {{.name = "o", .bounds = {8, 128}, .index_map = Axis(0)}},
          .scratch = {{"near", MemrefOf(Space::kVmem, Element::kF32, {8, 128})},
                      {"done", MemrefOf(Space::kSemaphore, Element::kDmaSemaphore, {1})}}};
}

TEST(Interpret_Copy, LandsWhenItIsWaitedFor) {
  const FloatArray far = Counting({64, 128});
  const auto run = [&](bool waits_first, bool waits) {
    return RunText(FarSpec(),
                   [=](Builder& b, const KernelArguments& args) {
                     const Value from = b.SliceRef(args["far"], Values{b.I32(24), b.I32(0)}, {8, 128});
                     const Value done = b.SqueezeRef(args["done"], {});
                     b.StoreAll(b.Constant(VectorOf(Element::kF32, {8, 128}), 0), args["near"]);
                     b.StartCopy(from, args["near"], done);
                     if (waits && waits_first) b.WaitCopy(from, args["near"], done);
                     b.StoreAll(b.LoadAll(args["near"]), args["o"]);
                     if (waits && !waits_first) b.WaitCopy(from, args["near"], done);
                   },
                   {far.View()}, {{Element::kF32, {8, 128}}});
  };
  const Result<Interpreted> right = run(true, true);
  ASSERT_TRUE(right) << ToText(right.error());
  EXPECT_EQ(FloatsOf(right->results[0])[5], far.values[24 * 128 + 5]);
  const Result<Interpreted> early = run(false, true);
  ASSERT_TRUE(early);
  EXPECT_TRUE(std::isnan(FloatsOf(early->results[0])[5])) << "read before it was waited for";
  const Result<Interpreted> never = run(false, false);
  ASSERT_FALSE(never);
  EXPECT_NE(never.error().message.find("nobody waited for it"), std::string::npos);
}

// bf16 where the TPU rounds: results of bf16 arithmetic, truncf, and f32 operands of a matmul without a precision.
TEST(Interpret_Rounding, IsToNearestEvenInBf16) {
  const KernelSpec spec{.name = "round",
                        .grid = {1},
                        .semantics = {Semantics::kArbitrary},
                        .inputs = {{.name = "x", .bounds = {8, 128}, .index_map = Axis(0)}},
                        .outputs = {{.name = "t", .element = Element::kBf16, .bounds = {8, 128}, .index_map = Axis(0)},
                                    {.name = "a", .element = Element::kBf16, .bounds = {8, 128}, .index_map = Axis(0)},
                                    {.name = "m", .bounds = {8, 8}, .index_map = Axis(0)},
                                    {.name = "f", .bounds = {8, 8}, .index_map = Axis(0)}}};
  std::mt19937_64 rng(PrintedSeed());
  FloatArray x{Element::kF32, {8, 128}, std::vector<float>(8 * 128)};
  for (float& value : x.values) value = std::normal_distribution<float>()(rng);
  const std::vector<ArrayType> results = {
      {Element::kBf16, {8, 128}}, {Element::kBf16, {8, 128}}, {Element::kF32, {8, 8}}, {Element::kF32, {8, 8}}};
  const Result<Interpreted> done = RunText(
      spec,
      [](Builder& b, const KernelArguments& args) {
        const Value v = b.LoadAll(args["x"]);
        const Value t = b.Convert(v, Element::kBf16);
        b.StoreAll(t, args["t"]);
        b.StoreAll(b.Add(t, b.Mul(t, t)), args["a"]);
        b.StoreAll(b.Matmul(v, v, 1, 1), args["m"]);
        b.StoreAll(b.Matmul(v, v, 1, 1, Precision::kFp32), args["f"]);
      },
      {x.View()}, results);
  ASSERT_TRUE(done) << ToText(done.error());
  const auto bf16 = [](double value) { return Bf16ToF32(F32ToBf16(static_cast<float>(value))); };
  for (size_t at = 0; at < x.values.size(); ++at) {
    uint16_t t = 0;
    uint16_t a = 0;
    std::memcpy(&t, done->results[0].data() + 2 * at, 2);
    std::memcpy(&a, done->results[1].data() + 2 * at, 2);
    const float rounded = bf16(x.values[at]);
    ASSERT_EQ(Bf16ToF32(t), rounded);
    ASSERT_EQ(Bf16ToF32(a), bf16(rounded + bf16(rounded * rounded)));
  }
  double one_pass = 0;
  double exact = 0;
  for (size_t k = 0; k < 128; ++k) {
    one_pass += double{bf16(x.values[k])} * bf16(x.values[128 + k]);
    exact += double{x.values[k]} * x.values[128 + k];
  }
  EXPECT_NEAR(FloatsOf(done->results[2])[1], one_pass, 1e-4);
  EXPECT_NEAR(FloatsOf(done->results[3])[1], exact, 1e-4);
  EXPECT_GT(std::abs(one_pass - exact), 0);
}

// Every way that two matrices can lie, at sizes that are no multiple of anything.
TEST(Interpret_Matmul, IsRightForEveryLayout) {
  std::mt19937_64 rng(PrintedSeed());
  for (int64_t lhs_axis : {0, 1}) {
    for (int64_t rhs_axis : {0, 1}) {
      const int64_t m = 1 + static_cast<int64_t>(rng() % 40);
      const int64_t n = 1 + static_cast<int64_t>(rng() % 40);
      const int64_t k = 1 + static_cast<int64_t>(rng() % 40);
      const auto dims = [&](int64_t own, int64_t axis) {
        return axis == 1 ? std::vector<int64_t>{own, k} : std::vector<int64_t>{k, own};
      };
      KernelSpec spec{
          .name = "dot",
          .inputs = {{.name = "a", .bounds = dims(m, lhs_axis)}, {.name = "b", .bounds = dims(n, rhs_axis)}},
          .outputs = {{.name = "o", .bounds = {m, n}}}};
      const FloatArray a = Counting(spec.inputs[0].bounds);
      const FloatArray b = Counting(spec.inputs[1].bounds);
      const Result<Interpreted> done =
          RunText(spec,
                  [&](Builder& builder, const KernelArguments& args) {
                    builder.StoreAll(builder.Matmul(builder.LoadAll(args["a"]), builder.LoadAll(args["b"]), lhs_axis,
                                                    rhs_axis, Precision::kFp32),
                                     args["o"]);
                  },
                  {a.View(), b.View()}, {{Element::kF32, {m, n}}});
      ASSERT_TRUE(done) << ToText(done.error());
      const std::vector<float> o = FloatsOf(done->results[0]);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) {
            sum += double{a.values[lhs_axis == 1 ? i * k + l : l * m + i]} *
                   b.values[rhs_axis == 1 ? j * k + l : l * n + j];
          }
          ASSERT_NEAR(o[i * n + j], sum, 1e-5 * std::abs(sum)) << m << " " << n << " " << k;
        }
      }
    }
  }
}

TEST(Interpret_Sample, RunsAndGivesNumbers) {
  const Result<Module> module = SampleKernel();
  ASSERT_TRUE(module) << ToText(module.error());
  const IntArray count{Element::kI32, {2}, {3, 1}};
  const Array<int8_t> pick{Element::kI8, {2}, {2, 0}};
  const FloatArray x = Counting({16, 128});
  const Array<uint16_t> y{Element::kBf16, {48, 128}, std::vector<uint16_t>(48 * 128, 0x3F80)};
  const FloatArray far = Counting({16, 128});
  const std::vector<ArrayType> results = {{Element::kF32, {16, 128}}};
  const std::vector<ArrayView> operands = {count.View(), pick.View(), x.View(), y.View(), far.View()};
  const Result<Interpreted> done = Interpret(*module, operands, results);
  ASSERT_TRUE(done) << ToText(done.error());
  for (const float value : FloatsOf(done->results[0])) ASSERT_TRUE(std::isfinite(value));
  const Result<Interpreted> again = Interpret(*module, operands, results);
  EXPECT_EQ(done->results, again->results);
  const Result<Interpreted> few = Interpret(*module, std::span(operands).first(4), results);
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, ErrorCode::kKernelOperands);
}

}  // namespace
}  // namespace tessera::mosaic
