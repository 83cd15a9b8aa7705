// Nothing given is ignored: every option of every command, as --help lists them. An empty value, a number that is not
// plainly one, an option given twice, and one that is of no use beside the rest are errors that name the option.
#include <algorithm>
#include <array>

#include "help.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kContract =
    "version = 1\n[shape]\nq_len = 32\ndim_qk = 8\n[mask]\nexpr = \"causal\"\n[tiles]\nq = 16\nkv = 16\nreason = \"a "
    "test\"\n";

void ExpectNamed(const std::vector<std::string>& arguments, const std::string& name,
                 const ProgramOptions& options = {}) {
  SCOPED_TRACE(testing::PrintToString(arguments));
  const ProgramResult result = Tessera(arguments, options);
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_EQ(result.err.rfind("tessera: TSR-R007", 0), 0u) << result.err;
  EXPECT_NE(result.err.find(name), std::string::npos) << result.err;
}

// The command with what it requires, but for one option.
std::vector<std::string> Without(const HelpCommand& command, const HelpOption& but) {
  std::vector<std::string> arguments = command.words;
  for (const HelpOption& option : command.options) {
    if (!option.is_required || option.name == but.name) continue;
    if (!option.is_positional) arguments.push_back(option.name);
    arguments.push_back("nothing");
  }
  return arguments;
}

template <class Check>
void ForEveryOption(const Check& check) {
  size_t options = 0;
  for (const HelpCommand& command : AllCommands()) {
    for (const HelpOption& option : command.options) {
      ++options;
      check(command, option, Without(command, option));
    }
  }
  EXPECT_GE(options, 100u) << "--help was not understood";
}

TEST(EveryOption, WithAnEmptyValue_IsAnError) {
  ForEveryOption([](const HelpCommand&, const HelpOption& option, std::vector<std::string> arguments) {
    if (option.IsFlag()) return;
    if (option.is_positional) {
      arguments.emplace_back("");
      return ExpectNamed(arguments, "an empty value was given");
    }
    std::vector<std::string> joined = arguments;
    joined.push_back(option.name + "=");
    ExpectNamed(joined, option.name);
    joined.emplace_back("nothing");  // and is not taken for the value
    ExpectNamed(joined, option.name);
    arguments.insert(arguments.end(), {option.name, ""});
    ExpectNamed(arguments, option.name);
  });
}

TEST(EveryOption, GivenTwice_IsAnError) {
  ForEveryOption([](const HelpCommand&, const HelpOption& option, std::vector<std::string> arguments) {
    if (option.is_positional) return;
    for (int time = 0; time < 2; ++time) {
      arguments.push_back(option.name);
      if (!option.IsFlag()) arguments.emplace_back(option.IsNumber() ? "1" : "bhtd");
    }
    const ProgramResult result = Tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(arguments);
    const bool is_named = result.err.find(option.name) != std::string::npos;
    EXPECT_TRUE(is_named || result.err.find("bhtd") != std::string::npos) << result.err;
  });
}

TEST(EveryFlag, WithAValue_IsAnError) {
  ForEveryOption([](const HelpCommand&, const HelpOption& option, std::vector<std::string> arguments) {
    if (!option.IsFlag()) return;
    arguments.push_back(option.name + "=0");
    ExpectNamed(arguments, option.name.substr(2));
  });
}

TEST(EveryNumber, ThatIsNotPlainlyOne_IsAnError) {
  ForEveryOption([](const HelpCommand&, const HelpOption& option, const std::vector<std::string>& arguments) {
    if (!option.IsNumber()) return;
    // A few for each, all of them over all the numbers that there are.
    constexpr std::array kForms = {"-1",  "010", "0x10", "1e3", " 5",      "+5",   "5x",    "18446744073709551616",
                                   "1.0", "5 ",  "0b1",  "00",  "-0",      "five", "1'000", "-9223372036854775809",
                                   "1_0", "nan", "--",   "0 1", "\xd9\xa3"};
    static size_t next = 0;
    for (int i = 0; i < 6; ++i) {
      std::vector<std::string> with = arguments;
      with.insert(with.end(), {option.name, kForms[next++ % kForms.size()]});
      ExpectNamed(with, option.name);
    }
  });
}

// A word that nothing is named, given to each option in turn: whoever answers with success never looked at it.
class Ignored : public testing::Test {
 protected:
  void SetUp() override {
    WriteWhole(folder_.File("c.toml"), kContract);
    WriteWhole(folder_.File("t.toml"), "version = 1\n[parameters]\nwte = \"f32[8, 4]\"\n");
    here_.folder = folder_.path();
    ASSERT_EQ(Tessera({"plan", "c.toml", "--out", "p.plan"}, here_).exit_code, 0);
    ASSERT_EQ(Tessera({"run", "c.toml", "--receipt", "r.json"}, here_).exit_code, 0);
  }
  TemporaryFolder folder_;
  ProgramOptions here_;
};

