// What long runs say while they are waited for: which step, how much of it is done, how fast, and how long it will
// take.
#include <regex>
#include <vector>

#include "program_test.h"

namespace tessera {
namespace {

constexpr const char* kCounts = R"( [\d,]+ of [\d,]+ (tiles|rows), [\d,.]+ a second, \d+ s left\n)";

// Longer and longer rows, until the command was slow enough here to have said everything at one time or another. Lines
// come after 1, 2, 4, 8 ... seconds.
std::string SaidBy(std::vector<std::string> arguments, const std::vector<std::string>& expected) {
  std::string said;
  for (const char* length : {"512", "1024", "2048", "4096"}) {
    std::vector<std::string> command = arguments;
    command[1] = "causal:" + std::string(length) + ":d64";
    const ProgramResult result = Tessera(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    said += result.err;
    bool has_all = true;
    for (const std::string& one : expected) has_all = has_all && std::regex_search(said, std::regex(one));
    if (has_all) return {};
  }
  return said;
}

TEST(Progress, Verify_SaysStepsRowsTilesRateAndTimeLeft) {
  EXPECT_EQ(SaidBy({"verify", "", "--lane", "reference", "--backward", "--progress"},
                   {std::string("verifying causal:\\d+:d64 \\.\\.\\. \\d+ s; backward") + kCounts,
                    std::string("; checking the outputs") + kCounts}),
            "");
}

TEST(Progress, Check_SaysRowsRateAndTimeLeft) {
  EXPECT_EQ(SaidBy({"run", "", "--backward", "--check", "--progress"},
                   {std::string("checking the outputs \\.\\.\\. \\d+ s;") + kCounts}),
            "");
}

// Where a person does not watch and did not ask, nothing is said.
TEST(Progress, UnaskedInALog_IsSilent) {
  const ProgramResult result = Tessera({"verify", "causal:1024:d64", "--lane", "reference", "--backward"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace tessera
