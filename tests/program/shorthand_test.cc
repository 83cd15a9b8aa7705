// A contract in one argument is the contract that a file would say, wherever a file is taken; a file of that name wins.
#include <fmt/format.h>

#include "help.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

// What a plan's text says of its contract.
std::string KeyOf(const ProgramResult& result) {
  const size_t at = result.out.find("contract key");
  return at == std::string::npos ? "none: " + result.err : result.out.substr(at, result.out.find('\n', at) - at);
}

TEST(Shorthand, IsTheContractOfAFile) {
  const TemporaryFolder folder;
  const ProgramOptions here{.folder = folder.path()};
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"causal:64", "[shape]\nq_len = 64\ndim_qk = 64\n[mask]\nexpr = \"causal\"\n"},
      {"causal,window=9:64x80:h4/2:d8/16:bf16:b2",
       "[shape]\nbatch = 2\nq_len = 64\nkv_len = 80\nnum_q_heads = 4\nnum_kv_heads = 2\ndim_qk = 8\ndim_v = 16\n"
       "dtype = \"bf16\"\n[mask]\nexpr = \"causal and window(9, 0)\"\n"},
      {"window=3/4,sink=2:64:cap30:t16x32",
       "[shape]\nq_len = 64\ndim_qk = 64\n[mask]\nexpr = \"window(3, 4) and sink(2)\"\n[score]\nsoftcap = 30\n"
       "[tiles]\nq = 16\nkv = 32\nreason = \"asked for\"\n"},
      {"causal and (window(9, 0) or sink(2)):64:f16",
       "[shape]\nq_len = 64\ndim_qk = 64\ndtype = \"f16\"\n[mask]\nexpr = \"causal and (window(9, 0) or sink(2))\"\n"},
      {"prefix(9) or causal,window=20:64",
       "[shape]\nq_len = 64\ndim_qk = 64\n[mask]\nexpr = \"(prefix(9) or causal) and window(20, 0)\"\n"},
  };
  for (const auto& [argument, text] : rows) {
    WriteWhole(folder.File("c.toml"), "version = 1\n" + text);
    const std::string key = KeyOf(Tessera({"plan", "c.toml"}, here));
    EXPECT_EQ(key.substr(0, 12), "contract key") << key;
    EXPECT_EQ(KeyOf(Tessera({"plan", argument}, here)), key) << argument;
  }
}

TEST(Shorthand, IsTakenWhereAFileIs) {
  const TemporaryFolder folder;
  const ProgramOptions here{.folder = folder.path()};
  const std::string contract = "causal:48:d8:t16x16";
  size_t commands = 0;
  for (const HelpCommand& command : AllCommands()) {
    for (const HelpOption& option : command.options) {
      const bool is_contract = option.name == "contract" || (command.Text() == "verify" && option.name == "what") ||
                               (command.Text() == "bench" && option.name == "--contract");
      if (!is_contract) continue;
      ++commands;
      std::vector<std::string> arguments = command.words;
      if (command.Text() == "bench") arguments.insert(arguments.end(), {"--stability", "--batches", "1", "--contract"});
      arguments.push_back(contract);
      if (command.Text() == "export") arguments.insert(arguments.end(), {"--to", "flex"});
      if (command.Text() == "emit") arguments.insert(arguments.end(), {"--lane", "xla_chunked", "--out", "emitted"});
      if (command.Text() == "compile") arguments.insert(arguments.end(), {"--emit", "programs"});
      if (command.Text() == "shard compile")
        arguments.insert(arguments.end(), {"--topology", "v6e:2x2", "--emit", "sharded"});
      if (command.Text() == "shard run") arguments.insert(arguments.end(), {"--mesh", "context=2"});
      if (command.Text() == "view") arguments.emplace_back("--no-open");
      if (option.name == "contract" && command.words[0] == "bench") {
        arguments.insert(arguments.end(), {"--repeat", "1"});
      }
      const ProgramResult result = Tessera(arguments, here);
      // What a command says of this contract is its own affair; that it read it is asked here.
      EXPECT_EQ(result.err.find("TSR-R002"), std::string::npos) << testing::PrintToString(arguments) << result.err;
      EXPECT_EQ(result.err.find("no such file"), std::string::npos) << testing::PrintToString(arguments) << result.err;
      // Routing and ledgers want more than a contract, shards and schedules a plugin and dims that kernels have.
      const std::string& first = command.words[0];
      const bool may_refuse = first == "route" || first == "ledger" || first == "shard" || first == "tpu-cost";
      EXPECT_TRUE(result.exit_code == 0 || may_refuse) << testing::PrintToString(arguments) << result.err;
    }
  }
  EXPECT_GE(commands, 10u) << "--help was not understood";
}

