// `tessera new` hands out contracts that are good, and `tessera error` knows every code and reason there is.
#include <fmt/format.h>

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
