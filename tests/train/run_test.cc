// Whole runs of a tiny model: the same bits however often they are interrupted, and nothing lost to what goes wrong.
#include <gmock/gmock.h>

#include <cstring>
#include <limits>
#include <random>

#include "files.h"
#include "io/file_lock.h"
#include "support/engine.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/io.h"
#include "train/checkpoint.h"

namespace tessera::train {
namespace {

using testing::HasSubstr;

class Runs : public testing::Test {
 protected:
  void SetUp() override {
    WriteTexts(folder_.File("texts"));
    const auto trainer = Trainer::Create(TestEngine(), ParsedRun(RunText(), folder_.path()).model, Cpu());
    if (!trainer) GTEST_SKIP() << ToText(trainer.error()) << "; script/setup --xla installs a plugin";
  }
  static Target Cpu() { return *FindTarget("cpu"); }

  Result<TrainReceipt> Go(const std::string& out, TrainOptions options = {}, const std::string& text = RunText()) {
    options.folder = folder_.File(out);
    options.target = Cpu();
    options.on_point = [this](const LogPoint& point) { points_.push_back(point); };
    return Train(TestEngine(), ParsedRun(text, folder_.path()), options);
  }
  TrainReceipt Good(const std::string& out, const TrainOptions& options = {}, const std::string& text = RunText()) {
    auto receipt = Go(out, options, text);
    EXPECT_TRUE(receipt) << (receipt ? "" : ToText(receipt.error()));
    return receipt ? *receipt : TrainReceipt{};
  }
  std::string Newest(const std::string& out) const {
    const std::vector<int64_t> steps = ListCheckpoints(folder_.File(out));
    return steps.empty() ? "" : folder_.File(out) + "/" + CheckpointName(steps.back());
  }

  TemporaryFolder folder_;
  std::vector<LogPoint> points_;
};

// Tier 1, same_process: the same run again in one process. Tier 2, same_machine: interrupted anywhere and gone on with.
TEST_F(Runs, TiersOneAndTwo_GiveTheSameBits) {
  Proves("R90 R91");
  std::mt19937_64 random(PrintedSeed());
  const TrainReceipt whole = Good("whole");
  EXPECT_EQ(whole.ended, "finished");
  EXPECT_EQ(whole.steps, 6);
  EXPECT_EQ(Good("again").state_digest, whole.state_digest);
  const std::vector<LogPoint> log = points_;
  TrainReceipt part;
  for (int64_t done = 0; done < 6;) {
    TrainOptions options;
    options.resume = done > 0;
    int64_t left = 1 + static_cast<int64_t>(random() % 3);
    options.should_stop = [&left] { return --left == 0; };
    part = Good("parts", options);
    ASSERT_GT(part.last_step, done);
    EXPECT_EQ(part.first_step, done + 1);
    EXPECT_LE(part.compiles, 3) << "programs are made once, whatever the batches hold";
    done = part.last_step;
  }
  EXPECT_EQ(part.state_digest, whole.state_digest);
  EXPECT_EQ(part.held_out_loss, whole.held_out_loss);
  const auto left = ReadCheckpoint(Newest("parts"));
  ASSERT_TRUE(left) << ToText(left.error());
  EXPECT_EQ(Digest(left->state), whole.state_digest);
}

TEST_F(Runs, LeaveAReceiptALogAndAPage) {
  Proves("R88 R91");
  const TrainReceipt receipt = Good("run", {}, RunText("eval_every = 3\ncheckpoint_every = 2\nmicro_batches = 2\n"));
  const std::string json = ReadWhole(folder_.File("run/train.json"));
  EXPECT_EQ(json, ToJson(receipt));
  EXPECT_TRUE(CheckTrainReceipt(json));
  EXPECT_TRUE(receipt.checks == (TrainChecks{true, true, true, true, true}));
  EXPECT_EQ(receipt.contract_keys.size(), receipt.class_keys.size());
  EXPECT_EQ(receipt.padded_vocab, 256);
  EXPECT_GT(receipt.goodput.spans_s[static_cast<size_t>(SpanKind::kStep)], 0.0);
  ASSERT_EQ(points_.size(), 4U);  // steps 2, 3, 4 and 6
  EXPECT_TRUE(points_[1].held_out_loss);
  EXPECT_FALSE(points_[2].held_out_loss);
  EXPECT_EQ(points_[3].held_out_loss, receipt.held_out_loss);
  EXPECT_THAT(ReadWhole(folder_.File("run/train.html")), HasSubstr("Loss, nats"));
  EXPECT_EQ(ListCheckpoints(folder_.File("run")).size(), 2U) << "the last two of those after steps 2, 4 and 6";
}

// To look at a run, and to keep checkpoints of it, changes none of its numbers.
TEST_F(Runs, FeatureOff_IsByteIdentical) {
  Proves("R90");
  const std::string digest = Good("plain").state_digest;
  EXPECT_EQ(Good("noisy", {}, RunText("eval_every = 1\ncheckpoint_every = 1\n")).state_digest, digest);
}

TEST_F(Runs, WhatDoesNotBelongTogether_IsRefused_AndNothingIsLost) {
  TrainOptions two;
  two.max_steps = 2;
  Good("run", two);
  const std::string before = ReadWhole(Newest("run"));
  TrainOptions resume;
  resume.resume = true;
  const auto code = [&](const TrainOptions& options, const std::string& text = RunText()) {
    const auto receipt = Go("run", options, text);
    return receipt ? std::string() : std::string(CodeText(receipt.error().code));
  };
  EXPECT_EQ(code({}), "TSR-T104") << "there is a run, and nobody said to go on with it";
  EXPECT_EQ(code(resume, RunText("seed = 9\n")), "TSR-T104");
  std::string wider = RunText();
  wider.replace(wider.find("mlp_width = 16"), 14, "mlp_width = 24");
  EXPECT_EQ(code(resume, wider), "TSR-T104");
  {
    const auto lock = FileLock::Take(folder_.File("run/train.json"));
    ASSERT_TRUE(lock);
    EXPECT_EQ(code(resume), "TSR-T105");
  }
  EXPECT_EQ(ReadWhole(Newest("run")), before);
  const std::string newest = Newest("run");
  WriteWhole(newest, before.substr(0, before.size() - 1));
  EXPECT_EQ(code(resume), "TSR-T103");
  WriteWhole(newest, before);
  auto checkpoint = ReadCheckpoint(newest);
  ASSERT_TRUE(checkpoint);
  checkpoint->state.begin()->second.Set(0, std::numeric_limits<double>::quiet_NaN());
  ASSERT_TRUE(WriteCheckpoint(folder_.File("run"), *checkpoint));
  EXPECT_EQ(code(resume), "TSR-T103");
  WriteWhole(newest, before);
  EXPECT_EQ(code(resume), "");
}

TEST_F(Runs, MicroBatchWarmup_GoesOnWhereItWas) {
  Proves("B39 R89");
  const std::string text = RunText("micro_batches = 4\nmicro_batch_warmup = 4\n");
  const TrainReceipt whole = Good("whole", {}, text);
  TrainOptions three;
  three.max_steps = 3;
  EXPECT_EQ(Good("parts", three, text).ended, "interrupted");
  TrainOptions resume;
  resume.resume = true;
  EXPECT_EQ(Good("parts", resume, text).state_digest, whole.state_digest);
  EXPECT_LE(whole.compiles, 3) << "a new number of micro-batches is no new program";
}

}  // namespace
}  // namespace tessera::train
