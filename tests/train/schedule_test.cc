// What changes from step to step, where time went, and what may be tried again: tables and plain definitions.
#include "train/schedule.h"

#include <gmock/gmock.h>

#include <cfenv>
#include <cmath>
#include <numeric>
#include <random>

#include "base/sha256.h"
#include "model/barriers.h"
#include "support/proves.h"
#include "support/seed.h"
#include "train/calibration.h"
#include "train/goodput.h"

namespace tessera::train {
namespace {

using model::BackwardBarriersBefore;
using model::BarriersAfter;
using testing::ElementsAre;

TEST(Schedule, RoundHalfEven_IsWhatTheStandardLibraryDoesByDefault) {
  Proves("B39 R89");
  EXPECT_EQ(RoundHalfEven(0.5), 0);
  EXPECT_EQ(RoundHalfEven(1.5), 2);
  EXPECT_EQ(RoundHalfEven(2.5), 2);
  EXPECT_EQ(RoundHalfEven(2.5000001), 3);
  std::mt19937_64 random(PrintedSeed());
  for (int i = 0; i < 1000; ++i) {
    const double value = static_cast<double>(random() % 4000) / 4.0;
    EXPECT_EQ(RoundHalfEven(value), std::llrint(value)) << value;  // the default rounding mode is half to even
  }
}

TEST(Schedule, MicroBatches_RiseFromAnEighth) {
  Proves("R89 B39");
  const auto table = [](int64_t most, int64_t steps) {
    std::vector<int64_t> counts;
    for (int64_t step = 0; step <= steps; ++step) counts.push_back(MicroBatchesAt({most, steps}, step));
    return counts;
  };
  EXPECT_THAT(table(16, 10), ElementsAre(2, 3, 5, 6, 8, 9, 10, 12, 13, 15, 16));
  EXPECT_THAT(table(4, 6), ElementsAre(1, 2, 2, 2, 3, 4, 4));  // 1.5 is 2 and 2.5 is 2, where std::round has 3
  EXPECT_THAT(table(1, 3), ElementsAre(1, 1, 1, 1));
  // The known example: batches of 524,288 tokens in pieces of 65,536, risen to in ten steps.
  std::vector<int64_t> twelve;
  for (int64_t step = 0; step < 12; ++step) twelve.push_back(MicroBatchesAt({8, 10}, step));
  EXPECT_THAT(twelve, ElementsAre(1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 8, 8));
  EXPECT_EQ(std::accumulate(twelve.begin(), twelve.end(), int64_t{0}) * 65536, 3735552);
  EXPECT_EQ(MicroBatchesAt({8, 0}, 0), 8);
  EXPECT_EQ(TrainSpec{}.micro_batch_warmup, 0) << "nobody asked for one";
}

TEST(Schedule, LearningRate_RisesAndFalls) {
  TrainSpec spec;
  spec.steps = 100;
  spec.warmup_steps = 10;
  spec.learning_rate = 2.0;
  spec.final_rate = 0.25;
  EXPECT_DOUBLE_EQ(LearningRateAt(spec, 1), 0.2);
  EXPECT_DOUBLE_EQ(LearningRateAt(spec, 10), 2.0);
  EXPECT_DOUBLE_EQ(LearningRateAt(spec, 100), 0.5);
  for (int64_t step = 11; step <= 100; ++step) EXPECT_LT(LearningRateAt(spec, step), LearningRateAt(spec, step - 1));
}

TEST(Schedule, Barriers_StandAfterEveryNthLayerButTheLast) {
  Proves("R89");
  EXPECT_THAT(BarriersAfter(12, 4), ElementsAre(4, 8));
  EXPECT_THAT(BarriersAfter(13, 4), ElementsAre(4, 8, 12));
  EXPECT_THAT(BackwardBarriersBefore(13, 4), ElementsAre(12, 8, 4));
  EXPECT_TRUE(BarriersAfter(12, 0).empty());
  EXPECT_TRUE(BarriersAfter(1, 1).empty());
  EXPECT_EQ(ExecutionMode(2), "barrier_split");
  EXPECT_EQ(ExecutionMode(0), "compiled_fwd_bwd");
}

TEST(Schedule, Failures_AreClassifiedByTheFirstRuleThatFits) {
  Proves("R89");
  const std::vector<std::pair<std::string, std::string_view>> samples = {
      {"RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 33.2G of "
       "31.2G",
       "CompileTimeHbmOom"},
      {"RESOURCE_EXHAUSTED: Error allocating program: 4.1G", "ProgramAllocationFailure"},
      {"RESOURCE_EXHAUSTED: Error allocating device buffer: 2.0G", "BufferAllocationFailure"},
      {"RESOURCE_EXHAUSTED: something else", "XlaResourceExhausted"}};
  for (const auto& [message, name] : samples) {
    const std::optional<RetryClass> found = ClassifyFailure(message);
    ASSERT_TRUE(found) << message;
    EXPECT_EQ(ToText(*found), name);
    EXPECT_TRUE(MayRetry({message, true, 0, 0}));
    EXPECT_TRUE(MayRetry({message, true, 1, kRetryLimit - 1}));
    EXPECT_FALSE(MayRetry({message, true, 2, 0})) << "only at the beginning";
    EXPECT_FALSE(MayRetry({message, false, 0, 0})) << "only on a device of XLA's";
    EXPECT_FALSE(MayRetry({message, true, 0, kRetryLimit}));
  }
  EXPECT_FALSE(ClassifyFailure("INVALID_ARGUMENT: shapes"));
  EXPECT_FALSE(MayRetry({"INVALID_ARGUMENT: shapes", true, 0, 0}));
}

TEST(Schedule, Candidates_ThatFailed_GoBehindTheOthersInOrder) {
  Proves("R89");
  const std::vector<std::string> candidates = {"a", "b", "c", "d"};
  const std::vector<std::string> failed = {"c", "a", "x"};
  EXPECT_THAT(RankCandidates(candidates, failed), ElementsAre("b", "d", "a", "c"));
}

TEST(Calibration, SignatureIsOfSortedCompactJson) {
  Proves("R89");
  CalibrationInputs inputs{.code = "0.1.0", .hardware = "v6e", .model = "abc", .features = {"softcap", "barriers=2"}};
  inputs.parallelism.device_batch = 4;
  inputs.parallelism.accum = 2;
  EXPECT_EQ(CalibrationText(inputs),
            R"({"code":"0.1.0","features":["barriers=2","softcap"],"hardware":"v6e","model":"abc","parallelism":)"
            R"({"accum":2,"ckpt":false,"device_batch":4,"dp":1,"ep":1,"fsdp":false,"tp":1}})");
  const std::string signature = CalibrationSignature(inputs);
  EXPECT_EQ(signature, Sha256(CalibrationText(inputs)));
  std::swap(inputs.features[0], inputs.features[1]);
  EXPECT_EQ(CalibrationSignature(inputs), signature);
  inputs.parallelism.device_batch = 2;
  EXPECT_NE(CalibrationSignature(inputs), signature);
  EXPECT_DOUBLE_EQ(StartupDelta(3.14159, 1.0), 2.14);
  EXPECT_DOUBLE_EQ(StartupDelta(1.0, 1.5), -0.5);
}

TEST(Goodput, Arithmetic) {
  Proves("R88");
  Goodput goodput = MakeGoodput({6.0, 1.0, 0.5, 1.5, 0.25}, 10.0);
  EXPECT_DOUBLE_EQ(goodput.goodput, 0.6);
  EXPECT_DOUBLE_EQ(goodput.idle_s, 0.75);
  goodput = MakeGoodput({12.0, 0.0, 0.0, 0.0, 0.0}, 10.0);  // spans of several threads
  EXPECT_DOUBLE_EQ(goodput.goodput, 1.0);
  EXPECT_DOUBLE_EQ(goodput.idle_s, 0.0);
  goodput = MakeGoodput({0.0, 1.0, 0.0, 0.0, 0.0}, 10.0);
  EXPECT_DOUBLE_EQ(goodput.goodput, 0.0);
  EXPECT_DOUBLE_EQ(MakeGoodput({1.0, 0.0, 0.0, 0.0, 0.0}, 0.0).goodput, 0.0);
  GoodputMeter meter;
  meter.Add(SpanKind::kEval, 2'000'000'000);
  EXPECT_EQ(meter.During(SpanKind::kStep, [] { return 7; }), 7);
  EXPECT_DOUBLE_EQ(meter.Seconds(SpanKind::kEval), 2.0);
}

}  // namespace
}  // namespace tessera::train
