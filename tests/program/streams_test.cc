// What is printed and where: full disks, limits on files, closed streams and pipes that nobody reads are errors of the
// write; nothing half written stays; and no text out of a file reaches a terminal as anything but text.
#include <csignal>
#include <set>

#include "help.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kContract =
    "version = 1\n[shape]\nq_len = 96\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n[tiles]\nq = 16\nkv = 16\nreason = \"a "
    "test\"\n";

class Streams : public testing::Test {
 protected:
  void SetUp() override {
    WriteWhole(folder_.File("c.toml"), kContract);
    std::string routed = kContract;
    routed.replace(routed.find("causal"), 6, "causal and blocks");
    routed +=
        "[routing]\nquery_tile = 16\nkv_tile = 16\nselected_block = 16\nblock_stride = 8\ncompression_block = 8\n";
    WriteWhole(folder_.File("routed.toml"), routed + "top_n = 2\n");
    for (const char* lane : {"cpu", "reference"}) {
      ASSERT_EQ(Tessera({"run", "c.toml", "--lane", lane, "--receipt", std::string(lane) + ".json"}, here_).exit_code,
                0);
    }
  }
  // Every command that writes a file, ready for its name.
  static std::vector<std::vector<std::string>> Writers() {
    return {{"plan", "c.toml", "--out"},
            {"explain", "c.toml", "--dense"},
            {"explain", "c.toml", "--svg"},
            {"route", "routed.toml", "--no-compare", "--mass", "0", "--out"},
            {"run", "c.toml", "--out"},
            {"run", "c.toml", "--receipt"},
            {"compile", "c.toml", "--receipt"},
            {"view", "c.toml", "--no-open", "--out"},
            {"export", "c.toml", "--to", "flex", "--out"},
            {"new", "--out"},
            {"demo", "--receipt"},
            {"ledger", "add", "--custom", "cpu.json", "--default", "reference.json", "--ledger"}};
  }
  ProgramResult Shell(const std::string& script, const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {"/bin/sh", "-c", script, TESSERA_PROGRAM};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return RunProgram(command, here_);
  }

  TemporaryFolder folder_;
  ProgramOptions here_{.folder = folder_.path()};
};

TEST_F(Streams, AFullDisk_IsAnErrorOfEveryOutput) {
  for (std::vector<std::string> arguments : Writers()) {
    if (arguments[0] == "ledger") continue;  // a device is no ledger to begin with, which is another error
    arguments.emplace_back("/dev/full");
    const ProgramResult result = Tessera(arguments, here_);
    EXPECT_NE(result.exit_code, 0) << testing::PrintToString(arguments);
    EXPECT_NE(result.err.find("TSR-R003"), std::string::npos) << testing::PrintToString(arguments) << result.err;
  }
}

// The signal that a limit on the size of files raises is not caught by a shell, and not by this test either.
TEST_F(Streams, AFileSizeLimit_IsAWriteErrorThatLeavesNothing) {
  for (std::vector<std::string> arguments : Writers()) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const bool is_ledger = arguments[0] == "ledger";
    arguments.emplace_back("old");
    fs::remove(folder_.File("old"));
    if (!is_ledger) WriteWhole(folder_.File("old"), "what was there");
    const size_t files = folder_.NumFiles();
    const ProgramResult result = Shell("ulimit -f 1; exec \"$0\" \"$@\" > /dev/null", arguments);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_LT(result.exit_code, 4) << "ended by a signal";
    EXPECT_NE(result.err.find("TSR-R003"), std::string::npos) << result.err;
    if (!is_ledger) {
      EXPECT_EQ(ReadWhole(folder_.File("old")), "what was there");
    }
    EXPECT_EQ(folder_.NumFiles(), files) << "a temporary file was left behind";
  }
}

