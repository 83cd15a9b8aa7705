// Receipts of runs: the rules that they keep; the log; the page.
#include <gmock/gmock.h>

#include <random>

#include "support/proves.h"
#include "support/seed.h"
#include "tessera/train.h"
#include "train/log.h"

namespace tessera::train {
namespace {

using testing::HasSubstr;
using testing::Not;

TrainReceipt Good() {
  TrainReceipt receipt;
  receipt.mode = "train";
  receipt.ended = "finished";
  receipt.first_step = 3;
  receipt.steps = 4;
  receipt.last_step = 6;
  receipt.substitutes.resize(7);
  receipt.bigram_loss = 2.5;
  receipt.goodput = MakeGoodput({3.0, 0.5, 0.5, 1.0, 0.25}, 6.0);
  receipt.checks = {true, true, true, true, true};
  return receipt;
}

std::string ErrorOf(const TrainReceipt& receipt) {
  const Status good = CheckTrainReceipt(ToJson(receipt));
  return good ? "" : ToText(good.error());
}

TEST(TrainReceipts, KeepTheirRules) {
  Proves("R88");
  EXPECT_EQ(ErrorOf(Good()), "");
  EXPECT_THAT(ToJson(Good()), HasSubstr("\"train_receipt_version\": 1"));
  for (const char* check : {"all_losses_finite", "no_nan_loss", "exit_code_zero", "has_steps", "no_oom"})
    EXPECT_THAT(ToJson(Good()), HasSubstr(std::string("\"") + check + "\": true"));
  TrainReceipt receipt = Good();
  receipt.goodput.goodput = 0.9;
  EXPECT_THAT(ErrorOf(receipt), HasSubstr("goodput.goodput"));
  receipt = Good();
  receipt.goodput.idle_s = 0.0;
  EXPECT_THAT(ErrorOf(receipt), HasSubstr("idle_s"));
  receipt = Good();
  receipt.ended = "TSR-T106: the loss is not finite";
  EXPECT_THAT(ErrorOf(receipt), HasSubstr("exit_code_zero"));
  receipt = Good();
  receipt.last_step = 9;
  EXPECT_THAT(ErrorOf(receipt), HasSubstr("steps.last"));
  receipt = Good();
  receipt.substitutes.pop_back();
  EXPECT_THAT(ErrorOf(receipt), HasSubstr("substitutes"));
  receipt.substitutes.clear();
  EXPECT_THAT(ErrorOf(receipt), HasSubstr("substitutes"));
  receipt.ended = "interrupted";
  receipt.steps = 0;
  receipt.checks.has_steps = false;
  EXPECT_EQ(ErrorOf(receipt), "") << "it ended before they were chosen";
  EXPECT_FALSE(CheckTrainReceipt("{}"));
  EXPECT_FALSE(CheckTrainReceipt("no"));
}

TEST(TrainLog, IsReadAsItWasWritten_UpToAStep) {
  std::mt19937_64 random(PrintedSeed());
  const auto any = [&] { return static_cast<double>(random() % 100000) / 7.0; };
  std::vector<LogPoint> points;
  for (int64_t step = 10; step <= 100; step += 10) {
    LogPoint point{step, any(), any(), any(), step * 100, any(), any(), {}};
    if (step % 20 == 0) point.layers = {{any(), any(), any(), any(), any(), "BOTH"}, {any(), 0, 0, 0, 0, "CLEAN"}};
    if (step % 50 == 0) point.held_out_loss = any();
    points.push_back(point);
  }
  const std::string text = ToJsonl(points);
  EXPECT_EQ(ParseLog(text, 100), points);
  EXPECT_EQ(ParseLog(text, 45), std::vector<LogPoint>(points.begin(), points.begin() + 4));
  EXPECT_EQ(ParseLog("garbage\n{\"step\": 3}\n" + text, 100), points);
}

TEST(TrainPage, HasEveryPlot_AndAsksNobody) {
  Proves("R87");
  std::vector<LogPoint> points;
  for (int64_t step = 1; step <= 50; ++step)
    points.push_back({step, 3.0 / static_cast<double>(step), 1, 1e-3, step, 1e4, 0.5, {}});
  points.back().held_out_loss = 0.5;
  for (LogPoint& point : points) point.layers = {{0.1, 0.2, 60.0, 0.002, 12.0, "SPIKE_ONLY"}};
  TrainReceipt receipt = Good();
  receipt.telemetry = points.back().layers;
  EXPECT_THAT(ToJson(receipt), HasSubstr("\"class\": \"SPIKE_ONLY\""));
  EXPECT_EQ(ErrorOf(receipt), "");
  receipt.ended = "<b>&\"";
  const std::string page = ToHtml(receipt, points);
  for (const char* title :
       {"Loss, nats", "Goodput", "Tokens a second", "bigram, held out", "prefers-color-scheme", "Share of attention",
        "Spikes: the largest magnitude", "Spikes: excess kurtosis", "Spikes: values beyond six", "SPIKE_ONLY"})
    EXPECT_THAT(page, HasSubstr(title));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;&amp;&quot;"));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(ToHtml(Good(), {}), HasSubstr("finished"));
}

}  // namespace
}  // namespace tessera::train