TEST(Shorthand, AFileOfThatName_Wins) {
  const TemporaryFolder folder;
  const ProgramOptions here{.folder = folder.path()};
  WriteWhole(folder.File("causal:64"), "version = 1\n[shape]\nq_len = 32\ndim_qk = 8\n[mask]\nexpr = \"full\"\n");
  const ProgramResult result = Tessera({"plan", "causal:64"}, here);
  EXPECT_NE(result.out.find("32 queries x 32 keys"), std::string::npos) << result.out << result.err;
  // And is an input, which nothing may write over.
  const ProgramResult over = Tessera({"plan", "causal:64", "--out", "./causal:64"}, here);
  EXPECT_EQ(over.exit_code, 2);
  EXPECT_NE(over.err.find("name the same file"), std::string::npos) << over.err;
  // A contract in one argument is no file, so an output may have its name.
  EXPECT_EQ(Tessera({"plan", "causal:128", "--out", "causal:128"}, here).exit_code, 0);
}

TEST(Shorthand, WhatIsWrong_IsNamed) {
  for (const auto& [argument, word] :
       std::vector<std::pair<std::string, std::string>>{{"causal:", "MASK:LENGTH"},
                                                        {":64", "MASK:LENGTH"},
                                                        {"causal:64:", "''"},
                                                        {"causal:0", "MASK:LENGTH"},
                                                        {"causal:-4", "MASK:LENGTH"},
                                                        {"causal:64:q3", "'q3'"},
                                                        {"causal:64:h4/0", "'h4/0'"},
                                                        {"causal:64:d8:d9", "'d9'"},
                                                        {"causal:64:f32:bf16", "'bf16'"},
                                                        {"causal:64:cap1e400", "'cap1e400'"},
                                                        {"causal:64:h3/2", "num_q_heads"},
                                                        {"cuasal:64", "did you mean causal"},
                                                        {"causal,:64", "mask.expr"},
                                                        {"causal:99999999999999999999", "MASK:LENGTH"},
                                                        {"(causal:64", "no such file"},
                                                        {"causal,window=37:0:301:h6/2", "'0' is no length"},
                                                        {"folder:x/contract.toml", "no such file"}}) {
    const ProgramResult result = Tessera({"plan", argument});
    EXPECT_EQ(result.exit_code, 2) << argument;
    EXPECT_NE(result.err.find(word), std::string::npos) << argument << ": " << result.err;
  }
}

TEST(Shorthand, AReceipt_RepeatsIt_WithDocumentsInArguments) {
  const TemporaryFolder folder;
  const ProgramOptions here{.folder = folder.path()};
  const std::vector<std::string> run = {"run",         "causal,documents,valid:48:d8:b2",
                                        "--documents", "20,7/30,9,4",
                                        "--valid",     "40,44",
                                        "--receipt",   "r.json",
                                        "--backward",  "--check"};
  const ProgramResult first = Tessera(run, here);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Receipt receipt = ReadReceipt(folder.File("r.json")).value();
  EXPECT_EQ(receipt.contract_source, "argument causal,documents,valid:48:d8:b2");
  EXPECT_EQ(receipt.batch_source, "documents 20,7/30,9,4 valid 40,44");
  const ProgramResult again = Tessera({"run", "--from-receipt", "r.json"}, here);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("the same outputs"), std::string::npos) << again.out;
  const ProgramResult other = Tessera({"run", "--from-receipt", "r.json", "--documents", "20,8/30,9,4"}, here);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("batch_digest"), std::string::npos) << other.err;
}

