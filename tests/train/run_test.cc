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
  for (int64_t done = 0; part.ended != "finished";) {
    TrainOptions options;
    options.resume = done > 0;
    const int64_t wanted = 1 + static_cast<int64_t>(random() % 3);
    int64_t begun = 0;
    options.may_go_on = [&](TrainPhase phase, int64_t) -> Status {
      begun += phase == TrainPhase::kStep ? 1 : 0;
      return {};
    };
    options.should_stop = [&] { return begun >= wanted; };
    part = Good("parts", options);
    // A stop that comes with the last step leaves the held-out rows to the next run.
    ASSERT_TRUE(part.last_step > done || (done == 6 && part.ended == "finished"));
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
  EXPECT_THAT(json, HasSubstr("\"pad_multiple\": 64"));
  EXPECT_THAT(json, testing::Not(HasSubstr("\"code_bytes\": -1")));
  EXPECT_GT(receipt.goodput.spans_s[static_cast<size_t>(SpanKind::kStep)], 0.0);
  ASSERT_EQ(points_.size(), 4U);  // steps 2, 3, 4 and 6
  EXPECT_TRUE(points_[1].held_out_loss);
  EXPECT_FALSE(points_[2].held_out_loss);
  EXPECT_EQ(points_[3].held_out_loss, receipt.held_out_loss);
  EXPECT_THAT(ReadWhole(folder_.File("run/train.html")), HasSubstr("Loss, nats"));
  EXPECT_EQ(ListCheckpoints(folder_.File("run")).size(), 2U) << "the last two of those after steps 2, 4 and 6";
}

// A model that looks at more than the byte before learns more than one that does not: on files that neither has seen,
// and whose order of bytes neither could know, at most half of what a bigram model of the same training rows loses.
TEST_F(Runs, SixtySteps_EndFarBelowTheBigram) {
  std::string text = RunText("warmup_steps = 4\n");
  for (const auto& [from, to] :
       {std::pair{"steps = 6", "steps = 60"}, std::pair{"learning_rate = 1e-2", "learning_rate = 2e-2"},
        std::pair{"width = 16", "width = 32"}, std::pair{"head_dim = 8", "head_dim = 16"},
        std::pair{"mlp_width = 16", "mlp_width = 64"}, std::pair{"\nrows = 2", "\nrows = 8"}})
    text.replace(text.find(from), std::strlen(from), to);
  const TrainReceipt receipt = Good("run", {}, text);
  ASSERT_TRUE(receipt.held_out_loss && receipt.bigram_loss && receipt.first_loss);
  EXPECT_GT(*receipt.bigram_loss, 1.0);
  EXPECT_GT(*receipt.first_loss, 4.0) << "it begins by knowing nothing";
  EXPECT_LT(*receipt.held_out_loss, 0.5 * *receipt.bigram_loss);
}

// The multiple is the model's own.
TEST_F(Runs, PadMultiple_IsTheModels) {
  Proves("R78");
  std::string text = RunText();
  text.replace(text.find("vocab = 256"), 11, "vocab = 256\nvocab_multiple = 96");
  TrainOptions options;
  options.trainer.compile_only = true;
  const TrainReceipt receipt = Good("run", options, text);
  EXPECT_EQ(receipt.padded_vocab, 288);
  EXPECT_THAT(ReadWhole(folder_.File("run/train.json")), HasSubstr("\"pad_multiple\": 96"));
}

// Whenever somebody wants it to: between and within everything that comes before the first step, and after it.
TEST_F(Runs, Stopped_EndsSoonAndWell_Anywhere) {
  Proves("R88 R90");
  const std::string text = RunText("eval_every = 1\n");
  const TrainReceipt whole = Good("whole", {}, text);
  TrainReceipt receipt;
  int before = 0;
  int64_t asked = 0;
  for (int64_t most = 0; receipt.ended != "finished"; most += most < 12 ? 2 : 7) {
    ASSERT_LT(most, 400);
    const std::string out = "run" + std::to_string(most);
    TrainOptions options;
    asked = 0;
    options.should_stop = [&] { return asked++ >= most; };
    receipt = Good(out, options, text);
    EXPECT_LE(asked, most + 1) << "once it was said it is not asked again";
    const std::string json = ReadWhole(folder_.File(out) + "/train.json");
    EXPECT_TRUE(CheckTrainReceipt(json)) << json;
    EXPECT_EQ(receipt.steps, static_cast<int64_t>(ListCheckpoints(folder_.File(out)).empty() ? 0 : receipt.last_step));
    EXPECT_EQ(receipt.checks.has_steps, receipt.steps > 0);
    before += receipt.steps == 0 ? 1 : 0;
    if (receipt.ended == "finished") break;
    EXPECT_EQ(receipt.ended, "interrupted");
    if (most % 5 != 0) continue;
    TrainOptions resume;
    resume.resume = true;
    EXPECT_EQ(Good(out, resume, text).state_digest, whole.state_digest);
  }
  EXPECT_GE(before, 4) << "files, packing, checks and programs come before the first step";
  TrainOptions compile;
  compile.trainer.compile_only = true;
  for (int64_t most = 0; most < 4; ++most) {
    asked = 0;
    compile.should_stop = [&] { return asked++ >= most; };
    const TrainReceipt ended = Good("compiled" + std::to_string(most), compile, text);
    EXPECT_EQ(ended.ended, "interrupted");
    EXPECT_EQ(ended.mode, "compile_only");
    EXPECT_LT(ended.compiles, 3);
  }
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
  const std::string older = folder_.File("run/") + CheckpointName(1);
  WriteWhole(older, before);
  const auto pointed = Go("run", resume);
  ASSERT_FALSE(pointed);
  EXPECT_THAT(pointed.error().message, HasSubstr("without this file a run goes on from " + CheckpointName(1)));
  std::filesystem::remove(older);
  WriteWhole(newest, before);
  auto checkpoint = ReadCheckpoint(newest);
  ASSERT_TRUE(checkpoint);
  checkpoint->state.begin()->second.Set(0, std::numeric_limits<double>::quiet_NaN());
  ASSERT_TRUE(WriteCheckpoint(folder_.File("run"), *checkpoint));
  EXPECT_EQ(code(resume), "TSR-T103");
  WriteWhole(newest, before);
  EXPECT_EQ(code(resume), "");
}