TEST_F(Streams, StandardOutput_ThatTakesNothing) {
  const std::vector<std::vector<std::string>> commands = {{"plan", "c.toml"},
                                                          {"plan", "c.toml", "--json"},
                                                          {"explain", "c.toml"},
                                                          {"explain", "--policy"},
                                                          {"run", "c.toml"},
                                                          {"lanes", "c.toml"},
                                                          {"verify", "--list"},
                                                          {"receipt", "show", "cpu.json"},
                                                          {"export", "c.toml", "--to", "flex"},
                                                          {"ledger", "advise", "c.toml"},
                                                          {"new"},
                                                          {"error", "TSR-C003"},
                                                          {"demo"},
                                                          {"--help"},
                                                          {"run", "--help"},
                                                          {"--version"}};
  for (const std::vector<std::string>& arguments : commands) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    for (const char* script : {"exec \"$0\" \"$@\" > /dev/full", "exec \"$0\" \"$@\" >&-",
                               "{ sleep 0.1; \"$0\" \"$@\"; echo \"status $?\" >&2; } | :"}) {
      const ProgramResult result = Shell(script, arguments);
      const bool is_pipe = script[0] == '{';
      EXPECT_TRUE(is_pipe ? result.err.find("status 2") != std::string::npos : result.exit_code == 2)
          << script << result.err;
      EXPECT_NE(result.err.find("TSR-R003 at standard output"), std::string::npos) << script << result.err;
    }
  }
  // A run's receipt is not lost with what was to be printed.
  const ProgramResult run = Shell("exec \"$0\" \"$@\" >&-", {"run", "c.toml", "--receipt", "r.json"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(Tessera({"receipt", "check", "r.json"}, here_).exit_code, 0);
}

TEST_F(Streams, StandardInput_Closed) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"plan", "-"},
                                             {"explain", "-"},
                                             {"run", "-"},
                                             {"lanes", "-"},
                                             {"export", "-", "--to", "flex"},
                                             {"verify", "-"}}) {
    for (const char* script : {"exec \"$0\" \"$@\" <&-", "exec \"$0\" \"$@\" < ."}) {
      const ProgramResult result = Shell(script, arguments);
      EXPECT_EQ(result.exit_code, 2);
      EXPECT_EQ(result.err.rfind("tessera: TSR-R002 at standard input", 0), 0u) << result.err;
    }
  }
}

// Nothing that a terminal acts on: controls, and turns of the direction of text.
void ExpectText(const ProgramResult& result, const std::string& what) {
  for (const std::string& text : {result.out, result.err}) {
    for (size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
      const bool is_control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F || (c == 0xC2 && next < 0xA0);
      ASSERT_FALSE(is_control) << what << " at " << i << ": " << testing::PrintToString(text.substr(0, 400));
      ASSERT_NE(text.substr(i, 3), "\xE2\x80\xAE") << what;
    }
  }
}

