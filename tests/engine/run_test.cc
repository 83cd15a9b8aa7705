// Runs: what is computed, under which keys, and what a changed contract or batch changes.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "engine/fixtures.h"
#include "engine/tensors.h"
#include "support/own_terms.h"
#include "support/proves.h"
#include "support/seed.h"
#include "tessera/check.h"

namespace tessera {
namespace {

void ExpectMatchesOracle(const Contract& contract, const Batch& batch, const TensorMap& inputs,
                         const RunOutcome& outcome, Layout layout = Layout::kBhtd) {
  CheckOptions options;
  options.layout = layout;
  const bool is_reference = outcome.receipt.executed == "reference";
  options.arithmetic = is_reference ? Arithmetic::Double() : Arithmetic::Single();
  Result<CheckReport> report = CheckOutputs(contract, batch, inputs, outcome.outputs, options);
  ASSERT_TRUE(report.has_value()) << ToText(report.error());
  EXPECT_TRUE(report->pass) << report->text;
}

TEST(Run, AutoOnEveryTarget_RunsTheLaneOfTheTableOrSaysWhyNot) {
  Proves("R50 R53 B22");
  const struct {
    const char* target;
    const char* selected;
    const char* executed;
    const char* reason;
  } cases[] = {{"cpu", "cpu", "cpu", ""},
               {"h200", "cuda", "cpu", WhyNoCuda()},
               {"v6e", "splash", "cpu", "tpu.dtype"},
               {"v5e", "splash", "cpu", "tpu.dtype"},
               {"v5p", "splash", "cpu", "tpu.dtype"}};
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.target);
    const RunOutcome outcome = tessera::Run(contract, {}, inputs, TargetNamed(c.target), Ask{.backward = true});
    ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    EXPECT_TRUE(outcome.receipt.ok);
    EXPECT_EQ(outcome.receipt.requested, "auto");
    EXPECT_EQ(outcome.receipt.selected, c.selected);
    EXPECT_EQ(outcome.receipt.executed, c.executed);
    EXPECT_EQ(outcome.receipt.fallback_reason, c.reason);
    EXPECT_EQ(outcome.receipt.runtime_mode, "native");
    EXPECT_EQ(outcome.receipt.target, c.target);
    EXPECT_EQ(outcome.receipt.ran_on, HostDevice().name) << "whatever was planned for";
    ExpectSound(outcome.receipt);
    ExpectMatchesOracle(contract, {}, inputs, outcome);
  }
}

TEST(Run, AMeter_CountsEveryTileOfThePassThatRan) {
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  for (const char* lane : {"cpu", "reference"}) {
    for (const bool backward : {false, true}) {
      SCOPED_TRACE(lane);
      RunMeter meter;
      RunOptions options;
      options.lane = lane;
      options.backward = backward;
      options.meter = &meter;
      const RunOutcome outcome = tessera::Run(
          Engine(), contract, {}, backward ? inputs : MakeInputs(contract, 1, false), TargetNamed("cpu"), options);
      ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
      const int64_t ran = backward ? outcome.receipt.tiles_executed_backward : outcome.receipt.tiles_executed;
      EXPECT_GT(ran, 0);
      EXPECT_EQ(meter.done, ran);
      EXPECT_EQ(meter.all, ran);
      EXPECT_EQ(meter.step, backward ? RunStep::kBackward : RunStep::kForward);
    }
  }
}

