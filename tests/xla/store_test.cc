// Compiled programs outlive the process: a second one compiles nothing, and a damaged entry costs a compilation and no
// more.
#include "xla/xla_fixture.h"

namespace tessera {
namespace {

class Processes : public XlaTest {
 protected:
  void SetUp() override {
    XlaTest::SetUp();
    if (IsSkipped()) return;
    WriteWhole(contract_path(), ToToml(MakeContract("causal and window(20, 0)", 60)));
  }
  std::string contract_path() const { return folder_.path() + "/contract.toml"; }

  // `tessera run` in a process of its own.
  Receipt RunOnce(const std::string& level = "0", const std::string& xla_flags = "") const {
    const std::string receipt = folder_.path() + "/receipt.json";
    const ProgramResult result = RunProgram({TESSERA_PROGRAM, "run", contract_path(), "--lane", "xla_chunked",
                                             "--backward", "--check", "--xla-level", level, "--receipt", receipt},
                                            {.env = {{"TESSERA_XLA", folder_.path()}, {"XLA_FLAGS", xla_flags}}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const Result<Receipt> read = ReadReceipt(receipt);
    EXPECT_TRUE(read.has_value()) << (read ? "" : ToText(read.error()));
    return read.value_or(Receipt{});
  }

  std::vector<std::string> Entries() const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(StoreFolder())) paths.push_back(entry.path());
    return paths;
  }
};

TEST_F(Processes, SecondOne_CompilesNothing) {
  Proves("B23");
  const Receipt first = RunOnce();
  EXPECT_EQ(first.compiles, 2);
  EXPECT_EQ(ProgramOf(first, "forward").source, "compiled");
  EXPECT_EQ(Entries().size(), 2u);
  const Receipt second = RunOnce();
  EXPECT_EQ(second.compiles, 0);
  EXPECT_EQ(second.cache_hits, 2);
  EXPECT_EQ(ProgramOf(second, "forward").source, "disk");
  EXPECT_EQ(ProgramOf(second, "backward").source, "disk");
  EXPECT_EQ(ProgramOf(second, "forward").key, ProgramOf(first, "forward").key);
  EXPECT_EQ(second.output_digest, first.output_digest);
}

TEST_F(Processes, OtherOptions_OtherEntries) {
  RunOnce();
  EXPECT_EQ(RunOnce("1").compiles, 2) << "another level is another program";
  // XLA reads these by itself; a program found on disk must not be one that was compiled without them.
  const std::string flags = "--xla_cpu_prefer_vector_width=64";
  const Receipt flagged = RunOnce("0", flags);
  EXPECT_EQ(flagged.compiles, 2) << "another program";
  EXPECT_EQ(ProgramOf(flagged, "forward").note, "XLA_FLAGS=" + flags);
  EXPECT_EQ(RunOnce("0", flags).compiles, 0);
}

TEST_F(Processes, DamagedEntry_IsSaidAndReplaced) {
  const Receipt first = RunOnce();
  for (const std::string& path : Entries()) {
    std::string bytes = ReadWhole(path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x40);
    WriteWhole(path, bytes);
  }
  const Receipt second = RunOnce();
  EXPECT_EQ(second.compiles, 2);
  EXPECT_NE(ProgramOf(second, "forward").note, "");
  EXPECT_EQ(second.output_digest, first.output_digest);
  const Receipt third = RunOnce();
  EXPECT_EQ(third.compiles, 0);
  EXPECT_EQ(ProgramOf(third, "forward").note, "");
}

}  // namespace
}  // namespace tessera
