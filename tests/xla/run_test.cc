// The XLA lane through Run: one compilation for a class, many batches, devices and threads, and what the receipt says.
#include <cmath>
#include <map>
#include <thread>

#include "lanes/xla/recent.h"
#include "xla/xla_fixture.h"

namespace tessera {
namespace {

using Runs = XlaTest;

TEST_F(Runs, ThousandMixedBatches_OneCompilationPerPass) {
  Proves("R13 R31 R91 B9");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const Contract contract = MakeContract("causal and documents", 50);
  const TensorMap inputs = MakeInputs(contract, seed, true);
  int64_t compiles = 0;
  int64_t hits = 0;
  std::string digest;
  int64_t changes = 0;
  for (int i = 0; i < 1000; ++i) {
    const Batch batch = RandomDocuments(rng, contract);
    const RunOutcome got = Run(contract, batch, inputs, Cpu(), Options());
    ASSERT_FALSE(got.error) << ToText(*got.error);
    ASSERT_TRUE(CheckReceipt(got.receipt).empty()) << CheckReceipt(got.receipt)[0].field;
    compiles += got.receipt.compiles;
    hits += got.receipt.cache_hits;
    changes += got.receipt.output_digest != digest ? 1 : 0;
    digest = got.receipt.output_digest;
    if (i % 50 == 0) ExpectClose(got.outputs, Run(contract, batch, inputs, Cpu(), Options("reference")).outputs);
  }
  EXPECT_EQ(compiles, 2) << "a forward and a backward";
  EXPECT_EQ(hits, 1998);
  EXPECT_GT(changes, 900) << "other documents, other results";
}

TEST_F(Runs, TwoContractsOfOneClass_ShareThePrograms) {
  Proves("R39");
  const Contract narrow = MakeContract("window(20, 0)", 90);
  const Contract wide = MakeContract("window(29, 0)", 90);
  ASSERT_NE(ContractKey(narrow).value(), ContractKey(wide).value());
  const TensorMap inputs = MakeInputs(narrow, 3, true);
  EXPECT_EQ(Run(narrow, {}, inputs, Cpu(), Options()).receipt.compiles, 2);
  const RunOutcome got = Run(wide, {}, inputs, Cpu(), Options());
  EXPECT_EQ(got.receipt.compiles, 0);
  EXPECT_EQ(ProgramOf(got.receipt, "forward").source, "memory");
  ExpectClose(got.outputs, Run(wide, {}, inputs, Cpu(), Options("reference")).outputs);
}

TEST_F(Runs, FullOptimisation_EqualsReference) {
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  for (const char* mask : {"causal and window(40, 3) and documents or sink(3)", "causal and documents and valid"}) {
    Contract contract = MakeContract(mask, 150, 32);
    contract.score.softcap = 4.0;
    contract.score.sink_logits = true;
    Batch batch = RandomDocuments(rng, contract);
    if (std::string(mask).find("valid") != std::string::npos) batch.valid_tokens = std::vector<int64_t>{131};
    const TensorMap inputs = MakeInputs(contract, seed, true);
    RunOptions options = Options();
    options.xla.optimization.reset();
    const RunOutcome got = Run(contract, batch, inputs, Cpu(), options);
    ASSERT_FALSE(got.error) << ToText(*got.error);
    ExpectClose(got.outputs, Run(contract, batch, inputs, Cpu(), Options("reference")).outputs);
  }
}

TEST_F(Runs, TwoDevicesTwoThreads_NeitherMixesWithTheOther) {
  Proves("B8");
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const Contract contract = MakeContract("causal and documents", 70);
  constexpr int kRounds = 20;
  struct Work {
    std::vector<Batch> batches;
    std::vector<TensorMap> inputs;
    std::vector<RunOutcome> got;
  };
  std::vector<Work> works(2);
  for (Work& work : works) {
    for (int i = 0; i < kRounds; ++i) {
      work.batches.push_back(RandomDocuments(rng, contract));
      work.inputs.push_back(MakeInputs(contract, rng(), true));
    }
  }
  std::vector<std::thread> threads;
  for (int64_t device = 0; device < 2; ++device) {
    threads.emplace_back([&, device] {
      Work& work = works[static_cast<size_t>(device)];
      RunOptions options = Options();
      options.xla.device = device;
      for (size_t i = 0; i < kRounds; ++i) {
        work.got.push_back(Run(contract, work.batches[i], work.inputs[i], Cpu(), options));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t compiles = 0;
  for (int64_t device = 0; device < 2; ++device) {
    const Work& work = works[static_cast<size_t>(device)];
    for (size_t i = 0; i < kRounds; ++i) {
      const RunOutcome& got = work.got[i];
      ASSERT_FALSE(got.error) << ToText(*got.error);
      EXPECT_EQ(got.receipt.device.ordinal, device);
      compiles += got.receipt.compiles;
      ExpectClose(got.outputs, Run(contract, work.batches[i], work.inputs[i], Cpu(), Options("reference")).outputs);
    }
  }
  EXPECT_EQ(compiles, 2) << "one program serves both devices, and threads that ask at once wait for one compilation";
}

// Rows are shared out in parts that run at once; who runs what must not be seen in the results.
TEST_F(Runs, AnyNumberOfThreads_SameBits) {
  Proves("R10");
  Contract contract = MakeContract("causal and documents", 700);
  contract.score.sink_logits = true;
  const uint64_t seed = PrintedSeed();
  std::mt19937_64 rng(seed);
  const Batch batch = RandomDocuments(rng, contract);
  const TensorMap inputs = MakeInputs(contract, seed, true);
  RunOptions options = Options();
  options.threads = 1;
  const RunOutcome alone = Run(contract, batch, inputs, Cpu(), options);
  ASSERT_FALSE(alone.error) << ToText(*alone.error);
  EXPECT_EQ(ProgramOf(alone.receipt, "forward").parts, 44) << "88 rows of tiles, two for each part";
  EXPECT_EQ(ProgramOf(alone.receipt, "backward").parts, 44);
  ExpectClose(alone.outputs, Run(contract, batch, inputs, Cpu(), Options("reference")).outputs);
  for (const int64_t threads : {2, 3, 8, 1000}) {
    options.threads = threads;
    const RunOutcome got = Run(contract, batch, inputs, Cpu(), options);
    ASSERT_FALSE(got.error) << ToText(*got.error);
    EXPECT_EQ(got.receipt.output_digest, alone.receipt.output_digest) << threads;
    EXPECT_EQ(got.receipt.tiles_executed, alone.receipt.tiles_executed);
    for (const auto& [name, tensor] : alone.outputs) EXPECT_EQ(got.outputs.at(name).bytes, tensor.bytes) << name;
  }
}

// Tokens before heads, and lengths that fill no tile: nothing can be lent or fetched as it lies.
TEST_F(Runs, TokensBeforeHeads_EqualsReferenceOnManyThreads) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const Contract contract = MakeContract("causal", 203, 16, dtype);
    RunOptions options = Options();
    options.threads = 4;
    options.layout = Layout::kBthd;
    const TensorMap inputs = MakeInputs(contract, 9, true, options.layout);
    const RunOutcome got = Run(contract, {}, inputs, Cpu(), options);
    ASSERT_FALSE(got.error) << ToText(*got.error);
    options.lane = "reference";
    const RunOutcome want = Run(contract, {}, inputs, Cpu(), options);
    ASSERT_FALSE(want.error) << ToText(*want.error);
    ExpectClose(got.outputs, want.outputs, dtype == DType::kF32 ? 2e-5 : 3e-2);
  }
}

TEST_F(Runs, AMeter_CountsTheTilesOfEveryPart) {
  const Contract contract = MakeContract("causal", 64);
  for (const bool backward : {false, true}) {
    RunMeter meter;
    RunOptions options = Options();
    options.backward = backward;
    options.meter = &meter;
    const RunOutcome outcome = Run(contract, {}, MakeInputs(contract, 1, backward), Cpu(), options);
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    const int64_t ran = backward ? outcome.receipt.tiles_executed_backward : outcome.receipt.tiles_executed;
    EXPECT_GT(ran, 0);
    EXPECT_EQ(meter.done, ran);
    EXPECT_EQ(meter.all, ran);
    EXPECT_EQ(meter.step, backward ? RunStep::kBackward : RunStep::kForward);
  }
}

TEST_F(Runs, Receipt_SaysWhatWasCompiledAndWhereItRan) {
  Proves("R51 R53 R91");
  const Contract contract = MakeContract("causal", 40);
  const RunOutcome got = Run(contract, {}, MakeInputs(contract, 1, true), Cpu(), Options());
  ASSERT_FALSE(got.error) << ToText(*got.error);
  const Receipt& r = got.receipt;
  EXPECT_EQ(r.executed, "xla_chunked");
  EXPECT_EQ(r.runtime_mode, "native");
  EXPECT_EQ(r.device.plugin, std::filesystem::canonical(plugin_));
  EXPECT_EQ(r.device.platform, "cpu");
  EXPECT_EQ(r.programs.size(), 2u);
  EXPECT_FALSE(r.device.stablehlo.empty());
  for (const ProgramUse& use : r.programs) {
    EXPECT_NE(use.name.find(r.class_key), std::string::npos) << use.name;
    EXPECT_EQ(use.source, "compiled");
    EXPECT_GT(use.compile_ns, 0);
    EXPECT_GT(use.argument_bytes, 0);
    EXPECT_GT(use.temp_bytes, 0);
    EXPECT_GT(use.instructions, 10);
    EXPECT_NE(use.opcodes, "");
    EXPECT_EQ(use.custom_calls, "");
    EXPECT_EQ(use.collectives, "");
  }
  EXPECT_EQ(r.tiles_executed, 2 * 6) << "the program counts them: 3 x 3 tiles, lower half, two heads";
  const Result<Receipt> read = ParseReceipt(ToJson(r));
  ASSERT_TRUE(read.has_value()) << ToText(read.error());
  EXPECT_EQ(ToJson(*read), ToJson(r));
}

TEST_F(Runs, TemporaryMemory_GrowsWithTheLengthAndNotItsSquare) {
  Proves("R36");
  const auto temp_bytes = [&](int64_t len) {
    const Contract contract = MakeContract("causal and window(31, 0)", len);
    RunOptions options = Options();
    options.backward = false;
    const RunOutcome got = Run(contract, {}, MakeInputs(contract, 1, false), Cpu(), options);
    EXPECT_FALSE(got.error);
    return ProgramOf(got.receipt, "forward").temp_bytes;
  };
  const int64_t at_1k = temp_bytes(1024);
  const int64_t at_4k = temp_bytes(4096);
  EXPECT_LE(at_4k, 5 * at_1k);
  EXPECT_LT(at_4k, int64_t{4096} * 4096) << "a byte per pair would be more";
}

TEST_F(Runs, UnusablePlugins_AreReasonsAndNothingRuns) {
  Proves("R50 R54");
  const Contract contract = MakeContract("causal", 40);
  const TensorMap inputs = MakeInputs(contract, 1, true);
  const auto expect = [&](const std::string& plugin, int64_t device, const std::string& said) {
    RunOptions options = Options();
    options.xla.plugin = plugin;
    options.xla.device = device;
    const RunOutcome got = Run(contract, {}, inputs, Cpu(), options);
    ASSERT_TRUE(got.error.has_value());
    EXPECT_EQ(CodeText(got.error->code), "TSR-L002");
    EXPECT_NE(got.error->message.find(said), std::string::npos) << got.error->message;
    EXPECT_TRUE(got.outputs.empty());
    EXPECT_TRUE(CheckReceipt(got.receipt).empty());
  };
  expect("/nowhere/plugin.so", 0, "xla.plugin");
  WriteWhole(folder_.path() + "/text.so", "no library at all");
  expect(folder_.path() + "/text.so", 0, "xla.plugin");
  expect("", 99, "xla.device");
  expect("", -1, "xla.device");
}

TEST_F(Runs, NoPluginForTheTarget_IsAReason) {
  const Contract contract = MakeContract("causal", 40);
  const Result<Selection> selection = SelectLane(contract, FindTarget("h200").value());
  ASSERT_TRUE(selection.has_value());
  bool is_listed = false;
  for (const LaneDecision& d : selection->decisions) {
    if (d.lane != "xla_chunked") continue;
    is_listed = true;
    EXPECT_EQ(ReasonText(d.decision.reason), "xla.no_plugin");
    EXPECT_NE(d.decision.detail.find("gpu"), std::string::npos) << d.decision.detail;
  }
  EXPECT_TRUE(is_listed);
}

TEST_F(Runs, PluginOfAnotherPlatform_IsAReason) {
  const Contract contract = MakeContract("causal", 40);
  RunOptions options = Options();
  options.xla.plugin = plugin_;
  const RunOutcome got = Run(contract, {}, MakeInputs(contract, 1, true), FindTarget("h200").value(), options);
  ASSERT_TRUE(got.error.has_value());
  EXPECT_NE(got.error->message.find("xla.platform"), std::string::npos) << got.error->message;
}

TEST_F(Runs, PluginsReport_NamesTheDevices) {
  bool has_cpu = false;
  for (const PluginReport& report : engine().Plugins()) {
    if (report.use.platform != "cpu") continue;
    has_cpu = true;
    EXPECT_EQ(report.usable, "yes");
    EXPECT_GE(report.devices.size(), 2u);
    EXPECT_FALSE(report.use.pjrt.empty());
  }
  EXPECT_TRUE(has_cpu);
  const std::vector<PluginReport> reports = engine().Plugins("/nowhere/plugin.so");
  EXPECT_EQ(reports.front().name, "given");
  EXPECT_EQ(reports.front().usable.rfind("no: ", 0), 0u) << reports.front().usable;
}

// On a machine with a GPU and its plugin; elsewhere the reason is the lane's own.
TEST(Gpu, Run_EqualsReferenceOrSaysWhyNot) {
  Contract contract;
  contract.shape = {.batch = 1,
                    .q_len = 300,
                    .kv_len = 300,
                    .num_q_heads = 2,
                    .num_kv_heads = 1,
                    .dim_qk = 64,
                    .dim_v = 64,
                    .dtype = DType::kF32};
  contract.mask.heads = {ParseMaskExpr("causal and window(100, 0) or sink(2)").value()};
  contract.score = {.scale = 0.125, .softcap = 10.0, .sink_logits = true};
  const Target target = FindTarget("h200").value();
  const Engine engine;  // of the installed plugins, whatever a test before this one had
  const Result<Selection> selection = engine.Select(contract, target);
  ASSERT_TRUE(selection.has_value());
  for (const LaneDecision& d : selection->decisions) {
    if (d.lane == "xla_chunked" && !d.decision.accepted) {
      GTEST_SKIP() << ReasonText(d.decision.reason) << ": " << d.decision.detail;
    }
  }
  RunOptions options;
  options.backward = true;
  options.lane = "xla_chunked";
  const TensorMap inputs = MakeInputs(contract, 5, true);
  const RunOutcome got = tessera::Run(engine, contract, {}, inputs, target, options);
  ASSERT_FALSE(got.error) << ToText(*got.error);
  options.lane = "reference";
  ExpectClose(got.outputs, tessera::Run(engine, contract, {}, inputs, target, options).outputs);
}

TEST(Recent, LeastRecentlyUsed_MakesRoom) {
  Proves("B8");
  lanes::xla::Recent<int, int> recent(3);
  const std::shared_ptr<int> first = recent.Get(1);
  *first = 11;
  *recent.Get(2) = 22;
  *recent.Get(3) = 33;
  EXPECT_EQ(*recent.Get(1), 11);
  recent.Get(4);
  EXPECT_EQ(recent.size(), 3u);
  EXPECT_EQ(*recent.Get(1), 11) << "used since";
  EXPECT_EQ(*recent.Get(2), 0) << "gone, and made anew";
  EXPECT_EQ(*first, 11) << "who holds one keeps it";
}

}  // namespace
}  // namespace tessera