TEST_F(Ignored, NoOption_ByAnyInput) {
  const std::map<std::string, std::vector<std::vector<std::string>>> inputs = {
      {"plan", {{"c.toml"}, {"p.plan"}}},
      {"explain", {{"c.toml"}, {"p.plan"}, {"--policy"}, {"c.toml", "--at", "1,1"}, {"c.toml", "--json"}}},
      {"route", {{"c.toml"}}},
      {"run", {{"c.toml"}, {"--from-receipt", "r.json"}}},
      {"compile", {{"c.toml", "--emit", "programs"}}},
      {"tpu-cost", {{"c.toml"}}},
      {"verify", {{"c.toml"}, {"p.plan"}, {"full-97-f32"}, {"--list"}}},
      {"bench planner", {{"c.toml", "--repeat", "1"}}},
      {"bench run", {{"c.toml", "--repeat", "1"}}},
      {"bench", {{"--stability", "--batches", "1"}}},
      {"lanes", {{}, {"c.toml"}, {"--moba", "auto"}}},
      {"export", {{"c.toml", "--to", "flex"}, {"c.toml", "--to", "splash"}}},
      {"view", {{"c.toml", "--no-open"}, {"p.plan", "--no-open"}}},
      {"demo", {{}}},
      {"ledger decide", {{"c.toml"}}},
      {"ledger advise", {{"c.toml"}}},
      {"shard show", {{"t.toml", "--mesh", "data=2"}}},
      {"shard check", {{"t.toml", "--mesh", "data=2"}}},
      {"shard run", {{"c.toml", "--mesh", "context=2"}}},
      {"shard compile", {{"c.toml", "--topology", "v6e:2x2", "--emit", "programs"}}},
  };
  for (const HelpCommand& command : AllCommands()) {
    const auto found = inputs.find(command.Text());
    if (found == inputs.end()) continue;
    for (const std::vector<std::string>& input : found->second) {
      for (const HelpOption& option : command.options) {
        const bool is_given = std::find(input.begin(), input.end(), option.name) != input.end();
        const bool is_output = option.name == "--out" || option.name == "--dense" || option.name == "--svg" ||
                               option.name == "--emit" || (option.name == "--receipt" && command.Text() != "view");
        // A run goes on without its ledger, and its receipt says so (docs/ledger.md).
        const bool is_ledger = command.Text() == "run" && option.name == "--ledger";
        if (option.IsFlag() || option.is_positional || is_given || is_output || is_ledger) continue;
        std::vector<std::string> arguments = command.words;
        arguments.insert(arguments.end(), input.begin(), input.end());
        arguments.insert(arguments.end(), {option.name, "nosuch"});
        const ProgramResult result = Tessera(arguments, here_);
        const bool is_answered = result.exit_code != 0 || result.out.find("nosuch") != std::string::npos;
        EXPECT_TRUE(is_answered) << testing::PrintToString(arguments);
      }
    }
  }
}

