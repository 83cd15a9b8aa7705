// Gradients against finite differences: of the oracle's forward in double precision, and of each lane's own forward.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "conformance/conformance.h"
#include "oracle/oracle.h"
#include "support/random_batch.h"

namespace tessera::conformance {
namespace {

struct Shapes {
  const char* name;
  Small small;
  std::vector<int64_t> documents;  // empty = none
};

// Small enough to differentiate by every single input.
const std::vector<Shapes>& GradientShapes() {
  static const std::vector<Shapes> shapes = [] {
    std::vector<Shapes> list;
    const auto add = [&list](const char* name, const Small& small, std::vector<int64_t> documents = {}) {
      list.push_back({name, small, std::move(documents)});
    };
    add("Plain", {.q_len = 7, .kv_len = 7, .dim_qk = 3, .dim_v = 2});
    add("Softcap", {.q_len = 7, .kv_len = 7, .dim_qk = 3, .dim_v = 2, .softcap = 0.8});
    add("Window", {.mask = "causal and window(2, 0)", .q_len = 8, .kv_len = 8, .dim_qk = 2, .dim_v = 3});
    add("WindowSoftcap",
        {.mask = "causal and window(3, 0)", .q_len = 8, .kv_len = 8, .dim_qk = 2, .dim_v = 3, .softcap = 1.0});
    add("Documents", {.mask = "causal and documents", .q_len = 9, .kv_len = 9, .dim_qk = 2, .dim_v = 2}, {4, 3});
    add("Sinks", {.q_len = 6, .kv_len = 6, .dim_qk = 2, .dim_v = 2, .sink_logits = true});
    add("GroupedHeads", {.q_len = 5, .kv_len = 5, .num_q_heads = 4, .num_kv_heads = 2, .dim_qk = 2, .dim_v = 2});
    add("CrossLength", {.q_len = 4, .kv_len = 9, .dim_qk = 2, .dim_v = 3});
    add("EmptyRows", {.q_len = 9, .kv_len = 4, .dim_qk = 2, .dim_v = 2, .sink_logits = true});
    add("Picks", {.mask = "causal and blocks",
                  .q_len = 7,
                  .kv_len = 7,
                  .num_q_heads = 4,
                  .num_kv_heads = 2,
                  .dim_qk = 2,
                  .dim_v = 2});
    add("Everything",
        {.mask = "causal and documents and (window(2, 0) or sink(1, document))",
         .q_len = 9,
         .kv_len = 9,
         .batch = 2,
         .dim_qk = 2,
         .dim_v = 3,
         .softcap = 1.2,
         .sink_logits = true},
        {5, 3});
    return list;
  }();
  return shapes;
}

Setting SettingOf(const Shapes& shapes, const std::string& lane, uint64_t seed) {
  const Contract contract = MakeContract(shapes.small);
  Batch batch;
  if (!shapes.documents.empty()) batch = DocumentBatch(contract, shapes.documents);
  if (DescribeMask(contract)->needs_blocks) {
    std::mt19937_64 rng(seed);
    batch.picks = RandomPicks(rng, contract);
  }
  return MakeSetting(lane, contract, batch, seed);
}

// The loss whose gradient a backward computes: the sum of o * do. `magnitude` is the sum of |o * do|.
struct Loss {
  double value = 0.0;
  double magnitude = 0.0;
  void Add(double o, double dout) {
    value += o * dout;
    magnitude += std::abs(o * dout);
  }
};
using Forward = std::function<Loss(const Setting&)>;

Loss OracleLoss(const Setting& setting) {
  Loss loss;
  const Result<OracleForwardResult> forward = OracleForward(setting.contract, setting.batch, setting.inputs);
  EXPECT_TRUE(forward.has_value());
  if (!forward) return loss;
  for (size_t i = 0; i < forward->o.value.size(); ++i) {
    loss.Add(forward->o.value[i], setting.inputs.at("do").At(static_cast<int64_t>(i)));
  }
  return loss;
}

Loss LaneLoss(const Setting& setting) {
  Loss loss;
  Setting forward_only = setting;
  forward_only.options.backward = false;
  forward_only.inputs.erase("do");
  const RunOutcome outcome = RunSetting(forward_only);
  if (outcome.error) return loss;
  const Tensor& o = outcome.outputs.at("o");
  for (int64_t i = 0; i < o.NumElements(); ++i) loss.Add(o.At(i), setting.inputs.at("do").At(i));
  return loss;
}

struct Difference {
  double value = 0.0;
  double tolerance = 0.0;
};

// Central differences at h and h/2, extrapolated. The tolerance is what the two disagree by, plus what rounding of the
// loss by `unit` can do to them.
Difference Differentiate(Setting setting, const char* name, int64_t element, double h, double unit,
                         const Forward& forward) {
  Tensor& tensor = setting.inputs.at(name);
  const double x = tensor.At(element);
  double magnitude = 0.0;
  const auto slope = [&](double step) {
    tensor.Set(element, x + step);
    const double high = tensor.At(element);
    const Loss above = forward(setting);
    tensor.Set(element, x - step);
    const double low = tensor.At(element);
    const Loss below = forward(setting);
    magnitude = std::max({magnitude, above.magnitude, below.magnitude});
    return (above.value - below.value) / (high - low);
  };
  const double coarse = slope(h);
  const double fine = slope(h / 2.0);
  return {(4.0 * fine - coarse) / 3.0, std::abs(fine - coarse) + 16.0 * unit * magnitude / h};
}

struct Wanted {
  const char* input;
  const OracleTensor* gradient;
};

class OracleGradients : public testing::TestWithParam<size_t> {};

TEST_P(OracleGradients, EveryInput_EqualFiniteDifferences) {
  Proves("R41");
  const uint64_t seed = PrintedSeed();
  const Setting setting = SettingOf(GradientShapes()[GetParam()], "reference", seed);
  const Result<OracleBackwardResult> got = OracleBackward(setting.contract, setting.batch, setting.inputs);
  ASSERT_TRUE(got.has_value()) << ToText(got.error());
  std::vector<Wanted> wanted = {{"q", &got->dq}, {"k", &got->dk}, {"v", &got->dv}};
  if (setting.contract.score.sink_logits) wanted.push_back({"sink_logits", &got->dsink});
  for (const Wanted& want : wanted) {
    for (size_t i = 0; i < want.gradient->value.size(); ++i) {
      // Seeded inputs are multiples of 2^-15, so these steps are exact in f32.
      const Difference difference =
          Differentiate(setting, want.input, static_cast<int64_t>(i), 0x1p-9, 0x1p-50, OracleLoss);
      ASSERT_NEAR(want.gradient->value[i], difference.value, difference.tolerance) << want.input << " " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, OracleGradients, testing::Range(size_t{0}, GradientShapes().size()),
                         [](const auto& shape) { return std::string(GradientShapes()[shape.param].name); });

class LaneGradients : public testing::TestWithParam<std::tuple<std::string, size_t>> {};

TEST_P(LaneGradients, EveryInput_EqualFiniteDifferences) {
  Proves("R41");
  const uint64_t seed = PrintedSeed();
  const auto& [lane, shape] = GetParam();
  if (CompilesPerClass(lane) && shape % 6 != 0) {
    GTEST_SKIP() << "this lane compiles for each shape: a sixth of them is enough, since the oracle, which passes at "
                    "all, judges its gradients in every case";
  }
  const Setting setting = SettingOf(GradientShapes()[shape], lane, seed);
  const RunOutcome got = RunAndCheck(setting);
  ASSERT_FALSE(got.error.has_value());
  std::vector<std::pair<const char*, const char*>> pairs = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}};
  if (setting.contract.score.sink_logits) pairs.emplace_back("sink_logits", "dsink_logits");
  for (const auto& [input, output] : pairs) {
    const Tensor& gradient = got.outputs.at(output);
    for (int64_t i = 0; i < gradient.NumElements(); ++i) {
      // The lane's output is f32, so the step is wider and the rounding that counts is the output's; a lane that also
      // computes in f32 rounds a few times more.
      const double unit = IsBitwise(lane) ? 0x1p-24 : 0x1p-22;
      const Difference difference = Differentiate(setting, input, i, 0x1p-5, unit, LaneLoss);
      ASSERT_NEAR(gradient.At(i), difference.value, difference.tolerance) << output << " " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, LaneGradients,
                         testing::Combine(testing::ValuesIn(HostLanes()),
                                          testing::Range(size_t{0}, GradientShapes().size())),
                         [](const auto& pair) {
                           return Slug(std::get<0>(pair.param)) + "_" + GradientShapes()[std::get<1>(pair.param)].name;
                         });

}  // namespace
}  // namespace tessera::conformance
