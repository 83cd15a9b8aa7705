// Sums of rows, the one operation of a model that is cut into pieces where tables are large.
#include <gtest/gtest.h>

#include "engine/state.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/state.h"
#include "model/device.h"
#include "model/model_fixture.h"

namespace tessera {
namespace {

using Models = ModelTest;

TEST_F(Models, SumOfRows_InPiecesAsWhole) {
  constexpr int64_t kCount = 23;
  constexpr int64_t kRows = 9;
  constexpr int64_t kWidth = 3;
  const std::vector<stablehlo::NamedType> inputs = {{"x", {stablehlo::Element::kF32, {kCount, kWidth}}},
                                                    {"at", {stablehlo::Element::kI32, {kCount}}}};
  stablehlo::Builder b("sums", {}, inputs);
  const stablehlo::Value whole = b.SumRows(b.Input("x"), b.Input("at"), kRows);
  const stablehlo::Value pieces = b.SumRows(b.Input("x"), b.Input("at"), kRows, 5 * kRows);
  const Result<std::string> text = b.Finish({whole, pieces});
  ASSERT_TRUE(text) << ToText(text.error());
  const XlaOptions options{.optimization = 0};
  const std::shared_ptr<EngineState>& state = EngineAccess::Of(engine());
  lanes::xla::Session session;
  const Decision open = state->xla->clients.Open(options, TargetKind::kCpu, &session);
  ASSERT_TRUE(open.accepted) << open.detail;
  const stablehlo::Program program{"sums", *text, inputs, {{"whole", whole.type}, {"pieces", pieces.type}}, 1};
  const Result<lanes::xla::FoundProgram> made = state->xla->programs.Make(session, {program, "sums", options});
  ASSERT_TRUE(made) << ToText(made.error());

  // Small integers, whose sums are exact in any order.
  std::mt19937_64 rng(PrintedSeed());
  std::vector<float> x(kCount * kWidth);
  for (float& value : x) value = static_cast<float>(static_cast<int64_t>(rng() % 201) - 100);
  std::vector<int32_t> at(kCount);
  for (int32_t& value : at) value = static_cast<int32_t>(rng() % kRows);
  std::vector<float> want(kRows * kWidth, 0.0F);
  for (size_t i = 0; i < x.size(); ++i) want[static_cast<size_t>(at[i / kWidth]) * kWidth + i % kWidth] += x[i];

  model::DeviceArrays arrays(state, session);
  ASSERT_TRUE(arrays.Put(inputs[0], std::as_bytes(std::span(x))));
  ASSERT_TRUE(arrays.Put(inputs[1], std::as_bytes(std::span(at))));
  const Status ran = arrays.Run(*made->program);
  ASSERT_TRUE(ran) << ToText(ran.error());
  const auto bytes = std::as_bytes(std::span(want));
  const std::vector<std::byte> expected(bytes.begin(), bytes.end());
  EXPECT_EQ(arrays.Get("whole").value(), expected);
  EXPECT_EQ(arrays.Get("pieces").value(), expected);
  EXPECT_FALSE(arrays.Get("nobody"));
}

}  // namespace
}  // namespace tessera