TEST_F(Ignored, WhatHasNoUse_IsNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::vector<std::string>>>> rows = {
      {{"plan", "p.plan"},
       {{"--out", "x"},
        {"--batch", "x"},
        {"--tile", "16x16"},
        {"--disable", "balance"},
        {"--verify-stages"},
        {"--widen-class"},
        {"--seed", "1"},
        {"--inputs", "x"}}},
      {{"plan", "c.toml"}, {{"--seed", "1"}, {"--inputs", "x"}}},
      {{"explain", "c.toml"}, {{"--seed", "1"}, {"--inputs", "x"}}},
      {{"explain", "p.plan"},
       {{"--target", "cpu"}, {"--batch", "x"}, {"--tile", "16x16"}, {"--verify-stages"}, {"--seed", "1"}}},
      {{"explain", "--policy"},
       {{"c.toml"}, {"--at", "1,1"}, {"--ascii"}, {"--head", "0"}, {"--dense", "x"}, {"--svg", "x"}}},
      {{"explain", "c.toml", "--at", "1,1"}, {{"--dump", "shrink"}, {"--cleanups", "3"}, {"--ascii"}}},
      {{"explain", "c.toml", "--dump", "shrink"}, {{"--cleanups", "3"}, {"--ascii"}, {"--head", "0"}}},
      {{"explain", "c.toml", "--json"}, {{"--cleanups", "3"}, {"--ascii"}, {"--batch-row", "0"}}},
      {{"verify", "p.plan"},
       {{"--lane", "cpu"},
        {"--target", "cpu"},
        {"--batch", "x"},
        {"--seed", "2"},
        {"--backward"},
        {"--threads", "1"},
        {"--isa", "auto"}}},
      {{"verify", "full-97-f32"}, {{"--batch", "x"}}},
      {{"verify", "--list"}, {{"--all"}, {"c.toml"}, {"--seed", "1"}, {"--backward"}}},
      {{"verify", "--all"}, {{"c.toml"}, {"--batch", "x"}}},
      {{"lanes", "c.toml"}, {{"--lane", "cpu"}, {"--plugin", "x"}}},
      {{"lanes"}, {{"--batch", "x"}, {"--documents", "3"}, {"--valid", "3"}}},
      {{"verify", "full-97-f32"}, {{"--documents", "3"}, {"--valid", "3"}}},
      {{"plan", "p.plan"}, {{"--documents", "3"}, {"--valid", "3"}}},
      {{"lanes", "--moba", "auto"}, {{"c.toml"}, {"--lane", "cpu"}, {"--target", "cpu"}, {"--plugin", "x"}}},
      {{"run", "c.toml"},
       {{"--plugin", "x"}, {"--device", "0"}, {"--xla-level", "1"}, {"--experimental"}, {"--tpu-backward", "apart"}}},
      {{"compile", "c.toml", "--emit", "programs"}, {{"--tpu-backward", "apart"}}},
      {{"run", "c.toml", "--lane", "reference"},
       {{"--plugin", "x"}, {"--device", "0"}, {"--ledger", "x"}, {"--experimental"}}},
      {{"run", "--from-receipt", "r.json"},
       {{"--seed", "1"},
        {"--backward"},
        {"--lane", "cpu"},
        {"--ledger", "x"},
        {"--plugin", "x"},
        {"--device", "0"},
        {"--xla-level", "0"},
        {"--verify-stages"},
        {"--tile", "16x16"},
        {"--target", "cpu"},
        {"--strict"},
        {"--class"}}},
      {{"bench", "run", "c.toml", "--repeat", "1"}, {{"--plugin", "x"}, {"--xla-level", "1"}}},
      {{"verify", "c.toml"}, {{"--plugin", "x"}, {"--device", "0"}}},
      {{"export", "c.toml", "--to", "flex"}, {{"--direction", "dkv"}, {"--mask", "stored"}, {"--batch-row", "0"}}},
      {{"export", "c.toml", "--to", "pallas"}, {{"--direction", "forward"}, {"--mask", "stored"}}},
      {{"demo"}, {{"--plugin", "x"}, {"--device", "0"}}},
      {{"view", "p.plan", "--no-open"}, {{"--batch", "x"}, {"--target", "cpu"}, {"--seed", "1"}, {"--verify-stages"}}},
      {{"view", "--receipt", "r.json", "--no-open"}, {{"--batch", "x"}, {"--tile", "16x16"}}},
  };
  const size_t files = folder_.NumFiles();
  for (const auto& [command, unused] : rows) {
    for (const std::vector<std::string>& option : unused) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), option.begin(), option.end());
      ExpectNamed(arguments, option[0] == "c.toml" ? "has no use with" : option[0], here_);
    }
  }
  EXPECT_EQ(folder_.NumFiles(), files) << "a refused command left a file";
}

TEST_F(Ignored, NoEndOfAFile) {
  const std::string contract = kContract;
  std::string with_batch = contract;
  with_batch.replace(with_batch.find("causal"), 6, "valid");
  WriteWhole(folder_.File("v.toml"), with_batch);
  const std::string batch = R"({"valid_tokens": 20})";
  const std::string receipt = ReadWhole(folder_.File("r.json"));
  const std::string tensors = ToSafetensors({{"valid_tokens", Tensor::Zeros(ElementType::kI32, {1})}});
  const std::string json_contract = R"({"version": 1, "shape": {"q_len": 8, "dim_qk": 8}, "mask": {"expr": "causal"}})";
  WriteWhole(folder_.File("good.json"), json_contract);
  ASSERT_EQ(Tessera({"plan", "good.json"}, here_).exit_code, 0);
  for (const std::string& more :
       {std::string("\0", 1), std::string("\0{}", 3), std::string("\n\0 more", 7), std::string("{}")}) {
    const auto with = [&](const std::string& text, std::vector<std::string> arguments) {
      WriteWhole(folder_.File("more"), text + more);
      arguments.push_back("more");
      const ProgramResult result = Tessera(arguments, here_);
      EXPECT_NE(result.exit_code, 0) << testing::PrintToString(arguments) << testing::PrintToString(more);
      EXPECT_EQ(result.err.rfind("tessera: TSR-", 0), 0u) << result.err;
    };
    with(json_contract, {"plan"});
    with(contract, {"plan"});
    with(batch, {"plan", "v.toml", "--batch"});
    with(tensors, {"plan", "v.toml", "--batch"});
    with(receipt, {"receipt", "show"});
    with("{\n\"version\": 2,\n\"entries\": []\n}", {"ledger", "show", "--ledger"});
    with(ReadWhole(folder_.File("p.plan")), {"verify", "--json"});
  }
  // A header of tensors that ends before it says it does.
  std::string header = tensors;
  const size_t end = header.find("}}") + 2;
  ASSERT_LT(end, header.size());
  if (header[end] == ' ') {
    header[end] = '\0';
    WriteWhole(folder_.File("more"), header);
    EXPECT_EQ(Tessera({"plan", "v.toml", "--batch", "more"}, here_).exit_code, 2);
  }
  WriteWhole(folder_.File("slots.json"), R"({"valid_slots": [9], "base_block_tokens": 4})");
  const ProgramResult slots = Tessera({"plan", "v.toml", "--batch", "slots.json"}, here_);
  EXPECT_EQ(slots.exit_code, 2);
  EXPECT_NE(slots.err.find("valid_slots[0]"), std::string::npos) << slots.err;
}

}  // namespace
}  // namespace tessera
