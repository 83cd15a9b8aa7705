// A mask that lets through what it names a rule against is said to, wherever a person looks at the contract.
#include "program_test.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr const char* kLater =
    "note          head 0 lets query 0 see key 1, which is later, although the mask names causal\n";

std::string ContractFile(const TemporaryFolder& folder, const std::string& mask) {
  const std::string file = folder.File("contract.toml");
  EXPECT_TRUE(WriteFile(file, "version = 1\n[shape]\nq_len = 64\ndim_qk = 8\n[mask]\nexpr = \"" + mask + "\"\n"));
  return file;
}

TEST(LeakNotes, LeakingMask_IsNotedByExplainPlanAndRun) {
  const TemporaryFolder folder;
  const std::string contract = ContractFile(folder, "causal and window(7, 0) or sink(2)");
  for (const char* command : {"explain", "plan", "run"}) {
    const ProgramResult people = Tessera({command, contract});
    EXPECT_EQ(people.exit_code, 0) << people.err;
    EXPECT_NE(people.out.find(kLater), std::string::npos) << command << ": " << people.out;
    const ProgramResult json = Tessera({command, contract, "--json"});
    OnlyDocument(json);
    EXPECT_NE(json.err.find(kLater), std::string::npos) << command << ": " << json.err;
  }
}

TEST(LeakNotes, SoundMask_IsNotNoted) {
  const TemporaryFolder folder;
  const std::string contract = ContractFile(folder, "causal and (window(7, 0) or sink(2))");
  for (const char* command : {"explain", "plan", "run"}) {
    const ProgramResult people = Tessera({command, contract});
    EXPECT_EQ(people.exit_code, 0) << people.err;
    EXPECT_EQ(people.out.find("note "), std::string::npos) << command << ": " << people.out;
  }
}

}  // namespace
}  // namespace tessera
