// Metrics: of all devices, or marked as one's own; a reduction that cannot be made is an error.
#include "tessera/metric.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/proves.h"

namespace tessera {
namespace {

using Parts = std::vector<Result<MetricPart>>;

TEST(Metric, Reductions_AreOverAllDevices) {
  Proves("B15");
  const Parts parts = {MetricPart{6.0, 2}, MetricPart{1.0, 4}, MetricPart{0.0, 0}};
  const Result<Metric> sum = ReduceMetric("tokens", Reduction::kSum, parts);
  ASSERT_TRUE(sum) << ToText(sum.error());
  EXPECT_EQ(sum->value, 7.0);
  EXPECT_FALSE(sum->device.has_value());
  EXPECT_EQ(ToText(*sum), "tokens 7");
  EXPECT_EQ(ReduceMetric("loss", Reduction::kMean, parts)->value, 7.0 / 6.0) << "not the mean of means";
  EXPECT_EQ(ReduceMetric("largest", Reduction::kMax, std::span(parts).first(2))->value, 3.0);
}

// What was once shown as global: the value of the device that did not fail.
TEST(Metric, DeviceThatFailed_LeavesNoGlobalValue) {
  Proves("B15");
  const Error lost(ErrorCode::kPluginFailed, "a device is gone");
  const Parts parts = {MetricPart{2.0, 1}, tl::unexpected(lost), MetricPart{4.0, 1}, tl::unexpected(lost)};
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
    const Result<Metric> metric = ReduceMetric("loss", reduction, parts);
    ASSERT_FALSE(metric);
    EXPECT_EQ(metric.error().code, ErrorCode::kMetricIncomplete);
    const std::string text = ToText(metric.error());
    EXPECT_NE(text.find("device 1"), std::string::npos) << text;
    EXPECT_NE(text.find("device 3"), std::string::npos) << text;
    EXPECT_NE(text.find("TSR-L009 a device is gone"), std::string::npos) << text;
  }
  const Result<Metric> local = LocalMetric("loss", 2, parts);
  ASSERT_TRUE(local) << ToText(local.error());
  EXPECT_EQ(ToText(*local), "loss 4 (device 2 of 4 alone)");
  EXPECT_FALSE(LocalMetric("loss", 1, parts));
  EXPECT_FALSE(LocalMetric("loss", 4, parts));
  EXPECT_FALSE(LocalMetric("loss", -1, parts));
}

TEST(Metric, NothingToReduce_IsAnErrorAndNanStays) {
  Proves("B15");
  EXPECT_FALSE(ReduceMetric("loss", Reduction::kSum, {}));
  EXPECT_FALSE(ReduceMetric("loss", Reduction::kMean, Parts{MetricPart{0.0, 0}}));
  EXPECT_FALSE(ReduceMetric("loss", Reduction::kMax, Parts{MetricPart{1.0, 1}, MetricPart{0.0, 0}}));
  EXPECT_FALSE(ReduceMetric("loss", Reduction::kSum, Parts{MetricPart{0.0, -1}}));
  EXPECT_FALSE(ReduceMetric("loss", Reduction::kSum, Parts{MetricPart{0.0, INT64_MAX}, MetricPart{0.0, 1}}));
  for (const Parts& parts :
       {Parts{MetricPart{NAN, 1}, MetricPart{5.0, 1}}, Parts{MetricPart{5.0, 1}, MetricPart{NAN, 1}}}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
      EXPECT_TRUE(std::isnan(ReduceMetric("loss", reduction, parts)->value));
    }
  }
}

}  // namespace
}  // namespace tessera