// One row of keys as long as all of them: dK and dV are one step at the end, and what is seen before it is dQ's.
TEST(Run, AMeterOfTheReferenceLane_CountsDqAsItGoes) {
  const Contract contract =
      ParseContract("version = 1\n[shape]\nq_len = 1024\ndim_qk = 64\n[mask]\nexpr = \"causal\"\n").value();
  RunMeter meter;
  RunOptions options;
  options.lane = "reference";
  options.backward = true;
  options.plan.tile = TileSize{16, 1024};
  options.meter = &meter;
  const TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  std::atomic<bool> has_ended = false;
  std::set<int64_t> seen;
  std::thread watcher([&] {
    while (!has_ended) {
      if (meter.step == RunStep::kBackward) seen.insert(meter.done);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const RunOutcome outcome = tessera::Run(Engine(), contract, {}, inputs, TargetNamed("cpu"), options);
  has_ended = true;
  watcher.join();
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  EXPECT_EQ(meter.all, 64);
  EXPECT_EQ(meter.done, 64);
  seen.erase(0);
  seen.erase(64);
  ASSERT_GE(seen.size(), 3U) << "nothing was seen of dQ";
  EXPECT_LE(*seen.rbegin(), 32) << "dQ is half of the pass";
}

TEST(Run, AMeterOfACheck_CountsItsRows) {
  const Contract contract = SmallContract();
  const Shape& s = contract.shape;
  const TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  RunOptions options;
  options.backward = true;
  options.keep_bound = true;
  const RunOutcome outcome = tessera::Run(Engine(), contract, {}, inputs, TargetNamed("cpu"), options);
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  RunMeter meter;
  ASSERT_TRUE(CheckMask(contract, {}, outcome.bound->plan().view(), kMaskCheckPairs, &meter).has_value());
  EXPECT_EQ(meter.step, RunStep::kCheckPlan);
  EXPECT_EQ(meter.done, s.batch * s.num_q_heads * s.q_len);
  EXPECT_EQ(meter.all, meter.done);
  for (const int64_t max_work : {int64_t{1} << 34, int64_t{0}}) {
    const CheckOptions check{
        .arithmetic = Arithmetic::Single(), .max_work = max_work, .sample_rows = 3, .meter = &meter};
    const Result<CheckReport> report = CheckOutputs(contract, {}, inputs, outcome.outputs, check);
    ASSERT_TRUE(report.has_value() && report->pass);
    EXPECT_EQ(meter.step, RunStep::kCheckOutputs);
    EXPECT_EQ(meter.done, max_work == 0 ? 3 : s.batch * s.num_q_heads * s.q_len);
    EXPECT_EQ(meter.all, meter.done);
  }
}

TEST(Run, RegisteredTerm_RunsMatchesTheOracleAndRepeatsFromItsReceipt) {
  for (const char* mask : {"stride(3) and documents", "stride_rects(3, 1) or causal and window(2, 0)", "specks"}) {
    SCOPED_TRACE(mask);
    const Contract contract = SmallContract({.mask = mask, .len = 40});
    Batch batch;
    if (std::string(mask).find("documents") != std::string::npos) {
      batch.doc_ids = IdRows{contract.shape.batch, 40, {}};
      for (int64_t i = 0; i < contract.shape.batch * 40; ++i) batch.doc_ids->values.push_back(i % 40 < 17 ? 0 : 1);
    }
    const TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
    const RunOptions options = Ask{.backward = true};
    const RunOutcome outcome = tessera::Run(contract, batch, inputs, TargetNamed("cpu"), options);
    ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    ExpectSound(outcome.receipt);
    ExpectMatchesOracle(contract, batch, inputs, outcome);
    const Result<Receipt> receipt = ParseReceipt(ToJson(outcome.receipt), &TestTerms());
    ASSERT_TRUE(receipt.has_value()) << ToText(receipt.error());
    const Result<Contract> again = ParseContract(receipt->contract_text, ".", &TestTerms());
    ASSERT_TRUE(again.has_value()) << ToText(again.error());
    EXPECT_EQ(*again, contract);
    const RunOutcome repeated = tessera::Run(*again, batch, inputs, TargetNamed("cpu"), options);
    EXPECT_EQ(repeated.receipt.plan_fingerprint, outcome.receipt.plan_fingerprint);
    EXPECT_EQ(repeated.outputs.at("dk").bytes, outcome.outputs.at("dk").bytes);
  }
}

// Without the transposed worklist dK and dV would be zeros that nobody computed.
TEST(Run, BackwardOnAForwardOnlyPlan_IsRefused) {
  const Contract contract = SmallContract();
  const TensorMap inputs = MakeInputs(contract, PrintedSeed(), true);
  RunOptions options = Ask{.backward = true};
  options.plan.disable = {"transpose"};
  const RunOutcome outcome = tessera::Run(contract, {}, inputs, TargetNamed("cpu"), options);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->code, ErrorCode::kPlanMismatch);
  EXPECT_EQ(outcome.receipt.failed_at, "bind");
  EXPECT_TRUE(outcome.outputs.empty());
  ExpectSound(outcome.receipt);
}

TEST(Run, ForcedLane_ReallyRuns) {
  Proves("R53 R60 B11");
  const Contract contract = SmallContract({.mask = "causal and window(9, 0)", .len = 64});
  const uint64_t seed = PrintedSeed();
  const TensorMap inputs = MakeInputs(contract, seed, true);
  std::vector<std::string> kernels;
  for (const char* lane : {"reference", "cpu"}) {
    SCOPED_TRACE(lane);
    const RunOutcome outcome =
        tessera::Run(contract, {}, inputs, TargetNamed("cpu"), Ask{.lane = lane, .backward = true});
    ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    const Receipt& receipt = outcome.receipt;
    EXPECT_EQ(receipt.selected, lane);
    EXPECT_EQ(receipt.executed, lane);
    EXPECT_EQ(receipt.fallback_reason, "");
    EXPECT_FALSE(receipt.kernel.empty());
    kernels.push_back(receipt.kernel);
    // 2 heads x 4 x 4 tiles: the diagonal and the tile left of it survive, nothing else was touched.
    EXPECT_EQ(receipt.tiles_executed, 2 * 7);
    EXPECT_EQ(receipt.tiles_executed_backward, 2 * 7);
    EXPECT_EQ(receipt.tiles.empty, 2 * 9);
    ExpectMatchesOracle(contract, {}, inputs, outcome);
    ExpectSound(receipt);
  }
  EXPECT_NE(kernels[0], kernels[1]);
}

TEST(Run, Outputs_HaveTheContractsTypesAndTheRunsLayout) {
  for (const Layout layout : {Layout::kBhtd, Layout::kBthd}) {
    const Contract contract = SmallContract(
        {.len = 20, .batch = 2, .num_q_heads = 4, .num_kv_heads = 2, .sink_logits = true, .dtype = DType::kBf16});
    const TensorMap inputs = MakeInputs(contract, 3, true, layout);
    const RunOutcome outcome = tessera::Run(contract, {}, inputs, TargetNamed("cpu"),
                                            Ask{.backward = true, .row_max = true, .layout = layout});
    ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : outcome.outputs) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"dk", "dq", "dsink_logits", "dv", "lse", "max", "o"}));
    using Dims = std::vector<int64_t>;
    EXPECT_EQ(outcome.outputs.at("o").shape, layout == Layout::kBhtd ? Dims({2, 4, 20, 4}) : Dims({2, 20, 4, 4}));
    EXPECT_EQ(outcome.outputs.at("dk").shape, inputs.at("k").shape);
    EXPECT_EQ(outcome.outputs.at("lse").shape, Dims({2, 4, 20}));
    EXPECT_EQ(outcome.outputs.at("max").type, ElementType::kF32);
    EXPECT_EQ(outcome.outputs.at("o").type, ElementType::kBf16);
    EXPECT_EQ(outcome.outputs.at("dq").type, ElementType::kBf16);
    EXPECT_EQ(outcome.outputs.at("dsink_logits").type, ElementType::kF32);
    ExpectMatchesOracle(contract, {}, inputs, outcome, layout);
  }
}

