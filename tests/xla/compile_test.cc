// Compiling alone with the CPU plugin: from C++ and with the program.
#include <gtest/gtest.h>

#include "xla_fixture.h"

namespace tessera {
namespace {

class XlaCompileTest : public XlaTest {
 protected:
  static std::vector<std::string> Command(std::vector<std::string> more) {
    const std::string examples = TESSERA_SOURCE_DIR "/examples/";
    std::vector<std::string> command = {
        TESSERA_PROGRAM, "compile", examples + "packed.toml", "--batch", examples + "packed_batch.json",
        "--xla-level",   "0"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  static bool Contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(XlaCompileTest, Compile_IsAnewEachTimeAndLeavesTheProgramsForARun) {
  Proves("R53");
  const Contract contract = MakeContract("causal and window(9, 0)", 48);
  RunOptions options = Options();
  for (int time = 0; time < 2; ++time) {
    RunMeter meter;
    options.meter = &meter;
    const RunOutcome outcome = Compile(engine(), contract, {}, Cpu(), options);
    options.meter = nullptr;
    ASSERT_FALSE(outcome.error.has_value()) << ToText(*outcome.error);
    EXPECT_EQ(meter.step, RunStep::kCompile);
    EXPECT_EQ(meter.done, 2);
    EXPECT_EQ(meter.all, 2);
    const Receipt& r = outcome.receipt;
    EXPECT_TRUE(CheckReceipt(r).empty()) << ToJson(r);
    EXPECT_EQ(r.runtime_mode, "compile-only");
    EXPECT_EQ(r.executed, "xla_chunked");
    EXPECT_EQ(r.compiles, 2);
    EXPECT_EQ(r.device.platform, "cpu");
    EXPECT_EQ(r.device.topology, "");
    EXPECT_TRUE(outcome.outputs.empty());
    ASSERT_EQ(r.programs.size(), 2u);
    for (const ProgramUse& use : r.programs) {
      EXPECT_EQ(use.source, "compiled");
      EXPECT_EQ(use.note, "");
      EXPECT_GT(use.compile_ns, 0);
      EXPECT_GT(use.argument_bytes, 0);
      EXPECT_GT(use.output_bytes, 0);
      EXPECT_GT(use.instructions, 0);
      EXPECT_TRUE(Contains(use.name, r.class_key)) << use.name;
    }
  }
  const RunOutcome run = Run(contract, {}, MakeInputs(contract, 1, true), Cpu(), options);
  ASSERT_FALSE(run.error.has_value()) << ToText(*run.error);
  EXPECT_EQ(run.receipt.compiles, 0);
  EXPECT_EQ(ProgramOf(run.receipt, "forward").source, "disk");
  EXPECT_EQ(ProgramOf(run.receipt, "backward").source, "disk");
}

TEST_F(XlaCompileTest, Texts_AreWhatIsCompiled) {
  const Contract contract = MakeContract("causal", 48);
  const Result<std::vector<ProgramText>> texts = LowerPrograms(engine(), contract, {}, Cpu(), Options());
  ASSERT_TRUE(texts.has_value()) << ToText(texts.error());
  ASSERT_EQ(texts->size(), 2u);
  const Receipt r = Compile(engine(), contract, {}, Cpu(), Options()).receipt;
  EXPECT_EQ((*texts)[0].name, ProgramOf(r, "forward").name);
  EXPECT_EQ((*texts)[1].name, ProgramOf(r, "backward").name);
}

TEST_F(XlaCompileTest, DeviceThatIsNotThere_IsRefused) {
  RunOptions options = Options();
  options.xla.device = 99;
  const RunOutcome outcome = Compile(engine(), MakeContract("causal", 48), {}, Cpu(), options);
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_TRUE(Contains(ToText(*outcome.error), "xla.device")) << ToText(*outcome.error);
  EXPECT_TRUE(CheckReceipt(outcome.receipt).empty()) << ToJson(outcome.receipt);
}

TEST_F(XlaCompileTest, Program_PrintsFiguresAndLeavesAReceiptThatIsNotRepeated) {
  const std::string file = folder_.File("receipt.json");
  const ProgramResult result = RunProgram(Command({"--backward", "--receipt", file, "--emit", folder_.File("texts")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Result<Receipt> receipt = ReadReceipt(file);
  ASSERT_TRUE(receipt.has_value()) << ToText(receipt.error());
  EXPECT_EQ(receipt->runtime_mode, "compile-only");
  EXPECT_EQ(receipt->compiles, 2);
  for (const std::string& part :
       {ProgramOf(*receipt, "forward").name, ProgramOf(*receipt, "backward").name, std::string("compiled in "),
        std::string("temporary "), std::string("instructions: "), ToLine(*receipt)}) {
    EXPECT_TRUE(Contains(result.out, part)) << part << "\n" << result.out;
  }
  EXPECT_TRUE(std::filesystem::exists(folder_.File("texts/" + ProgramOf(*receipt, "forward").name + ".mlir")));
  const ProgramResult repeat = RunProgram({TESSERA_PROGRAM, "run", "--from-receipt", file});
  EXPECT_EQ(repeat.exit_code, 2);
  EXPECT_TRUE(Contains(repeat.err, "runtime_mode: ")) << repeat.err;
  for (const char* what : {"check", "show"}) {
    EXPECT_EQ(RunProgram({TESSERA_PROGRAM, "receipt", what, file}).exit_code, 0) << what;
  }
}

}  // namespace
}  // namespace tessera