TEST_F(Streams, TextOutOfFiles_IsOnlyText) {
  const std::string bad =
      "\x1b]0;owned\x07\x1b[2J\r\x7f\xc2\x9b"
      "31m\xe2\x80\xae end";
  Receipt receipt = ReadReceipt(folder_.File("cpu.json")).value();
  for (std::string* field : {&receipt.requested, &receipt.selected, &receipt.executed, &receipt.target, &receipt.kernel,
                             &receipt.isa, &receipt.contract_source, &receipt.batch_source, &receipt.input_source,
                             &receipt.ran_on, &receipt.selection_rule, &receipt.error, &receipt.failed_at}) {
    *field = bad + "\n  executed           forged";
  }
  receipt.options[bad] = bad;
  receipt.versions[bad] = bad;
  receipt.decisions.push_back({bad, bad, Decision::Yes()});
  WriteWhole(folder_.File("bad.json"), ToJson(receipt));
  const std::string bad_name = "a" + bad + ".toml";
  std::string contract = kContract;
  contract.replace(contract.find("a test"), 6, "a \\u001b[31m reason");
  WriteWhole(folder_.File(bad_name), contract);
  WriteWhole(folder_.File("key.toml"),
             "version = 1\n\"\\u001b[2J\\u009b\" = 1\n[mask]\nexpr = \"causal \\u001b[2J\"\n");
  WriteWhole(folder_.File("raw.toml"), bad);
  WriteWhole(folder_.File("raw.json"), "{\"" + bad);
  WriteWhole(folder_.File("key.json"), "{\"\\u001b[2J\\u009b\xe2\x80\xae\": 1}");
  ASSERT_TRUE(WriteSafetensors(folder_.File("t.safetensors"), {{bad, Tensor::Zeros(ElementType::kF32, {1})}}));
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"receipt", "show", "bad.json"},
           {"receipt", "show", "bad.json", "--json"},
           {"receipt", "check", "bad.json"},
           {"receipt", "diff", "bad.json", "cpu.json"},
           {"receipt", "diff", "cpu.json", "bad.json", "--json"},
           {"run", "--from-receipt", "bad.json"},
           {"run", "--from-receipt", "bad.json", "--json"},
           {"ledger", "add", "--custom", "bad.json", "--default", "cpu.json", "--ledger", "l.json"},
           {"plan", bad_name},
           {"plan", bad_name, "--json"},
           {"explain", bad_name},
           {"run", bad_name},
           {"verify", bad_name},
           {"plan", "key.toml"},
           {"plan", "key.toml", "--json"},
           {"plan", "raw.toml"},
           {"plan", "raw.json"},
           {"plan", "key.json"},
           {"plan", "c.toml", "--batch", "key.json"},
           {"plan", "c.toml", "--batch", "t.safetensors"},
           {"run", "c.toml", "--inputs", "t.safetensors"},
           {"receipt", "show", "key.json"},
           {"ledger", "show", "--ledger", "key.json"},
           {"plan", bad},
           {"plan", "c.toml", "--target", bad},
           {"plan", "c.toml", "--tile", bad},
           {"run", "c.toml", "--lane", bad},
           {"plan", "c.toml", bad},
           {"plan", "c.toml", "--" + bad},
           {bad},
           {"explain", "c.toml", "--dump", bad},
           {"verify", bad}}) {
    ExpectText(Tessera(arguments, here_), testing::PrintToString(arguments));
  }
  const ProgramResult shown = Tessera({"receipt", "show", "bad.json"}, here_);
  EXPECT_EQ(shown.out.find("\n  executed           forged"), std::string::npos) << "a value posed as a field";
}

// Twenty programs add to one ledger at once, some of which find none there yet.
TEST_F(Streams, TwentyLedgerAdds_AtOnce_KeepTwenty) {
  constexpr int kAdds = 20;
  for (int i = 0; i < kAdds; ++i) {
    std::string contract = kContract;
    contract.replace(contract.find("96"), 2, std::to_string(16 + i));
    WriteWhole(folder_.File("c" + std::to_string(i) + ".toml"), contract);
  }
  const ProgramResult result = Shell(
      "i=0; while [ $i -lt 20 ]; do for lane in cpu reference; do \"$0\" run c$i.toml --lane $lane --receipt "
      "$lane$i.json "
      "> /dev/null || exit 9; done; i=$((i+1)); done\n"
      "ln -s l.json link.json; ln -s . here; i=0; while [ $i -lt 20 ]; do\n"
      "case $((i % 3)) in 0) l=l.json;; 1) l=link.json;; 2) l=here/l.json;; esac\n"
      "{ \"$0\" ledger add --custom cpu$i.json --default reference$i.json --ledger $l > /dev/null || echo failed $i "
      ">&2; } &\n"
      "i=$((i+1)); done; wait",
      {});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const auto ledger = ReadLedger(folder_.File("l.json"));
  ASSERT_TRUE(ledger) << ToText(ledger.error());
  EXPECT_EQ(ledger->entries.size(), size_t{kAdds});
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().filename().string().rfind(".tessera", 0), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace tessera