// A run that has all its steps is looked at again, and its receipt stays.
TEST_F(Runs, AFinishedRun_ResumedIsAsItWas) {
  Proves("R90");
  const TrainReceipt whole = Good("run");
  const std::string receipt = ReadWhole(folder_.File("run/train.json"));
  TrainOptions resume;
  resume.resume = true;
  const TrainReceipt again = Good("run", resume);
  EXPECT_EQ(again.ended, "finished");
  EXPECT_EQ(again.steps, 0);
  EXPECT_EQ(again.state_digest, whole.state_digest);
  EXPECT_EQ(again.held_out_loss, whole.held_out_loss);
  EXPECT_EQ(ReadWhole(folder_.File("run/train.json")), receipt);
  // One that was killed between its last checkpoint and its receipt gets one.
  std::filesystem::remove(folder_.File("run/train.json"));
  Good("run", resume);
  EXPECT_THAT(ReadWhole(folder_.File("run/train.json")), HasSubstr("\"ended\": \"finished\""));
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

// A device without memory for the whole micro-batch: half the rows, twice as many micro-batches, and the same rows in
// each step; the sums are those of the whole up to their order.
TEST_F(Runs, WithoutMemory_TheFirstStepIsTriedAgainSmaller) {
  Proves("R89");
  std::string text = RunText();
  text.replace(text.find("rows = 2"), 8, "rows = 4");
  const TrainReceipt whole = Good("whole", {}, text);
  std::vector<int64_t> asked;
  TrainOptions small;
  small.may_go_on = [&](TrainPhase phase, int64_t rows) -> Status {
    if (phase == TrainPhase::kCompile) return {};
    asked.push_back(rows);
    if (rows <= 2) return {};
    return Fail(ErrorCode::kPluginFailed, "RESOURCE_EXHAUSTED: Error allocating device buffer: 2.0G");
  };
  const TrainReceipt halved = Good("halved", small, text);
  EXPECT_EQ(halved.retries, 1);
  EXPECT_EQ(halved.compiles, whole.compiles + 2) << "two for the whole micro-batch, which were never run";
  EXPECT_EQ(halved.programs.size(), static_cast<size_t>(halved.compiles));
  EXPECT_TRUE(CheckTrainReceipt(ToJson(halved)));
  EXPECT_EQ(halved.micro_batch_rows, 2);
  EXPECT_EQ(asked, (std::vector<int64_t>{4, 2, 2, 2, 2, 2, 2}));
  EXPECT_TRUE(halved.checks.no_oom) << "it ended well";
  EXPECT_EQ(halved.tokens, whole.tokens);
  EXPECT_NEAR(*halved.first_loss, *whole.first_loss, 1e-5);
  EXPECT_NEAR(*halved.last_loss, *whole.last_loss, 1e-3);
  EXPECT_THAT(ReadWhole(folder_.File("halved/train.json")), HasSubstr("\"retries\": 1"));

  // A compiler may say it before anything ran.
  TrainOptions compiler;
  compiler.may_go_on = [&](TrainPhase phase, int64_t rows) -> Status {
    if (phase == TrainPhase::kStep || rows <= 2) return {};
    return Fail(ErrorCode::kPluginFailed, "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 33.2G");
  };
  const TrainReceipt compiled = Good("compiled_smaller", compiler, text);
  EXPECT_EQ(compiled.retries, 1);
  EXPECT_EQ(compiled.micro_batch_rows, 2);
  EXPECT_EQ(compiled.state_digest, halved.state_digest);
  EXPECT_TRUE(compiled.checks.no_oom);

  // The folder knows: whoever goes on begins with the size there is memory for.
  TrainOptions first = small;
  first.max_steps = 2;
  Good("known", first, text);
  asked.clear();
  TrainOptions again = small;
  again.resume = true;
  const TrainReceipt known = Good("known", again, text);
  EXPECT_EQ(asked, (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(known.retries, 0);
  EXPECT_EQ(known.calibration, halved.calibration);
  EXPECT_NE(known.calibration, whole.calibration);
  EXPECT_EQ(known.state_digest, halved.state_digest);

  // Twice at most; never once a run has gone on; never for what is not memory.
  const auto refused = [&](const std::string& out, const std::function<Status()>& may_go_on) {
    TrainOptions options;
    options.may_go_on = [&](TrainPhase phase, int64_t) { return phase == TrainPhase::kStep ? may_go_on() : Status(); };
    const auto receipt = Go(out, options, text);
    EXPECT_FALSE(receipt);
    return ReadWhole(folder_.File(out) + "/train.json");
  };
  const auto fail = [](const std::string& message) { return Fail(ErrorCode::kPluginFailed, message); };
  const std::string never =
      refused("never", [&]() -> Status { return fail("RESOURCE_EXHAUSTED: Error loading program"); });
  EXPECT_THAT(never, HasSubstr("\"retries\": 2"));
  EXPECT_THAT(never, HasSubstr("\"no_oom\": false"));
  int64_t steps = 0;
  const std::string late = refused("late", [&]() -> Status {
    if (++steps <= 3) return {};
    return fail("RESOURCE_EXHAUSTED: Out of memory");
  });
  EXPECT_THAT(late, HasSubstr("\"retries\": 0"));
  EXPECT_EQ(steps, 4);
  EXPECT_THAT(refused("other", [&]() -> Status { return fail("INVALID_ARGUMENT: shapes"); }),
              HasSubstr("\"no_oom\": true"));
}

// Steps so large that soon a loss or a gradient is no number: the run ends, and what was kept before stays.
TEST_F(Runs, Diverged_EndsAndLeavesTheCheckpointsAsTheyWere) {
  Proves("R88");
  std::string text = RunText("checkpoint_every = 1\nclip_norm = 0\nweight_decay = 1000\n");
  text.replace(text.find("learning_rate = 1e-2"), 20, "learning_rate = 1e6");
  const auto receipt = Go("run", {}, text);
  ASSERT_FALSE(receipt);
  EXPECT_EQ(receipt.error().code, ErrorCode::kTrainDiverged);
  EXPECT_THAT(ToText(receipt.error()), HasSubstr("TSR-T106"));
  const std::string json = ReadWhole(folder_.File("run/train.json"));
  EXPECT_TRUE(CheckTrainReceipt(json));
  EXPECT_THAT(json, HasSubstr("\"all_losses_finite\": false"));
  EXPECT_THAT(json, HasSubstr("\"exit_code_zero\": false"));
  EXPECT_THAT(json, HasSubstr("TSR-T106"));
  const std::vector<int64_t> steps = ListCheckpoints(folder_.File("run"));
  ASSERT_FALSE(steps.empty()) << "of the steps before";
  const auto kept = ReadCheckpoint(Newest("run"));
  ASSERT_TRUE(kept) << ToText(kept.error());
}

// The texts are there for any compiler; the receipt only where one of ours took them.
TEST_F(Runs, CompileOnly_LeavesTheTexts_AlsoWithoutACompiler) {
  Proves("R84");
  TrainOptions options;
  options.trainer.compile_only = true;
  const TrainReceipt compiled = Good("compiled", options);
  EXPECT_EQ(compiled.mode, "compile_only");
  EXPECT_EQ(compiled.compiles, 3);
  ASSERT_EQ(compiled.programs.size(), 3U);
  EXPECT_EQ(compiled.programs[2].pass, "evaluate");
  EXPECT_GT(compiled.goodput.spans_s[static_cast<size_t>(SpanKind::kCompilation)], 0.0);
  EXPECT_THAT(ReadWhole(folder_.File("compiled/gradients.mlir")), HasSubstr("tessera_model_attention_backward"));
  const Engine none{EngineOptions{}};  // knows of no plugin
  std::string text = RunText();
  text.replace(text.find("head_dim = 8"), 12, "head_dim = 64");
  options.folder = folder_.File("tpu");
  options.target = *FindTarget("v6e");
  std::string said;
  options.on_note = [&](std::string_view note) { said += note; };
  const auto receipt = Train(none, ParsedRun(text, folder_.path()), options);
  ASSERT_FALSE(receipt);
  EXPECT_EQ(receipt.error().code, ErrorCode::kPluginUnusable);
  EXPECT_THAT(said, HasSubstr("attention xla_pallas: our TPU kernels inside the program"));
  EXPECT_THAT(ReadWhole(folder_.File("tpu/gradients.mlir")), HasSubstr("@tpu_custom_call"));
  EXPECT_THAT(ReadWhole(folder_.File("tpu/programs.json")), HasSubstr("\"pass\": \"evaluate\""));
  EXPECT_TRUE(std::filesystem::exists(folder_.File("tpu/tessera_backward_0.mosaic")));
  EXPECT_FALSE(std::filesystem::exists(folder_.File("tpu/train.json")));
}

}  // namespace
}  // namespace tessera::train