// A flag and a file that say the same make the same plan.
TEST(Documents, AreTheBatchOfAFile) {
  const TemporaryFolder folder;
  const ProgramOptions here{.folder = folder.path()};
  WriteWhole(folder.File("b.json"), R"({"doc_lengths": [[20, 7], [20, 7]], "valid_tokens": [40]})");
  const std::string contract = "causal,documents,valid:48:d8:b2";
  ASSERT_EQ(Tessera({"plan", contract, "--batch", "b.json", "--out", "a.plan"}, here).exit_code, 0);
  const ProgramResult flags =
      Tessera({"plan", contract, "--documents", "20,7", "--valid", "40", "--out", "b.plan"}, here);
  ASSERT_EQ(flags.exit_code, 0) << flags.err;
  EXPECT_EQ(ReadWhole(folder.File("a.plan")), ReadWhole(folder.File("b.plan")));
  for (const auto& [bad, word] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--documents", "20,x", "--valid", "1"}, "--documents"},
           {{"--documents", "20,,3", "--valid", "1"}, "--documents"},
           {{"--documents", "-1", "--valid", "1"}, "--documents"},
           {{"--documents", "20/", "--valid", "1"}, "--documents"},
           {{"--documents", "20/7/9", "--valid", "1"}, "doc_lengths"},
           {{"--documents", "40,9", "--valid", "1"}, "doc_lengths"},
           {{"--documents", "20", "--valid", "1;2"}, "--valid"},
           {{"--documents", "20", "--batch", "b.json"}, "--batch"},
           {{"--documents", "20"}, "valid_tokens"}}) {
    std::vector<std::string> arguments = {"plan", contract};
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    const ProgramResult result = Tessera(arguments, here);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_NE(result.err.find(word), std::string::npos) << testing::PrintToString(arguments) << result.err;
  }
}

TEST(Messages, SayTheNextStep) {
  const TemporaryFolder folder;
  const ProgramOptions here{.folder = folder.path()};
  WriteWhole(folder.File("c.toml"), "version = 1\n[shape]\nq_len = 32\ndim_qk = 8\n[mask]\nexpr = \"documents\"\n");
  WriteWhole(folder.File("b.json"), R"({"doc_lengths": [[20, 12]]})");
  WriteWhole(folder.File("x.npy"), std::string("\x93NUMPY\x01\x00v\x00", 10) + std::string(118, ' '));
  WriteWhole(folder.File("x.npz"), "PK\x03\x04 and so on");
  ASSERT_EQ(Tessera({"plan", "causal:32:d8", "--out", "p.plan"}, here).exit_code, 0);
  std::filesystem::rename(folder.File("p.plan"), folder.File("plan.bin"));
  ASSERT_EQ(Tessera({"run", "causal:32:d8", "--receipt", "r.json"}, here).exit_code, 0);
  const Contract contract = MakeContract({.q_len = 32, .num_q_heads = 2, .dim_qk = 8, .mask = "causal"}).value();
  ASSERT_TRUE(WriteSafetensors(folder.File("bthd.safetensors"), MakeInputs(contract, 1, false, Layout::kBthd)));
  for (const auto& [arguments, word] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"plan", "c.toml"}, "--batch FILE, or by --documents"},
           {{"run", "c.toml"}, "--batch FILE, or by --documents"},
           {{"export", "c.toml", "--to", "flex", "--segments", "baked"}, "--batch FILE"},
           {{"plan", "b.json"}, "this is a batch: give it with --batch"},
           {{"plan", "c.toml", "--batch", "c.toml"}, "this is a contract"},
           {{"plan", "plan.bin"}, "this is a plan: its name must end in .plan"},
           {{"plan", "r.json"}, "--from-receipt"},
           {{"plan", "bthd.safetensors"}, "this is a safetensors file"},
           {{"run", "causal:32:d8", "--inputs", "x.npy"}, "NumPy array"},
           {{"plan", "c.toml", "--batch", "x.npy"}, "NumPy array"},
           {{"run", "causal:32:d8", "--inputs", "x.npz"}, "zip file"},
           {{"run", "causal:32:d8:h2", "--inputs", "bthd.safetensors"}, "give --layout bthd"},
           {{"rnu"}, "did you mean run?"},
           {{"plan", "c.toml", "--bacth", "b.json"}, "did you mean --batch?"},
           {{"run", "--form-receipt=r.json"}, "did you mean --from-receipt?"},
           {{"ledger", "ad"}, "did you mean add?"},
           {{"completely-else"}, "there is no command"}}) {
    const ProgramResult result = Tessera(arguments, here);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_NE(result.err.find(word), std::string::npos) << testing::PrintToString(arguments) << result.err;
  }
  EXPECT_EQ(Tessera({"run", "causal:32:d8:h2", "--inputs", "bthd.safetensors", "--layout", "bthd"}, here).exit_code, 0);
}

}  // namespace
}  // namespace tessera