// The softcap belongs to the call: nothing of an earlier call's survives in the process.
TEST(Run, SoftcapChange_TakesEffectAtOnce) {
  Proves("R42 R56 B5");
  const uint64_t seed = PrintedSeed();
  std::vector<RunOutcome> outcomes;
  for (const double softcap : {2.0, 0.0, 5.0, 2.0}) {
    const Contract contract = SmallContract({.softcap = softcap});
    const TensorMap inputs = MakeInputs(contract, seed, true);
    outcomes.push_back(tessera::Run(contract, {}, inputs, TargetNamed("cpu"), Ask{.backward = true}));
    ASSERT_FALSE(outcomes.back().error.has_value()) << ErrorText(outcomes.back());
    ExpectMatchesOracle(contract, {}, inputs, outcomes.back());
  }
  EXPECT_NE(outcomes[0].receipt.output_digest, outcomes[1].receipt.output_digest);
  EXPECT_NE(outcomes[0].receipt.output_digest, outcomes[2].receipt.output_digest);
  EXPECT_EQ(outcomes[0].receipt.output_digest, outcomes[3].receipt.output_digest);
  EXPECT_NE(outcomes[0].receipt.contract_key, outcomes[1].receipt.contract_key);
  EXPECT_NE(outcomes[0].receipt.contract_key, outcomes[2].receipt.contract_key);
  EXPECT_EQ(outcomes[0].receipt.contract_key, outcomes[3].receipt.contract_key);
}

