// `tessera new` hands out contracts that are good, and `tessera error` knows every code and reason there is.
#include <fmt/format.h>

#include <set>
#include <sstream>

#include "program_test.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

TEST(New, Default_IsAContractThatPlans) {
  const TemporaryFolder folder;
  const std::string path = folder.File("new.toml");
  const ProgramResult made = Tessera({"new", "--mask", "causal and window(63, 0)", "--length", "300", "--batch", "2",
                                      "--heads", "6/3", "--dim", "64", "--dtype", "f16", "--out", path});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  auto contract = ReadContract(path);
  ASSERT_TRUE(contract) << ToText(contract.error());
  EXPECT_EQ(contract->shape.q_len, 300);
  EXPECT_EQ(contract->shape.num_kv_heads, 3);
  EXPECT_EQ(contract->shape.dtype, DType::kF16);
  EXPECT_EQ(Tessera({"plan", path}).exit_code, 0);
  // On standard output it is the same kind of text, ready for a pipe.
  const ProgramResult piped = Tessera({"plan", "-"}, {.input = Tessera({"new"}).out});
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
}

TEST(New, WhatNoContractMayHave_IsRefusedAndNothingIsWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.File("bad.toml");
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"--heads", "3/2"}, {"--heads", "x"}, {"--heads", "4/"}, {"--mask", "sideways"}, {"--length", "0"}}) {
    std::vector<std::string> arguments = {"new", "--out", path};
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    const ProgramResult result = Tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << fmt::format("{}", fmt::join(bad, " "));
    EXPECT_NE(result.err.find("TSR-"), std::string::npos) << result.err;
  }
  EXPECT_EQ(folder.NumFiles(), 0u);
}

// A contract that somebody filled in is worth more than a fresh one.
TEST(New, AFileThatIsThere_IsLeftAsItIs) {
  const TemporaryFolder folder;
  const ProgramOptions here{.folder = folder.path()};
  const ProgramResult made = Tessera({"new", "mine.toml"}, here);
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(ReadWhole(folder.File("mine.toml")), Tessera({"new"}).out);
  WriteWhole(folder.File("mine.toml"), "edited");
  for (const std::vector<std::string>& again :
       std::vector<std::vector<std::string>>{{"new", "mine.toml"}, {"new", "--out", "mine.toml"}}) {
    const ProgramResult refused = Tessera(again, here);
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    EXPECT_NE(refused.err.find("mine.toml: it is there already"), std::string::npos) << refused.err;
    EXPECT_EQ(ReadWhole(folder.File("mine.toml")), "edited");
  }
}

// What follows a value is said in one column, however long the values are.
TEST(New, Comments_StandInOneColumn) {
  const std::string text = Tessera({"new", "--length", "131072", "--heads", "128/16", "--dtype", "f32"}).out;
  std::set<size_t> columns;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("# ", 1);
    if (at != std::string::npos && line[at - 1] == ' ') columns.insert(at);
  }
  EXPECT_EQ(columns, std::set<size_t>{26}) << text;
}

// The likeliest slips, and the words that lead on from each.
TEST(Messages, SlipsOfThePen_AreToldTheNextStep) {
  struct Slip {
    std::vector<std::string> arguments;
    std::string says;
  };
  for (const Slip& slip : std::vector<Slip>{
           {{"run", "causal"}, "has a length too: causal:8192"},
           {{"run", "causal,window=63"}, "causal,window=63:8192"},
           {{"plan", "causal:eight"}, "'eight' is no length"},
           {{"error", "TSR-C03"}, "did you mean TSR-C003?"},
           {{"error", "cpu.isaa"}, "did you mean cpu.isa?"},
           {{"verify", "causal-1k-f23"}, "did you mean causal-1k-f32?"},
           {{"receipt"}, "A subcommand is required: show, "},
           {{"shard"}, ", run"},
           {{"ledger"}, "A subcommand is required: "},
           {{"view", "--receipt", TESSERA_SOURCE_DIR "/examples/causal.toml", "--no-open"}, "this is a contract"}}) {
    SCOPED_TRACE(testing::PrintToString(slip.arguments));
    const ProgramResult result = Tessera(slip.arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find(slip.says), std::string::npos) << result.err;
  }
  // A file that is not there and no mask either has no such advice.
  EXPECT_EQ(Tessera({"run", "casual"}).err.find("has a length"), std::string::npos);
}

TEST(Lanes, Table_HasItsColumnsUnderTheirHeads) {
  const std::string text = Tessera({"lanes"}).out;
  const size_t column = text.substr(0, text.find('\n')).find("what it is");
  ASSERT_NE(column, std::string::npos) << text;
  const nlohmann::json json = OnlyDocument(Tessera({"lanes", "--json"}));
  std::istringstream lines(text.substr(text.find('\n') + 1));
  std::string line;
  for (const nlohmann::json& lane : json["lanes"]) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(line.find(lane["description"].get<std::string>()), column) << line;
  }
}

TEST(Error, EveryCodeAndReason_IsExplained) {
  const ProgramResult list = Tessera({"error"});
  ASSERT_EQ(list.exit_code, 0);
  std::vector<std::string> names;
#define TESSERA_ERROR(name, text, meaning) names.emplace_back(text);
#include "tessera/error_codes.def"
#undef TESSERA_ERROR
  for (const std::string& name : names) {
    EXPECT_NE(list.out.find(name), std::string::npos) << name;
  }
  for (const char* asked : {"TSR-C003", "c003", "tsr-c003", "dispatch.excluded"}) {
    const ProgramResult one = Tessera({"error", asked});
    EXPECT_EQ(one.exit_code, 0) << one.err;
    EXPECT_NE(one.out.find("What to do."), std::string::npos) << one.out;
    EXPECT_EQ(one.out.find("**"), std::string::npos) << one.out;
  }
  const ProgramResult none = Tessera({"error", "TSR-Z999"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("TSR-Z999"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace tessera