TEST(Run, WindowChange_IsAnotherContract) {
  Proves("R45");
  const Contract narrow = SmallContract({.mask = "causal and window(7, 0)"});
  const Contract wide = SmallContract({.mask = "causal and window(8, 0)"});
  EXPECT_NE(ContractKey(narrow).value(), ContractKey(wide).value());

  // A plan of the narrow window cannot be made to serve the wide one, nor a softcap it was not made for.
  Result<PlanResult> made = MakePlan(narrow, {}, TargetNamed("cpu"));
  ASSERT_TRUE(made.has_value()) << ToText(made.error());
  const Contract capped = SmallContract({.mask = "causal and window(7, 0)", .softcap = 3});
  for (const Contract* other : {&wide, &capped}) {
    const Result<Attention> attention = TestEngine().Prepare(*other, TargetNamed("cpu"));
    ASSERT_TRUE(attention.has_value()) << ToText(attention.error());
    Result<Plan> copy = Plan::FromBytes({made->plan.bytes().begin(), made->plan.bytes().end()});
    ASSERT_TRUE(copy.has_value());
    const Result<Bound> bound = attention->Bind(std::move(*copy));
    ASSERT_FALSE(bound.has_value());
    EXPECT_EQ(bound.error().code, ErrorCode::kPlanMismatch);
  }
}

TEST(Run, NewDocuments_ReuseTheClass) {
  Proves("R13");
  const Contract contract = SmallContract({.mask = "causal and documents", .len = 64});
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const RunOutcome one = tessera::Run(contract, DocumentBatch(contract, {64}), inputs, TargetNamed("cpu"));
  const RunOutcome many = tessera::Run(contract, DocumentBatch(contract, {5, 30, 7}), inputs, TargetNamed("cpu"));
  ASSERT_FALSE(one.error.has_value()) << ErrorText(one);
  ASSERT_FALSE(many.error.has_value()) << ErrorText(many);
  EXPECT_EQ(one.receipt.contract_key, many.receipt.contract_key);
  EXPECT_EQ(one.receipt.class_key, many.receipt.class_key);
  EXPECT_EQ(one.receipt.compiles, many.receipt.compiles);
  EXPECT_NE(one.receipt.tiles_executed, many.receipt.tiles_executed);
  EXPECT_NE(one.receipt.batch_digest, many.receipt.batch_digest);
  EXPECT_NE(one.receipt.output_digest, many.receipt.output_digest);
  EXPECT_NE(one.receipt.mask_digest, many.receipt.mask_digest);
}

TEST(Run, WidthOrMaskChange_IsANewKey) {
  Proves("R14");
  auto keys = [](const Contract& contract) {
    const RunOutcome outcome = tessera::Run(contract, {}, MakeInputs(contract, 1, false), TargetNamed("cpu"));
    EXPECT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
    return std::pair(outcome.receipt.contract_key, outcome.receipt.class_key);
  };
  Contract base = SmallContract({.len = 64});
  Contract wider = base;
  wider.capacity.width = {Limit::Kind::kNumber, 9};
  const Contract chunked = SmallContract({.mask = "causal and chunk(32)", .len = 64});
  EXPECT_NE(keys(base).second, keys(wider).second);
  EXPECT_NE(keys(base).first, keys(chunked).first);
}

TEST(Run, BatchBeyondTheClass_IsRefusedOrANewClass) {
  Proves("R91");
  Contract contract = SmallContract({.mask = "causal and documents", .len = 64});
  contract.capacity.width = {Limit::Kind::kNumber, 2};
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const RunOutcome fits = tessera::Run(contract, DocumentBatch(contract, {16, 16, 16, 16}), inputs, TargetNamed("cpu"));
  ASSERT_FALSE(fits.error.has_value()) << ErrorText(fits);

  const Batch long_document = DocumentBatch(contract, {64});
  const RunOutcome refused = tessera::Run(contract, long_document, inputs, TargetNamed("cpu"));
  ASSERT_TRUE(refused.error.has_value());
  EXPECT_EQ(refused.error->code, ErrorCode::kCapacityExceeded);
  EXPECT_EQ(refused.receipt.failed_at, "plan");
  ExpectSound(refused.receipt);

  RunOptions widen;
  widen.plan.widen_class = true;
  const RunOutcome widened = tessera::Run(contract, long_document, inputs, TargetNamed("cpu"), widen);
  ASSERT_FALSE(widened.error.has_value()) << ErrorText(widened);
  EXPECT_NE(widened.receipt.class_key, fits.receipt.class_key);
  EXPECT_EQ(widened.receipt.contract_key, fits.receipt.contract_key);
}

TEST(Run, BatchPresence_IsCheckedBothWays) {
  Proves("R32");
  const Contract plain = SmallContract();
  const Contract packed = SmallContract({.mask = "causal and documents"});
  const Contract padded = SmallContract({.mask = "causal and valid"});
  Batch counts;
  counts.valid_tokens = std::vector<int64_t>{30};
  const struct {
    const Contract& contract;
    Batch batch;
    bool is_good;
  } cases[] = {{plain, {}, true},      {plain, DocumentBatch(plain, {10}), false},
               {plain, counts, false}, {packed, DocumentBatch(packed, {10}), true},
               {packed, {}, false},    {packed, counts, false},
               {padded, counts, true}, {padded, {}, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(ToText(c.contract.mask.heads[0]) + " with " + ToJson(c.batch));
    const RunOutcome outcome = tessera::Run(c.contract, c.batch, MakeInputs(c.contract, 1, false), TargetNamed("cpu"));
    EXPECT_EQ(!outcome.error.has_value(), c.is_good) << ErrorText(outcome);
    ExpectSound(outcome.receipt);
    if (c.is_good) continue;
    EXPECT_EQ(outcome.error->code, ErrorCode::kBatchInvalid);
    EXPECT_EQ(outcome.receipt.failed_at, "batch");
    EXPECT_TRUE(outcome.outputs.empty());
  }
}

TEST(Run, SameRequestTwice_GivesTheSameBits) {
  const Contract contract = SmallContract({.mask = "causal and documents", .softcap = 7, .sink_logits = true});
  const Batch batch = DocumentBatch(contract, {11, 20});
  const TensorMap inputs = MakeInputs(contract, 5, true);
  const RunOutcome a = tessera::Run(contract, batch, inputs, TargetNamed("cpu"), Ask{.backward = true});
  const RunOutcome b = tessera::Run(contract, batch, inputs, TargetNamed("cpu"), Ask{.backward = true});
  ASSERT_FALSE(a.error.has_value()) << ErrorText(a);
  EXPECT_EQ(a.receipt.determinism, "bitwise");
  EXPECT_EQ(a.outputs, b.outputs);
  EXPECT_EQ(a.receipt.output_digest, b.receipt.output_digest);
  EXPECT_EQ(a.receipt.plan_fingerprint, b.receipt.plan_fingerprint);
}

TEST(Run, Receipt_DescribesTheRequest) {
  const Contract contract = SmallContract({.len = 64});
  RunOptions options = Ask{.lane = "auto", .exclude = {"cuda", "call_jax"}, .threads = 2, .input_source = "seed 1"};
  options.plan.tile = TileSize{32, 16};
  const TensorMap inputs = MakeInputs(contract, 1, false);
  const RunOutcome outcome = tessera::Run(contract, {}, inputs, TargetNamed("cpu"), options);
  ASSERT_FALSE(outcome.error.has_value()) << ErrorText(outcome);
  const Receipt& r = outcome.receipt;
  EXPECT_EQ(r.options.at("exclude"), "cuda,call_jax");
  EXPECT_EQ(r.options.at("tile"), "32x16");
  EXPECT_EQ(r.options.at("threads"), "2");
  EXPECT_EQ(r.options.at("layout"), "bhtd");
  EXPECT_EQ(r.versions.at("tessera"), kVersion);
  EXPECT_EQ(r.input_digest, Digest(inputs));
  EXPECT_EQ(r.output_digest, Digest(outcome.outputs));
  EXPECT_EQ(r.contract_text, ToToml(contract));
  EXPECT_EQ(r.tiles.empty + r.tiles.partial + r.tiles.full, 2 * 2 * 4);
  std::vector<std::string> names;
  for (const Timing& timing : r.timings) names.push_back(timing.name);
  std::vector<std::string> expected = {"prepare"};
  for (const StageReport& stage : outcome.stages) expected.push_back("plan." + stage.name);
  for (const char* name : {"plan", "bind", "forward", "digest", "total"}) expected.push_back(name);
  EXPECT_EQ(names, expected);
  EXPECT_FALSE(outcome.stages.empty());
}

}  // namespace
}  // namespace tessera
